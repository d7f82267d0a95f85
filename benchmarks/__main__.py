"""The command line: ``python -m benchmarks quit|admission [--quick] [--results FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import admission
from benchmarks import quit as quitting
from benchmarks.conversation import MeasurementError

BENCHMARKS = {
    "quit": (quitting.main, quitting.WHOLE, quitting.QUICK),
    "admission": (admission.main, admission.WHOLE, admission.QUICK),
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run one benchmark; returns 0 when it could measure, whatever it measured, and 1 if not."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=BENCHMARKS, help="what to measure")
    parser.add_argument(
        "--quick", action="store_true", help="a few pods, in seconds: shows that it runs, no more"
    )
    parser.add_argument(
        "--results", type=Path, help="where the files go; default: benchmarks/results, if not quick"
    )
    options = parser.parse_args()
    folder = options.results or (None if options.quick else RESULTS)
    try:
        run, whole, quick = BENCHMARKS[options.benchmark]
        run(quick if options.quick else whole, folder)
    except (MeasurementError, TimeoutError, ChildProcessError) as error:
        print(f"benchmarks: could not measure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
