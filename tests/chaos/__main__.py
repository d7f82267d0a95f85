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

import lab
from lab.fixtures import await_account
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from chaos.plan import make
from chaos.play import play


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser("python -m chaos", description=__doc__)
    parser.add_argument("--pods", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
