"""What marks the objects as the application's, and what takes them along when the charm cannot."""

from __future__ import annotations

import dataclasses
import json

import httpx2
from ops import testing

from .apiserver import MODEL_UID
from .conftest import Unit

OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "kubeflow", "uid": MODEL_UID}
EVERYTHING = {"race_policy": "restart", "restart_jobs": True, "failure_policy": "Fail"}


def jobs_policies(unit: Unit) -> list[str]:
    return [path for path in unit.api.objects if path.endswith("-jobs")]


def test_what_juju_labels_as_its_own_is_found_all_the_same(new_unit: Unit) -> None:
    """Until 3.6.13, Juju's webhook overwrites a label that a charm sets (juju#21312)."""
    new_unit.api.labelled_by_juju = True
    new_unit.configure(**EVERYTHING)
    assert jobs_policies(new_unit)

    new_unit.configure()

    assert not jobs_policies(new_unit)
    new_unit.remove()
    assert not new_unit.api.objects


def test_a_label_of_jujus_is_no_difference_to_fight_about(new_unit: Unit) -> None:
    new_unit.api.labelled_by_juju = True
    new_unit.configure()
    new_unit.api.calls.clear()

    new_unit.run()

    assert not [call for call in new_unit.api.writes if "peerauthentications" in call]


def test_every_cluster_wide_object_goes_with_the_namespace_of_the_model(unit: Unit) -> None:
    """The garbage collector deletes them when nobody runs the charm's last hook."""
    unit.configure(**EVERYTHING)

    # Blocking: a foreground deletion of the namespace waits for them.
    owner = {**OWNER, "blockOwnerDeletion": True}
    owners = {path: o["metadata"].get("ownerReferences") for path, o in unit.api.objects.items()}
    inside = {path for path in owners if "/namespaces/" in path}
    assert len(owners) > len(inside) > 1
    assert owners == {path: None if path in inside else [owner] for path in owners}


def test_nothing_cluster_wide_is_applied_while_the_namespace_cannot_be_read(
    new_unit: Unit,
) -> None:
    body = {"kind": "Status", "code": 503, "message": "etcd is slow"}
    new_unit.api.answers = {"get namespaces kubeflow": httpx2.Response(503, json=body)}

    status = new_unit.configure()

    assert status == testing.WaitingStatus("Namespace kubeflow: etcd is slow")
    assert new_unit.api.objects
    assert all("/namespaces/" in path for path in new_unit.api.objects)


def test_in_the_model_of_a_controller_everything_is_in_its_namespace(new_unit: Unit) -> None:
    """Juju calls that model `controller`, and its namespace `controller-` and its own name."""
    unit, namespace = new_unit, "controller-lab"
    unit.state = dataclasses.replace(unit.state, model=testing.Model("controller"))
    unit.mount_namespace(namespace)
    unit.api.model = namespace

    assert isinstance(unit.configure(), testing.ActiveStatus)

    inside = [path for path in unit.api.objects if "/namespaces/" in path]
    assert inside
    assert all(f"/namespaces/{namespace}/" in path for path in inside)
    (service,) = {
        json.dumps(webhook["clientConfig"]["service"])
        for webhook in unit.api.one("MutatingWebhookConfiguration")["webhooks"]
    }
    assert json.loads(service)["namespace"] == namespace
    assert unit.settings["lease"] == f"{namespace}/istio-aux"
    assert f"istio-aux.{namespace}.svc" in unit.served_names

    unit.remove()
    assert not unit.api.objects
