"""Run the demo: `PYTHONPATH=tests python -m demo`.

It leaves the timeline in `demo-report/`. `--picture FILE` also copies it there, if the promise was
kept by pods that ran; `--playground` leaves a cluster running in which pods hang, in place of the
story.

The exit status says whether the promise was kept: 0 kept, 1 broken, 2 the demo could not run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import lab.node
from lab import clusters, tools
from rich.console import Console
from rich.text import Text

from demo import api, node, playground, report
from demo.scenes import ASSUMED, KUBERNETES, Performance, Steps, judge
from tools.errors import ToolError

PICTURE = Path("demo-report/timeline.svg")
TITLE = "A {kind} beside the sidecar of Istio {istio}, without and with istio-aux"
PLAYGROUND = (
    "a playground needs Linux, root, 8 GB of disk, and 2 minutes; at first 9 minutes on 2 free "
    "cores, to build Kubernetes and Istio"
)

# What may go wrong through no fault of the demo: one line, no traceback.
EXPECTED = (ChildProcessError, FileNotFoundError, TimeoutError, ToolError)


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the timeline there")
    parser.add_argument("--playground", action="store_true", help="leave a cluster to try it in")
    asked = parser.parse_args()
    if (asked.picture or asked.playground) and (reason := lab.node.unavailable()):
        what = PLAYGROUND if asked.playground else "the picture shows pods that ran"
        print(f"{what}: {reason}", file=sys.stderr)
        return 2
    try:
        status = stay() if asked.playground else play()
    except EXPECTED as error:
        print(f"the demo could not run: {error}", file=sys.stderr)
        return 2
    if asked.picture and status == 0:
        shutil.copy(PICTURE, asked.picture)
    return status


def stay() -> int:
    """Leave a playground running, and say what to try there."""

    def keep(until_told: clusters.Stay) -> None:
        steps = Steps(_console())
        with lab.cluster("node", held=True) as cluster:
            steps.done(f"cluster up: Kubernetes {KUBERNETES}")
            app, _ = node.bring_up(steps, cluster)
            playground.furnish(cluster, steps)
            program = Path(sys.prefix, "bin/istio-aux")
            print(f"\n{node.status(app)}")
            print(clusters.instructions(cluster, *playground.COMMANDS, program=program))
            print("What you see, and what comes next: docs/how-to/playground.md")
            until_told()

    print(PLAYGROUND, flush=True)
    return clusters.in_child(keep)


def play() -> int:
    """Play on the best level that this machine can, show it, judge it."""
    console = _console()
    steps = Steps(console)
    reason = lab.node.unavailable()
    if reason:
        console.print(f"cannot run pods: {reason}; a script plays their status", soft_wrap=True)
    with lab.cluster(level="api" if reason else "node") as cluster:
        steps.done(f"cluster up: Kubernetes {KUBERNETES}, {cluster.level} level")
        steps.done(f"assumed: {ASSUMED}")
        performance = api.run(steps, cluster) if reason else node.run(steps, cluster)
        status = conclude(console, performance, PICTURE)
        cluster.keep_logs = status != 0
        steps.done(f"timeline written: {PICTURE}; the promise was {'broken' if status else 'kept'}")
    return status


def conclude(console: Console, performance: Performance, picture: Path) -> int:
    """Judge, say so in the terminal, draw the timeline; return the exit status."""
    promise = (*judge(*performance.jobs), *performance.worlds)
    console.print(f"\n{performance.status.rstrip()}\n", markup=False, soft_wrap=True)
    for check in promise:
        mark, style = ("kept  ", "green") if check.kept else ("BROKEN", "bold red")
        console.print(Text.assemble((mark, style), f"  {check.name}: {check.why}"), soft_wrap=True)
    console.print()
    picture.parent.mkdir(parents=True, exist_ok=True)
    title = TITLE.format(kind=performance.helped.kind, istio=tools.ISTIO_VERSION)
    picture.write_text(report.svg(performance.jobs, title), encoding="utf-8")
    return 0 if all(check.kept for check in promise) else 1


def _console() -> Console:
    # In a pipe rich would take 80 columns.
    return Console(width=None if sys.stdout.isatty() else 100, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
