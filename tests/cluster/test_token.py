"""The workload outlives its first token, with nobody's help: the real API server grants the next.

An API server grants no token for less than ten minutes, so the first one here is one that it would
have signed an hour ago.
"""

from __future__ import annotations

from pathlib import Path

import lab
import lightkube
from lab import served
from lab.kubelet import ScriptedKubelet
from lab.workload import READY, Workload
from lightkube.resources.rbac_authorization_v1 import Role

import manifests

NAME = "renewing"
# Seconds; a start takes 1.5 s on 2 busy cores, and the test waits for the end of it.
REST = 15.0
REFUSED = 'serviceaccounts "renewing-workload" is forbidden'


def renewing(cluster: lab.Cluster, folder: Path, rest: float) -> tuple[Workload, Path]:
    """A workload that is not started yet, and the file of its token, which is taken so long."""
    lease = {"lease": f"{NAME}/{NAME}", "renew-token": True}
    workload = served.declared(cluster, folder, NAME, lease)
    workload.deploy()
    return workload, workload.keep_token(age=3600, rest=rest)


def test_a_proxy_quits_after_the_first_token_has_expired(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, tmp_path: Path
) -> None:
    workload, file = renewing(cluster, tmp_path, REST)
    first = file.read_text()
    assert served.is_taken(cluster, first)
    workload.start()
    workload.await_ready()
    lab.until(lambda: file.read_text() != first, timeout=READY, what="a new token")
    lab.until(
        lambda: not served.is_taken(cluster, first),
        timeout=REST + READY,
        what="the first token to expire",
    )

    with served.stage(client, kubelet, workload) as scene:
        pod = scene.start("worker")
        kubelet.finish(pod, "main")
        scene.await_phase(pod, "Succeeded")

        # A process that begins finds a token that is good.
        served.end(workload)
        workload.start()
        workload.await_ready()
        # It is ready before it leads.
        lab.until(lambda: workload.status().get("leader"), timeout=READY, what="it to lead")
    assert workload.status()["token-trouble"] == ""
    assert served.metric(workload, 'istio_aux_token_renewals_total{outcome="failed"}') == 0
    served.end(workload)


def test_a_token_that_may_not_be_renewed_is_told_while_it_is_good(
    client: lightkube.Client, cluster: lab.Cluster, tmp_path: Path
) -> None:
    workload, file = renewing(cluster, tmp_path, rest=1800)
    account = manifests.service_account(NAME)
    rules = [rule.to_dict() for rule in client.get(Role, account, namespace=NAME).rules or []]
    fewer = [rule for rule in rules if rule["resources"] != ["serviceaccounts/token"]]
    assert len(fewer) < len(rules)
    client.patch(Role, account, {"rules": fewer}, namespace=NAME)
    workload.start()
    try:
        workload.await_ready()
        trouble = lab.until(
            lambda: workload.status().get("token-trouble"), timeout=READY, what="a complaint"
        )
        assert REFUSED in trouble
        assert served.is_taken(cluster, file.read_text())

        client.patch(Role, account, {"rules": rules}, namespace=NAME)
        lab.until(
            lambda: workload.status().get("token-trouble") == "", timeout=60, what="a new token"
        )
    finally:
        served.end(workload)
