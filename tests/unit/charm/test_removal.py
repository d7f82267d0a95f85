"""The last unit deletes everything; no other unit deletes anything."""

from __future__ import annotations

import httpx2
import pytest
from ops import testing

from .conftest import Unit
from .test_others_webhooks import MESH

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


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

    unit.remove()
    assert not unit.api.objects


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_no_pod_is_refused_while_the_removal_takes_its_time(event: str, unit: Unit) -> None:
    """With `Fail`, and without a workload from now on."""
    unit.configure(failure_policy="Fail")
    unit.api.calls.clear()

    unit.remove(event)

    webhook, jobs = (
        next(i for i, call in enumerate(unit.api.calls) if call.startswith(what))
        for what in (
            "DELETE /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/",
            "GET /apis/batch/v1/jobs",
        )
    )
    assert webhook < jobs


def test_the_last_unit_deletes_the_lease_of_its_workload(unit: Unit) -> None:
    base = "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases"
    for name in ("istio-aux", "another"):
        lease = {"kind": "Lease", "metadata": {"name": name, "labels": {}}}
        unit.api.objects[f"{base}/{name}"] = lease

    unit.remove()

    assert list(unit.api.objects) == [f"{base}/another"]


def test_the_last_unit_cleans_up_a_cluster_without_admission_policies_and_istio(
    new_unit: Unit,
) -> None:
    new_unit.api.unknown = {
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "peerauthentications",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
    new_unit.configure()

    new_unit.remove()

    assert not new_unit.api.objects


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_a_unit_that_goes_while_others_stay_deletes_nothing(event: str, unit: Unit) -> None:
    objects = dict(unit.api.objects)

    status = unit.remove(event, planned_units=1)

    assert unit.api.objects == objects
    assert status == testing.WaitingStatus("the unit is being removed")


def test_objects_of_another_application_stay(unit: Unit) -> None:
    ours = unit.api.one("ClusterRole")
    labels = {**ours["metadata"]["labels"], "istio-aux.io/model": "other"}
    theirs = {"kind": "ClusterRole", "metadata": {"name": "theirs", "labels": labels}}
    unit.api.objects[f"{ROLES}/theirs"] = theirs

    unit.remove()

    assert list(unit.api.objects) == [f"{ROLES}/theirs"]


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_permission_that_juju_removed_does_not_stop_the_removal(code: int, unit: Unit) -> None:
    answer = httpx2.Response(code, json={"kind": "Status", "message": "no"})
    unit.api.answers = {"list mutatingwebhookconfigurations": answer}

    unit.remove()

    assert unit.api.kinds() == ["MutatingWebhookConfiguration"]


def test_juju_retries_the_removal_when_the_api_server_fails(unit: Unit) -> None:
    unit.api.failures = [httpx2.Response(500, json={"kind": "Status", "message": "etcd is gone"})]

    with pytest.raises(testing.errors.UncaughtCharmError, match="etcd is gone"):
        unit.remove()
