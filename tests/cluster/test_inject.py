"""Applications whose pods are to get a sidecar, through the real API server and past Istio.

The configurations are the charm's, one for each form of admission; the pods are those of charms as
Juju labels them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import lab.istio
import lightkube
import pytest
from istio_aux.model.annotations import INJECT, STARTED_WITH
from lab import creation, meshed
from lab.creation import Creation
from lab.fixtures import await_account
from lab.meshed import PROXY, has_sidecar
from lab.workload import Workload, renamed
from lightkube.codecs import AnyResource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

import manifests
from config import Applications

AMBIENT = {"istio.io/dataplane-mode": "ambient"}
# Namespaces of each mode, with their labels, and whose pods are asked for there.
MODELS: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "named": ({}, ("db", "web")),
    "every": ({}, ("*",)),
    "disabled": ({"istio-injection": "disabled"}, ("*",)),
    "ambient": (AMBIENT, ("*",)),
    "both": ({**AMBIENT, "istio-injection": "enabled"}, ("*",)),
}


@dataclass(frozen=True)
class Case:
    model: str
    app: str | None = "web"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])
    asks: bool = False
    meshed: bool = False


# Juju adds the controller's label, which is below. Either is enough.
MODELOPERATOR = {"operator.juju.is/name": "modeloperator", "operator.juju.is/target": "model"}
CASES = {
    "a pod of a named application": Case("named", asks=True, meshed=True),
    "another named application": Case("named", "db", asks=True, meshed=True),
    "an application that nobody named": Case("named", "cache"),
    "a pod of no application": Case("named", None),
    "the same application of another model": Case("other"),
    "any application of a model": Case("every", "anything", asks=True, meshed=True),
    "no application in a model of which all are asked for": Case("every", None),
    "a label that says no": Case("named", labels={INJECT: "false"}),
    "an annotation that says no": Case("named", annotations={INJECT: "false"}),
    "a label that says yes": Case("named", labels={INJECT: "true"}, asks=True, meshed=True),
    "host network": Case("named", spec={"hostNetwork": True}),
    "a pod that is ambient": Case("named", labels=AMBIENT),
    "a pod that is ambient and injected": Case("both", labels=AMBIENT, meshed=True),
    "a pod that is ambient and asks itself": Case(
        "named", labels={**AMBIENT, INJECT: "true"}, asks=True, meshed=True
    ),
    "the operator of a model": Case("every", "modeloperator", MODELOPERATOR),
    "an operator of an old Juju": Case("every", "x", {"juju-modeloperator": "modeloperator"}),
    "an operator of an application": Case(
        "every", labels={"operator.juju.is/name": "web"}, asks=True, meshed=True
    ),
    "the controller": Case("every", "controller", {"model.juju.is/disable-webhook": "true"}),
    "we ourselves": Case("ours", "istio-aux"),
    "a neighbour of ours": Case("ours", asks=True, meshed=True),
    "an application in another model that has our name": Case(
        "every", "istio-aux", asks=True, meshed=True
    ),
    "a namespace that forbids it": Case("disabled", asks=True),
    "an ambient namespace": Case("ambient"),
    "an ambient namespace that is injected": Case("both", asks=True, meshed=True),
    "a pod that asks in an ambient namespace": Case(
        "ambient", labels={INJECT: "true"}, asks=True, meshed=True
    ),
}


def model(name: str) -> str:
    return "istio-aux" if name == "ours" else f"inject-{name}"


LONGEST = "z" * 63


def pod_of(case: Case) -> Pod:
    labels = {"app.kubernetes.io/name": case.app} if case.app else {}
    pod = meshed.nameless(
        model(case.model),
        labels={**labels, **case.labels},
        sidecar=None,
        annotations=case.annotations,
    ).to_dict()
    pod["spec"] |= case.spec
    return meshed.written(pod, model(case.model))


def asks(pod: Pod) -> bool:
    return (meshed.meta(pod).labels or {}).get(INJECT) == "true"


@pytest.fixture(scope="module")
def in_force(
    cluster: lab.Cluster, client: lightkube.Client, workload: Workload, istio: lab.istio.Istio
) -> Iterator[list[AnyResource]]:
    namespaces = {model(name): labels for name, (labels, _) in MODELS.items()}
    for name, labels in (namespaces | {model("other"): {}}).items():
        client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
    workload.enlist()
    asked = [Applications(model(name), names) for name, (_, names) in MODELS.items()]
    values = manifests.Values(
        workload.name,
        workload.model,
        # Of none of these namespaces.
        namespace_selectors=[{"matchLabels": {"lab.test/inject": "unselected"}}],
        ca_bundle=workload.authority.certificate,
        inject=(*asked, Applications(workload.model, ("*",))),
    )
    # Before Istio's.
    made = renamed(manifests.render_webhook(values), values, "inject")
    for resource in made:
        client.apply(resource, field_manager="lab", force=True)
    for name in (*MODELS, "other"):
        await_account(client, model(name))
    await_account(client, workload.model)
    probe = pod_of(CASES["a pod of a named application"])
    lab.until(
        lambda: has_sidecar(client.create(probe, dry_run=True)),
        what="the configuration to be in force",
    )
    yield made
    meshed.delete(client, made)


@pytest.fixture(scope="module")
def created(cluster: lab.Cluster, in_force: list[AnyResource]) -> dict[str, Creation]:
    what = {name: pod_of(case) for name, case in CASES.items()}
    made = creation.create(cluster, *what.values(), dry_run=True)
    return dict(zip(what, made, strict=True))


def test_who_asks_for_a_sidecar_gets_it_where_istio_may_and_starts_after_it(
    created: dict[str, Creation],
):
    """Whatever namespace-selectors are, and injection beats the ambient label."""
    pods = {case: created[case].pod for case in CASES}

    found = {name: (asks(pod), has_sidecar(pod)) for name, pod in pods.items()}
    assert found == {name: (case.asks, case.meshed) for name, case in CASES.items()}
    held = {n for n, pod in pods.items() if meshed.annotations_of(pod).get(STARTED_WITH) == "hold"}
    assert held == {name for name, case in CASES.items() if case.asks or case.meshed}
    specs = [pod.spec for name, pod in pods.items() if CASES[name].meshed]
    assert {spec.containers[0].name for spec in specs if spec} == {PROXY}


def test_names_may_be_as_long_as_names_may_be(client: lightkube.Client):
    names = tuple(f"{LONGEST[:60]}{i:03}" for i in range(300))
    asked = (Applications(LONGEST, names), Applications("a", ("*",)), Applications("1-a", ("1",)))

    (configuration,) = manifests.render_webhook(
        manifests.Values(LONGEST, LONGEST, ca_bundle="", inject=asked)
    )

    made = client.create(configuration, dry_run=True).to_dict()
    assert [webhook["name"] for webhook in made["webhooks"][1:]] == [
        f"{LONGEST}.inject.istio-aux.io",
        "a.inject.istio-aux.io",
        "1-a.inject.istio-aux.io",
    ]
