"""The command line: ``python -m benchmarks BENCHMARK [--quick] [--results FOLDER]``.

Each benchmark has flags of its own: ``python -m benchmarks BENCHMARK --help``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import attack, burst, quit as quitting, scale, scale_rows, tables
from benchmarks.driver import MeasurementError
from tools.errors import ToolError

RESULTS = Path(__file__).parent / "results"
FEWEST = 100  # Pods of which there are some of each kind.


def main() -> int:
    """Run one benchmark; returns 0 when it could measure, whatever it measured, and 1 if not."""
    options = _parser().parse_args()
    if not options.results and not options.quick:
        options.results = RESULTS
    kept = _table(RESULTS, options.benchmark)
    try:
        options.run(options)
    except (MeasurementError, ToolError, TimeoutError, ChildProcessError) as error:
        print(f"benchmarks: could not measure: {error}", file=sys.stderr)
        return 1
    if not options.quick:
        print(tables.compared(kept, _table(options.results, options.benchmark)))
    return 0


def _table(folder: Path, name: str) -> str:
    file = folder / f"{name}.md"
    return file.read_text() if file.exists() else ""


def _parser() -> argparse.ArgumentParser:
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--quick", action="store_true", help="in seconds: shows that it runs")
    every.add_argument("--results", type=Path, help="where the files go, if not to the kept ones")
    compared = argparse.ArgumentParser(add_help=False, parents=[every])
    compared.add_argument(
        "--before", type=_checkout, metavar="CHECKOUT",
        help="measure another checkout as well, in the same run",
    )  # fmt: skip

    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    kinds = parser.add_subparsers(required=True, dest="benchmark", metavar="BENCHMARK")
    for name, run, parent in (
        ("quit", _quit, compared), ("scale", _scale, compared), ("burst", _burst, every),
        ("attack", _attack, compared),
    ):  # fmt: skip
        kind = kinds.add_parser(name, parents=[parent], help=f"see README.md, {name}")
        kind.set_defaults(run=run)
        if run is _scale:
            kind.add_argument("--pods", type=_number(FEWEST), metavar="N", help="how many pods")
        if run is _burst:
            up_to = _number(1, burst.MOST)
            kind.add_argument("--jobs", type=up_to, metavar="N", help="Jobs that end at once")
    return parser


def _checkout(text: str) -> Path:
    folder = Path(text)
    if not (folder / "workload/src/istio_aux").is_dir():
        raise argparse.ArgumentTypeError(f"{text} has no workload/src/istio_aux")
    return folder


def _number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads an integer within these bounds."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most and int(text) > most):
            above = f" to {most}" if most else " or more"
            raise argparse.ArgumentTypeError(f"{text}: expected {least}{above}")
        return int(text)

    return read


def _quit(options: argparse.Namespace) -> None:
    sizes = quitting.QUICK if options.quick else quitting.WHOLE
    quitting.main(sizes, options.results, options.before)


def _scale(options: argparse.Namespace) -> None:
    whole = scale.sized(options.pods) if options.pods else scale_rows.WHOLE
    scale.main(scale_rows.QUICK if options.quick else whole, options.results, options.before)


def _burst(options: argparse.Namespace) -> None:
    sizes = burst.QUICK if options.quick else burst.WHOLE
    burst.main(replace(sizes, jobs=options.jobs or sizes.jobs), options.results)


def _attack(options: argparse.Namespace) -> None:
    attack.main(options.results, options.before, quick=options.quick)


if __name__ == "__main__":
    sys.exit(main())
