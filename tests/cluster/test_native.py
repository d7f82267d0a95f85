"""Whether sidecars can be native, found out at a real API server.

There are the three worlds of Istio, and a webhook after Istio's that keeps pods from being native.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from istio_aux.model.annotations import STARTED_WITH
from lab import meshed
from lab.fixtures import await_account
from lab.hooks import mutating, patching
from lab.istio import PROXY
from lab.meshed import annotations_of
from lab.served import Programs
from lab.workload import Workload
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace

# The revision, and its namespace: the workload ignores the Istios of other modules.
ISTIO = "native-istio"
OURS = "native-ours"
LATER = "old-defaulter"
# Of what Istio is in turn.
WORLDS: Sequence[tuple[lab.istio.World, str, str]] = (
    ("never", "classic", "Istio makes no native sidecars, not even on request"),
    ("default", "native", "sidecars are native on request"),
    ("on request", "native", "sidecars are native on request"),
)


@pytest.fixture(scope="module")
def istio(cluster: lab.Cluster) -> Iterator[lab.istio.Istio]:
    istio = lab.istio.install(cluster, ISTIO, revision=ISTIO)
    yield istio
    istio.remove()


@pytest.fixture(scope="module")
def workload(client: lightkube.Client, istio: lab.istio.Istio, programs: Programs) -> Workload:
    """The program under its own account, with its webhook, and a namespace that it selects."""
    labels = {"lab.test/native": "yes", "istio.io/rev": ISTIO}
    client.create(Namespace(metadata=ObjectMeta(name=OURS, labels=labels)))
    settings = {"quit": "off", "root-namespace": ISTIO}
    workload = programs("native", settings, publish=True, revisions=(ISTIO,))
    await_account(client, OURS)
    workload.await_admission(OURS)
    return workload


def drop(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Know init containers as they were before they could restart."""
    return [
        {"op": "remove", "path": f"/spec/initContainers/{place}/restartPolicy"}
        for place, container in enumerate(pod["spec"].get("initContainers", []))
        if "restartPolicy" in container
    ]


@pytest.fixture
def later(cluster: lab.Cluster) -> Iterator[None]:
    """A webhook that is called after Istio's, in the namespace that we select."""
    ours = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": OURS}}}
    with mutating(cluster, LATER, {LATER: patching(drop)}, {LATER: ours}):
        yield


def started(client: lightkube.Client) -> tuple[str | None, bool]:
    """With what a Job's pod is started, and whether its sidecar is native."""
    pod = meshed.nameless(OURS, sidecar=None)
    made = client.create(pod, dry_run=True)
    assert made.spec
    native = PROXY in {container.name for container in made.spec.initContainers or []}
    return annotations_of(made).get(STARTED_WITH), native


@pytest.mark.parametrize(("world", "capability", "why"), WORLDS)
def test_in_each_world_pods_get_what_istio_can_do(
    client: lightkube.Client,
    istio: lab.istio.Istio,
    workload: Workload,
    *,
    world: lab.istio.World,
    capability: str,
    why: str,
) -> None:
    istio.become(world)

    workload.await_capability(capability)

    assert workload.status()["capability-why"] == f"istio-sidecar-injector-{ISTIO}-{ISTIO}: {why}"
    expected = ("native", True) if capability == "native" else ("hold", False)
    assert started(client) == expected


def test_a_webhook_after_istios_that_drops_restart_policy_makes_it_hold_until_it_is_gone(
    client: lightkube.Client,
    istio: lab.istio.Istio,
    workload: Workload,
    request: pytest.FixtureRequest,
) -> None:
    """The API server refuses what it leaves: an init container that may have no startup probe."""
    istio.become("on request")
    workload.await_capability("native")
    request.getfixturevalue("later")

    workload.await_capability("classic")

    why = workload.status()["capability-why"]
    assert "pods with a native sidecar are refused: 422 Invalid" in why
    assert "may not be set for init containers without restartPolicy=Always" in why
    assert started(client) == ("hold", False)

    client.delete(MutatingWebhookConfiguration, LATER)
    workload.await_capability("native")

    assert started(client) == ("native", True)
