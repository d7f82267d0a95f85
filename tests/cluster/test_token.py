"""The workload outlives its first token: it takes the next one from the file, without a restart.

An API server grants no token for less than ten minutes, so the first one here is one that it would
have signed an hour ago. The next one is what the charm requests.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import lab
import lightkube
from istio_aux.kube.access import token_life
from lab import served
from lab.kubelet import ScriptedKubelet
from lab.workload import READY, Workload

import cluster as of_charm
import manifests

NAME = "renewed"
# Seconds; a start takes 1.5 s on 2 busy cores, and the test waits for the end of it.
REST = 15.0
WEEK = 7 * 24 * 60 * 60


def expiry(workload: Workload) -> float:
    """When the token expires, by `/status`."""
    shown = workload.status()["token-expires"]
    return datetime.fromisoformat(shown).timestamp() if shown else 0.0


def test_a_proxy_quits_after_the_first_token_has_expired(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, tmp_path: Path
) -> None:
    workload = served.declared(cluster, tmp_path, NAME, {"lease": f"{NAME}/{NAME}"})
    workload.deploy()
    file = workload.keep_token(age=3600, rest=REST)
    first = file.read_text()
    assert served.is_taken(cluster, first)
    workload.start()
    workload.await_ready()

    renewed = of_charm.request_token(client, manifests.service_account(NAME), NAME)
    assert isinstance(renewed, str)
    file.write_text(renewed)

    life = token_life(renewed)
    assert life
    assert life.exp - life.iat == WEEK
    lab.until(lambda: expiry(workload) == life.exp, timeout=READY, what="the status to show it")
    series = "istio_aux_token_{}_timestamp_seconds"
    assert served.metric(workload, series.format("issue")) == life.iat
    assert served.metric(workload, series.format("expiration")) == life.exp
    lab.until(
        lambda: not served.is_taken(cluster, first),
        timeout=REST + READY,
        what="the first token to expire",
    )
    with served.stage(client, kubelet, workload) as scene:
        pod = scene.start("worker")
        kubelet.finish(pod, "main")
        scene.await_phase(pod, "Succeeded")
    served.end(workload)
