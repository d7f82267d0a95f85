"""What a process tells: its log, as `serve` has it, for the time of a block, and its metrics."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

from istio_aux import telemetry
from istio_aux.kube.access import Access
from istio_aux.settings import DEFAULTS
from istio_aux.telemetry import Telemetry
from istio_aux.wiring import Wiring
from msgspec import structs

S = TypeVar("S", bound=BinaryIO)


@contextmanager
def logging_to(stream: S) -> Iterator[S]:
    """All goes to ``stream``, which is closed afterwards, and then where it went before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    telemetry.log_to(stream, "info")
    try:
        with stream:
            yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(capture=False)


def counted(told: Telemetry, series: str) -> float:
    """The sum of all series whose text begins like that; there is at least one."""
    lines = told.render().decode().splitlines()
    found = [float(line.split()[-1]) for line in lines if line.startswith(series)]
    assert found, series
    return sum(found)


def metrics() -> str:
    """All metrics of a new process, which does not lead yet."""
    access = Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: "")
    elected = structs.replace(DEFAULTS, lease=("istio-aux", "istio-aux"))
    return Wiring(elected, access).telemetry.render().decode()
