"""Suspended Jobs are resumed before the workload loses the permission, and before it goes."""

from __future__ import annotations

import logging
from typing import Any

import httpx2
import ops
import pytest
from istio_aux.model import names
from ops import pebble, testing

from .apiserver import ApiServer, refusal
from .conftest import Unit, active

TFJOB = "/apis/kubeflow.org/v1/namespaces/training/tfjobs/mnist"
JOB = "/apis/batch/v1/namespaces/training/jobs/count"
JOBSET = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets/set"
TRAINJOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs/train"
EACH = pytest.mark.parametrize(
    "path", [TFJOB, JOB, JOBSET, TRAINJOB], ids=lambda path: path.split("/")[-2]
)
SUSPENDED = {"jobs", "jobsets", "tfjobs", "trainjobs"}


def suspend(api: ApiServer, path: str = TFJOB, *, marked: bool = True) -> None:
    """Add a Job that is suspended."""
    labels = {names.SUSPENDED: "sidecar"} if marked else {}
    notes = {names.SUSPENDED: "2026-11-21T09:00:00Z ..."} if marked else {}
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
    return spec.get("runPolicy", spec)["suspend"], names.SUSPENDED in marks


def rights(api: ApiServer) -> set[str]:
    rules = api.one("ClusterRole")["rules"]
    patched = {name for rule in rules if "patch" in rule["verbs"] for name in rule["resources"]}
    return patched & SUSPENDED


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
    assert "istio-aux-kubeflow-istio-aux-jobs" in api.names("ValidatingAdmissionPolicy")
    suspend(api, path, marked=False)  # It is somebody else's from now on.
    restarting.run()
    assert rights(api) == set()
    assert "istio-aux-kubeflow-istio-aux-jobs" not in api.names("ValidatingAdmissionPolicy")


def test_a_job_that_is_found_suspended_brings_the_permission_back(unit: Unit) -> None:
    """A late request, or an application that was removed without its hooks."""
    assert rights(unit.api) == set()
    suspend(unit.api)

    unit.run()

    assert rights(unit.api) == SUSPENDED


def test_the_label_of_a_tenant_brings_no_permission(unit: Unit) -> None:
    suspend(unit.api)
    unit.api.objects[TFJOB]["metadata"]["labels"] = {names.SUSPENDED: "a-tenant"}

    unit.run()

    assert rights(unit.api) == set()


