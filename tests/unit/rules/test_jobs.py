"""How a pod of a batch Job is replaced: never where the Job fails with it, for nothing if possible.

What the real Job controller does is in `tests/cluster/test_batch_jobs.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.model.owners import KINDS, Job
from istio_aux.repair import rules as repair
from istio_aux.repair.rules import Way
from unit.rules.table import row
from unit.rules.unmeshed import WITH_JOBS, YES
from unit.rules.unmeshed import job as pod

DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
STOPPED = {"onExitCodes": {"operator": "In", "values": [143]}}
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
TRAINJOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "train"}
CRONJOB = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly"}
SPARKJOB = {"apiVersion": "sparks.test/v1", "kind": "SparkJob", "name": "spark"}


def job(
    owner: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Job:
    """A Job that runs; a row says only what differs."""
    owners = [{**owner, "uid": "owner", "controller": True}] if owner else []
    metadata = {"uid": "owner-1", "ownerReferences": owners, "labels": labels or {}}
    document = {"metadata": metadata, "spec": {"backoffLimit": 6, **spec}, "status": status or {}}
    return msgspec.convert(document, Job)


def rules(*found: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"rules": [{"action": action, **on} for action, on in found]}


def ended(condition: str) -> dict[str, Any]:
    return {"conditions": [{"type": condition, "status": "True"}]}


SUSPENDED = Way("suspend", "the Job is suspended until all its pods are gone, and makes new ones")
UNCOUNTED = Way("evict", "its end does not count: podFailurePolicy ignores DisruptionTarget")
COUNTED = Way(
    "evict",
    "its end counts as failure 1 of backoffLimit 6, and as a success if its containers exit with 0"
    " when they are told to stop",
)


@pytest.mark.parametrize(
    ("found", "way"),
    [
        row("of its own", job(), SUSPENDED),
        row("of a CronJob", job(CRONJOB), SUSPENDED),
        row("that may not fail at all", job(backoffLimit=0), SUSPENDED),
        row("whose rules fail one index",
            job(podFailurePolicy=rules(("FailIndex", STOPPED))), SUSPENDED),
        row("that names its controller", job(managedBy="kubernetes.io/job-controller"), SUSPENDED),
        row("that ignores disruptions",
            job(backoffLimit=0, podFailurePolicy=rules(("Ignore", DISRUPTED))), UNCOUNTED),
        row("that ignores them before it looks at exit codes",
            job(podFailurePolicy=rules(("Ignore", DISRUPTED), ("FailJob", STOPPED))), UNCOUNTED),
        row("of a controller that is not known", job(SPARKJOB), COUNTED),
        row("of Kueue's", job(labels={"kueue.x-k8s.io/queue-name": "gpu"}), COUNTED),
        row("that counts exit codes",
            job(SPARKJOB, podFailurePolicy=rules(("Count", STOPPED))), COUNTED),
    ],
)  # fmt: skip
def test_a_pod_of_a_job_is_replaced_in_the_way_that_costs_least(found: Job, way: Way) -> None:
    assert repair.replace_pod(found, pod(), meshed=False) == way


def test_a_job_is_not_suspended_if_a_pod_of_it_has_its_sidecar() -> None:
    assert repair.replace_pod(job(), pod(), meshed=True) == COUNTED


@pytest.mark.parametrize(
    ("found", "because"),
    [
        row("at its limit", job(SPARKJOB, status={"failed": 6}),
            "its Job would fail: 6 failures of backoffLimit 6"),
        row("with failures that are not counted yet",
            job(SPARKJOB, status={"failed": 4, "terminating": 1,
                                  "uncountedTerminatedPods": {"failed": ["a"]}}),
            "its Job would fail: 6 failures of backoffLimit 6"),
        row("with a limit for each index", job(SPARKJOB, backoffLimitPerIndex=2),
            "its index might fail: it has a backoffLimitPerIndex"),
        row("that may not fail at all", job(SPARKJOB, backoffLimit=0),
            "its Job would fail: 0 failures of backoffLimit 0"),
        row("of a JobSet that is not known", job({**JOBSET, "apiVersion": "jobset.x-k8s.io/v2"}),
            "its Job is part of JobSet train, which might fail or start again"),
        row("of a TrainJob that is not known",
            job({**TRAINJOB, "apiVersion": "trainer.kubeflow.org/v2"}),
            "its Job is part of TrainJob train, which might fail or start again"),
        *(
            row(f"with the condition {condition}", job(status=ended(condition)),
                "its Job is finished")
            for condition in ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
        ),
        row("that somebody suspended", job(suspend=True), "its Job is suspended"),
        row("of another cluster", job(managedBy="kueue.x-k8s.io/multikueue"),
            "its Job is managed by kueue.x-k8s.io/multikueue"),
        row("that fails by exit code", job(podFailurePolicy=rules(("FailJob", STOPPED))),
            "its Job might fail: podFailurePolicy says FailJob"),
        row("that fails with a disruption", job(podFailurePolicy=rules(("FailJob", DISRUPTED))),
            "its Job might fail: podFailurePolicy says FailJob"),
    ],
)  # fmt: skip
def test_no_pod_of_a_job_that_would_suffer_is_touched(found: Job, because: str) -> None:
    assert repair.replace_pod(found, pod(), meshed=False) == Way("keep", because)


@pytest.mark.parametrize(
    ("found", "suspend"),
    [(job(), True), (job(SPARKJOB), False), (None, False)],
    ids=["alone", "of somebody's", "not read yet"],
)
def test_the_decision_on_the_job_is_that_on_its_pod(found: Job | None, suspend: bool) -> None:
    action = repair.decide(pod(), YES, WITH_JOBS, finished=False, live=True, job=found)
    assert isinstance(action, repair.Restart)
    assert action.suspend is suspend


def test_a_pod_whose_job_would_suffer_is_reported() -> None:
    action = repair.decide(pod(), YES, WITH_JOBS, finished=False, live=True, job=job(suspend=True))
    assert isinstance(action, repair.ReportUnmeshed)
    assert action.unmeshed
    assert "; not restarted: its Job is suspended" in action.reason


@pytest.mark.parametrize("owner", [JOBSET, TRAINJOB], ids=lambda owner: owner["kind"])
@pytest.mark.parametrize(
    "found",
    [
        row("alone", {}),
        row("at its limit", {"backoffLimit": 0}),
        row("that ignores evictions", {"podFailurePolicy": rules(("Ignore", DISRUPTED))}),
    ],
)
def test_a_set_is_suspended_and_no_pod_of_its_jobs_is_ever_evicted(
    owner: dict[str, str], found: dict[str, Any]
) -> None:
    """The workers of a set belong together: one that begins again is of no use to the others."""
    decision = repair.replace_pod(job(owner, **found), pod(), meshed=True)
    kind = owner["kind"]
    assert decision == Way("suspend", f"{kind} train is suspended until all its pods are gone")


def test_kinds_have_the_same_order_in_each_process() -> None:
    """That of a set depends on the seed of the hashes."""
    training = ["JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"]
    assert list(KINDS) == ["Job", *training, "JobSet", "TrainJob"]
