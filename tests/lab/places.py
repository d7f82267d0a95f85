"""Workloads that run side by side in the namespaces of a place, watched until they end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube import Client

from lab import outcome
from lab.outcome import Outcome
from lab.workloads import RESOURCES, Workload

# Jobs of a CronJob that count: if there is a second one, the first did not hang.
RUNS = 2


@dataclass(frozen=True)
class Place:
    """Namespaces as they were seen last."""

    namespaces: tuple[str, ...]
    objects: Mapping[str, list[Any]]

    def owners(self, workload: Workload) -> list[Any]:
        """The objects that tell how a workload ended."""
        if workload.kind != "CronJob":
            found = self.objects[workload.kind]
            return [item for item in found if item.metadata.name == workload.name]
        jobs = [
            job
            for job in self.objects["Job"]
            for owner in job["metadata"].get("ownerReferences") or ()
            if owner["name"] == workload.name
        ]
        return sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"])[:RUNS]

    def pods(self, workload: Workload) -> list[Any]:
        """The pods of a workload."""
        return list(outcome.pods_of(self.owners(workload), self.objects["Pod"]))

    def outcome(self, workload: Workload) -> Outcome:
        """How a workload ended."""
        return outcome.read(self.owners(workload), self.pods(workload))

    def over(self, workload: Workload) -> bool:
        """Whether nothing more will happen to a workload."""
        expected = RUNS if workload.kind == "CronJob" else 1
        return outcome.over(self.owners(workload), self.pods(workload), expected)


def await_ends(
    client: Client,
    places: Sequence[tuple[str, ...]],
    workloads: Sequence[Workload],
    *,
    quiet: float,
) -> list[Place]:
    """The places once every workload has ended, or none has for `quiet` seconds.

    The test of a workload that does not end fails, not this.
    """
    going, since = set[tuple[tuple[str, ...], str]](), time.monotonic()
    while True:
        seen = [_look(client, names, workloads) for names in places]
        now = {(p.namespaces, w.name) for w in workloads for p in seen if not p.over(w)}
        if now != going:
            going, since = now, time.monotonic()
        if not going or time.monotonic() > since + quiet:
            return seen
        # Owners of five kinds end here: one list a second is simpler than five watches.
        time.sleep(1)


def _look(client: Client, names: tuple[str, ...], workloads: Sequence[Workload]) -> Place:
    wanted = {"Pod", "Job", *(workload.kind for workload in workloads)} - {"CronJob"}
    return Place(
        names,
        {
            kind: [each for name in names for each in client.list(RESOURCES[kind], namespace=name)]
            for kind in wanted
        },
    )
