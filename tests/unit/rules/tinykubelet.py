"""A kubelet for one pod, small enough to live through thousands of lives a second.

It knows the truth that a report may hide, and what the pod's containers will do next. Its restart
rules are sets of exit codes, worked out once from the spec and not shared with the code under test.
Not modelled: time, probes, init containers that end, and sandboxes.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from unit.rules.pods import RUNNING, State, exited, waiting

CODES = frozenset({0, 1, 42, 137})
PROXY = "istio-proxy"
_BY_POLICY = {"Always": CODES, "OnFailure": CODES - {0}, "Never": frozenset[int]()}


def restarting_codes(
    container: dict[str, Any], pod_policy: str
) -> tuple[frozenset[int], frozenset[int]]:
    """After which codes a container starts again, and after which all of them do."""
    own = container.get("restartPolicy")
    left_to_policy = _BY_POLICY[own or pod_policy]
    again, everyone = left_to_policy, frozenset[int]()
    # Backwards, so that an earlier rule has the last word on the codes that it names.
    for rule in reversed(container.get("restartPolicyRules") or [] if own else []):
        values = CODES & set(rule["exitCodes"]["values"])
        hit = values if rule["exitCodes"]["operator"] == "In" else CODES - values
        known = rule["action"] in {"Restart", "RestartAllContainers"}
        again = (again - hit) | (hit if known else left_to_policy & hit)
        everyone = (everyone - hit) | (hit if rule["action"] == "RestartAllContainers" else set())
    return again, everyone


class TinyKubelet:
    """The life of a pod whose document has no status yet."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        spec = document["spec"]
        self.regular = [container["name"] for container in spec["containers"]]
        self.sidecars = [container["name"] for container in spec["initContainers"]]
        self.names = [*self.sidecars, *self.regular]
        self.again: dict[str, frozenset[int]] = {}
        self.everyone: dict[str, frozenset[int]] = {}
        for container in (*spec["initContainers"], *spec["containers"]):
            sets = restarting_codes(container, spec["restartPolicy"])
            self.again[container["name"]], self.everyone[container["name"]] = sets
        self.running: set[str] = set()
        self.ended: dict[str, int] = {}
        self.ever: set[str] = set()

    def copy(self) -> TinyKubelet:
        """The same moment, to try a future out."""
        twin = copy.copy(self)
        twin.running, twin.ended, twin.ever = set(self.running), dict(self.ended), set(self.ever)
        return twin

    def exit(self, name: str, code: int) -> None:
        """A container ends, if it runs."""
        if name in self.running:
            self.running.discard(name)
            self.ended[name] = code

    def remove(self, name: str) -> None:
        """What ended and will be started again now waits for that."""
        if self._returns(name):
            self.ended.pop(name, None)

    def start(self, name: str) -> None:
        """A container starts, if the kubelet would start it."""
        if name not in self.running and (name not in self.ended or self._returns(name)):
            self.ended.pop(name, None)
            self.running.add(name)
            self.ever.add(name)

    def sync(self) -> None:
        """Where an exit restarts all containers, they go, and wait for their next start."""
        if self.restarting():
            self.running.clear()
            self.ended.clear()

    def settle(self) -> None:
        """Do all that is to be done until nothing changes any more."""
        self.sync()
        for name in self.names:
            self.start(name)

    def restarting(self) -> bool:
        return any(code in self.everyone[name] for name, code in self.ended.items())

    def returns(self, name: str) -> bool:
        """Whether a container runs now or will without anybody's doing."""
        return name not in self.ended or self.restarting() or self._returns(name)

    def _returns(self, name: str) -> bool:
        if name in self.sidecars:
            return True
        return name in self.ended and self.ended[name] in self.again[name]

    def phase(self) -> str:
        """As `getPhase` has it, which never looks at how sidecars end."""
        if any(name not in self.ever for name in self.names):
            return "Pending"
        if self.running or any(self.returns(name) for name in self.regular):
            return "Running"
        return "Failed" if any(self.ended[name] for name in self.regular) else "Succeeded"

    def report(self, *, without: Collection[str] = (), phase: str | None = None) -> dict[str, Any]:
        """The pod as the API server would show it, perhaps without some of the statuses."""

        def listed(names: list[str]) -> list[dict[str, Any]]:
            return [
                {"name": name, "state": self._state(name)} for name in names if name not in without
            ]

        return {
            **self.document,
            "status": {
                "phase": phase or self.phase(),
                "containerStatuses": listed(self.regular),
                "initContainerStatuses": listed(self.sidecars),
            },
        }

    def _state(self, name: str) -> State:
        if name in self.running:
            return RUNNING
        if name in self.ended:
            return exited(self.ended[name])
        return waiting("CrashLoopBackOff" if name in self.ever else "ContainerCreating")
