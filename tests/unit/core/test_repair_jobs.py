"""Pods of Jobs that missed their sidecar: restarted only when told to, and where that helps."""

from __future__ import annotations

import pytest
from istio_aux.core import ownership, repair
from istio_aux.core.pod import Pod
from unit.core.pods import MISSING, RUNNING, exited, waiting
from unit.core.table import Row, table
from unit.core.unmeshed import JOB, STATEFUL, WITH_JOBS, decide, job, unmeshed

TFJOB = ("kubeflow.org/v1", "TFJob")
PYTORCHJOB = ("kubeflow.org/v1", "PyTorchJob")


@table(
    Row("a pod that runs", job()),
    Row("a pod that has not started", job({"main": MISSING}, phase="Pending")),
    Row("a payload that waits", job({"main": waiting("CrashLoopBackOff")}, restart="OnFailure")),
    Row("a payload that will be restarted", job({"main": exited(1)}, restart="OnFailure")),
    Row("one payload of two is finished", job({"main": exited(0), "log": RUNNING})),
)
def test_a_job_s_pod_is_restarted_when_jobs_are_allowed(row: Row) -> None:
    """T41: by policy, never by surprise; the reason says what it costs the Job."""
    decision = decide(row.pod, WITH_JOBS)
    assert isinstance(decision, repair.Restart), decision
    assert decision.reason.endswith(
        "; what it has done for the Job is lost; its end counts for backoffLimit unless"
        " podFailurePolicy ignores DisruptionTarget, and as a success if its containers exit with"
        " 0 when they are told to stop"
    )


@table(
    Row("a payload that succeeded", job({"main": exited(0)}), "its containers are finished"),
    Row("a payload that failed", job({"main": exited(3)}), "its containers are finished"),
    Row(
        "two payloads that are finished",
        job({"main": exited(0), "log": exited(0)}, restart="OnFailure"),
        "its containers are finished",
    ),
)
def test_a_job_s_pod_that_is_finished_is_left_alone(row: Row) -> None:
    """T41: its phase follows in a moment, and its work would be done again."""
    decision = decide(row.pod, WITH_JOBS)
    assert isinstance(decision, repair.ReportUnmeshed), decision
    assert decision.reason.endswith(f"not restarted: {row.because}")


@pytest.mark.parametrize(
    ("finished", "because"),
    [(True, "its Job is finished"), (None, "not known whether its Job is finished")],
)
def test_no_pod_of_a_job_that_is_or_may_be_finished_is_restarted(
    finished: bool | None, because: str
) -> None:
    """T41: nobody would make a new one, for example under a cleanPodPolicy that keeps pods."""
    decision = decide(job(), WITH_JOBS, owner_finished=finished)
    assert isinstance(decision, repair.ReportUnmeshed), decision
    assert decision.reason.endswith(f"not restarted: {because}")


@pytest.mark.parametrize(("restart", "finished"), [("Never", True), ("OnFailure", None)])
@pytest.mark.parametrize(
    "kind", ["JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"]
)
def test_a_kubeflow_job_is_suspended_for_its_pods(
    kind: str, restart: str, finished: bool | None
) -> None:
    """T41: the training operator would take a running pod that is evicted for a failed replica.

    Whether the Job is finished is for whoever suspends it: that takes reading the Job.
    """
    pod = job(owner=("kubeflow.org/v1", kind), restart=restart)
    decision = decide(pod, WITH_JOBS, owner_finished=finished)
    assert isinstance(decision, repair.Restart), decision
    assert decision.suspend
    assert decision.reason.endswith(
        f"; the {kind} is suspended until all its pods are gone, and makes new ones;"
        f" what it has done for the {kind} is lost"
    )


def test_a_job_of_a_version_that_is_not_the_training_operator_s_is_only_reported() -> None:
    """T41: what mpi-operator makes of a suspension is not known, and its Job fails with a pod."""
    decision = decide(job(owner=("kubeflow.org/v2beta1", "MPIJob")), WITH_JOBS)
    assert isinstance(decision, repair.ReportUnmeshed), decision
    assert "not restarted: the MPIJob would fail" in decision.reason


@pytest.mark.parametrize(
    ("pod", "ordinal"),
    [
        (unmeshed(owner=STATEFUL, name="charm-a-0"), 0),
        (unmeshed(owner=STATEFUL, name="charm-a-12"), 12),
        (unmeshed(owner=STATEFUL, name="charm"), None),
        (unmeshed(name="web-7d9f-2"), None),
        (job(owner=TFJOB, name="mnist-worker-0"), None),
        (unmeshed(owner=("example.org/v1", "StatefulSet"), name="charm-a-0"), None),
        (unmeshed(owner=None, name="charm-a-0"), None),
    ],
)
def test_only_a_stateful_set_s_pod_has_an_ordinal(pod: Pod, ordinal: int | None) -> None:
    assert ownership.ordinal(pod) == ordinal


@pytest.mark.parametrize(
    ("owner", "is_job"), [(JOB, True), (TFJOB, True), (PYTORCHJOB, True), (STATEFUL, False)]
)
def test_a_job_is_what_is_over_when_its_pods_are(owner: tuple[str, str], is_job: bool) -> None:
    controller = ownership.controller(unmeshed(owner=owner))
    assert controller is not None
    assert ownership.is_job(controller) is is_job
