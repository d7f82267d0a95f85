"""What the process tells: log lines and metrics."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from istio_aux import telemetry
from istio_aux.start import review
from unit.logged import logging_to


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    """Where logging goes; afterwards it goes again where it went before."""
    with logging_to(io.BytesIO()) as stream:
        yield stream


def lines(log: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_log_line_is_one_object_with_what_the_call_gave(log: io.BytesIO) -> None:
    extra = {"event": "decision", "namespace": "training", "reason": "it is\nover"}
    logging.getLogger("any").info("training/%s", "job", extra=extra)
    (line,) = lines(log)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "event": "decision", "message": "training/job",
        "namespace": "training", "reason": "it is\nover",
    }  # fmt: skip


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_line_is_written_before_the_call_returns(buffering: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(cast("BinaryIO", path.open("wb", buffering))):
        for number in (1, 2):
            logging.getLogger("any").warning("%d", number)
            assert len(path.read_bytes().splitlines()) == number


@pytest.mark.parametrize(
    ("created", "shown"),
    [
        (0.0, "1970-01-01T00:00:00.000+00:00"),
        (1e9 + 0.9996, "2001-09-09T01:46:40.999+00:00"),
        (1e9 + 0.0625, "2001-09-09T01:46:40.062+00:00"),
    ],
)
def test_times_have_milliseconds(created: float, shown: str, log: io.BytesIO) -> None:
    facts = {"created": created, "levelno": logging.INFO, "levelname": "INFO"}
    logging.getLogger().handle(logging.makeLogRecord(facts))
    assert lines(log)[0]["time"] == shown


def test_a_line_of_somebody_else_has_its_logger_as_event(log: io.BytesIO) -> None:
    """And a value that JSON does not know is shown as text; below the level nothing is logged."""
    logging.getLogger("any").debug("quiet")
    logging.getLogger("aiohttp.server").error("oops", extra={"what": ValueError("odd")})
    (line,) = lines(log)
    assert (line["event"], line["what"]) == ("aiohttp.server", "odd")


def test_an_error_with_its_traceback_is_still_one_line(log: io.BytesIO) -> None:
    try:
        int("odd")
    except ValueError:
        logging.getLogger("any").exception("oops")
    (line,) = lines(log)
    assert line["traceback"].splitlines()[-1].startswith("ValueError: invalid literal")


SERIES = [
    'quits_total{outcome="exited",rung="exec"}',
    'quits_total{outcome="gone",rung="none"}',
    'quit_attempts_total{rung="port-forward"}',
    'dead_proxies_total{action="delete-failed"}',
    'injectors{state="no-endpoint"}',
    'injector_probes_total{outcome="refused",way="dry-run"}',
    'sidecar_restarts_total{outcome="evicted"}',
    'watch_restarts_total{reason="expired"}',
    'admission_connections_closed_total{reason="idle"}',
    *(f'admission_reviews_total{{outcome="{each}"}}' for each in (*review.Outcome, "busy")),
]


def test_a_metric_is_there_before_anything_happened() -> None:
    """An alert on its rise would miss the first time otherwise."""
    shown = telemetry.Telemetry().render().decode()
    assert [name for name in SERIES if f"\nistio_aux_{name} 0.0\n" not in shown] == []
    families = set(re.findall(r"(?m)^# TYPE istio_aux_(\w+)", shown))
    assert len(families) > 20
    found = set(re.findall(r"(?m)^istio_aux_(\w+?)(?:_count)?(?:\{.*\})? 0\.0$", shown))
    assert {name for name in families if not name.endswith("_created")} <= found
    assert "\nprocess_resident_memory_bytes " in shown
