"""Suspended Jobs are resumed before the workload loses the permission, and before it goes."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import httpx2
import pytest
from ops import pebble, testing

import cluster
import manifests
import objects

from .apiserver import ApiServer
from .conftest import PATIENCE, Unit, active

TFJOB = "/apis/kubeflow.org/v1/namespaces/training/tfjobs/mnist"
JOB = "/apis/batch/v1/namespaces/training/jobs/count"
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets/set"
TRAINJOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/train"
EACH = pytest.mark.parametrize(
    "path", [TFJOB, JOB, JOBSET, TRAINJOB], ids=lambda path: path.split("/")[-2]
)
SUSPENDED = {"jobs", "jobsets", "tfjobs", "trainjobs"}
POD = "/api/v1/namespaces/training/pods/mnist-worker-0"


def suspend(api: ApiServer, path: str = TFJOB, *, marked: bool = True) -> None:
    """Add a Job that is suspended."""
    labels = {manifests.SUSPENDED: "sidecar"} if marked else {}
    notes = {manifests.SUSPENDED: "2026-11-21T09:00:00Z ..."} if marked else {}
    spec: dict[str, Any] = {"suspend": True}
    resource, name = path.split("/")[-2:]
    api.objects[path] = {
        "kind": {
            "tfjobs": "TFJob", "jobs": "Job", "jobsets": "JobSet", "trainjobs": "TrainJob",
        }[resource],
        "metadata": {
            "name": name, "namespace": "training", "uid": f"uid-of-{name}", "resourceVersion": "7",
            "labels": labels, "annotations": notes,
        },
        "spec": {"runPolicy": spec} if resource == "tfjobs" else spec,
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
    return patched & SUSPENDED


def policies(api: ApiServer) -> set[str]:
    return {
        o["metadata"]["name"]
        for o in api.objects.values()
        if o["kind"] == "ValidatingAdmissionPolicy"
    }


@pytest.fixture
def restarting(unit: Unit) -> Unit:
    """A unit that may restart jobs."""
    unit.configure(race_policy="restart-jobs")
    return unit


@EACH
def test_the_workload_may_resume_its_jobs_after_another_policy_is_chosen(
    path: str, restarting: Unit
) -> None:
    api = restarting.api
    suspend(api, path)

    restarting.configure(race_policy="restart")
    for _ in range(2):
        restarting.run()

    assert rights(api) == SUSPENDED
    assert "istio-aux-kubeflow-istio-aux-jobs" in policies(api)
    suspend(api, path, marked=False)  # It is somebody else's from now on.
    restarting.run()
    assert rights(api) == set()
    assert "istio-aux-kubeflow-istio-aux-jobs" not in policies(api)


def test_a_job_that_is_found_suspended_brings_the_permission_back(unit: Unit) -> None:
    """A late request, or an application that was removed without its hooks."""
    assert rights(unit.api) == set()
    suspend(unit.api)

    unit.run()

    assert rights(unit.api) == SUSPENDED


def test_the_label_of_a_tenant_brings_no_permission(unit: Unit) -> None:
    suspend(unit.api)
    unit.api.objects[TFJOB]["metadata"]["labels"] = {manifests.SUSPENDED: "a-tenant"}

    unit.run()

    assert rights(unit.api) == set()


def test_jobs_are_not_listed_while_the_option_allows_to_suspend_them(restarting: Unit) -> None:
    restarting.api.calls.clear()

    restarting.run()

    calls = restarting.api.calls
    assert not [call for call in calls if call.startswith("GET") and call.endswith("jobs")]


@pytest.mark.parametrize("event", ["stop", "remove"])
@EACH
def test_the_last_unit_stops_its_workload_and_resumes_jobs_before_the_permissions_go(
    path: str, event: str, restarting: Unit
) -> None:
    api = restarting.api
    suspend(api, path)
    api.conflicts = 2  # The Job changes meanwhile.
    api.calls.clear()

    restarting.remove(event)

    assert state(api, path) == (False, False)
    assert set(api.objects) == {path}
    right = next(call for call in api.calls if "/rbac." in call and "DELETE" in call)
    assert api.calls.index(f"PATCH {path}") < api.calls.index(right)
    service = restarting.container.service_statuses["istio-aux"]
    assert service is pebble.ServiceStatus.INACTIVE


def test_a_job_is_resumed_only_when_its_controller_has_seen_the_end_of_its_pods(
    restarting: Unit,
) -> None:
    suspend(restarting.api)
    restarting.api.calls.clear()

    restarting.remove("stop")

    before = restarting.api.calls[: restarting.api.calls.index(f"PATCH {TFJOB}")]
    assert before.count("GET /api/v1/namespaces/training/pods") == 2


def test_a_container_that_is_gone_does_not_stop_the_removal(restarting: Unit) -> None:
    suspend(restarting.api)
    restarting.change_container(can_connect=False)

    restarting.remove("stop")

    assert state(restarting.api) == (False, False)


@pytest.mark.parametrize(("phase", "left"), [("Running", True), ("Succeeded", False)])
def test_a_set_is_resumed_when_no_pod_of_its_jobs_is_unfinished(
    phase: str, left: bool, restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    """They name other owners, and finished ones stay."""
    suspend(restarting.api, TRAINJOB)
    pod = worker(
        labels={"jobset.sigs.k8s.io/jobset-name": "train"},
        ownerReferences=[{"kind": "Job", "name": "a", "uid": "b", "controller": True}],
    )
    restarting.api.objects[POD] = pod | {"status": {"phase": phase}}

    with caplog.at_level(logging.WARNING):
        restarting.remove("stop")

    assert state(restarting.api, TRAINJOB) == (False, False)
    assert ("resumed although 1 of its pods still exist" in caplog.text) is left


def worker(**metadata: Any) -> dict[str, Any]:
    """A pod of the TFJob."""
    owner = {"kind": "TFJob", "name": "mnist", "uid": "uid-of-mnist", "controller": True}
    return {
        "kind": "Pod",
        "metadata": {
            "name": "mnist-worker-0", "namespace": "training", "uid": "p",
            "labels": {"training.kubeflow.org/job-name": "mnist"}, "ownerReferences": [owner],
            **metadata,
        },
    }  # fmt: skip


def going(seconds: int) -> dict[str, Any]:
    """The metadata of a pod that is being deleted with this grace period."""
    # The clock of an API server that is a day behind.
    return {"deletionTimestamp": "2026-11-20T09:00:00Z", "deletionGracePeriodSeconds": seconds}


@pytest.mark.parametrize("metadata", [{}, going(1)], ids=["kept", "deleted too late"])
def test_a_job_is_resumed_although_its_pods_stay(
    metadata: dict[str, Any], restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else would resume it; the log names the risk."""
    suspend(restarting.api)
    restarting.api.objects[POD] = worker(**metadata)

    with caplog.at_level(logging.WARNING):
        restarting.remove("stop")

    assert state(restarting.api) == (False, False)
    assert "TFJob training/mnist: resumed although 1 of its pods still exist" in caplog.text


