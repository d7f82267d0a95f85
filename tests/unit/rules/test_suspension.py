"""What to do about a Job of the training operator whose pods are to be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from istio_aux.model.owners import KINDS, Job
from istio_aux.model.pod import Pod
from istio_aux.repair import suspension
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.suspension import (
    MARK,
    SIDECAR,
    AwaitPods,
    Leave,
    PodsLeft,
    Resume,
    Suspend,
    SuspensionLimits,
    Unmark,
)
from msgspec import structs
from unit.rules.table import row
from unit.rules.training import alone, job, pod, pods, suspended

LIMITS = SuspensionLimits()
LONG = LIMITS.unnoticed
NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def follow(
    job: Job,
    left: Sequence[Pod] = (),
    *,
    waited: float = 5.0,
    gone: float = LONG,
    since: float = 5.0,
    unknown: str = "",
) -> AwaitPods | Resume | Unmark | Leave:
    """What is next; all numbers are seconds until ``NOW``."""
    known = [Candidate.of(pod) for pod in left]
    overdue = since >= suspension.allowed(known, NOW - timedelta(seconds=since), LIMITS)
    return next(
        suspension.follow(
            job, PodsLeft(known, unknown), limits=LIMITS, overdue=overdue, waited=waited, gone=gone
        )
    )


SEEN = NOW + timedelta(minutes=5)
NOTE = (
    "2026-11-21T09:00:00Z istio-aux suspended this job until its pods are gone, and resumes it"
    " then. If istio-aux is no longer installed, set suspend to false."
)
RESUMED = (
    "2026-11-21T09:00:00Z this job is resumed, after istio-aux had suspended it to give its pods"
    " their sidecar. It is not suspended again for a day, or until this annotation is removed."
)


def noted(time: str) -> dict[str, Any]:
    """Metadata of a Job that we suspended or resumed then."""
    return {"annotations": {MARK: f"{time} istio-aux was here"}}


@pytest.mark.parametrize(
    "found",
    [
        row("that runs", job("Created", "Running")),
        row("that was just created", job()),
        row("that names its operator", job(policy={"managedBy": "kubeflow.org/training-operator"})),
        row("whose status says null", job(policy={"suspend": None})),
        row("that we resumed a day ago", job(**noted("2026-11-20T09:00:00Z"))),
        row("that we resumed more than a day from now", job(**noted("2026-11-22T09:00:01Z"))),
        row("that we resumed on no day", job(**noted("2026-02-31T09:00:00Z"))),
    ],
)
def test_a_job_is_suspended(found: Job) -> None:
    assert isinstance(suspension.begin(alone(found), Candidate.of(pod()), NOW), Suspend)


AGAIN = "it was suspended for its sidecars on {}, and is not suspended again within a day"
KUEUE = "Kueue decides when it is suspended: label kueue.x-k8s.io/"


def left(sentence: str, because: str, its: Pod | None = None, /, **found: Any) -> Any:
    """A Job that is left alone, with a condition or a field of its own, and a pod of it."""
    conditions = found.pop("conditions", ())
    return row(sentence, job(*conditions, **found), its or pod(), because)


@pytest.mark.parametrize(
    ("found", "its", "because"),
    [
        left("that failed", "it is finished", conditions=["Failed"]),
        left("that is deleted", "it is being deleted", deletionTimestamp="2026-11-21T08:17:00Z"),
        left("in a queue of Kueue's", f"{KUEUE}queue-name",
             labels={"kueue.x-k8s.io/queue-name": "gpu"}),
        left("that Kueue manages without a queue", f"{KUEUE}podset",
             pod(labels={"kueue.x-k8s.io/podset": "worker"})),
        left("that we resumed less than a day ago", AGAIN.format("2026-11-20 09:00:01Z"),
             **noted("2026-11-20T09:00:01Z")),
        left("that we resumed, by a clock that is ahead", AGAIN.format("2026-11-22 08:59:59Z"),
             **noted("2026-11-22T08:59:59Z")),
        left("whose pods cannot be found",
             "its pod has no label training.kubeflow.org/job-name: mnist",
             pod(labels={"job-name": "mnist"})),
    ],
)  # fmt: skip
def test_a_job_is_left_alone(found: Job, its: Pod, because: str) -> None:
    lasts = "within a day" not in because
    assert suspension.begin(alone(found), Candidate.of(its), NOW) == Leave(because, lasts=lasts)


@pytest.mark.parametrize(
    ("found", "left", "gone"),
    [
        row("as long as a pod is on its way out", suspended(), pods("a", deleting=True), 0.0),
        row("for a pod that succeeded", suspended(), pods("a", phase="Succeeded"), 0.0),
        row("until the operator has begun", job(marked=True, policy={"suspend": True}), (), LONG),
        row("until the operator knows that they are gone", suspended(), (), 1.9),
    ],
)
def test_a_suspended_job_waits(found: Job, left: Sequence[Pod], gone: float) -> None:
    """Resumed too early it fails: see test_training_race of the node tier."""
    assert isinstance(follow(found, left, gone=gone), AwaitPods)


@pytest.mark.parametrize(
    ("found", "left", "expected"),
    [
        row("whose pods are gone", suspended(), (), Resume("all its pods are gone")),
        row("that finished", suspended("Suspended", "Failed"), pods("a"), Resume("it is finished")),
        row("without our mark", suspended(marked=False), (), Leave("it does not carry our mark")),
        row(
            "with the mark of somebody else", suspended(marked=False, labels={MARK: "lunch"}), (),
            Leave("it does not carry our mark"),
        ),
        row(
            "that is deleted", suspended(deletionTimestamp="2026-11-21T08:17:00Z"), (),
            Leave("it is being deleted"),
        ),
    ],
)  # fmt: skip
def test_a_suspended_job_is_resumed_or_left(
    found: Job, left: Sequence[Pod], expected: Resume | Leave
) -> None:
    assert follow(found, left) == expected


def test_one_of_the_pods_that_do_not_go_is_named() -> None:
    decision = follow(suspended(), pods("d", "c", "b", "a", deleting=True), waited=1e6)
    assert isinstance(decision, AwaitPods)
    assert decision.reason == "4 of its pods are still there: a, b, c"
    assert decision.pod is not None


@pytest.mark.parametrize("left", [(), pods("a", "b")])
def test_a_job_whose_operator_is_not_at_work_is_resumed(left: Sequence[Pod]) -> None:
    """Its pods are as they were; later their work would be lost for no restart of theirs."""
    found = job("Running", marked=True, policy={"suspend": True})
    decision = follow(found, left, waited=LONG)
    assert isinstance(decision, Resume)
    assert decision.unchanged
    assert decision.untouched == bool(left)
    assert isinstance(follow(found, left, waited=LONG - 1), AwaitPods)
    assert isinstance(follow(found, left, waited=LONG, unknown="no list of pods"), AwaitPods)


@pytest.mark.parametrize(
    ("left", "why"),
    [
        row(
            "no pods are known", (),
            "it is not known whether its pods are gone: no list of pods",
        ),
        row(
            "some pods are known", pods("b", "a"),
            "2 of its pods are still there: a, b;"
            " it is not known whether its pods are gone: no list of pods",
        ),
    ],
)  # fmt: skip
def test_a_job_whose_pods_are_not_known_waits_until_its_deadline(
    left: Sequence[Pod], why: str
) -> None:
    """What is unknown is never gone, and keeps no Job suspended."""
    found = follow(suspended(), left, unknown="no list of pods", since=599)
    assert isinstance(found, AwaitPods)
    assert found.reason == why
    assert follow(suspended(), left, unknown="no list of pods", since=600) == Resume(
        reason=f"it was suspended for too long, and {why}", unchanged=True
    )


def ending(grace: float, since: float) -> Sequence[Pod]:
    """A pod that is deleted since so many seconds before ``NOW``, with so long to end."""
    (found,) = pods("a", deleting=True)
    ends = NOW + timedelta(seconds=grace - since)
    return [
        structs.replace(found, metadata=structs.replace(found.metadata, deletion_timestamp=ends))
    ]


@pytest.mark.parametrize(
    ("bound", "grace"),
    [
        row("a pod whose node is lost, 30 s after its grace period and 10 min", 630, 30),
        row("a pod with a grace period of half an hour", 2400, 1800),
        row("a pod that never has to end", 3600 + 600, 1e9),
        row("pods that the operator noticed and did not delete", 600, None),
    ],
)
def test_a_job_waits_for_its_pods_until_its_bound(bound: float, grace: float | None) -> None:
    waits, ends = (
        follow(suspended(), pods("a") if grace is None else ending(grace, since), since=since)
        for since in (bound - 1, bound)
    )
    assert isinstance(waits, AwaitPods)
    assert ends == Resume(
        reason="it was suspended for too long, and 1 of its pods are still there: a",
        unchanged=True,
    )


def test_when_a_job_was_suspended_is_known_to_the_next_leader() -> None:
    """Anybody may write the annotation: it only makes the bound come sooner."""
    assert suspension.since(suspended(annotations={MARK: NOTE}), SEEN) == NOW
    assert suspension.since(suspended(annotations={}), SEEN) == SEEN
    for note in ("tomorrow", "2026-02-31T09:00:00Z", "2036-11-21T09:00:00Z"):
        assert suspension.since(suspended(annotations={MARK: note}), SEEN) == SEEN


@pytest.mark.parametrize(
    ("action", "spec", "mark", "note"),
    [
        (Suspend(reason=""), {"suspend": True}, SIDECAR, NOTE),
        (Resume(reason=""), {"suspend": False}, None, RESUMED),
        (Resume(reason="", unchanged=True), {"suspend": False}, None, RESUMED),
        (Resume(reason="", unchanged=True, untouched=True), {"suspend": False}, None, None),
        (follow(suspended(policy={"suspend": False}), pods("a")), None, None, RESUMED),
    ],
    ids=["suspended", "resumed", "unchanged", "untouched", "resumed by somebody else"],
)
def test_mark_and_suspension_change_in_one_write_to_what_was_read(
    action: Suspend | Resume | Unmark,
    spec: dict[str, bool] | None,
    mark: str | None,
    note: str | None,
) -> None:
    assert suspension.patch(KINDS["TFJob"], job(), action, NOW) == {
        "metadata": {
            "uid": "job-1", "resourceVersion": "7",
            "labels": {MARK: mark}, "annotations": {MARK: note},
        },
        **({"spec": {"runPolicy": spec}} if spec else {}),
    }  # fmt: skip


FINISHED = [pod("a", phase="Succeeded"), pod("b", phase="Failed")]
OTHERS = [pod("c", owner_uid="job-0"), pod("d", owner=None)]
IN_SET = pods("a", "b", owner=("batch/v1", "Job"), owner_uid="job-of-a-set")


@pytest.mark.parametrize(
    ("kind", "left", "own"),
    [
        row("of another Job of the same name, or of nobody", "TFJob", OTHERS, []),
        row("finished, which its operator deletes", "TFJob", FINISHED, FINISHED),
        row("finished, which stay while a batch Job is suspended", "Job", FINISHED, []),
        row("finished pods of a JobSet", "JobSet", FINISHED, []),
        row("of a Job that a JobSet has made", "JobSet", IN_SET, IN_SET),
        row("of a Job that a TrainJob has made", "TrainJob", IN_SET, IN_SET),
    ],
)
def test_a_job_waits_for_its_own_pods(kind: str, left: Sequence[Pod], own: Sequence[Pod]) -> None:
    listed, expected = ([Candidate.of(each) for each in (*pods, pod())] for pods in (left, own))
    assert suspension.own(KINDS[kind], job(), listed) == expected
