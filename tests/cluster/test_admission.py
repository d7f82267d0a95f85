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
from lab.served import metric
from lab.start_cases import HELD
from lab.workload import Workload
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Namespace, Pod


def create(scene: Scene, **what: Any) -> Pod:
    return scene.client.create(meshed.nameless(scene.namespace, sidecar=None, **what))


@pytest.mark.parametrize(("api", "kind"), [("batch/v1", "Job"), ("apps/v1", "Deployment")])
def test_pods_of_a_controller_are_held(served: Scene, api: str, kind: str):
    """Controllers have the API server make up the names, after admission."""
    labels: dict[str, Any] = {"of": kind.lower()}
    policy = "Never" if kind == "Job" else "Always"
    spec = {"restartPolicy": policy, "containers": [{"name": "main", "image": "none"}]}
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    served.client.create(
        from_dict(
            {
                "apiVersion": api,
                "kind": kind,
                "metadata": {"name": "owner", "namespace": served.namespace},
                "spec": {**selector, "template": {"metadata": {"labels": labels}, "spec": spec}},
            }
        )
    )

    pods = lab.until(
        lambda: list(served.client.list(Pod, namespace=served.namespace, labels=labels)),
        timeout=30,
        what=f"the {kind} to make its pod",
    )

    assert [annotations_of(pod) for pod in pods] == [HELD]


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


def test_every_review_is_logged_and_counted(served: Scene, webhook: Workload):
    series = 'istio_aux_admission_reviews_total{outcome="hold"}'
    before = metric(webhook, series)

    served.client.create(meshed.pod(served.namespace, "seen", sidecar=None))

    assert webhook.reviewed(f"{served.namespace}/seen") == ["hold"]
    assert metric(webhook, series) > before


def test_the_namespaces_label_can_change_under_way(webhook: Workload, scene: Scene):
    """Selected: pods are changed from then on; deselected: they are not any more."""
    assert annotations_of(create(scene)) == {}
    webhook.select(scene.namespace)
    webhook.await_admission(scene.namespace)
    assert annotations_of(create(scene)) == HELD

    webhook.select(scene.namespace, selected=False)

    await_left_alone(scene)


def await_left_alone(scene: Scene) -> None:
    lab.until(
        lambda: annotations_of(create(scene)) == {},
        timeout=30,
        what="pods of the namespace to be left alone",
    )
    assert annotations_of(create(scene)) == {}


def test_a_namespace_of_an_ambient_mesh_is_left_alone(webhook: Workload, selected: Scene):
    """T34: it is selected, and has no sidecars to wait for."""
    webhook.await_admission(selected.namespace)
    labels = {"labels": {"istio.io/dataplane-mode": "ambient"}}
    selected.client.patch(Namespace, selected.namespace, {"metadata": labels})

    await_left_alone(selected)
