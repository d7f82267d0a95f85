"""What the process tells: log lines and metrics."""

from __future__ import annotations

import io
import json
import logging
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
    logging.getLogger("aiohttp.server").error("oops")
    assert lines(log)[0]["event"] == "aiohttp.server"


def test_a_value_that_json_does_not_know_is_shown_as_text(log: io.BytesIO) -> None:
    logging.getLogger("any").info("x", extra={"what": ValueError("odd")})
    assert lines(log)[0]["what"] == "odd"


def test_an_error_with_its_traceback_is_still_one_line(log: io.BytesIO) -> None:
    try:
        int("odd")
    except ValueError:
        logging.getLogger("any").exception("oops")
    (line,) = lines(log)
    assert line["traceback"].splitlines()[-1].startswith("ValueError: invalid literal")


def test_what_is_below_the_level_is_not_logged(log: io.BytesIO) -> None:
    logging.getLogger("any").debug("quiet")
    assert lines(log) == []


@pytest.mark.parametrize(
    "name",
    [
        'istio_aux_quits_total{outcome="exited",rung="exec"}',
        'istio_aux_quits_total{outcome="gone",rung="none"}',
        'istio_aux_quit_attempts_total{rung="port-forward"}',
        'istio_aux_dead_proxies_total{action="delete-failed"}',
        "istio_aux_blocked_pods",
        "istio_aux_lost_pods",
        "istio_aux_would_quit_pods",
        "istio_aux_leader",
        "istio_aux_stuck_pods",
        "istio_aux_watched_pods",
        'istio_aux_injectors{state="no-endpoint"}',
        'istio_aux_injector_probes_total{outcome="refused",way="dry-run"}',
        "istio_aux_unmeshed_pods",
        "istio_aux_unreadable_objects",
        'istio_aux_sidecar_restarts_total{outcome="evicted"}',
        'istio_aux_watch_restarts_total{reason="expired"}',
        'istio_aux_admission_reviews_total{outcome="hold"}',
        'istio_aux_admission_reviews_total{outcome="busy"}',
        "istio_aux_admission_connections",
        'istio_aux_admission_connections_closed_total{reason="idle"}',
        "istio_aux_admission_seconds_count",
        "istio_aux_payload_exit_to_proxy_exit_seconds_count",
        "istio_aux_internal_errors_total",
    ],
)
def test_a_metric_is_there_before_anything_happened(name: str) -> None:
    """An alert on its rise would miss the first time otherwise."""
    assert f"\n{name} 0.0\n" in telemetry.Telemetry().render().decode()


@pytest.mark.parametrize("outcome", review.Outcome)
def test_each_answer_to_a_review_is_a_series_before_it_is_given(outcome: review.Outcome) -> None:
    name = f'istio_aux_admission_reviews_total{{outcome="{outcome}"}}'
    assert f"\n{name} 0.0\n" in telemetry.Telemetry().render().decode()


def test_the_process_itself_is_measured() -> None:
    assert b"process_resident_memory_bytes" in telemetry.Telemetry().render()
