"""Which batch Jobs are suspended for a pod without a sidecar; no pod of a Job is ever evicted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from istio_aux.model.owners import KINDS, FoundJob, Job
from istio_aux.model.pod import OwnerReference
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.rules import ReportUnmeshed
from istio_aux.repair.rules import decide as decide_repair
from istio_aux.repair.suspension import Leave, Suspend, begin
from unit.rules.table import row
from unit.rules.unmeshed import WITH_JOBS, YES
from unit.rules.unmeshed import job as pod

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
DISRUPTED = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
STOPPED = {"onExitCodes": {"operator": "In", "values": [143]}}
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train"}
TRAINJOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "name": "train"}
CRONJOB = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly"}
TRIAL = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Trial", "name": "random-x7"}
SPARKJOB = {"apiVersion": "sparks.test/v1", "kind": "SparkJob", "name": "spark"}
SET_LABEL = {"jobset.sigs.k8s.io/jobset-name": "train"}


def job(
    owner: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Job:
    """A Job that runs; a row says only what differs."""
    owners = [{**owner, "uid": "owner", "controller": True}] if owner else []
    meta = {"name": "count", "uid": "owner-1", "ownerReferences": owners, "labels": labels or {}}
    document = {"metadata": meta, "spec": {"backoffLimit": 6, **spec}, "status": status or {}}
    return msgspec.convert(document, Job)


def decide(found: Job, *, meshed: bool = False) -> Suspend | Leave:
    """What is done to this batch Job, which is part of no other one that could be suspended."""
    alone = [FoundJob(OwnerReference(api_version="batch/v1", kind="Job", name="count"), found)]
    its = pod(labels={"batch.kubernetes.io/job-name": "count"})
    return begin(alone, Candidate.of(its), NOW, meshed=meshed)


def rules(*found: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"rules": [{"action": action, **on} for action, on in found]}


def ended(condition: str) -> dict[str, Any]:
    return {"conditions": [{"type": condition, "status": "True"}]}


@pytest.mark.parametrize(
    "found",
    [
        row("of its own", job()),
        row("of a CronJob", job(CRONJOB)),
        row("of a trial of Katib", job(TRIAL)),
        row("whose rules fail one index", job(podFailurePolicy=rules(("FailIndex", STOPPED)))),
        row("that names its controller", job(managedBy="kubernetes.io/job-controller")),
        row("that ignores disruptions", job(podFailurePolicy=rules(("Ignore", DISRUPTED)))),
        row("that counts exit codes", job(podFailurePolicy=rules(("Count", STOPPED)))),
    ],
)
def test_a_job_is_suspended_for_its_pods(found: Job) -> None:
    assert isinstance(decide(found), Suspend)


def test_a_job_is_not_suspended_as_long_as_another_pod_of_it_has_its_sidecar() -> None:
    because = "another pod of it is in the mesh, and would lose its work"
    assert decide(job(), meshed=True) == Leave(because, lasts=False)


@pytest.mark.parametrize(
    ("found", "because"),
    [
        row("of a controller that is not known", job(SPARKJOB),
            "it is part of SparkJob spark, which might not expect that"),
        row("of Kueue's", job(labels={"kueue.x-k8s.io/queue-name": "gpu"}),
            "Kueue decides when it is suspended: label kueue.x-k8s.io/queue-name"),
        row("of a JobSet that is not known", job({**JOBSET, "apiVersion": "jobset.x-k8s.io/v2"}),
            "it is part of JobSet train, which might not expect that"),
        *(
            row(f"with the condition {condition}", job(status=ended(condition)), "it is finished")
            for condition in ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
        ),
        row("that a user suspended", job(suspend=True), "another client has suspended it"),
        row("of another cluster", job(managedBy="kueue.x-k8s.io/multikueue"),
            "it is managed by kueue.x-k8s.io/multikueue"),
        row("that fails by exit code", job(podFailurePolicy=rules(("FailJob", STOPPED))),
            "a podFailurePolicy may fail it for the way in which a pod ends"),
        row("that fails with a disruption",
            job(podFailurePolicy=rules(("Ignore", DISRUPTED), ("FailJob", DISRUPTED))),
            "a podFailurePolicy may fail it for the way in which a pod ends"),
    ],
)  # fmt: skip
def test_no_pod_of_a_job_that_cannot_be_suspended_is_touched(found: Job, because: str) -> None:
    assert decide(found) == Leave(because)
    why = f"it is not suspended: {because}"
    action = decide_repair(Candidate.of(pod()), YES, WITH_JOBS, live=True, obstacle=why)
    assert isinstance(action, ReportUnmeshed)
    assert action.unmeshed
    assert action.reason.endswith(f"; not restarted: it is not suspended: {because}")


@pytest.mark.parametrize("owner", [JOBSET, TRAINJOB], ids=lambda owner: owner["kind"])
@pytest.mark.parametrize(
    "found",
    [
        row("alone", {}),
        row("that ignores evictions", {"podFailurePolicy": rules(("Ignore", DISRUPTED))}),
    ],
)
def test_a_set_is_suspended_although_another_pod_has_its_sidecar(
    owner: dict[str, str], found: dict[str, Any]
) -> None:
    """The workers of a set belong together: one that begins again is of no use to the others."""
    above = FoundJob(
        OwnerReference(api_version=owner["apiVersion"], kind=owner["kind"], name="train"),
        msgspec.convert({"metadata": {"name": "train"}}, Job),
    )
    below = FoundJob(OwnerReference(api_version="batch/v1", kind="Job"), job(owner, **found))
    assert isinstance(
        begin([below, above], Candidate.of(pod(labels=SET_LABEL)), NOW, meshed=True), Suspend
    )


def test_kinds_have_the_same_order_in_each_process() -> None:
    """That of a set depends on the seed of the hashes."""
    training = ["JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob"]
    assert list(KINDS) == ["Job", *training, "JobSet", "TrainJob"]
