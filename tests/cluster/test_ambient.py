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


@pytest.mark.nightly("unit/test_repair_ambient.py")
def test_each_pod_that_is_left_out_is_named_and_no_other(
    cluster: lab.Cluster,
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """istio#61182. A captured pod whose node was booted is not, and no pod is asked."""
    ambient.install(client, kubelet)
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

        others = list[Pod]()
        for number in range(OTHERS):
            name = f"well-{number}"
            pod = ambient.start(client, kubelet, NAME, name, booted=number % 3 == 0)
            others.append(pod)
            if number % 2:
                kubelet.finish(pod, "main", number % 4 // 2)
            if number % 5:
                client.delete(Pod, name, namespace=NAME)
            if number % 20 == 0:
                look()
        lab.until(look, timeout=PATIENCE, what="all that are left out to be named")
        lab.until(lambda: not serve.status()["unmeshed-unknown"], what="nothing to be unknown")
        look()
        events = client.list(Event, namespace=NAME)
        told = {e.involvedObject.name for e in events if e.reason == "OutsideMesh"}
        command = ("restart-unmeshed", "-n", NAME, "-o", "json")
        kept = ask(cluster.kubeconfig, *command, "--config", serve.config)
    for namespace in (NAME, ambient.HOME):
        vacate(client, namespace)
    assert named.keys() == started.keys()
    assert told <= started.keys()
    assert not any(map(kubelet.execs_of, others))
    # It waits for as long as `serve`.
    found = {line["name"]: line["outcome"] for line in map(json.loads, kept.stdout.splitlines())}
    assert found == dict.fromkeys(started, "kept"), kept.stderr
    late = [named[name] - at for name, at in started.items()]
    after = f"after {min(late):.0f} to {max(late):.0f} s"
    print(f"{len(named)} of {LEFT_OUT} named {after}, 0 of {OTHERS} others")
