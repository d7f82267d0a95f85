"""What the charm has set on others' objects and takes back, and what remains if it cannot.

When nobody runs its last hook, the model is deleted, or somebody follows
`docs/how-to/clean-up-by-hand.md`. Until then no unit answers, and no pod is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lab.istio
import lightkube
import pytest
from lab import meshed, tools
from lab.fixtures import await_account
from lab.workload import configured, follow
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.rbac_v1 import PolicyRule, RoleRef, Subject
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, ResourceQuota, ServiceAccount
from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding
from lightkube.types import CascadeType, PatchType

import cluster as of_charm
import manifests
import objects
from certificates import Issuers, make_authority
from cluster import Found, ReconcileError
from inputs import Inputs

APP = "istio-aux"
OWNED = [kind for kind in of_charm.OWNED if "MutatingAdmission" not in kind.__name__]
HOW_TO = Path(__file__).resolve().parents[2] / "docs/how-to/clean-up-by-hand.md"


@pytest.fixture
def deserted(client: lightkube.Client, istio: lab.istio.Istio) -> manifests.Values:
    """Every object that an application can own, in a model of its own, and no unit."""
    name = f"model-{secrets.token_hex(3)}"
    made = client.create(Namespace(metadata=ObjectMeta(name=name)))
    values = manifests.Values(
        APP,
        name,
        namespace_selectors=[{"matchLabels": {"looked-after-by": name}}],
        ambient=True,
        repairs=True,
        ca_bundle=make_authority(APP, name).certificate,
        owner=meshed.meta(made).uid or "",
    )
    of_charm.apply(client, manifests.render(values), manager=APP)
    client.create(Lease(metadata=ObjectMeta(name=APP, namespace=name)))
    return values


@pytest.fixture
def selected(client: lightkube.Client, deserted: manifests.Values, namespace: str) -> str:
    client.patch(
        Namespace, namespace, {"metadata": {"labels": {"looked-after-by": deserted.model}}}
    )
    return namespace


def left(client: lightkube.Client, model: str) -> list[str]:
    """The objects that have the application's labels."""
    labels: Any = manifests.labels(APP, model)
    return [
        f"{kind.__name__} {each.metadata.name}"
        for kind in OWNED
        for each in client.list(kind, namespace=model, labels=labels)
    ]


def await_nothing_left(client: lightkube.Client, model: str) -> None:
    lab.until(lambda: not left(client, model), what=f"all of {model} to be gone")


@pytest.mark.parametrize("cascade", [CascadeType.FOREGROUND, CascadeType.BACKGROUND])
def test_a_deleted_model_leaves_nothing_and_refuses_nothing(
    client: lightkube.Client, deserted: manifests.Values, selected: str, cascade: CascadeType
):
    """Juju deletes the Namespace in the foreground, kubectl in the background."""
    assert len({each.partition(" ")[0] for each in left(client, deserted.model)}) == len(OWNED)
    client.create(meshed.pod(selected, "new", sidecar=None), dry_run=True)  # It is not refused.

    client.delete(Namespace, deserted.model, cascade=cascade)

    await_nothing_left(client, deserted.model)


def test_in_the_foreground_the_webhook_goes_before_the_namespace(
    client: lightkube.Client, deserted: manifests.Values
):
    """An object whose finalizer nobody removes holds up the end of many a model."""
    held = ObjectMeta(name="held", namespace=deserted.model, finalizers=["lab.test/held"])
    client.create(Lease(metadata=held))

    client.delete(Namespace, deserted.model, cascade=CascadeType.FOREGROUND)

    lab.until(
        lambda: not any("Mutating" in each for each in left(client, deserted.model)),
        what="the webhook to be gone",
    )
    client.patch(Lease, "held", {"metadata": {"finalizers": None}}, namespace=deserted.model)
    await_nothing_left(client, deserted.model)


def test_what_is_left_is_cleaned_up_by_hand(
    cluster: lab.Cluster,
    client: lightkube.Client,
    deserted: manifests.Values,
    selected: str,
):
    model = deserted.model
    client.patch(Namespace, selected, {"metadata": {"labels": {"istio-injection": None}}})
    mark(client, selected, f"{model}/{APP}")

    follow_page(cluster, model)

    assert not left(client, model)
    assert not [*client.list(Lease, namespace=model)]
    metadata = meshed.meta(client.get(Namespace, selected))
    assert "istio-injection" not in (metadata.labels or {})
    assert objects.INJECTED_BY not in (metadata.annotations or {})
    follow_page(cluster, model)
    client.delete(Namespace, model)


def mark(client: lightkube.Client, namespace: str, owner: str) -> None:
    """Set what the option `inject-namespaces` sets."""
    marks = {"labels": {objects.INJECTION: "enabled"}, "annotations": {objects.INJECTED_BY: owner}}
    client.patch(Namespace, namespace, {"metadata": marks})


def follow_page(cluster: lab.Cluster, model: str) -> None:
    """Run the commands of the how-to in one shell, which ends at the first that fails."""
    block = r"(?:On Kubernetes 1\.(\d+) or later:\n\n)?^```sh[^\n]*\n(.*?)^```$"
    blocks = re.findall(block, HOW_TO.read_text(), re.DOTALL | re.MULTILINE)
    fit = [commands for since, commands in blocks if not (since and tools.before(int(since)))]
    commands = "".join(fit).replace("MODEL=my-model", f"MODEL={model}")
    assert model in commands
    assert "rror" not in follow(cluster, commands).stderr


