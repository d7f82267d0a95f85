"""An ambient mesh that leaves pods out, beside many that come and go."""

from __future__ import annotations

import json
import time

import lab
import lightkube
import pytest
from lab import ambient
from lab.fixtures import make_namespace, vacate
from lab.kubelet import ScriptedKubelet
from lab.served import program
from lab.workload import ask
from lightkube.resources.core_v1 import Event, Pod

LEFT_OUT, OTHERS = 100, 1000
# Measured on 2 busy cores: they are named 31 to 45 s after their start.
PATIENCE = 400.0
NAME = "outside"


@pytest.mark.nightly("node/test_ambient.py, unit/test_repair_ambient.py")
def test_each_pod_that_is_left_out_is_named_and_no_other(
    cluster: lab.Cluster,
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """istio#61182: also those whose annotation lies. Others are asked by a port-forward, too."""
    make_namespace(client, NAME, {ambient.DATAPLANE: "ambient"})
    with program(
        cluster, tmp_path_factory.mktemp(NAME), NAME, {"lease": f"{NAME}/{NAME}"}
    ) as serve:
        serve.select(NAME)
        started = dict[str, float]()
        for number in range(LEFT_OUT):
            name, fault = f"out-{number}", ambient.FAULTS[number % len(ambient.FAULTS)]
            ambient.start(client, kubelet, NAME, name, fault=fault)
            started[name] = time.monotonic()
        named = dict[str, float]()

        def look() -> bool:
            for pod in serve.status()["unmeshed-pods"]:
                named.setdefault(pod["name"], time.monotonic())
            return named.keys() >= started.keys()

        doubted = list[Pod]()
        for number in range(OTHERS):
            name = f"well-{number}"
            pod = ambient.start(client, kubelet, NAME, name, booted=number % 3 == 0)
            if number % 2:
                kubelet.finish(pod, "main", number % 4 // 2)
            if number % 15 == 0:
                doubted.append(pod)
            elif number % 5:
                client.delete(Pod, name, namespace=NAME)
            if number % 20 == 0:
                look()
        lab.until(look, timeout=PATIENCE, what="all that are left out to be named")
        lab.until(lambda: all(map(kubelet.execs_of, doubted)), timeout=PATIENCE, what="questions")
        lab.until(lambda: not serve.status()["unmeshed-unknown"], what="the answers to be known")
        look()
        events = client.list(Event, namespace=NAME)
        told = {e.involvedObject.name for e in events if e.reason == "OutsideMesh"}
        command = ("restart-unmeshed", "-n", NAME, "-o", "json")
        kept = ask(cluster.kubeconfig, *command, "--config", serve.config)
    vacate(client, NAME)
    assert named.keys() == started.keys()
    assert told <= started.keys()
    assert {len(kubelet.execs_of(pod)) for pod in doubted} == {1}, "each is asked once"
    # It waits for as long as `serve`. A dry run asks no pod.
    found = {line["name"]: line["outcome"] for line in map(json.loads, kept.stdout.splitlines())}
    shown = [name for number, name in enumerate(started) if number % 3 < 2]
    assert found == dict.fromkeys(shown, "kept"), kept.stderr
    late = [named[name] - at for name, at in started.items()]
    after = f"after {min(late):.0f} to {max(late):.0f} s"
    print(f"{len(named)} of {LEFT_OUT} named {after}, 0 of {OTHERS} others")
