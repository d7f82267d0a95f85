"""The workload outlives its first token, with nobody's help: the real API server grants the next.

An API server grants no token for less than ten minutes, so the first one here is one that it would
have signed an hour ago.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import lab
import lightkube
import pytest
from lab import served
from lab.kubelet import ScriptedKubelet
from lab.workload import READY
from lightkube.resources.rbac_authorization_v1 import Role

import manifests

NAME = "renewing"
# Seconds; a start takes 1.5 s on 2 busy cores, and the test waits for the end of it.
REST = 15.0
# Seconds for which the API server takes a token that has expired (go-jose jwt.DefaultLeeway).
LEEWAY = 60.0
REFUSED = 'serviceaccounts "renewing-workload" is forbidden'


class Renewing:
    """A workload that keeps its token in a file, which is not started yet."""

    def __init__(self, cluster: lab.Cluster, folder: Path, rest: float) -> None:
        """Its token is taken for so many seconds."""
        self.cluster = cluster
        lease = {"lease": f"{NAME}/{NAME}", "renew-token": True}
        self.workload = served.declared(cluster, folder, NAME, lease)
        self.workload.deploy()
        document = json.loads(self.workload.kubeconfig.read_text())
        (user,) = document["users"]
        now = time.time()
        self.first = cluster.age(user["user"]["token"], now - 3600, now + rest - LEEWAY)
        self.file = folder / "token"
        self.file.write_text(self.first)
        user["user"] = {"tokenFile": str(self.file)}
        self.workload.kubeconfig = folder / "kubeconfig"
        self.workload.kubeconfig.write_text(json.dumps(document))

    def is_taken(self, token: str) -> bool:
        """Whether the API server takes the token."""
        with httpx2.Client(verify=False, trust_env=False) as http:
            path = "/apis/coordination.k8s.io/v1/namespaces/renewing/leases/renewing"
            headers = {"Authorization": f"Bearer {token}"}
            return http.get(self.cluster.server + path, headers=headers).status_code != 401


@pytest.fixture
def renewing(cluster: lab.Cluster, tmp_path: Path) -> Iterator[Renewing]:
    made = Renewing(cluster, tmp_path, REST)
    yield made
    served.end(made.workload)


def test_a_proxy_quits_after_the_first_token_has_expired(
    client: lightkube.Client, kubelet: ScriptedKubelet, renewing: Renewing
) -> None:
    workload = renewing.workload
    assert renewing.is_taken(renewing.first)
    workload.start()
    workload.await_ready()
    lab.until(
        lambda: renewing.file.read_text() != renewing.first, timeout=READY, what="a new token"
    )
    lab.until(
        lambda: not renewing.is_taken(renewing.first),
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
        status = workload.status()
    assert (status["token-trouble"], status["leader"]) == ("", True)
    assert served.metric(workload, 'istio_aux_token_renewals_total{outcome="failed"}') == 0


def test_a_token_that_may_not_be_renewed_is_told_while_it_is_good(
    client: lightkube.Client, cluster: lab.Cluster, tmp_path: Path
) -> None:
    renewing = Renewing(cluster, tmp_path, rest=1800)
    account = manifests.service_account(NAME)
    rules = [rule.to_dict() for rule in client.get(Role, account, namespace=NAME).rules or []]
    fewer = [rule for rule in rules if rule["resources"] != ["serviceaccounts/token"]]
    assert len(fewer) < len(rules)
    client.patch(Role, account, {"rules": fewer}, namespace=NAME)
    workload = renewing.workload
    workload.start()
    try:
        workload.await_ready()
        trouble = lab.until(
            lambda: workload.status().get("token-trouble"), timeout=READY, what="a complaint"
        )
        assert REFUSED in trouble
        assert renewing.is_taken(renewing.first)

        client.patch(Role, account, {"rules": rules}, namespace=NAME)
        lab.until(
            lambda: workload.status().get("token-trouble") == "", timeout=60, what="a new token"
        )
    finally:
        served.end(workload)
