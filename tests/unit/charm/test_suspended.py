"""Jobs that the workload suspended are resumed before it loses the right to, and before it goes."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
from ops import pebble, testing

import manifests
from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Workload

Context = testing.Context[IstioAuxCharm]
TFJOB = "/apis/kubeflow.org/v1/namespaces/training/tfjobs/mnist"
JOB = "/apis/batch/v1/namespaces/training/jobs/count"
POD = "/api/v1/namespaces/training/pods/mnist-worker-0"


def suspend(api: ApiServer, path: str = TFJOB, *, marked: bool = True) -> None:
    """Have a Job that is suspended."""
    labels = {manifests.SUSPENDED: "sidecar"} if marked else {}
    notes = {manifests.SUSPENDED: "2026-11-21T09:00:00Z ..."} if marked else {}
    spec: dict[str, Any] = {"suspend": True}
    resource, name = path.split("/")[-2:]
    api.objects[path] = {
        "kind": {"tfjobs": "TFJob", "jobs": "Job"}[resource],
        "metadata": {
            "name": name, "namespace": "training", "uid": f"uid-of-{name}", "resourceVersion": "7",
            "labels": labels, "annotations": notes,
        },
        "spec": spec if resource == "jobs" else {"runPolicy": spec},
    }  # fmt: skip


def state(api: ApiServer, path: str = TFJOB) -> tuple[bool, bool]:
    """Whether the Job is suspended, and whether it has our mark, as label or annotation."""
    job = api.objects[path]
    metadata, spec = job["metadata"], job["spec"]
    marks = {**metadata["labels"], **metadata["annotations"]}
    return spec.get("runPolicy", spec)["suspend"], manifests.SUSPENDED in marks


def rights(api: ApiServer) -> set[str]:
    rules = api.one("ClusterRole")["rules"]
    patched = {name for rule in rules if "patch" in rule["verbs"] for name in rule["resources"]}
    return patched & {"tfjobs", "jobs"}


def policies(api: ApiServer) -> set[str]:
    return {
        o["metadata"]["name"]
        for o in api.objects.values()
        if o["kind"] == "ValidatingAdmissionPolicy"
    }


@pytest.fixture
def restarting(ctx: Context, settled: testing.State) -> testing.State:
    """A unit that may restart jobs."""
    options: dict[str, Any] = {"race-policy": "restart", "restart-jobs": True}
    return ctx.run(ctx.on.config_changed(), dataclasses.replace(settled, config=options))


@pytest.mark.parametrize("path", [TFJOB, JOB])
def test_the_workload_may_resume_what_it_suspended_when_restart_jobs_is_turned_off(
    path: str, ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api, path)
    off = dataclasses.replace(restarting, config={"race-policy": "restart"})

    settled = ctx.run(ctx.on.config_changed(), off)

    assert rights(api) == {"tfjobs", "jobs"}
    assert "istio-aux-kubeflow-istio-aux-jobs" in policies(api)
    suspend(api, path, marked=False)  # It is somebody else's from now on.
    ctx.run(ctx.on.update_status(), settled)
    assert rights(api) == set()
    assert "istio-aux-kubeflow-istio-aux-jobs" not in policies(api)


def test_the_right_is_given_back_for_a_job_that_was_overlooked(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    """A request that came late, or an application that was removed without its hooks."""
    assert rights(api) == set()
    suspend(api)

    ctx.run(ctx.on.update_status(), settled)

    assert rights(api) == {"tfjobs", "jobs"}


def test_jobs_are_not_asked_for_where_they_may_be_suspended_anyway(
    ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    api.calls.clear()

    ctx.run(ctx.on.update_status(), restarting)

    assert not [call for call in api.calls if call.startswith("GET") and call.endswith("jobs")]


@pytest.mark.parametrize("event", ["stop", "remove"])
@pytest.mark.parametrize("path", [TFJOB, JOB])
def test_the_last_unit_resumes_jobs_before_it_takes_the_rights(
    path: str, event: str, ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api, path)
    api.calls.clear()

    ctx.run(getattr(ctx.on, event)(), dataclasses.replace(restarting, planned_units=0))

    assert state(api, path) == (False, False)
    assert set(api.objects) == {path}
    role = next(call for call in api.calls if "clusterroles" in call and "DELETE" in call)
    assert api.calls.index(f"PATCH {path}") < api.calls.index(role)


def test_the_workload_suspends_nothing_any_more_when_the_last_unit_goes(
    ctx: Context, restarting: testing.State
) -> None:
    out = ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    service = out.get_container("istio-aux").service_statuses["istio-aux"]
    assert service is pebble.ServiceStatus.INACTIVE


def test_a_container_that_is_gone_already_does_not_stop_the_removal(
    ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api)
    gone = dataclasses.replace(
        restarting,
        planned_units=0,
        containers={dataclasses.replace(restarting.get_container("istio-aux"), can_connect=False)},
    )

    ctx.run(ctx.on.stop(), gone)

    assert state(api) == (False, False)


def test_a_job_is_resumed_although_its_pods_stay(
    ctx: Context, restarting: testing.State, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would do it; the log says what that may cost."""
    suspend(api)
    owner = {"kind": "TFJob", "name": "mnist", "uid": "uid-of-mnist", "controller": True}
    api.objects[POD] = {
        "kind": "Pod",
        "metadata": {
            "name": "mnist-worker-0", "namespace": "training", "uid": "p",
            "labels": {"training.kubeflow.org/job-name": "mnist"}, "ownerReferences": [owner],
        },
    }  # fmt: skip

    with caplog.at_level(logging.WARNING):
        ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    assert state(api) == (False, False)
    assert "TFJob training/mnist: resumed although 1 of its pods still exist" in caplog.text


