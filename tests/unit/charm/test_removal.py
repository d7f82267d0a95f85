"""The last unit takes everything down; no other unit takes anything."""

from __future__ import annotations

import dataclasses

import httpx2
import pytest
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer

Context = testing.Context[IstioAuxCharm]
# What is asked before anything is deleted: which Jobs are suspended, kind by kind.
NO_JOBS = [httpx2.Response(200, json={"items": [], "metadata": {}}) for _ in range(7)]


@pytest.mark.parametrize("leader", [True, False])
@pytest.mark.parametrize("event", ["stop", "remove"])
def test_the_last_unit_deletes_all_the_webhook_first(
    event: str, leader: bool, ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.calls.clear()
    last = dataclasses.replace(settled, leader=leader, planned_units=0)

    ctx.run(getattr(ctx.on, event)(), last)

    assert not api.objects
    deleted = [call.split("/")[-2] for call in api.calls if call.startswith("DELETE")]
    assert deleted[0] == "mutatingwebhookconfigurations"
    # Not for a moment does the workload's account have rights that nothing narrows.
    roles, narrowing = "clusterrolebindings", "validatingadmissionpolicybindings"
    assert deleted.index(roles) < deleted.index(narrowing)


def test_the_last_unit_takes_the_lease_of_its_workload_along(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    base = "/apis/coordination.k8s.io/v1/namespaces/kubeflow/leases"
    for name in ("istio-aux", "another"):
        api.objects[f"{base}/{name}"] = {"kind": "Lease", "metadata": {"name": name, "labels": {}}}

    ctx.run(ctx.on.remove(), dataclasses.replace(settled, planned_units=0))

    assert list(api.objects) == [f"{base}/another"]


def test_a_cluster_without_admission_policies_and_istio_is_cleaned_up_too(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.unknown = {
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "peerauthentications",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
    settled = ctx.run(ctx.on.config_changed(), fresh)

    ctx.run(ctx.on.remove(), dataclasses.replace(settled, planned_units=0))

    assert not api.objects


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_a_unit_that_goes_while_others_stay_deletes_nothing(
    event: str, ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    objects = dict(api.objects)

    out = ctx.run(getattr(ctx.on, event)(), dataclasses.replace(settled, planned_units=1))

    assert api.objects == objects
    assert out.unit_status == testing.WaitingStatus("the unit is being removed")


def test_nothing_of_another_application_is_deleted(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    ours = api.one("ClusterRole")
    labels = {**ours["metadata"]["labels"], "istio-aux.io/model": "other"}
    theirs = {"kind": "ClusterRole", "metadata": {"name": "theirs", "labels": labels}}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/theirs"
    api.objects[path] = theirs

    ctx.run(ctx.on.remove(), dataclasses.replace(settled, planned_units=0))

    assert list(api.objects) == [path]


def test_removing_twice_is_fine(ctx: Context, settled: testing.State, api: ApiServer) -> None:
    last = dataclasses.replace(settled, planned_units=0)

    ctx.run(ctx.on.remove(), ctx.run(ctx.on.stop(), last))

    assert not api.objects


@pytest.mark.parametrize("code", [401, 403, 404])
def test_what_juju_took_away_already_does_not_stop_the_removal(
    code: int, ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.failures = [*NO_JOBS, httpx2.Response(code, json={"kind": "Status", "message": "no"})]

    ctx.run(ctx.on.remove(), dataclasses.replace(settled, planned_units=0))

    assert api.kinds() == ["MutatingWebhookConfiguration"]


def test_a_server_that_fails_makes_juju_try_the_removal_again(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.failures = [httpx2.Response(500, json={"kind": "Status", "message": "etcd is gone"})]

    with pytest.raises(testing.errors.UncaughtCharmError, match="etcd is gone"):
        ctx.run(ctx.on.remove(), dataclasses.replace(settled, planned_units=0))
