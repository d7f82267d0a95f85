"""The command line: ``python -m benchmarks quit|admission|burst [--quick] [--results FOLDER]``.

``quit`` also takes ``--before CHECKOUT``, and ``burst`` ``--jobs NUMBER``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.errors import LabError
from msgspec import structs

from benchmarks import admission, burst
from benchmarks import quit as quitting
from benchmarks.conversation import MeasurementError

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run one benchmark; returns 0 when it could measure, whatever it measured, and 1 if not."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=("quit", "admission", "burst"), help="what to measure")
    parser.add_argument(
        "--quick", action="store_true", help="a few pods, in seconds: shows that it runs, no more"
    )
    parser.add_argument(
        "--results", type=Path, help="where the files go; default: benchmarks/results, if not quick"
    )
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT",
        help="quit: measure the workload of another checkout as well, in the same run",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, metavar="NUMBER",
        help=f"burst: Jobs that end at once, {burst.WHOLE.jobs} unless it is said",
    )  # fmt: skip
    options = parser.parse_args()
    if options.before and options.benchmark != "quit":
        parser.error("--before: only the quit benchmark compares checkouts")
    if options.before and not (options.before / "workload/src/istio_aux").is_dir():
        parser.error(f"--before: {options.before} has no workload/src/istio_aux")
    if options.jobs is not None and options.benchmark != "burst":
        parser.error("--jobs: only the burst benchmark has Jobs")
    if options.jobs is not None and not 1 <= options.jobs <= burst.MOST:
        parser.error(f"--jobs: {options.jobs}: expected 1 to {burst.MOST}")
    folder = options.results or (None if options.quick else RESULTS)
    try:
        if options.benchmark == "quit":
            sizes = quitting.QUICK if options.quick else quitting.WHOLE
            quitting.main(sizes, folder, options.before)
        elif options.benchmark == "burst":
            sizes = burst.QUICK if options.quick else burst.WHOLE
            burst.main(structs.replace(sizes, jobs=options.jobs or sizes.jobs), folder)
        else:
            admission.main(admission.QUICK if options.quick else admission.WHOLE, folder)
    except (MeasurementError, TimeoutError, ChildProcessError, LabError) as error:
        print(f"benchmarks: could not measure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
