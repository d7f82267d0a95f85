"""What a terminal shows that a pipe does not, on real pseudo-terminals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from istio_aux.cli import render
from istio_aux.cli.render import Cell, Style, Terminal
from unit.rules.pods import RUNNING, document, exited, waiting
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


def test_explain_does_as_it_is_asked_and_a_terminal_shows_colours(run: Run, pods: str) -> None:
    """JSON in a terminal, text in a pipe; neither has colours that were not asked for."""
    json_in_a_terminal = run("explain", "-f", pods, "-o", "json").out
    text_in_a_pipe = run("explain", "-f", pods, "-o", "text", columns=None).out
    assert (json_in_a_terminal[0], text_in_a_pipe[0]) == ("{", "t")
    assert "\x1b" not in json_in_a_terminal + text_in_a_pipe
    shown = run("explain", "-f", pods).out
    assert f"{GREEN}QUIT\x1b[0m" in shown
    assert f"{FAINT}IGNORE\x1b[0m" in shown


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


def test_a_reason_wraps_in_its_column_or_below_its_row_if_that_is_too_narrow() -> None:
    """Names of people and pods are long, and a reason that is cut says nothing."""
    rows = [[Cell("pod"), Cell("not finished: cloud-sql-proxy (running)")], [Cell("b"), Cell("no")]]
    beside, below = (
        list(Terminal(width=width).table(rows, indent=indent))
        for width, indent in ((46, " "), (44, "  "))
    )
    assert beside == [" pod  not finished: cloud-sql-proxy (running)", " b    no"]
    words = ["      not finished: cloud-sql-proxy", "      (running)"]
    assert below == ["  pod", *words, "  b    no"]
    rows = [[Cell("a", Style.GOOD), Cell("b")], [Cell("long"), Cell("c")]]
    coloured = list(Terminal(colour=True).table(rows))
    assert coloured == [f"{GREEN}a\x1b[0m     b", "long  c"], "colours take no columns"


def test_no_line_is_wider_than_the_terminal_and_no_word_of_a_reason_is_lost() -> None:
    reason = "istio-proxy exited 137 (OOMKilled), but not finished: main (running) " * 3
    for width in (60, 80, 100):
        [first, *others] = Terminal(width=width).table([[Cell("n" * 15), Cell(reason)]])
        assert max(map(len, [first, *others])) <= width
        assert " ".join([first[15:], *others]).split() == reason.split()


@pytest.mark.parametrize(
    ("columns", "environ", "width"),
    [(0, {}, None), (90, {}, 90), (90, {"COLUMNS": "40"}, 40), (90, {"COLUMNS": "0"}, 90)],
)
def test_a_table_fits_the_width_that_is_known(
    columns: int, environ: dict[str, str], width: int | None
) -> None:
    """A pseudo-terminal that nobody has given a size says 0: all is shown."""
    screen = Screen(columns)
    rows = [[Cell("a"), Cell("b " * 300)]]
    lines = list(Terminal.of(screen.stream, environ).table(rows))
    screen.close()
    longest = max(map(len, lines))
    assert (longest > 600) if width is None else (width - 2 <= longest <= width)


def test_an_encoding_that_lacks_a_character_is_no_error() -> None:
    """`LC_ALL=en_US.ISO-8859-1`: there is no ellipsis in it."""
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding="latin-1")
    render.write(stream, "ü…")
    assert buffer.getvalue() == b"\xfc?\n"
    stream.detach()
