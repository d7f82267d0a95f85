"""How much work something is: the lines that run, which are the same on each machine."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(work: Callable[[], object], file: str = "") -> int:
    """Do the work; returns how many lines of Python run, in all files or in one."""
    lines, before = itertools.count(), sys.gettrace()

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if file not in {"", frame.f_code.co_filename}:
            return None
        next(lines)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return next(lines)