@pytest.fixture
def seen(restarting: Unit, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the workload's command finds when it runs: its rights, and the state of the service."""
    found: list[Any] = []
    start = ops.Container.exec

    def run(container: ops.Container, command: list[str], **named: Any) -> Any:
        service = container.get_service("istio-aux").current
        found.append((rights(restarting.api), service))
        return start(container, command, **named)

    monkeypatch.setattr(ops.Container, "exec", run)
    return found


def answer(unit: Unit, *, code: int = 0, output: str = "", errors: str = "") -> None:
    """What the command `resume-jobs` of the workload prints, and its exit status."""
    command = ["istio-aux", "resume-jobs", "--kubeconfig", "/etc/istio-aux/kubeconfig"]
    says = testing.Exec(command, return_code=code, stdout=output, stderr=errors)
    unit.change_container(execs={says})


@pytest.mark.parametrize("event", ["stop", "remove"])
def test_the_workload_is_stopped_and_its_command_resumes_jobs_before_its_permissions_go(
    event: str, restarting: Unit, seen: list[Any]
) -> None:
    """The unit says which Jobs the command waits for: their pods may have an hour."""
    suspend(restarting.api)
    waits = "waits for the pods of suspended Jobs: TFJob training/mnist"
    answer(restarting, output=f"{waits}\n")

    restarting.remove(event)

    assert seen == [(SUSPENDED, pebble.ServiceStatus.INACTIVE)]
    told = testing.WaitingStatus(f"the unit is being removed: {waits}")
    assert told in restarting.ctx.unit_status_history
    assert restarting.state.unit_status == testing.WaitingStatus("the unit is being removed")


def test_no_command_runs_while_no_job_is_suspended(restarting: Unit, seen: list[Any]) -> None:
    restarting.remove("stop")

    assert seen == []
    assert not restarting.api.objects


@pytest.mark.parametrize("gone", [False, True], ids=["the command fails", "no container"])
@EACH
def test_the_charm_resumes_what_the_workload_does_not(
    path: str, gone: bool, restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    """A Job never stays suspended; the log names those that may fail by it."""
    suspend(restarting.api, path)
    answer(restarting, code=1)
    restarting.change_container(can_connect=not gone)

    with caplog.at_level(logging.WARNING):
        restarting.remove("stop")

    assert state(restarting.api, path) == (False, False)
    assert set(restarting.api.objects) == {path}
    assert "resumed; some of its pods may still end" in caplog.text


def test_a_job_that_may_not_be_resumed_is_named_and_stops_nothing(
    restarting: Unit, caplog: pytest.LogCaptureFixture
) -> None:
    suspend(restarting.api)
    answer(restarting, code=1)
    restarting.api.denied = {"patch tfjobs"}

    with caplog.at_level(logging.ERROR):
        restarting.remove("stop")

    assert set(restarting.api.objects) == {TFJOB}
    assert "TFJob training/mnist: stays suspended: " in caplog.text
    assert "set spec.runPolicy.suspend to false" in caplog.text


def test_juju_retries_the_removal_when_a_webhook_does_not_answer(restarting: Unit) -> None:
    suspend(restarting.api)
    answer(restarting, code=1)
    restarting.api.broken = {"patch tfjobs"}

    with pytest.raises(testing.errors.UncaughtCharmError):
        restarting.remove("stop")

    restarting.api.broken = set()
    restarting.remove("stop")
    assert state(restarting.api) == (False, False)


DEEP = 100_000
UNLISTED: dict[str, Any] = {
    # Python 3.13 reads ten thousand levels.
    "nested too deeply": lambda: httpx2.Response(
        200,
        content=b'{"metadata": {}, "items": [{"metadata": '
        + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}]}",
    ),
    "its CRD converts by a webhook that is gone": refusal(500, "conversion webhook failed"),
    "that webhook hangs": httpx2.ReadTimeout("timed out"),
}  # fmt: skip


@pytest.mark.parametrize("why", UNLISTED)
def test_a_kind_of_others_that_cannot_be_listed_stops_neither_an_event_nor_the_removal(
    why: str, restarting: Unit
) -> None:
    """What is suspended of it is unknown, so the right to resume it stays."""
    unit, listing = restarting, "list tfjobs"
    suspend(unit.api)
    unit.configure(race_policy="restart")
    unit.api.answers[listing] = UNLISTED[why]

    assert unit.run() == active()
    assert rights(unit.api) == SUSPENDED
    answer(unit, code=1)
    left = unit.remove("stop")
    assert set(unit.api.objects) == {TFJOB}
    assert "left in the cluster: suspended TFJobs" in left.message


def test_a_kind_that_cannot_be_listed_brings_no_right_that_was_not_there(unit: Unit) -> None:
    unit.api.broken = {"list tfjobs"}

    assert unit.run() == active()
    assert rights(unit.api) == set()


def test_one_hung_kind_costs_an_event_one_wait(unit: Unit) -> None:
    unit.api.calls.clear()
    unit.api.answers["list mpijobs"] = httpx2.ReadTimeout("timed out")
    unit.api.answers["list tfjobs"] = httpx2.ReadTimeout("timed out")

    assert unit.run() == active()
    assert len([call for call in unit.api.calls if call.endswith(("mpijobs", "tfjobs"))]) == 1


def test_the_status_shows_no_usage_of_an_image_without_the_command(restarting: Unit) -> None:
    suspend(restarting.api)
    usage = "usage: istio-aux ...\nistio-aux: error: invalid choice: 'resume-jobs'"
    answer(restarting, code=2, errors=usage)

    restarting.remove("stop")

    assert not [status for status in restarting.ctx.unit_status_history if "usage" in str(status)]
    assert any("invalid choice: 'resume-jobs'" in log.message for log in restarting.ctx.juju_log)
    assert state(restarting.api) == (False, False)


def test_a_cluster_without_training_jobs_is_cleaned_up_too(unit: Unit) -> None:
    training = {"tfjobs", "pytorchjobs", "mpijobs", "xgboostjobs", "paddlejobs", "jaxjobs"}
    unit.api.unknown = {*training, "jobsets", "trainjobs"}

    assert unit.run() == active()
    unit.remove("stop")
    assert not unit.api.objects
