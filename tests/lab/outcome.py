"""Workloads in a cluster at one moment and at their end: what must be equal without a sidecar."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube import Client

from lab import until, upstream
from lab.meshed import PROXY
from lab.workloads import RESOURCES, Workload

# Jobs of a CronJob that count: if there is a second one, the first did not hang.
RUNS = 2

# The conditions that end an owner; others are about the way there, which may differ.
ENDS = {"Complete", "Completed", "Error", "Failed", "Succeeded"}
# The labels by which an owner's pods are found.
OWNED_BY = (
    "batch.kubernetes.io/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    upstream.WORKFLOW,
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
    """A workload at its end; equal to another if the two ended in the same way."""

    # Type and reason of those in `ENDS` that are true; of a pod its phase.
    conditions: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]  # How many pods a Job counted in which way.
    pods: tuple[Pod, ...]  # The pods that are left.


def read(owners: Iterable[Object], pods: Iterable[Object]) -> Outcome:
    """The outcome of a workload, by its object (the Jobs of a CronJob) and its pods."""
    owners, pods = list(owners), list(pods)
    counted = [count for owner in owners for count in _counts(owner.get("status") or {})]
    return Outcome(
        conditions=tuple(sorted(end for owner in owners for end in _ends(owner))),
        counts=tuple(sorted(counted)),
        pods=tuple(sorted(map(_pod, pods))),
    )


def proxies(pods: Iterable[Object]) -> list[Container]:
    fields = ("initContainerStatuses", "containerStatuses")
    return [c for pod in pods for c in _containers(pod, *fields) if c.name == PROXY]


def codes(outcome: Outcome) -> tuple[int | None, ...]:
    """The last exit codes of all payload containers, sorted."""
    return tuple(
        sorted(c.exit_code for pod in outcome.pods for c in pod.payload if c.exit_code is not None)
    )


def describes(workload: Workload, outcome: Outcome) -> bool:
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


@dataclass(frozen=True)
class Seen:
    """A workload, the objects that tell how it ended (the Jobs of a CronJob), and its pods."""

    workload: Workload
    owners: Sequence[Object]
    pods: Sequence[Object]

    @property
    def owner(self) -> Object:
        [owner] = self.owners
        return owner

    @property
    def outcome(self) -> Outcome:
        return read(self.owners, self.pods)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        expected = RUNS if self.workload.kind == "CronJob" else 1
        ended = [owner for owner in self.owners if _ends(owner)]
        return len(ended) >= expected and all(
            pod["status"].get("phase") in {"Succeeded", "Failed"}
            and "deletionTimestamp" not in pod["metadata"]
            for pod in self.pods
        )

    @property
    def proxies(self) -> list[tuple[int | None, int]]:
        """The exit code and the restarts of each sidecar."""
        return [(proxy.exit_code, proxy.restarts) for proxy in proxies(self.pods)]

    @property
    def freed(self) -> list[tuple[int | None, int]]:
        """The same if each pod had one, which ended with 0 in its first run."""
        return [(0, 1 if self.workload.everything_restarts else 0)] * len(self.pods)

    @property
    def running(self) -> bool:
        """Whether the payload of each pod runs, or has ended."""
        containers = [c for pod in self.pods for c in pod["status"].get("containerStatuses") or ()]
        return bool(containers) and all("waiting" not in c["state"] for c in containers)

    def uids(self, *, finished: bool) -> set[str]:
        """Of its pods that have succeeded, or of the others."""
        return {
            pod["metadata"]["uid"]
            for pod in self.pods
            if (pod["status"].get("phase") == "Succeeded") is finished
        }


def look(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload as it is now in this namespace."""
    return _look(client, (namespace,), [workload])[workload.name]


def await_address(client: Client, pod: Workload, namespace: str) -> str:
    """Create a pod; return its address once it has one."""
    client.create(made := pod.in_namespace(namespace))
    return until(
        lambda: client.get(type(made), pod.name, namespace=namespace)["status"].get("podIP"),
        what=f"pod {namespace}/{pod.name} to have an address",
    )


def await_end(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload once nothing more will happen to it."""
    return until(
        lambda: seen if (seen := look(client, workload, namespace)).over else None,
        what=f"{workload.kind} {namespace}/{workload.name} to end",
    )


def await_ends(
    client: Client,
    places: Sequence[tuple[str, ...]],
    workloads: Sequence[Workload],
    *,
    quiet: float,
) -> list[dict[str, Seen]]:
    """The workloads of each place (some namespaces), once all have ended or none for `quiet` s."""
    going, since = set[tuple[int, str]](), time.monotonic()
    while True:
        seen = [_look(client, names, workloads) for names in places]
        now = {(at, w.name) for w in workloads for at, of in enumerate(seen) if not of[w.name].over}
        if now != going:
            going, since = now, time.monotonic()
        if not going or time.monotonic() > since + quiet:
            return seen
        # Owners of five kinds end here: one list a second is simpler than five watches.
        time.sleep(1)


def _look(client: Client, names: Sequence[str], workloads: Sequence[Workload]) -> dict[str, Seen]:
    # Pods first: an object that has ended since then is judged by its pods another time.
    kinds = ["Pod", *{"Job" if w.kind == "CronJob" else w.kind for w in workloads} - {"Pod"}]
    found = {
        kind: [each for name in names for each in client.list(RESOURCES[kind], namespace=name)]
        for kind in kinds
    }
    seen: dict[str, Seen] = {}
    for workload in workloads:
        owners = _owners(workload, found)
        seen[workload.name] = Seen(workload, owners, _pods_of(owners, found["Pod"]))
    return seen


def _owners(workload: Workload, found: Mapping[str, Sequence[Object]]) -> Sequence[Object]:
    if workload.kind != "CronJob":
        return [o for o in found[workload.kind] if o["metadata"]["name"] == workload.name]
    jobs = [
        job
        for job in found["Job"]
        for owner in job["metadata"].get("ownerReferences") or ()
        if owner["name"] == workload.name
    ]
    return sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"])[:RUNS]


def _pods_of(owners: Sequence[Object], pods: Sequence[Object]) -> list[Object]:
    """The pods of these owners among those of their namespace; a bare pod is its own."""
    names = {owner["metadata"]["name"] for owner in owners}

    def belongs(pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        named = [labels[label] for label in OWNED_BY if label in labels]
        return bool(names.intersection(named or [pod["metadata"]["name"]]))

    return [pod for pod in pods if belongs(pod)]
