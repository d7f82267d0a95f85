"""What a terminal shows that a pipe does not, on real pseudo-terminals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from istio_aux.cli import render
from istio_aux.cli.render import Cell, Style, Terminal
from unit.core.pods import RUNNING, document, exited, waiting
from unit.screens import Run, Screen, run

__all__ = ["run"]

GREEN, FAINT = "\x1b[32m", "\x1b[2m"


@pytest.fixture
def pods(tmp_path: Path) -> str:
    """A file with a pod to quit, and one to leave alone."""
    file = tmp_path / "pods.json"
    found = [
        document({"main": exited(0, "Completed"), "istio-proxy": RUNNING}),
        document({"main": RUNNING}),
    ]
    file.write_text("\n".join(map(json.dumps, found)))
    return str(file)


def test_explain_tells_a_person_in_a_terminal(
    run: Run, pods: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A headline, and an aligned table of the containers."""
    monkeypatch.setenv("NO_COLOR", "1")
    shown = run("explain", "-f", pods)
    assert (shown.status, shown.err) == (0, "")
    assert (
        shown.out
        == """\
training/job-x7k2p  QUIT  every payload container is finished
  CONTAINER    ROLE     FINISHED  WHY
  main         payload  yes       exited 0 (Completed), not restarted (restartPolicy Never)
  istio-proxy  sidecar  no        running

training/job-x7k2p  IGNORE  the pod has no container istio-proxy
  CONTAINER  ROLE     FINISHED  WHY
  main       payload  no        running
"""
    )


def test_explain_says_how_a_pod_was_started(run: Run, tmp_path: Path) -> None:
    """T31: and when that had no effect."""
    file = tmp_path / "pod.json"
    annotations = {"istio-aux.io/started-with": "hold"}
    file.write_text(json.dumps(document({"main": RUNNING}, annotations=annotations)))
    start = "asked for hold, but no container is called istio-proxy"

    assert f"\n  start: {start}\n" in run("explain", "-f", str(file)).out
    assert json.loads(run("explain", "-f", str(file), columns=None).out)["start"] == start


@pytest.mark.parametrize(("output", "columns", "start"), [("json", 100, "{"), ("text", None, "t")])
def test_explain_does_as_it_is_asked(
    run: Run, pods: str, output: str, columns: int | None, start: str
) -> None:
    """JSON in a terminal, text in a pipe; neither has colours that were not asked for."""
    shown = run("explain", "-f", pods, "-o", output, columns=columns)
    assert shown.out.startswith(start)
    assert "\x1b" not in shown.out


def test_a_terminal_shows_colours(run: Run, pods: str) -> None:
    shown = run("explain", "-f", pods)
    assert f"{GREEN}QUIT\x1b[0m" in shown.out
    assert f"{FAINT}IGNORE\x1b[0m" in shown.out


@pytest.mark.parametrize(
    ("environ", "columns", "coloured"),
    [
        ({"NO_COLOR": "1"}, 100, False),
        ({"NO_COLOR": ""}, 100, True),
        ({"TERM": "dumb"}, 100, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, 100, True),
        ({"FORCE_COLOR": "1"}, None, True),
        ({"FORCE_COLOR": ""}, None, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, 100, False),
        ({}, None, False),
    ],
)
def test_the_environment_has_a_say_in_colours(
    run: Run,
    pods: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    environ: dict[str, str],
    columns: int | None,
    coloured: bool,
) -> None:
    """no-color.org and force-color.org: an empty value counts as none."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    shown = run("explain", "-o", "text", "-f", pods, columns=columns)
    assert ("\x1b[" in shown.out) is coloured


def test_the_text_of_strangers_moves_no_cursor(run: Run, tmp_path: Path) -> None:
    """Names, annotations and states stand in the answer; in a terminal they are text, no more."""
    file = tmp_path / "pod.json"
    file.write_text(
        json.dumps(document({"main": waiting("\x1b[2J\r\u202e"), "istio-proxy": RUNNING}))
    )
    shown = run("explain", "-f", str(file))
    assert "\x1b[2J" not in shown.out
    assert r"waiting: \x1b[2J\r\u202e" in shown.out


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("finished", 8, "finished"),
        ("finished", 7, "finish…"),
        ("not finished", 5, "not…"),
    ],
)
def test_text_is_cut_to_a_width(text: str, width: int, expected: str) -> None:
    assert render.clipped(text, width) == expected


def test_a_table_keeps_some_of_its_last_column_in_a_narrow_terminal() -> None:
    """Lines that wrap are better than reasons of two letters."""
    rows = [[Cell("a" * 30), Cell("b" * 30)]]
    assert list(Terminal(width=10).table(rows, fit=True)) == [f"{'a' * 30}  {'b' * 19}…"]


def test_columns_are_aligned_whatever_their_colour() -> None:
    rows = [[Cell("a", Style.GOOD), Cell("b")], [Cell("long"), Cell("c")]]
    assert list(Terminal(colour=True).table(rows)) == [f"{GREEN}a\x1b[0m     b", "long  c"]


@pytest.mark.parametrize(
    ("columns", "environ", "width"),
    [(0, {}, None), (90, {}, 90), (90, {"COLUMNS": "40"}, 40), (90, {"COLUMNS": "0"}, 90)],
)
def test_a_table_fits_the_width_that_is_known(
    columns: int, environ: dict[str, str], width: int | None
) -> None:
    """A pseudo-terminal that nobody has given a size says 0: all is shown."""
    screen = Screen(columns)
    rows = [[Cell("a"), Cell("b" * 300)]]
    [line] = Terminal.of(screen.stream, environ).table(rows, fit=True)
    screen.close()
    assert len(line) == (303 if width is None else width)


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    """`LC_ALL=en_US.ISO-8859-1`: there is no ellipsis in it."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="latin-1")
    render.write(stream, "ü…")
    assert buffer.getvalue() == b"\xfc?\n"
    stream.detach()
