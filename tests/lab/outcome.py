"""The outcome of a workload, reduced to what must be equal with and without a sidecar. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lab import argo
from lab.meshed import PROXY
from lab.workloads import Workload

# The conditions that end an owner; others are about the way there, which may differ.
ENDS = {"Complete", "Completed", "Error", "Failed", "Succeeded"}
# The labels by which an owner's pods are found.
OWNED_BY = (
    "batch.kubernetes.io/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    argo.WORKFLOW,
)

Object = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Container:
    """A container at its end: its last exit code, None while there is none, and its restarts."""

    name: str
    exit_code: int | None
    restarts: int


@dataclass(frozen=True, order=True)
class Pod:
    """A pod at its end; its name is left out, for it may be random."""

    phase: str
    payload: tuple[Container, ...]


@dataclass(frozen=True)
class Outcome:
    """A workload at its end; equal to another if the two ended in the same way.

    Attributes:
        conditions: type and reason of those in `ENDS` that are true; of a pod its phase.
        counts: how many pods a Job counted in which way.
        pods: the pods that are left.
    """

    conditions: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]
    pods: tuple[Pod, ...]


def read(owners: Iterable[Object], pods: Iterable[Object]) -> Outcome:
    """The outcome of a workload.

    Args:
        owners: the workload's object; the Jobs of a CronJob.
        pods: its pods; a bare pod is both.
    """
    owners, pods = list(owners), list(pods)
    counted = [count for owner in owners for count in _counts(owner.get("status") or {})]
    return Outcome(
        conditions=tuple(sorted(end for owner in owners for end in _ends(owner))),
        counts=tuple(sorted(counted)),
        pods=tuple(sorted(map(_pod, pods))),
    )


def over(owners: Iterable[Object], pods: Iterable[Object], expected: int = 1) -> bool:
    """Whether nothing more will happen to a workload of so many owners and their pods."""
    ended = [owner for owner in owners if _ends(owner)]
    return len(ended) >= expected and all(
        pod["status"].get("phase") in {"Succeeded", "Failed"}
        and "deletionTimestamp" not in pod["metadata"]
        for pod in pods
    )


def pods_of(owners: Iterable[Object], pods: Iterable[Object]) -> list[Object]:
    """The pods of these owners among those of their namespace; a bare pod is its own."""
    names = {owner["metadata"]["name"] for owner in owners}

    def belongs(pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        owners = [labels[label] for label in OWNED_BY if label in labels]
        return bool(names.intersection(owners or [pod["metadata"]["name"]]))

    return [pod for pod in pods if belongs(pod)]


def proxies(pods: Iterable[Object]) -> list[Container]:
    """The sidecars of the pods."""
    fields = ("initContainerStatuses", "containerStatuses")
    return [c for pod in pods for c in _containers(pod, *fields) if c.name == PROXY]


def codes(outcome: Outcome) -> tuple[int | None, ...]:
    """The last exit codes of all payload containers, sorted."""
    return tuple(
        sorted(c.exit_code for pod in outcome.pods for c in pod.payload if c.exit_code is not None)
    )


def describes(workload: Workload, outcome: Outcome) -> bool:
    """Whether the outcome is the one that the workload was written for."""
    restarts = sum(c.restarts for pod in outcome.pods for c in pod.payload)
    return (
        workload.ends in {kind for kind, _ in outcome.conditions}
        and codes(outcome) == workload.codes
        and restarts == workload.restarts
    )


def _ends(owner: Object) -> list[tuple[str, str]]:
    status = owner.get("status") or {}
    if phase := status.get("phase"):
        return [(phase, "")] if phase in ENDS else []
    return [
        (condition["type"], condition.get("reason", ""))
        for condition in status.get("conditions") or ()
        if condition["type"] in ENDS and condition["status"] == "True"
    ]


def _counts(status: Object) -> Iterable[tuple[str, int]]:
    # Kubeflow's operator stops counting when a job is over, though other replicas may still run.
    for name in ("active", "succeeded", "failed"):
        if status.get(name):
            yield name, status[name]
    # Those of a TrainJob, and of a JobSet.
    for job in status.get("jobsStatus") or status.get("replicatedJobsStatus") or ():
        for name in ("active", "succeeded", "failed"):
            yield f"{job['name']}: {name}", job.get(name, 0)


def _pod(pod: Object) -> Pod:
    payload = sorted(c for c in _containers(pod, "containerStatuses") if c.name != PROXY)
    return Pod(pod["status"].get("phase", ""), tuple(payload))


def _containers(pod: Object, *fields: str) -> Iterable[Container]:
    for status in (s for field in fields for s in pod["status"].get(field) or ()):
        terminated = (status.get("state") or {}).get("terminated") or {}
        yield Container(status["name"], terminated.get("exitCode"), status["restartCount"])
