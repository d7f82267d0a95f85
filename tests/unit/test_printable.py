"""What tenants write is text for people, whatever reads it: a terminal obeys none of it."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model.text import printable, printable_json
from unit.apiserver import ApiServer
from unit.asynchronous import until
from unit.logged import logging_to
from unit.rules.pods import RUNNING, document, exited
from unit.screens import Run
from unit.test_events import recording, tell

HOSTILE = {
    "escape": "\x1b[2J",
    "delete": "\x7f",
    "control sequence of C1": "\x9b2J",
    "next line of C1": "\x85",
    "override": "\u202e",
    "isolate": "\u2066",
    "zero width": "\u200b",
    "byte order mark": "\ufeff",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "tag beyond U+FFFF": "\U000e0041",
    "private": "\ue000",
}
hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def is_text(lines: str) -> bool:
    return bool(lines) and all(line.isprintable() for line in lines.split("\n"))


@hostile
@pytest.mark.parametrize("output", ["json", "text"])
def test_explain_shows_text(text: str, output: str, run: Run) -> None:
    pod = document(
        {f"main{text}": exited(0), "istio-proxy": RUNNING},
        annotations={"istio-aux.io/quit-grace": text},
    )
    pod["metadata"]["name"] = f"job{text}"
    _, out, _ = run("explain", "-o", output, "-f", "-", columns=None, stdin=json.dumps(pod))
    assert is_text(out)
    if output == "json":
        assert json.loads(out)["name"] == f"job{text}"


@hostile
@pytest.mark.parametrize("output", ["json", "yaml"])
def test_mutate_shows_text_and_its_warnings_are_text(text: str, output: str, run: Run) -> None:
    """Who reads the JSON or the YAML gets what was written."""
    pod = document({"main": None}, annotations={"istio-aux.io/start": text, "note": text})
    _, out, err = run("mutate", "-o", output, "-f", "-", columns=None, stdin=json.dumps(pod))
    assert is_text(out)
    assert is_text(err)
    read = json.loads if output == "json" else yaml.safe_load
    assert read(out)["metadata"]["annotations"]["note"] == text


@hostile
def test_a_log_line_is_text(text: str) -> None:
    with logging_to(io.BytesIO()) as log:
        logging.getLogger("any").warning("%s", text, extra={"reason": text})
        written = log.getvalue().decode()
    assert is_text(written)
    assert json.loads(written)["reason"] == text


@hostile
async def test_the_note_of_an_event_is_text(text: str) -> None:
    """`kubectl describe` shows it."""
    async with ApiServer() as api, recording(api) as recorder:
        tell(recorder, f"main{text}")
        await until(lambda: api.events, "the Event is there")
    assert is_text(api.events[0]["note"])


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_means_the_same_and_is_text(value: Any) -> None:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(
        errors="surrogatepass"
    )
    assert is_text(printable_json(body).decode())
    assert json.loads(printable_json(body)) == value


@given(st.text())
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text).isprintable()
    assert (printable(text) == text) is text.isprintable()