LONG_MODEL, LONG_APP = "m" * 63, "a" * 63
OURS = {"istio-injection": "enabled", "istio-aux.io/injection": f"{LONG_MODEL}/{LONG_APP}"}


def labels(client: lightkube.Client, namespace: str) -> dict[str, str]:
    """Istio's label, and the annotation that says who set it."""
    metadata = meshed.meta(client.get(Namespace, namespace))
    said = {**(metadata.labels or {}), **(metadata.annotations or {})}
    return {key: said[key] for key in OURS if key in said}


def label(client: lightkube.Client, namespace: str, value: str | None) -> None:
    """What `kubectl label --overwrite` does."""
    patch = {"metadata": {"labels": {"istio-injection": value}}}
    client.patch(Namespace, namespace, patch, patch_type=PatchType.MERGE)


def test_a_label_that_somebody_else_has_set_too_stays(client: lightkube.Client, namespace: str):
    options = configured(LONG_MODEL, {"inject-namespaces": namespace})
    leader = Inputs(LONG_APP, LONG_MODEL, True, datetime.now(UTC), options, "", Issuers())
    leader = dataclasses.replace(leader, namespaces=tuple(of_charm.listed(client, Namespace)))
    objects.label_namespaces(client, leader, live=True)
    theirs = ObjectMeta(name=namespace, labels={"istio-injection": "enabled"})
    client.apply(Namespace(metadata=theirs), field_manager="gitops")

    named = tuple(of_charm.listed(client, Namespace))
    leader = dataclasses.replace(leader, config=configured(LONG_MODEL, {}), namespaces=named)
    objects.label_namespaces(client, leader, live=True)

    assert labels(client, namespace) == {"istio-injection": "enabled"}


def test_a_label_that_comes_between_look_and_act_is_not_overwritten(
    client: lightkube.Client, namespace: str
):
    seen = Found(namespace, meshed.meta(client.get(Namespace, namespace)).uid or "", {}, {})
    label(client, namespace, "disabled")

    with pytest.raises(ReconcileError, match="conflict"):
        objects._label(client, seen, f"{LONG_MODEL}/{LONG_APP}", enabled=True)

    assert labels(client, namespace) == {"istio-injection": "disabled"}


def test_a_namespace_that_goes_between_look_and_act_is_not_made(client: lightkube.Client):
    gone = Found("gone", "8f1c2a5e-0000-4000-8000-000000000000", {}, {})

    with pytest.raises(ReconcileError):
        objects._label(client, gone, f"{LONG_MODEL}/{LONG_APP}", enabled=True)

    with pytest.raises(lightkube.ApiError, match="not found"):
        client.get(Namespace, "gone")


def refusal(client: lightkube.Client, made: Any) -> tuple[int, bool]:
    """The code with which the API server refuses the object, and whether a right is missing."""
    with pytest.raises(ReconcileError) as error:
        of_charm.apply(client, [made], manager=APP)
    return error.value.code, error.value.refused


def test_a_right_that_is_missing_is_known_from_whatever_else_is_forbidden(
    cluster: lab.Cluster, client: lightkube.Client, namespace: str
):
    """In the API server's own words."""
    await_account(client, namespace)
    about = ObjectMeta(name="made", namespace=namespace)
    group, account = "rbac.authorization.k8s.io", ServiceAccount(metadata=about)
    # Who may escalate or has all verbs may grant rights that they do not have.
    makes = PolicyRule(apiGroups=[group], resources=["roles"], verbs=["create", "list", "patch"])
    reads = PolicyRule(apiGroups=[""], resources=["secrets"], verbs=["get"])
    subjects = [Subject(kind="ServiceAccount", name="default", namespace=namespace)]
    role = RoleRef(apiGroup=group, kind="Role", name="makes")
    rights: list[Any] = [
        Role(metadata=ObjectMeta(name="makes", namespace=namespace), rules=[makes]),
        RoleBinding(metadata=about, roleRef=role, subjects=subjects),
    ]
    of_charm.apply(client, rights, manager=APP)
    config = lightkube.KubeConfig.from_file(cluster.kubeconfig_for(namespace, "default"))
    with contextlib.closing(lightkube.Client(config=config, trust_env=False)) as narrow:
        lab.until(
            lambda: [*narrow.list(Role, namespace=namespace)],
            what="the role to be in force",
            ignoring=(lightkube.ApiError,),
        )
        assert refusal(narrow, account) == (403, True)
        assert refusal(narrow, Role(metadata=about, rules=[reads])) == (403, True)

    client.create(
        ResourceQuota(metadata=about, spec=ResourceQuotaSpec(hard={"count/serviceaccounts": "0"}))
    )

    def counts() -> bool:
        probe = ServiceAccount(metadata=ObjectMeta(name="probe", namespace=namespace))
        try:
            client.create(probe, dry_run=True)
        except lightkube.ApiError:
            return True
        return False

    lab.until(counts, what="the quota to count")
    assert refusal(client, account) == (403, False)
    client.delete(ResourceQuota, "made", namespace=namespace)

    client.create(
        Lease(metadata=ObjectMeta(name="held", namespace=namespace, finalizers=["lab.test/held"]))
    )
    client.delete(Namespace, namespace)
    assert refusal(client, account) == (403, False)
    client.patch(Lease, "held", {"metadata": {"finalizers": None}}, namespace=namespace)