def test_the_removal_waits_for_pods_within_their_grace_period_and_names_the_job(
    restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    """A TFJob fails if it is resumed while one of its pods terminates."""
    api = restarting.api
    suspend(api)
    api.objects[POD] = worker(**going(600))
    # Longer than the charm waits for a pod that nobody deletes.
    api.leaving[POD] = 2 * int(PATIENCE.longest / PATIENCE.pause)

    with caplog.at_level(logging.INFO):
        restarting.remove("stop")

    assert state(api) == (False, False)
    assert "although" not in caplog.text
    said = "waits for the pods of suspended Jobs: TFJob training/mnist"
    assert said in caplog.text
    assert testing.WaitingStatus(f"the unit is being removed: {said}") in (
        restarting.ctx.unit_status_history
    )
    assert restarting.state.unit_status == testing.WaitingStatus("the unit is being removed")


def test_no_grace_period_keeps_a_removal_for_ever(restarting: Unit) -> None:
    """The author of the pod chose it."""
    suspend(restarting.api)
    restarting.api.objects[POD] = worker(**going(2**31 - 1))
    patience = dataclasses.replace(PATIENCE, grace=0.1)

    with cluster.connect(httpx2.MockTransport(restarting.api.answer)) as client:
        objects.resume_jobs(client, patience, lambda _jobs: None)

    assert state(restarting.api) == (False, False)


def test_a_job_that_may_not_be_resumed_is_named_and_stops_nothing(
    restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    suspend(restarting.api)
    restarting.api.denied = {"patch tfjobs"}

    with caplog.at_level(logging.ERROR):
        restarting.remove("stop")

    assert set(restarting.api.objects) == {TFJOB}
    assert "TFJob training/mnist: stays suspended: " in caplog.text
    assert "set spec.runPolicy.suspend to false" in caplog.text


def test_juju_retries_the_removal_when_a_webhook_does_not_answer(restarting: Unit) -> None:
    suspend(restarting.api)
    restarting.api.broken = {"patch tfjobs"}

    with pytest.raises(testing.errors.UncaughtCharmError):
        restarting.remove("stop")

    assert rights(restarting.api) == SUSPENDED


DEEP = 100_000


def test_a_job_that_cannot_be_read_stops_neither_an_event_nor_the_removal(unit: Unit) -> None:
    suspend(unit.api)
    unit.api.raw[TFJOB.replace("/namespaces/training", "").removesuffix("/mnist")] = (
        # Python 3.13 reads ten thousand levels.
        b'{"metadata": {}, "items": [{"metadata": ' + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}]}"
    )

    assert unit.run() == active()
    unit.remove("stop")
    assert set(unit.api.objects) == {TFJOB}


def test_a_cluster_without_training_jobs_is_cleaned_up_too(unit: Unit) -> None:
    training = {"tfjobs", "pytorchjobs", "mpijobs", "xgboostjobs", "paddlejobs", "jaxjobs"}
    unit.api.unknown = {*training, "jobsets", "trainjobs"}

    assert unit.run() == active()
    unit.remove("stop")
    assert not unit.api.objects


def test_a_permission_that_juju_removed_does_not_stop_the_removal(unit: Unit) -> None:
    unit.api.denied = {"list tfjobs", "list jobs"}

    unit.remove("stop")

    assert not unit.api.objects
