"""The command line: ``python -m benchmarks quit|admission|scale [--quick] [--results FOLDER]``.

``quit`` and ``scale`` also take ``--before CHECKOUT``, and ``scale`` takes ``--pods N``
and ``--knob NAME``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import admission, scale, scale_knobs
from benchmarks import quit as quitting
from benchmarks.conversation import MeasurementError

RESULTS = Path(__file__).parent / "results"
FEWEST = 100  # Pods of which there are some of each kind.


def main() -> int:
    """Run one benchmark; returns 0 when it could measure, whatever it measured, and 1 if not."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("benchmark", choices=("quit", "admission", "scale"), help="what to measure")
    parser.add_argument(
        "--quick", action="store_true", help="a few pods, in seconds: shows that it runs, no more"
    )
    parser.add_argument(
        "--results", type=Path, help="where the files go; default: benchmarks/results, if not quick"
    )
    parser.add_argument(
        "--before", type=Path, metavar="CHECKOUT",
        help="quit, scale: measure the workload of another checkout as well, in the same run",
    )  # fmt: skip
    parser.add_argument(
        "--pods", type=int, metavar="N", help=f"scale: how many pods; default: {scale.WHOLE.pods}"
    )
    parser.add_argument(
        "--knob", choices=scale_knobs.LADDERS, help="scale: turn it until something gives"
    )
    options = parser.parse_args()
    if options.before and options.benchmark == "admission":
        parser.error("--before: the admission benchmark compares no checkouts")
    if options.pods is not None and (options.benchmark != "scale" or options.pods < FEWEST):
        parser.error(f"--pods {options.pods}: only of scale, and at least {FEWEST}")
    if options.before and not (options.before / "workload/src/istio_aux").is_dir():
        parser.error(f"--before: {options.before} has no workload/src/istio_aux")
    if options.knob and options.benchmark != "scale":
        parser.error(f"--knob {options.knob}: only the scale benchmark has knobs")
    folder = options.results or (None if options.quick else RESULTS)
    try:
        if options.benchmark == "quit":
            sizes = quitting.QUICK if options.quick else quitting.WHOLE
            quitting.main(sizes, folder, options.before)
        elif options.knob:
            scale_knobs.main(options.knob, folder, quick=options.quick)
        elif options.benchmark == "scale":
            whole = scale.sized(options.pods) if options.pods else scale.WHOLE
            scale.main(scale.QUICK if options.quick else whole, folder, options.before)
        else:
            admission.main(admission.QUICK if options.quick else admission.WHOLE, folder)
    except (MeasurementError, TimeoutError, ChildProcessError) as error:
        print(f"benchmarks: could not measure: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
