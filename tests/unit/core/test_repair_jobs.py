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


OVER = "its containers are finished"


@pytest.mark.parametrize(
    ("pod", "because"),
    [
        (job({"main": exited(0)}), OVER),
        (job({"main": exited(3)}), OVER),
        (job({"main": exited(0), "log": exited(0)}, restart="OnFailure"), OVER),
        # What mpi-operator makes of a suspension is not known.
        (
            job(owner=("kubeflow.org/v2beta1", "MPIJob")),
            "the MPIJob would fail: its operator counts a pod that is deleted as failed",
        ),
    ],
)  # fmt: skip
def test_a_job_s_pod_is_left_alone_where_it_would_not_be_replaced_or_do_its_work_again(
    pod: Pod, because: str
) -> None:
    """T41: its phase follows in a moment, or its Job fails."""
    decision = decide(pod, WITH_JOBS)
    assert isinstance(decision, repair.ReportUnmeshed), decision
    assert decision.reason.endswith(f"not restarted: {because}")


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
@pytest.mark.parametrize(
    "kind", ["JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"]
)
def test_a_kubeflow_job_is_suspended_for_its_pods(kind: str, restart: str) -> None:
    """T41: the training operator would take a running pod that is evicted for a failed replica.

    Whether the Job is finished is for whoever suspends it: that takes reading the Job.
    """
    pod = job(owner=("kubeflow.org/v1", kind), restart=restart)
    decision = decide(pod, WITH_JOBS)
    assert isinstance(decision, repair.Restart), decision
    assert decision.suspend
    assert decision.reason.endswith(
        f"; the {kind} is suspended until all its pods are gone, and makes new ones;"
        f" what it has done for the {kind} is lost"
    )


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
