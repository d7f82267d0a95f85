"""Policy or webhook: either form of the deployed charm changes pods, and one follows the other."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import lab
import lab.juju
import pytest
from lab import creation, meshed, versions
from lab.creation import Creation
from lab.deployed import owned
from lab.fixtures import new_namespaces
from lightkube import Client
from lightkube.resources.core_v1 import Namespace, Pod

POLICY = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
# Measured: the API server follows a change of either form within 1 s.
SOON = 100


def pod(namespace: str) -> Pod:
    """A Job-like pod that never runs."""
    pod = meshed.nameless(namespace, sidecar=None)
    assert pod.spec
    pod.spec.schedulerName = "nobody"
    return pod


def started_with(made: Creation) -> str | None:
    return meshed.annotations_of(made.pod).get("istio-aux.io/started-with")


@pytest.fixture(scope="module")
def selected(cluster: lab.Cluster, client: Client, istio_aux: lab.juju.App) -> Iterator[str]:
    """A namespace whose pods istio-aux changes."""
    with new_namespaces(client, "selected") as names:
        name = names["selected"]
        labels = {"io.datastrophic/istio-aux": "enabled"}
        client.patch(Namespace, name, {"metadata": {"labels": labels}})

        def changed() -> bool:
            [made] = creation.create(cluster, pod(name), dry_run=True)
            return started_with(made) is not None

        lab.until(changed, timeout=SOON, what=f"pods of {name} to be changed")
        yield name


@versions.POLICY.needed
def test_pods_get_their_start_while_the_workload_is_stopped(
    cluster: lab.Cluster, istio_aux: lab.juju.App, selected: str
) -> None:
    """T37: the API server changes them itself."""
    pid = istio_aux.leader.containers["istio-aux"].service_pid("istio-aux")
    assert pid
    os.kill(pid, signal.SIGSTOP)
    try:
        [made] = creation.create(cluster, pod(selected))
    finally:
        os.kill(pid, signal.SIGCONT)

    assert started_with(made) == "hold"
    config = meshed.annotations_of(made.pod)["proxy.istio.io/config"]
    assert "holdApplicationUntilProxyStarts: true" in config


@dataclass(frozen=True)
class Turns:
    """What was seen while the webhook took over from the policy, and the policy from it.

    Attributes:
        made: every pod that was made meanwhile.
        owned_by_webhook: kinds that the charm owned once the webhook had taken over.
        owned_by_policy: the same once the policy had.
    """

    made: Sequence[Creation]
    owned_by_webhook: set[str]
    owned_by_policy: set[str]


@pytest.fixture(scope="module")
def turns(cluster: lab.Cluster, client: Client, istio_aux: lab.juju.App, selected: str) -> Turns:
    with creation.Stream(cluster, pod(selected), rate=20) as stream:

        def reviewed() -> bool:
            """Whether the workload is asked about a pod that is made now."""
            audit = stream.await_more(1)[0].audit(cluster)
            return "start.istio-aux.io/reason" in audit

        istio_aux.configure(admission="webhook")
        istio_aux.settle()
        owned_by_webhook = owned(client, istio_aux)
        lab.until(reviewed, timeout=SOON, what="the webhook to be called")
        istio_aux.configure(admission="auto")
        istio_aux.settle()
        lab.until(lambda: not reviewed(), timeout=SOON, what="the policy to apply")
    return Turns(stream.creations, owned_by_webhook, owned(client, istio_aux))


@versions.POLICY.needed
def test_the_policy_goes_where_the_webhook_is_asked_for_and_is_back_without(turns: Turns) -> None:
    assert not turns.owned_by_webhook & POLICY
    assert turns.owned_by_policy >= POLICY


@versions.POLICY.needed
def test_no_pod_is_made_unchanged_while_webhook_and_policy_take_turns(turns: Turns) -> None:
    """T37: nor is one refused."""
    assert {started_with(made) for made in turns.made} == {"hold"}
