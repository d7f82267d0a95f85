"""Workloads in a cluster at one moment, and at their end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube import Client

from lab import outcome
from lab.outcome import Outcome
from lab.waiting import until
from lab.workloads import RESOURCES, Workload

# Measured beside other work on 2 cores: 60 s at most.
SOON = 600
# Jobs of a CronJob that count: if there is a second one, the first did not hang.
RUNS = 2

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """A workload, the objects that tell how it ended, and its pods.

    ``owners`` are the Jobs of a CronJob; any other workload has one object.
    """

    workload: Workload
    owners: Sequence[Object]
    pods: Sequence[Object]

    @property
    def owner(self) -> Object:
        """The only object."""
        [owner] = self.owners
        return owner

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as it has."""
        return outcome.read(self.owners, self.pods)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        expected = RUNS if self.workload.kind == "CronJob" else 1
        return outcome.over(self.owners, self.pods, expected)

    @property
    def proxies(self) -> list[tuple[int | None, int]]:
        """The exit code and the restarts of each sidecar."""
        return [(proxy.exit_code, proxy.restarts) for proxy in outcome.proxies(self.pods)]

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


def await_end(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload once nothing more will happen to it."""
    return until(
        lambda: seen if (seen := look(client, workload, namespace)).over else None,
        timeout=SOON,
        what=f"{workload.kind} {namespace}/{workload.name} to end",
    )


def await_payload(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload once its payload has ended as it was written to; its sidecars may run on."""

    def ended() -> Seen | None:
        seen = look(client, workload, namespace)
        return seen if outcome.codes(seen.outcome) == workload.codes else None

    return until(ended, timeout=SOON, what=f"the payload of {namespace}/{workload.name} to end")


def await_ends(
    client: Client,
    places: Sequence[tuple[str, ...]],
    workloads: Sequence[Workload],
    *,
    quiet: float,
) -> list[dict[str, Seen]]:
    """The workloads of each place by name, once all have ended, or none has for `quiet` seconds.

    A place is some namespaces, of which one has the workload. The test of a workload that does not
    end fails, not this.
    """
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
        seen[workload.name] = Seen(workload, owners, outcome.pods_of(owners, found["Pod"]))
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
