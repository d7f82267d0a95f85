"""Run the demo: `PYTHONPATH=tests python -m demo`; DEMO_KEEP=1 leaves the cluster running.

`--picture FILE` also writes the timeline there, if the promise was kept by pods that ran;
`--chart` has istio-aux from its Helm chart; `--playground` leaves a cluster running in which pods
hang, in place of the story.

The exit status says whether the promise was kept: 0 kept, 1 broken, 2 the demo could not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import lab
import lab.node
from lab import detached
from lab.errors import LabError
from rich.console import Console
from rich.text import Text

from demo import api, node, playground, report, scenes
from demo.promise import Performance, judge
from demo.steps import Steps

REPORT = Path("demo-report")
LOGS = "kubectl logs --namespace with mnist-worker-0 --container istio-proxy"
TITLE = "A {kind} beside Istio's sidecar, without and with istio-aux"
LEAD = (
    "The same manifest in three profiles of Kubeflow. Two workers fetch their training data as "
    "soon as they start, work for a few seconds and are done. Istio puts its proxy beside each of "
    "them. istio-aux looks after profiles; the first one is labelled "
    "io.datastrophic/istio-aux=disabled."
)
PLAYGROUND = (
    "a playground needs Linux, root, 8 GB of disk, and 2 minutes; at first 15 minutes on 2 free "
    "cores, to build Kubernetes"
)

# What may go wrong through no fault of the demo: one line, no traceback.
EXPECTED = (ChildProcessError, FileNotFoundError, TimeoutError, LabError)


def main() -> int:
    """Run the demo; returns its exit status."""
    parser = argparse.ArgumentParser(prog="demo")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the timeline there")
    parser.add_argument("--chart", action="store_true", help="istio-aux from its Helm chart")
    parser.add_argument("--playground", action="store_true", help="leave a cluster to try it in")
    asked = parser.parse_args()
    picture = asked.picture
    if (picture or asked.chart or asked.playground) and (reason := lab.node.unavailable()):
        what = "the picture shows pods that ran" if picture else "the chart runs in pods"
        print(f"{PLAYGROUND if asked.playground else what}: {reason}", file=sys.stderr)
        return 2
    try:
        status = (stay if asked.playground else play)(chart=asked.chart)
    except EXPECTED as error:
        print(f"the demo could not run: {error}", file=sys.stderr)
        return 2
    if picture and status == 0:
        shutil.copy(REPORT / report.PICTURE, picture)
    return status


def play(*, chart: bool = False) -> int:
    """Play on the best level that this machine can, show it, judge it."""
    if not os.environ.get("DEMO_KEEP"):
        return show(_console(), lambda _status, _cluster: None, chart=chart)

    def keep(stay: detached.Stay) -> None:
        def hold(status: int, cluster: lab.Cluster) -> None:
            print(f"\n{detached.instructions(cluster, LOGS)}\n")
            stay(status)

        show(_console(), hold, keep=True, chart=chart)

    return detached.in_child(keep)


def stay(*, chart: bool) -> int:
    """Leave a playground running, and say what to try there."""

    def keep(until_told: detached.Stay) -> None:
        steps = Steps(_console())
        with lab.cluster("node", held=True) as cluster:
            steps.done(f"cluster up: Kubernetes {scenes.KUBERNETES}")
            deployed, _ = node.bring_up(steps, cluster, chart=chart)
            playground.furnish(cluster, steps)
            program = f"alias istio-aux={Path(sys.prefix, 'bin/istio-aux')}"
            print(f"\n{deployed.status().rstrip()}")
            print(detached.instructions(cluster, program, *playground.COMMANDS))
            print("What you see, and what comes next: docs/how-to/playground.md")
            until_told(0)

    print(PLAYGROUND, flush=True)
    return detached.in_child(keep)


def show(
    console: Console,
    afterwards: Callable[[int, lab.Cluster], None],
    *,
    keep: bool = False,
    chart: bool = False,
) -> int:
    """Run the demo from start to end; `afterwards` is called while the cluster still runs."""
    steps = Steps(console)
    reason = lab.node.unavailable()
    if reason:
        console.print(f"cannot run pods: {reason}; the api level plays them", soft_wrap=True)
    with lab.cluster(level="api" if reason else "node", held=keep) as cluster:
        steps.done(f"cluster up: Kubernetes {scenes.KUBERNETES}, {cluster.level} level")
        steps.done(f"assumed: {scenes.ASSUMED}")
        performance = api.run(steps, cluster) if reason else node.run(steps, cluster, chart=chart)
        status = conclude(console, performance, REPORT)
        cluster.keep_logs = status != 0
        steps.done(f"report written: {REPORT}; the promise was {'broken' if status else 'kept'}")
        afterwards(status, cluster)
    return status


def conclude(console: Console, performance: Performance, folder: Path) -> int:
    """Judge, say so in the terminal, write the report; return the exit status."""
    promise = judge(*performance.jobs, more=performance.worlds)
    console.print(f"\n{performance.status.rstrip()}\n", markup=False, soft_wrap=True)
    for check in promise.checks:
        mark, style = ("kept  ", "green") if check.kept else ("BROKEN", "bold red")
        console.print(Text.assemble((mark, style), f"  {check.name}: {check.why}"), soft_wrap=True)
    console.print()
    facts = report.Facts(
        TITLE.format(kind=performance.helped.kind), LEAD, performance.made, performance.notes
    )
    report.write(folder, performance.jobs, promise, facts)
    return 0 if promise.kept else 1


def _console() -> Console:
    # In a pipe rich would take 80 columns.
    return Console(width=None if sys.stdout.isatty() else 100, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
