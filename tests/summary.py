"""Print how many tests each tier ran and which took longest, from the JUnit files of a run.

    python tests/summary.py FOLDER [--times [--most N]]

What goes in: a folder of `<tier>.xml` files. What comes out: one line a tier, one for all and the
three slowest tests; or, with `--times`, the slowest files and tests of each tier.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

Key = TypeVar("Key")


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


def times(report: Path) -> dict[tuple[str, str], float]:
    """Seconds of each test by its file and name. The first test of a fixture pays for all of it."""
    return {
        (f"{case.get('classname', '').replace('.', '/')}.py", case.get("name", "")): float(
            case.get("time", 0)
        )
        for case in ET.parse(report).getroot().iter("testcase")
    }


def slowest(seconds: Mapping[Key, float], most: int) -> list[tuple[Key, float]]:
    """The items with the most seconds, slowest first."""
    return sorted(seconds.items(), key=lambda item: item[1], reverse=True)[:most]


def reports(folder: Path) -> list[Path]:
    """The files, in the order in which the tiers ended."""
    return sorted(folder.glob("*.xml"), key=lambda path: path.stat().st_mtime)


def summarize(folder: Path) -> None:
    """Print the counts of every tier, and the three slowest tests of all."""
    total = Count(0, 0, 0)
    tests: dict[tuple[str, str], float] = {}
    for report in reports(folder):
        counts, seconds = count(report)
        print(f"{report.stem:>8}  {counts} in {seconds:.0f} s")
        total = Count(*(a + b for a, b in zip(total, counts, strict=True)))
        tests |= times(report)
    print(total)
    named = ", ".join(f"{name} {seconds:.0f} s" for (_, name), seconds in slowest(tests, 3))
    print(f"slowest: {named}; more of them: .venv/bin/tox run -q -e times")


def tabulate(folder: Path, most: int) -> None:
    """Print the slowest files and tests of every tier."""
    for report in reports(folder):
        tests, files = times(report), dict[str, float]()
        for (file, _), seconds in tests.items():
            files[file] = files.get(file, 0) + seconds
        _, wall = count(report)
        print(f"{report.stem}: {wall:.0f} s, of which its tests {sum(files.values()):.0f} s")
        for file, seconds in slowest(files, most):
            print(f"{seconds:8.1f}  {file}")
        for (file, name), seconds in slowest(tests, most):
            print(f"{seconds:8.1f}  {Path(file).name}::{name}")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description="How long tests took.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", action="store_true", help="the slowest of each tier")
    parser.add_argument("--most", type=int, default=10, help="how many of them; default 10")
    arguments = parser.parse_args()
    if arguments.times:
        tabulate(arguments.folder, arguments.most)
    else:
        summarize(arguments.folder)


if __name__ == "__main__":
    main()
