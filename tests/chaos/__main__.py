"""Run the chaos on a cluster of its own and print the verdict; exit status 1 unless it is good."""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path

import demo.node
import lab
import lab.trainer
from demo.steps import Steps
from lab.deployed import await_selected
from lab.fixtures import await_account
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from rich.console import Console

from chaos import outages
from chaos.outages import Stage
from chaos.plan import make
from chaos.play import play
from chaos.storm import make as make_storm


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser("python -m chaos", description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--minutes", type=float, help="the node tier instead, for so long")
    parser.add_argument("--jobs", type=int, default=300, help="on the node tier")
    parser.add_argument("--report", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if options.minutes:
        return storm(options.seed, 60 * options.minutes, options.jobs, options.report)
    plan = make(options.seed, options.pods, options.kills)
    seconds = sum(plan.lives) + sum(plan.delays)
    again = f"--pods {options.pods} --kills {options.kills} --seed {options.seed}"
    print(f"chaos of {seconds:.0f} s; again: {again}", flush=True)
    begin = time.monotonic()
    with (
        lab.cluster("api") as cluster,
        ScriptedKubelet(cluster) as kubelet,
        tempfile.TemporaryDirectory() as folder,
    ):
        workload = Workload(
            cluster, Path(folder), name="chaos", model="chaos", more={"lease": "chaos/chaos"}
        )
        workload.deploy()
        workload.start()
        workload.await_ready()
        client = cluster.client()
        client.create(Namespace(metadata=ObjectMeta(name="stage")))
        await_account(client, "stage")
        workload.select("stage")
        verdict = play(plan, Scene(client, kubelet, "stage", "stage"), workload)
        cluster.keep_logs = not verdict.good
        workload.stop()
    print(json.dumps(dataclasses.asdict(verdict), indent=2))
    print(
        f"{'good' if verdict.good else 'NOT GOOD'} after {time.monotonic() - begin:.0f} s: {again}"
    )
    return 0 if verdict.good else 1


def storm(seed: int, seconds: float, jobs: int, folder: Path) -> int:
    """Run a storm on the node tier and keep its report; returns the exit status."""
    again = f"--minutes {seconds / 60:g} --jobs {jobs} --seed {seed}"
    print(f"storm of {seconds:.0f} s; again: {again}", flush=True)
    with lab.cluster("node") as cluster:
        steps = Steps(Console(width=100, highlight=False))
        app, istio = demo.node.set_stage(steps, cluster, units=2)
        lab.trainer.await_ready(cluster)
        client = cluster.client()
        client.create(Namespace(metadata=ObjectMeta(name="stage")))
        await_account(client, "stage")
        await_selected(client, "stage")
        found = outages.play(make_storm(seed, seconds, jobs), Stage(cluster, app, istio, "stage"))
        cluster.keep_logs = not found.good
        app.model.close()
    told = {"command": f"tox -e chaos -- {again}", **dataclasses.asdict(found)}
    text = json.dumps(told, indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chaos.json").write_text(f"{text}\n")
    print(text)
    print(f"{'good' if found.good else 'NOT GOOD'} after {found.seconds:.0f} s: {again}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
