"""Peer traffic at a real API server: what `explain` foretells, and the NetworkPolicy that we ship.

There is no Envoy: that STRICT mTLS resets plaintext is Istio's, and not tried here.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
import yaml
from lab import accounts, meshed
from lab.fixtures import await_account
from lightkube.codecs import from_dict
from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Service

import cluster as of_charm

from .test_audit import ANSWER, ask

POLICIES = Path(__file__).parents[2] / "examples/training-peers.yaml"
LABELS = {"app": "train"}


@pytest.fixture(scope="module")
def team(client: lightkube.Client, istio: lab.istio.Istio) -> Iterator[str]:
    """A namespace with STRICT mTLS, a worker that declares two ports, and a Service for one."""
    name = f"team-{secrets.token_hex(3)}"
    client.create(Namespace(metadata=ObjectMeta(name=name)))
    await_account(client, name)
    ports = [{"name": "web", "containerPort": 8080}, {"containerPort": 29500}]
    worker = meshed.pod(name, "worker-0", more={"main": {"ports": ports}})
    assert worker.metadata
    worker.metadata.labels = LABELS
    client.create(worker)
    web = ServiceSpec(selector=LABELS, ports=[ServicePort(port=80, targetPort="web")])
    headless = ServiceSpec(selector=LABELS, clusterIP="None")
    for service, spec in {"web": web, "headless": headless}.items():
        client.create(Service(metadata=ObjectMeta(name=service, namespace=name), spec=spec))
    metadata = ObjectMeta(name="default", namespace=name)
    strict = of_charm.PeerAuthentication(metadata=metadata, spec={"mtls": {"mode": "STRICT"}})
    client.create(strict)
    yield name
    client.delete(Namespace, name)


def explained(kubeconfig: Path, namespace: str) -> dict[str, Any]:
    """What `explain` answers about the worker; empty if it has no answer."""
    done = ask(kubeconfig, "explain", f"{namespace}/worker-0")
    return json.loads(done.stdout or "{}")


def test_explain_foretells_that_a_port_without_a_service_is_reset(cluster: lab.Cluster, team: str):
    """A headless Service without ports counts for nothing."""
    answer = explained(cluster.kubeconfig, team)

    assert answer["peers"] == [
        f"port 29500 is in no Service: plaintext, reset under STRICT ({team}/default)"
    ]


def test_explain_says_what_it_may_not_read(cluster: lab.Cluster, team: str):
    """The account may read the namespace's Services, and nothing of Istio."""
    kubeconfig = accounts.viewer(cluster, team)

    answer = lab.until(
        lambda: explained(kubeconfig, team), timeout=ANSWER, what="RBAC to take effect"
    )

    why = "cannot read peerauthentications: forbidden"
    assert answer["peers"] == [
        f"port 29500 is in no Service: plaintext, reset if mTLS is STRICT: {why}"
    ]


@pytest.mark.parametrize("document", [*yaml.safe_load_all(POLICIES.read_text())])
def test_the_network_policies_that_we_ship_are_accepted(
    client: lightkube.Client, team: str, document: dict[str, Any]
):
    """Nothing in them is dropped as unknown."""
    document["metadata"]["namespace"] = team

    made = client.create(from_dict(document)).to_dict()

    assert made["spec"] == document["spec"]
