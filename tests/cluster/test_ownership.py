"""What remains of the application when nobody runs its last hook: real labels, owners, collector.

The model is deleted, or somebody follows `docs/how-to/clean-up-by-hand.md`. Until then no unit
answers, so `failure-policy: Fail` refuses pods.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from lab import meshed, tools
from lab.versions import POLICY
from lightkube.codecs import from_dict
from lightkube.generic_resource import create_global_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
)
from lightkube.resources.batch_v1 import Job
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace
from lightkube.types import CascadeType

import cluster as of_charm
import injectionlabels
import manifests
import suspended

APP = "istio-aux"
# Measured on 2 busy cores: with a deleted model, everything is gone within 6 s.
SOON = 300.0
POLICIES = (MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding)
OWNED = [kind for kind in of_charm.OWNED if POLICY.there or kind not in POLICIES]
HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to/clean-up-by-hand.md"


Definition = create_global_resource(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"
)
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
DEFINITION: dict[str, Any] = {
    "metadata": {"name": "authorizationpolicies.security.istio.io"},
    "spec": {
        "group": "security.istio.io",
        "names": {"kind": "AuthorizationPolicy", "plural": "authorizationpolicies"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    },
}


@pytest.fixture(scope="module")
def kinds(client: lightkube.Client, istio: lab.istio.Istio) -> Iterator[None]:
    """The kinds of Istio that the application owns objects of; the stand-in has not all."""
    name = DEFINITION["metadata"]["name"]
    client.apply(Definition.from_dict(DEFINITION), field_manager="lab")
    lab.until(
        lambda: served(client) == OWNED,
        timeout=SOON,
        what="every kind to be served",
    )
    yield
    client.delete(Definition, name)


def served(client: lightkube.Client) -> list[type[Any]]:
    """The kinds that the API server serves."""
    kinds = of_charm.OWNED
    return [kind for kind in kinds if of_charm.owned(client, kind, {}, "default") is not None]


@pytest.fixture
def deserted(client: lightkube.Client, kinds: None) -> manifests.Values:
    """Every object that an application can own, in a model of its own, and no unit."""
    name = f"model-{secrets.token_hex(3)}"
    made = client.create(Namespace(metadata=ObjectMeta(name=name)))
    assert made.metadata
    values = manifests.Values(
        APP,
        name,
        namespace_selector={"matchLabels": {"looked-after-by": name}},
        failure_policy="Fail",
        admission="policy" if POLICY.there else "webhook",
        ambient=True,
        repairs=True,
        repairs_jobs=True,
        owner=made.metadata.uid or "",
    )
    assert of_charm.apply(client, manifests.render(values), manager=APP) is None
    lease = ObjectMeta(name=manifests.lease(APP), namespace=name)
    client.create(Lease(metadata=lease))
    return values


@pytest.fixture
def refused(client: lightkube.Client, deserted: manifests.Values, namespace: str) -> str:
    """A namespace that the application looks after, in which pods are refused."""
    labels = {"looked-after-by": deserted.model}
    client.patch(Namespace, namespace, {"metadata": {"labels": labels}})
    lab.until(
        lambda: "failed calling webhook" in answer(client, namespace),
        timeout=SOON,
        what="pods to be refused",
    )
    return namespace


def answer(client: lightkube.Client, namespace: str) -> str:
    """What the API server says about a new pod; nothing if it is created."""
    try:
        # Its config is the webhook's affair, not the policy's.
        config = {"proxy.istio.io/config": "{}"}
        client.create(meshed.pod(namespace, "new", sidecar=None, annotations=config), dry_run=True)
    except lightkube.ApiError as error:
        return str(error)
    return ""


def left(client: lightkube.Client, model: str) -> list[str]:
    """The objects that have the application's labels."""
    found: list[str] = []
    for kind in OWNED:
        owned = of_charm.owned(client, kind, manifests.labels(APP, model), model)
        assert isinstance(owned, list), owned
        found += [f"{kind.__name__} {each.metadata and each.metadata.name}" for each in owned]
    return found


def await_nothing_left(client: lightkube.Client, model: str) -> None:
    lab.until(lambda: not left(client, model), timeout=SOON, what=f"all of {model} to be gone")


