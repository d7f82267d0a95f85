"""Pods of an ambient mesh: Istio's CNI agents, and since when pods could have been captured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import takewhile

from istio_aux.injector.capture import Agent, CniConfig, NodeAgent, NodeAgents, is_agent
from istio_aux.model.findings import Code
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Key, Pod
from istio_aux.repair.rules import (
    HALF_CAPTURED,
    AwaitCapture,
    Candidate,
    RepairAction,
    ReportUnmeshed,
    Restart,
)


class CniAgents:
    """The agents as a watch shows them; a handler of a watch of pods.

    Attributes:
        known: the agents, and their settings.
        unread: set when their settings are to be read again.
    """

    def __init__(
        self, tenants: Callable[[str], bool], changed: Callable[[str | None], None]
    ) -> None:
        """``tenants``: see `NodeAgents`. ``changed`` gets a node; None: all may have changed."""
        self.known = NodeAgents(tenants)
        self.unread = asyncio.Event()
        self._changed = changed

    def apply(self, resource: Pod) -> None:
        """A pod, which may be an agent, looks like this."""
        agent = Agent.of(resource)
        if not is_agent(resource):
            self.delete(agent.key, None)
        elif self.known.put(agent):
            self._changed(agent.node)
            if not self.read:
                self.unread.set()

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or is no agent any more."""
        if node := self.known.drop(key):
            self._changed(node)

    @property
    def read(self) -> bool:
        """Whether the settings of all agents were read, or cannot be."""
        return self.known.namespaces <= self.known.configs.keys()

    def set(self, configs: Mapping[str, CniConfig | str]) -> None:
        """Replace what is known of their settings, by namespace."""
        if configs != self.known.configs:
            self.known.configs = {**configs}
            self._changed(None)


_Evidence = tuple[float, str, float | None]


class Captures:
    """Counts the time of uncaptured pods, by what this process has seen itself.

    The time of a pod begins again when the pod gets another network or annotation, and when the
    agent of its node was not ready meanwhile. Nothing is kept of a pod that is captured or gone.
    """

    def __init__(self, clock: Clock, settled: float) -> None:
        """``settled``: seconds after which an uncaptured pod is outside; see `rules.SETTLED`."""
        self._now = clock
        self._settled = settled
        self._seen: dict[Key, _Evidence] = {}  # Of each pod whose time has begun.
        self._waiting: dict[Key, float] = {}  # When those are decided on again, in order.

    def settled(self, pod: Candidate, agent: NodeAgent) -> bool:
        """Whether all that matters about the pod has been the same for long enough."""
        same = self._seen.get(pod.key) == _evidence(pod, agent)
        return same and self._waiting.get(pod.key, 0.0) <= self._now().monotonic

    def decided(self, pod: Candidate, agent: NodeAgent, action: RepairAction) -> bool:
        """Remember what follows from a decision on the pod; return whether its time begins."""
        match action:
            case ReportUnmeshed(code=code) | Restart(code=code):
                counts = code in {Code.OUTSIDE, Code.NO_NETWORK}
            case _:
                counts = isinstance(action, AwaitCapture) and bool(
                    pod.addressed or pod.redirection == HALF_CAPTURED
                )
        seen = _evidence(pod, agent)
        if counts and self._seen.get(pod.key) == seen:
            return False
        self.forget(pod.key)
        if counts:
            self._seen[pod.key] = seen
            self._waiting[pod.key] = self._now().monotonic + self._settled
        return counts

    def forget(self, key: Key) -> None:
        """The pod is captured or gone."""
        self._seen.pop(key, None)
        self._waiting.pop(key, None)

    @property
    def until(self) -> float | None:
        """When the next pod is decided on again (monotonic)."""
        return next(iter(self._waiting.values()), None)

    def due(self) -> list[Key]:
        """Take the pods that are decided on again now."""
        now = self._now().monotonic
        due = [*takewhile(lambda key: self._waiting[key] <= now, self._waiting)]
        for key in due:
            del self._waiting[key]
        return due


def _evidence(pod: Candidate, agent: NodeAgent) -> _Evidence:
    return pod.addressed, pod.redirection, agent.ready_since
