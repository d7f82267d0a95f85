"""The webhook among others: Istio's after it and before it, and one that undoes what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
import yaml
from lab import creation, meshed
from lab.hooks import Hooks, mutating, patching
from lab.kubelet import ScriptedKubelet
from lab.meshed import annotations_of
from lab.scene import Scene
from lab.served import stage
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod

import manifests

CONFIG = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"
STARTED_WITH = "istio-aux.io/started-with"
INJECTED = "sidecar.istio.io/status"
WAIT = {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}


def meshes(
    client: lightkube.Client, kubelet: ScriptedKubelet, webhook: Workload, label: dict[str, str]
) -> Iterator[Scene]:
    """A namespace that the webhook serves and that has a label for Istio."""
    with stage(client, kubelet, webhook) as scene:
        client.patch(Namespace, scene.namespace, {"metadata": {"labels": label}})
        webhook.await_admission(scene.namespace)
        lab.until(
            lambda: INJECTED in annotations_of(create(scene)),
            timeout=30,
            what=f"pods of {scene.namespace} to be injected",
        )
        yield scene


@pytest.fixture(
    scope="module", params=[{"istio-injection": "enabled"}, {"istio.io/rev": "default"}]
)
def mesh(
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    webhook: Workload,
    istio: lab.istio.Istio,
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    """A namespace into which Istio's default revision injects."""
    yield from meshes(client, kubelet, webhook, request.param)


@pytest.fixture(scope="module")
def vendor_mesh(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet, webhook: Workload
) -> Iterator[Scene]:
    """One into which an Istio injects whose configuration sorts before ours."""
    name = "asm-sidecar-injector"
    assert name < manifests.webhook_configuration(webhook.name, webhook.model)
    vendors = lab.istio.install(cluster, "istio-vendor", configuration=name, revision="asm")
    yield from meshes(client, kubelet, webhook, {"istio.io/rev": "asm"})
    vendors.remove()


def create(scene: Scene, **what: Any) -> Pod:
    return scene.client.create(meshed.nameless(scene.namespace, sidecar=None, **what))


def shape(pod: Pod) -> list[tuple[str, Any]]:
    """The containers in their order: name and lifecycle."""
    assert pod.spec
    return [(c.name, c.lifecycle and c.lifecycle.to_dict()) for c in pod.spec.containers]


def test_the_sidecar_that_istio_injects_starts_before_the_payload(mesh: Scene, webhook: Workload):
    """T33, T34: ours is called before Istio's, which then puts its proxy first and awaits it."""
    pod = mesh.client.create(meshed.pod(mesh.namespace, "early", sidecar=None))

    assert shape(pod) == [("istio-proxy", WAIT), ("main", None)]
    assert webhook.reviewed(f"{mesh.namespace}/early") == ["hold", "unchanged"]


def test_an_injected_pod_that_finishes_is_freed(mesh: Scene):
    """T8: the proxy is containers[0] now, and found by its name."""
    pod = create(mesh)
    mesh.kubelet.run(pod)

    mesh.kubelet.finish(pod, "main")

    mesh.await_phase(pod, "Succeeded")


def test_a_sidecar_that_was_injected_before_starts_before_the_payload(
    vendor_mesh: Scene, webhook: Workload
):
    """T33: what Istio would have done for hold is done for it, once.

    The API server itself mounts a token into the new container, and calls us again after that.
    """
    pod = vendor_mesh.client.create(meshed.pod(vendor_mesh.namespace, "late", sidecar=None))

    assert shape(pod) == [("istio-proxy", WAIT), ("main", None)]
    assert annotations_of(pod)[STARTED_WITH] == "hold"
    assert yaml.safe_load(annotations_of(pod)[CONFIG]) == {HOLD: True}
    assert webhook.reviewed(f"{vendor_mesh.namespace}/late") == ["moved", "unchanged"]


def test_an_explicit_false_leaves_a_sidecar_where_it_was_injected(vendor_mesh: Scene):
    """T32: the order of containers follows the author as well."""
    text = f"{HOLD}: false"

    pod = create(vendor_mesh, annotations={CONFIG: text})

    assert shape(pod) == [("main", None), ("istio-proxy", None)]
    assert annotations_of(pod)[CONFIG] == text
    assert STARTED_WITH not in annotations_of(pod)


def replace(pod: dict[str, Any]) -> list[dict[str, Any]]:
    path = "/metadata/annotations/proxy.istio.io~1config"
    return [{"op": "replace", "path": path, "value": "concurrency: 2 # theirs\n"}]


def remove(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": "/metadata/annotations"}]


def annotate(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"op": "add", "path": "/metadata/annotations/theirs", "value": "added"}]


def contain(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": "/spec/containers/0", "value": {"name": "agent", "image": "none"}}
    ]


LATER = {make.__name__: make for make in (replace, remove, annotate, contain)}


@pytest.fixture(scope="module")
def later(cluster: lab.Cluster, served: Scene) -> Iterator[Hooks]:
    """Webhooks that are called after ours, for pods that ask for one by label `lab.test/later`."""
    answers = {name: patching(make) for name, make in LATER.items()}
    asked = {name: {"objectSelector": {"matchLabels": {"lab.test/later": name}}} for name in LATER}
    with mutating(cluster, "later", answers, asked) as hooks:
        lab.until(
            lambda: ask(cluster, served, "annotate") and hooks.calls["annotate"],
            timeout=30,
            what="the later webhooks to be called",
        )
        yield hooks


def ask(cluster: lab.Cluster, scene: Scene, later: str) -> creation.Creation:
    """Create a pod that is shown to this later webhook, too."""
    labels = {"lab.test/later": later}
    [made] = creation.create(cluster, meshed.nameless(scene.namespace, sidecar=None, labels=labels))
    return made


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("replace", {CONFIG: f"concurrency: 2 # theirs\n{HOLD}: true\n", STARTED_WITH: "hold"}),
        ("remove", {CONFIG: f"{HOLD}: true", STARTED_WITH: "hold"}),
        ("annotate", {CONFIG: f"{HOLD}: true", STARTED_WITH: "hold", "theirs": "added"}),
        ("contain", {CONFIG: f"{HOLD}: true", STARTED_WITH: "hold"}),
    ],
)
@pytest.mark.usefixtures("later")
def test_what_a_later_webhook_changes_is_looked_at_again(
    cluster: lab.Cluster, served: Scene, webhook: Workload, change: str, made: dict[str, str]
):
    """Called twice, hold is in the pod once, beside all that the other webhook did."""
    pod = ask(cluster, served, change)

    assert annotations_of(pod.pod) == made
    assert ("agent" in dict(shape(pod.pod))) is (change == "contain")
    ours = manifests.webhook_configuration(webhook.name, webhook.model)
    calls = {k: json.loads(v) for k, v in pod.audit(cluster).items() if k.startswith("mutation.")}
    mine = {key: call for key, call in calls.items() if call["configuration"] == ours}
    rounds = [key.partition("/")[2].split("_")[1] for key in sorted(mine)]
    assert rounds == ["0", "1"]
    again = [call["mutated"] for _, call in sorted(mine.items())]
    assert again == [True, change in {"replace", "remove"}]