@pytest.mark.parametrize("cascade", [CascadeType.FOREGROUND, CascadeType.BACKGROUND])
def test_a_deleted_model_leaves_nothing_and_refuses_nothing(
    client: lightkube.Client, deserted: manifests.Values, refused: str, cascade: CascadeType
):
    """Juju deletes the Namespace in the foreground, kubectl in the background."""
    assert len({each.partition(" ")[0] for each in left(client, deserted.model)}) == len(OWNED)

    client.delete(Namespace, deserted.model, cascade=cascade)

    await_nothing_left(client, deserted.model)
    lab.until(lambda: not answer(client, refused), timeout=SOON, what="pods to be created")


def test_in_the_foreground_pods_are_created_before_the_namespace_is_gone(
    client: lightkube.Client, deserted: manifests.Values, refused: str
):
    """An object whose finalizer nobody removes holds up the end of many a model."""
    held = ObjectMeta(name="held", namespace=deserted.model, finalizers=["lab.test/held"])
    client.create(Lease(metadata=held))

    client.delete(Namespace, deserted.model, cascade=CascadeType.FOREGROUND)

    lab.until(lambda: not answer(client, refused), timeout=SOON, what="pods to be created")
    client.patch(Lease, "held", {"metadata": {"finalizers": None}}, namespace=deserted.model)
    await_nothing_left(client, deserted.model)


def test_what_is_left_is_cleaned_up_by_hand(
    cluster: lab.Cluster,
    client: lightkube.Client,
    deserted: manifests.Values,
    refused: str,
    tmp_path: Path,
):
    model = deserted.model
    client.create(from_dict(suspended_job(refused)))
    client.patch(Namespace, refused, {"metadata": {"labels": {"istio-injection": None}}})
    label(client, refused, f"{model}/{APP}")

    follow(cluster, model, tmp_path)

    assert not left(client, model)
    assert not [*client.list(Lease, namespace=model)]
    assert not suspended.any_left(client)
    job = client.get(Job, "job", namespace=refused).spec
    assert job
    assert job.suspend is False
    metadata = client.get(Namespace, refused).metadata
    assert metadata
    assert "istio-injection" not in (metadata.labels or {})
    assert injectionlabels.ANNOTATION not in (metadata.annotations or {})
    lab.until(lambda: not answer(client, refused), timeout=SOON, what="pods to be created")
    follow(cluster, model, tmp_path)
    client.delete(Namespace, model)


def label(client: lightkube.Client, namespace: str, owner: str) -> None:
    """Set what the option `inject-namespaces` sets."""
    labels = {injectionlabels.INJECTION: injectionlabels.ENABLED}
    marks = {"labels": labels, "annotations": {injectionlabels.ANNOTATION: owner}}
    client.patch(Namespace, namespace, {"metadata": marks})


def suspended_job(namespace: str) -> dict[str, Any]:
    """A Job that the workload has suspended."""
    marks = {manifests.SUSPENDED: "sidecar"}
    template = {"spec": meshed.pod(namespace, "job", sidecar=None).to_dict()["spec"]}
    metadata = {"name": "job", "namespace": namespace, "labels": marks, "annotations": marks}
    kind = {"apiVersion": "batch/v1", "kind": "Job"}
    return {**kind, "metadata": metadata, "spec": {"template": template, "suspend": True}}


def follow(cluster: lab.Cluster, model: str, folder: Path) -> None:
    """Run the commands of the how-to in one shell, which ends at the first that fails."""
    block = r"(?:On Kubernetes 1\.(\d+) or later:\n\n)?^```sh[^\n]*\n(.*?)^```$"
    blocks = re.findall(block, HOW_TO.read_text(), re.DOTALL | re.MULTILINE)
    fit = [commands for since, commands in blocks if not (since and tools.before(int(since)))]
    commands = "".join(fit).replace("MODEL=my-model", f"MODEL={model}")
    assert model in commands
    programs = tools.path("kubectl").parent
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(folder),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    run = subprocess.run(
        ["sh", "-eu"], input=commands, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "rror" not in run.stderr
