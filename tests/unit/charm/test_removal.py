"""The last unit deletes everything, which it knows by its labels; no other unit deletes anything.

What is cluster-wide goes with the model's namespace when nobody runs the charm's last hook.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from lightkube.core.resource import api_info
from ops import testing

import cluster

from .apiserver import MODEL_UID, refusal
from .conftest import Unit
from .test_certificates import handshake, served, trusted
from .test_istio_relations import MESH

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases"


@pytest.mark.parametrize("leader", [True, False])
@pytest.mark.parametrize("event", ["stop", "remove"])
def test_the_last_unit_deletes_every_object_and_the_webhook_first(
    event: str, leader: bool, unit: Unit
) -> None:
    unit.relate(MESH)
    unit.api.calls.clear()

    unit.remove(event, leader=leader)

    assert not unit.api.objects
    deleted = [call.split("/")[-2] for call in unit.api.calls if call.startswith("DELETE")]
    assert deleted[0] == "mutatingwebhookconfigurations"
    # The workload's account never has rights that nothing narrows.
    roles, narrowing = "clusterrolebindings", "validatingadmissionpolicybindings"
    assert deleted.index(roles) < deleted.index(narrowing)


def test_the_lease_of_the_workload_goes_and_objects_of_another_application_stay(
    unit: Unit,
) -> None:
    labels = unit.api.one("ClusterRole")["metadata"]["labels"] | {"istio-aux.io/model": "other"}
    theirs = {"kind": "ClusterRole", "metadata": {"name": "theirs", "labels": labels}}
    unit.api.objects[f"{ROLES}/theirs"] = theirs
    for name in ("istio-aux", "another"):
        lease = {"kind": "Lease", "metadata": {"name": name, "labels": {}}}
        unit.api.objects[f"{LEASES}/{name}"] = lease

    unit.remove()

    assert {*unit.api.objects} == {f"{ROLES}/theirs", f"{LEASES}/another"}


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_a_unit_that_goes_while_others_stay_deletes_nothing(event: str, unit: Unit) -> None:
    objects = dict(unit.api.objects)

    assert unit.remove(event, planned_units=1) == testing.WaitingStatus("the unit is being removed")

    assert unit.api.objects == objects


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_permission_that_juju_removed_does_not_stop_the_removal(code: int, unit: Unit) -> None:
    unit.api.answers = {"list mutatingwebhookconfigurations": refusal(code, "no")}

    unit.remove()

    assert unit.api.kinds() == ["MutatingWebhookConfiguration"]


GONE = "MutatingWebhookConfiguration, ClusterRoleBinding, ClusterRole"


def take_rights(unit: Unit) -> None:
    """Juju deletes the charm's role before the last hook (lp:1941655)."""
    kinds = {api_info(kind).plural for kind in cluster.OWNED}
    unit.api.denied = {f"list {kind}" for kind in {*kinds, "namespaces"}} | {"delete leases"}


def test_objects_that_are_left_without_rights_are_said_with_the_page_that_deletes_them(
    unit: Unit,
) -> None:
    take_rights(unit)

    page = "see docs/how-to/clean-up-by-hand.md"

    assert unit.remove() == testing.BlockedStatus(
        f"the unit is being removed; left in the cluster: {GONE} and 9 more: {page}"
    )
    (line,) = [log for log in unit.ctx.juju_log if log.level == "ERROR"]
    assert line.message.startswith(f"left in the cluster: {GONE}, RoleBinding, ")
    assert line.message.endswith(f"Lease, the labels of namespaces: {page}")


def test_what_an_earlier_hook_of_the_removal_has_deleted_is_not_left(unit: Unit) -> None:
    unit.remove("stop")
    take_rights(unit)

    assert unit.remove() == testing.WaitingStatus("the unit is being removed")


def test_a_unit_that_stays_after_all_and_is_removed_later_says_what_it_leaves(unit: Unit) -> None:
    unit.remove("stop")
    unit.run(planned_units=1)
    take_rights(unit)

    assert "left in the cluster: " in unit.remove().message


def test_juju_retries_the_removal_when_the_api_server_fails(unit: Unit) -> None:
    unit.api.failures = [refusal(500, "etcd is gone")]

    with pytest.raises(testing.errors.UncaughtCharmError, match="etcd is gone"):
        unit.remove()


def test_every_cluster_wide_object_goes_with_the_namespace_of_the_model(unit: Unit) -> None:
    """The garbage collector deletes them when nobody runs the charm's last hook."""
    unit.configure(race_policy="restart")

    owner = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": "kubeflow",
        "uid": MODEL_UID,
        # A foreground deletion of the namespace waits for them.
        "blockOwnerDeletion": True,
    }
    owners = {path: o["metadata"].get("ownerReferences") for path, o in unit.api.objects.items()}
    inside = {path for path in owners if "/namespaces/" in path}
    assert len(owners) > len(inside) > 1
    assert owners == {path: None if path in inside else [owner] for path in owners}


def test_in_the_model_of_a_controller_everything_is_in_its_namespace(
    new_unit: Unit, tmp_path: Path
) -> None:
    """Juju calls that model `controller`, and its namespace `controller-` and its own name."""
    unit, namespace = new_unit, "controller-lab"
    unit.state = dataclasses.replace(unit.state, model=testing.Model("controller"))
    mounted = unit.kubeconfig.read_text().replace("kubeflow", namespace)
    unit.kubeconfig.write_text(mounted)
    unit.api.model = namespace

    assert isinstance(unit.configure(), testing.ActiveStatus)

    parts = (path.partition("/namespaces/")[2].partition("/") for path in unit.api.objects)
    # What is cluster-wide has none.
    assert {name for name, _, _ in parts} == {"", namespace}
    services = [each["clientConfig"]["service"]["namespace"] for each in unit.api.webhooks]
    assert {*services} == {namespace}
    assert unit.settings["lease"] == f"{namespace}/istio-aux"
    assert handshake(served(unit), trusted(unit.api), f"istio-aux.{namespace}.svc", tmp_path)

    unit.remove()
    assert not unit.api.objects
