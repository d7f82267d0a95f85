"""The webhook among others: one before it, which it reports, and one that undoes what it did."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import lab.workload
import lightkube
import pytest
from istio_aux.model.annotations import STARTED_WITH
from istio_aux.start.hold import ANNOTATION as CONFIG
from istio_aux.start.hold import HOLD
from lab import creation, meshed
from lab.hooks import mutating
from lab.meshed import annotations_of, typed
from lab.scene import Scene
from lab.start_cases import HELD
from lab.workload import Programs, Workload, metric
from lightkube import codecs
from lightkube.models.meta_v1 import LabelSelector
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

import manifests


def await_told(workload: Workload, *names: str) -> None:
    """Return when /status names these configurations and no other, and metric and log agree."""
    lab.until(
        lambda: workload.status()["called-before-us"] == [*names],
        what=f"/status to name {names or 'no configuration'}",
    )
    assert metric(workload, "istio_aux_configurations_called_before_ours") == len(names)
    told = [line["before"] for line in workload.lines() if line["event"] == "order"]
    assert (told or [[]])[-1] == [*names]


def test_a_configuration_that_is_called_before_ours_is_reported_until_it_is_deactivated(
    client: lightkube.Client, programs: Programs
):
    """A vendor may call it anything. One that is called after ours is none of our business.

    istio#43074.
    """
    workload = programs("ordered", {"quit": "disabled"})
    before: list[str] = workload.status()["called-before-us"]
    made: dict[str, MutatingWebhookConfiguration] = {}
    for name in ("zzz-sidecar-injector", "aaa-sidecar-injector"):
        webhook = {
            "name": "namespace.sidecar-injector.istio.io",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://127.0.0.1:9/inject"},
            "namespaceSelector": {"matchLabels": {"lab.test/nobody": "yes"}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                 "resources": ["pods"]},
            ],
            "sideEffects": "None",
        }  # fmt: skip
        document = {"metadata": {"name": name}, "webhooks": [webhook]}
        made[name] = client.create(typed(MutatingWebhookConfiguration, document))
    await_told(workload, "aaa-sidecar-injector", *before)

    [first] = made["aaa-sidecar-injector"].webhooks or []
    # As istioctl does.
    first.namespaceSelector = first.objectSelector = LabelSelector(
        matchLabels={"istio.io/deactivated": "never-match"}
    )
    client.replace(made["aaa-sidecar-injector"])
    await_told(workload, *before)

    for name in made:
        client.delete(MutatingWebhookConfiguration, name)


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
def later(cluster: lab.Cluster, served: Scene) -> Iterator[None]:
    """Webhooks that are called after ours, for pods that ask for one by label `lab.test/later`."""
    asked = {name: {"objectSelector": {"matchLabels": {"lab.test/later": name}}} for name in LATER}
    with mutating(cluster, "later", LATER, asked) as calls:
        lab.until(
            lambda: ask(cluster, served, "annotate") and calls["annotate"],
            what="the later webhooks to be called",
        )
        yield


def ask(cluster: lab.Cluster, scene: Scene, later: str) -> creation.Creation:
    """Create a pod that is shown to this later webhook, too."""
    labels = {"lab.test/later": later}
    [made] = creation.create(cluster, meshed.nameless(scene.namespace, sidecar=None, labels=labels))
    return made


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ("replace", {CONFIG: f"concurrency: 2 # theirs\n{HOLD}: true\n", STARTED_WITH: "hold"}),
        ("remove", HELD),
        ("annotate", {**HELD, "theirs": "added"}),
        ("contain", HELD),
    ],
)
@pytest.mark.usefixtures("later")
def test_what_a_later_webhook_changes_is_looked_at_again(
    cluster: lab.Cluster, served: Scene, webhook: Workload, change: str, made: dict[str, str]
):
    """Called twice, hold is in the pod once, beside all that the other webhook did."""
    pod = ask(cluster, served, change)

    assert annotations_of(pod.pod) == made
    assert pod.pod.spec
    assert ("agent" in {c.name for c in pod.pod.spec.containers}) is (change == "contain")
    ours = manifests.webhook_configuration(webhook.name, webhook.model)
    calls = {k: json.loads(v) for k, v in pod.audit(cluster).items() if k.startswith("mutation.")}
    mine = {key: call for key, call in calls.items() if call["configuration"] == ours}
    rounds = [key.partition("/")[2].split("_")[1] for key in sorted(mine)]
    assert rounds == ["0", "1"]
    again = [call["mutated"] for _, call in sorted(mine.items())]
    assert again == [True, change in {"replace", "remove"}]


def test_check_finds_a_second_installation_and_one_without_a_ready_pod(
    cluster: lab.Cluster, client: lightkube.Client, webhook: Workload
):
    """It has the settings of the first one, and its pods are gone."""
    first = manifests.webhook_configuration(webhook.name, webhook.model)
    second = f"{first}-left"
    made = client.get(MutatingWebhookConfiguration, first).to_dict()
    made["metadata"] = {"name": second, "annotations": made["metadata"]["annotations"]}
    for hook in made["webhooks"]:
        hook["clientConfig"]["service"]["name"] = "gone"
    client.create(codecs.from_dict(made))

    said = lab.workload.ask(cluster.kubeconfig, "check", "-o", "json").stdout.splitlines()

    client.delete(MutatingWebhookConfiguration, second)
    found = [each for line in said if (each := json.loads(line))["check"] == "installation"]
    shared, alone = sorted(each["what"] for each in found if each["result"] == "problem")
    assert shared.startswith(f"{first} and {second} select the same namespaces: ")
    assert f"{second}: no pod of Service " in alone
    assert alone.endswith("/gone is ready: new pods are not changed")
