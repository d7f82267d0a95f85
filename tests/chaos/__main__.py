"""Let a storm happen on a node of its own and print its report; exit status 1 unless it is good."""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
from functools import partial

import demo.node
import lab.upstream
from demo.scenes import Steps
from lab.fixtures import await_selected, make_namespace

from chaos.outages import Stage, make, play


def main() -> int:
    parser = argparse.ArgumentParser("python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
    again = f"--minutes {options.minutes:g} --jobs {options.jobs} --seed {options.seed}"
    print(f"again: {again}", flush=True)
    storm = make(options.seed, 60 * options.minutes, options.jobs)
    with lab.cluster("node") as cluster:
        steps = Steps()
        app, istio = demo.node.set_stage(
            steps, cluster, partial(demo.node.deploy_charm, cluster, steps, units=2)
        )
        lab.upstream.await_training_operator(cluster)
        client = cluster.client()
        make_namespace(client, "stage")
        await_selected(client, "stage")
        found = play(storm, Stage(cluster, app, istio, "stage"))
        cluster.keep_logs = not found.good
        app.model.close()
    print(json.dumps(dataclasses.asdict(found), indent=2))
    print(f"{'good' if found.good else 'NOT GOOD'} after {found.seconds:.0f} s: {again}")
    return 0 if found.good else 1


if __name__ == "__main__":
    sys.exit(main())
