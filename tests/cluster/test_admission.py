"""The webhook behind a real API server; `test_start_cases.py` has what it makes of which pod."""

from __future__ import annotations

from typing import Any

import lab
import pytest
from istio_aux.model.annotations import START
from istio_aux.start.proxy_config import HOLD
from lab import creation, meshed
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.start_cases import HELD
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod


def create(scene: Scene, **what: Any) -> Pod:
    return scene.client.create(meshed.nameless(scene.namespace, sidecar=None, **what))


@pytest.mark.parametrize(
    ("labels", "host_network"),
    [
        ({}, True),
        ({"app.kubernetes.io/name": "istio-aux"}, False),
        ({"model.juju.is/disable-webhook": "true"}, False),
    ],
)
def test_pods_that_have_no_sidecar_or_are_needed_for_repair_are_not_even_reviewed(
    cluster: lab.Cluster, served: Scene, labels: dict[str, str], host_network: bool
):
    """The application's own pods and its model's operator come up whatever the webhook does."""
    pod = meshed.nameless(served.namespace, sidecar=None, labels=labels)
    assert pod.spec
    pod.spec.hostNetwork = host_network

    [made] = creation.create(cluster, pod)

    assert annotations_of(made.pod) == {}
    assert not any("webhook" in key for key in made.audit(cluster))


def test_kube_system_is_left_alone_whatever_its_labels(
    cluster: lab.Cluster, webhook: Workload, scene: Scene
):
    webhook.select("kube-system")
    # The API server has noticed the one that was selected first when it has noticed the other.
    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)

    [made] = creation.create(cluster, meshed.nameless("kube-system", sidecar=None), dry_run=True)

    webhook.select("kube-system", selected=False)
    assert annotations_of(made.pod) == {}
    assert not any("webhook" in key for key in made.audit(cluster))


def test_the_audit_log_says_what_was_done_and_why(cluster: lab.Cluster, served: Scene):
    changed, unchanged = creation.create(
        cluster,
        meshed.nameless(served.namespace, sidecar=None),
        meshed.nameless(served.namespace, sidecar=None, annotations={START: "off"}),
    )

    assert ours(changed.audit(cluster)) == {"reason": f"added {HOLD}", "started-with": "hold"}
    assert ours(unchanged.audit(cluster)) == {"reason": 'annotation istio-aux.io/start: "off"'}
    assert changed.warnings == ()


def ours(audit: dict[str, str]) -> dict[str, str]:
    own = "start.istio-aux.io/"
    return {key.removeprefix(own): text for key, text in audit.items() if key.startswith(own)}


def test_the_namespaces_label_can_change_under_way(webhook: Workload, scene: Scene):
    """Pods are changed while it is selected. One of an ambient mesh has no sidecars (T34)."""
    assert annotations_of(create(scene)) == {}
    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    assert annotations_of(create(scene)) == HELD
    webhook.select(scene.namespace, selected=False)
    await_left_alone(scene)

    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    labels = {"labels": {"istio.io/dataplane-mode": "ambient"}}
    scene.client.patch(Namespace, scene.namespace, {"metadata": labels})
    await_left_alone(scene)


def await_left_alone(scene: Scene) -> None:
    lab.until(
        lambda: annotations_of(create(scene)) == {},
        timeout=30,
        what="pods of the namespace to be left alone",
    )
