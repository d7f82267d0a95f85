"""The policy inside the API server: it needs no workload, and Istio's webhooks see what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lab
import lab.istio
import lightkube
import pytest
from istio_aux.model.annotations import STARTED_WITH
from istio_aux.model.pod import decode
from istio_aux.start.plan import effective_start
from istio_aux.start.proxy_config import ANNOTATION as CONFIG
from lab import creation, meshed
from lab.creation import Creation
from lab.fixtures import await_account
from lab.meshed import annotations_of
from lab.served import Programs
from lab.start_cases import HELD
from lab.versions import POLICY
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import rules

pytestmark = POLICY.needed
LEFT = {CONFIG: "a: &x 1\nb: *x\n"}
WEBHOOK = "mutation.webhook.admission.k8s.io/round_0_index_0"
SELECTED = {"lab.test/policy": "yes"}

NAMESPACES: Mapping[str, dict[str, str]] = {
    "policy-only": SELECTED,
    "policy-not-selected": {},
    "policy-ambient": {**SELECTED, "istio.io/dataplane-mode": "ambient"},
    "policy-native-mesh": {**SELECTED, "istio.io/rev": "native"},
}


@pytest.fixture(scope="module", autouse=True)
def policy(cluster: lab.Cluster, client: lightkube.Client, programs: Programs) -> Iterator[None]:
    """What the charm makes for a workload in policy mode, and nobody serves (T37).

    Istio makes sidecars native by default.
    """
    istio = lab.istio.install(cluster, "istio-native", native="default", revision="native")
    for name, labels in NAMESPACES.items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    absent = programs("policy", start=False, publish=True, admission="policy")
    for name in NAMESPACES:
        await_account(client, name)
    absent.await_admission("policy-only")
    lab.until(
        lambda: WEBHOOK in create(cluster, "policy-only", LEFT).audit(cluster),
        timeout=30,
        what="the webhook to be known",
    )
    yield
    for name in NAMESPACES:
        client.delete(Namespace, name)
    istio.remove()


def create(
    cluster: lab.Cluster,
    namespace: str,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> Creation:
    pod = meshed.nameless(namespace, sidecar=None, annotations=annotations, labels=labels)
    (made,) = creation.create(cluster, pod)
    return made


@pytest.mark.parametrize(
    ("namespace", "labels"),
    [
        ("policy-not-selected", {}),
        ("policy-ambient", {}),
        ("policy-only", {"model.juju.is/disable-webhook": "true"}),
        ("policy-only", {"app.kubernetes.io/name": "policy"}),
    ],
)
def test_pods_of_others_are_left_alone(
    cluster: lab.Cluster, namespace: str, labels: dict[str, str]
):
    """T34: of other namespaces, above all of an ambient mesh, of Juju and of the application."""
    assert annotations_of(create(cluster, namespace, labels=labels).pod) == {}


def test_a_sidecar_that_istio_made_native_is_not_said_to_hold(cluster: lab.Cluster):
    """T31: hold has no effect on it. The policy does not run again, so `explain` says it."""
    made = create(cluster, "policy-native-mesh")

    assert made.pod.spec
    assert "istio-proxy" in {c.name for c in made.pod.spec.initContainers or []}
    assert annotations_of(made.pod)[STARTED_WITH] == "hold"
    assert effective_start(decode(made.body)) == "asked for hold, but the sidecar is a native one"


def test_the_webhook_is_not_asked_about_pods_with_the_label_of_the_policy(cluster: lab.Cluster):
    """It decides nothing else: who copies the label gets what the policy alone does."""
    copied = {rules.STARTED_BY: "policy"}

    assert annotations_of(create(cluster, "policy-only", labels=copied).pod) == HELD
    left = create(cluster, "policy-only", LEFT, copied)
    assert annotations_of(left.pod) == LEFT
    assert WEBHOOK not in left.audit(cluster)