def test_what_somebody_else_suspended_stays_so(
    ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api, marked=False)

    ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    assert state(api) == (True, False)


def test_a_job_that_changes_meanwhile_is_resumed_as_it_is_then(
    ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api)
    api.conflicts = 2

    ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    assert state(api) == (False, False)


def test_a_job_that_may_not_be_resumed_is_named_and_stops_nothing(
    ctx: Context, restarting: testing.State, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    suspend(api)
    api.denied = {"patch tfjobs"}

    with caplog.at_level(logging.ERROR):
        ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    assert set(api.objects) == {TFJOB}
    assert "TFJob training/mnist: stays suspended: " in caplog.text
    assert "set spec.runPolicy.suspend to false" in caplog.text


def test_a_webhook_that_is_away_makes_juju_try_the_removal_again(
    ctx: Context, restarting: testing.State, api: ApiServer
) -> None:
    suspend(api)
    api.broken = {"patch tfjobs"}

    with pytest.raises(testing.errors.UncaughtCharmError):
        ctx.run(ctx.on.stop(), dataclasses.replace(restarting, planned_units=0))

    assert rights(api) == {"tfjobs", "jobs"}


def test_the_status_names_the_jobs_that_are_suspended(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    jobs = [("team-a", "mnist"), ("team-a", "resnet"), ("team-b", "bert"), ("team-b", "t5")]
    process.suspended = [{"namespace": n, "kind": "TFJob", "name": name} for n, name in jobs]

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; suspended for their sidecar: team-a/mnist, team-a/resnet, team-b/bert and 1 more"
    )


DEEP = 100_000


def test_a_job_that_cannot_be_read_stops_neither_an_event_nor_the_removal(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    suspend(api)
    api.raw[TFJOB.replace("/namespaces/training", "").removesuffix("/mnist")] = (
        # Python 3.13 reads ten thousand levels.
        b'{"metadata": {}, "items": [{"metadata": ' + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}]}"
    )

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(WELL)
    ctx.run(ctx.on.stop(), dataclasses.replace(settled, planned_units=0))
    assert set(api.objects) == {TFJOB}


def test_a_cluster_without_training_jobs_is_cleaned_up_too(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.unknown = {"tfjobs", "pytorchjobs", "mpijobs", "xgboostjobs", "paddlejobs", "jaxjobs"}

    out = ctx.run(ctx.on.update_status(), settled)

    assert out.unit_status == testing.ActiveStatus(WELL)
    ctx.run(ctx.on.stop(), dataclasses.replace(settled, planned_units=0))
    assert not api.objects


def test_what_juju_took_away_already_does_not_stop_the_removal(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.denied = {"list tfjobs", "list jobs"}

    ctx.run(ctx.on.stop(), dataclasses.replace(settled, planned_units=0))

    assert not api.objects
