"""Logging as `serve` has it, for the time of a block."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, TypeVar

from istio_aux import telemetry

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
