"""A workload in a cluster at one moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube import Client

from lab import outcome
from lab.outcome import Outcome
from lab.waiting import until
from lab.workloads import RESOURCES, Pod, Workload

# Measured beside other work on 2 cores: 60 s at most.
SOON = 600


@dataclass(frozen=True)
class Seen:
    """A workload's object and its pods."""

    owner: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]]

    @property
    def outcome(self) -> Outcome:
        """How it ended, as far as it has."""
        return outcome.read([self.owner], self.pods)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        return outcome.over([self.owner], self.pods)

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
    resource = RESOURCES[workload.kind]
    pods = client.list(Pod, namespace=namespace)
    owner = client.get(resource, workload.name, namespace=namespace)
    return Seen(owner, outcome.pods_of([owner], pods))


def await_end(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload once nothing more will happen to it.

    Raises:
        TimeoutError: it does not end.
    """
    return until(
        lambda: seen if (seen := look(client, workload, namespace)).over else None,
        timeout=SOON,
        what=f"{workload.kind} {namespace}/{workload.name} to end",
    )
