"""Whether this is a run of the night, which has time for what `make test` leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

NIGHTLY = bool(os.environ.get("NIGHTLY"))
"""True with NIGHTLY=1: `tests/conftest.py` then keeps tests marked `nightly("why")`."""
_TODAY = datetime.now(UTC).date().toordinal()
_ASKED = os.environ.get("NIGHTLY", "")
NIGHT = int(_ASKED) if _ASKED.isdecimal() and int(_ASKED) > 1 else _TODAY
"""The day's number, which chooses what this night samples; NIGHTLY=739000 is that night again."""
_KEPT = Path(__file__).parents[2] / "test-results" / "night.txt"


def sampled(again: str, findings: Iterable[object]) -> list[str]:
    """Write down the command that plays this again, and what it found; returns the findings.

    CI keeps the file with the results of the tests.
    """
    found = [str(each) for each in findings]
    _KEPT.parent.mkdir(exist_ok=True)
    with _KEPT.open("a") as file:
        file.write("\n".join([f"{again}: {'NOT GOOD' if found else 'good'}", *found, ""]))
    return found
