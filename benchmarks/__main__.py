"""The command line: ``python -m benchmarks quit|admission|hooks [--quick] [--results FOLDER]``.

``quit`` and ``hooks`` also take ``--before CHECKOUT``; ``hooks`` needs root.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.errors import LabError

from benchmarks import admission, hooks
from benchmarks import quit as quitting
from benchmarks.conversation import MeasurementError

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run one benchmark; returns 0 when it could measure, whatever it measured, and 1 if not."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=("quit", "admission", "hooks"), help="what to measure")
    parser.add_argument(
        "--quick", action="store_true", help="a few pods, in seconds: shows that it runs, no more"
    )
    parser.add_argument(
        "--results", type=Path, help="where the files go; default: benchmarks/results, if not quick"
    )
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT",
        help="quit, hooks: measure another checkout as well, in the same run",
    )  # fmt: skip
    options = parser.parse_args()
    if options.before and options.benchmark == "admission":
        parser.error("--before: the admission benchmark compares no checkouts")
    if options.before and not (options.before / "workload/src/istio_aux").is_dir():
        parser.error(f"--before: {options.before} has no workload/src/istio_aux")
    folder = options.results or (None if options.quick else RESULTS)
    try:
        if options.benchmark == "quit":
            sizes = quitting.QUICK if options.quick else quitting.WHOLE
            quitting.main(sizes, folder, options.before)
        elif options.benchmark == "hooks":
            hooks.main(quick=options.quick, results=folder, before=options.before)
        else:
            admission.main(admission.QUICK if options.quick else admission.WHOLE, folder)
    except (MeasurementError, LabError, TimeoutError, ChildProcessError) as error:
        print(f"benchmarks: could not measure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
