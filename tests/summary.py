"""Print how many tests each tier ran, from the JUnit files of a run.

    python tests/summary.py FOLDER

What goes in: a folder of `<tier>.xml` files. What comes out: one line a tier, and one
for all.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    """Tests of one tier, by how they ended."""

    passed: int
    failed: int
    skipped: int

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def count(report: Path) -> tuple[Count, float]:
    """Read one JUnit file: its counts and how many seconds the tests took."""
    suites = ET.parse(report).getroot().iter("testsuite")
    passed = failed = skipped = 0
    seconds = 0.0
    for suite in suites:
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        failed += bad
        skipped += int(suite.get("skipped", 0))
        passed += int(suite.get("tests", 0)) - bad - int(suite.get("skipped", 0))
        seconds += float(suite.get("time", 0))
    return Count(passed, failed, skipped), seconds


def summarize(folder: Path) -> None:
    total = Count(0, 0, 0)
    for report in sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime):
        counts, seconds = count(report)
        print(f"{report.stem:>8}  {counts} in {seconds:.0f} s")
        total = Count(*(a + b for a, b in zip(total, counts, strict=True)))
    print(total)


if __name__ == "__main__":
    summarize(Path(sys.argv[1]))
