"""A tiny cluster in which anything may happen to pods that are restarted, and which keeps count."""

from __future__ import annotations

from random import Random
from typing import Any

from istio_aux.core.moment import Moment
from istio_aux.core.rollout import (
    Next,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
    first_in_line,
    next_step,
    observed,
    refused,
    started,
)
from msgspec import structs

LIMITS = RolloutLimits(at_once=2, patience=100, doubt=10, first_retry=5, last_retry=20)


class Open:
    """An eviction that happened, until its replacement has proved itself. It may be changed."""

    def __init__(self, pod: Replica, since: float) -> None:
        self.pod, self.since = pod, since
        self.replacement = ""


class World:
    """Some controllers, their pods, and what is really under way.

    ``pods`` and ``rollouts`` are what istio-aux knows, ``open`` what is true, ``hopeless`` those
    whose replacement was seen without a sidecar.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seconds, self._made = 0.0, 0
        self.pods: dict[str, tuple[Replica, ...]] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.open: dict[str, Open] = {}
        self.hopeless: set[str] = set()
        for number in range(self._random.randint(1, 4)):
            count, stateful = self._random.randint(1, 3), self._random.random() < 0.5
            pods = [self._pod(f"web-{place}", place, stateful) for place in range(count)]
            self.pods[f"owner-{number}"] = tuple(pods)
            self.rollouts[f"owner-{number}"] = Rollout()

    @property
    def now(self) -> Moment:
        return Moment(self._seconds, 1e9 + self._seconds)

    def happen(self) -> None:
        """Time passes, and something happens to one controller's pods."""
        self._seconds += self._random.choice([0, 1, 6, 11, 60])
        owner = self._random.choice(sorted(self.pods))
        if self._random.random() < 0.5 and self.pods[owner]:
            pod = self._random.choice(self.pods[owner])
            self._change(owner, structs.replace(pod, ready=not (pod.ready or pod.deleting)))
        elif owner in self.open:
            self._replace(owner, self.open[owner])

    def look(self) -> None:
        """All pods are seen as they are; what has proved itself is no longer under way."""
        for owner, pods in self.pods.items():
            self.rollouts[owner] = observed(self.rollouts[owner], pods, self.now, LIMITS)
            found = self.open.get(owner)
            for pod in pods:
                if found is None or pod.uid != found.replacement:
                    continue
                if pod.restart:
                    self.hopeless.add(owner)
                if pod.restart or pod.ready:
                    del self.open[owner]

    def act(self) -> None:
        """Do what is next, with any outcome, and compare it with what is true."""
        found = {
            owner: step.pod
            for owner, pods in self.pods.items()
            if isinstance(step := next_step(self.rollouts[owner], pods, self.now, LIMITS), Next)
        }
        waiting = {owner: self.rollouts[owner] for owner in found}
        active = [rollout for rollout in self.rollouts.values() if rollout.replacing]
        for owner in first_in_line(waiting, active, self.now, LIMITS):
            pods, chosen = self.pods[owner], found[owner]
            assert chosen in pods
            assert chosen.restart
            assert owner not in self.open
            assert owner not in self.hopeless
            rollout = started(self.rollouts[owner], pods, chosen, self.now)
            outcome = self._random.choice(["evicted", "unanswered", "refused"])
            if outcome == "evicted":
                self.open[owner] = Open(chosen, self._seconds)
                self._change(owner, structs.replace(chosen, deleting=True, restart=False))
            if outcome == "refused":
                rollout = refused(rollout, "429", self.now, LIMITS)
            self.rollouts[owner] = rollout
        recent = [o for o in self.open.values() if self._seconds < o.since + LIMITS.patience]
        assert len(recent) <= LIMITS.at_once

    def _replace(self, owner: str, found: Open) -> None:
        """The evicted pod goes, or its controller makes a new one, with a sidecar or without."""
        pods = self.pods[owner]
        if any(pod.uid == found.pod.uid for pod in pods):
            self.pods[owner] = tuple(pod for pod in pods if pod.uid != found.pod.uid)
        elif not found.replacement:
            stateful = found.pod.ordinal is not None
            name = found.pod.name if stateful else f"web-n{self._made}"
            pod = self._pod(name, found.pod.ordinal or 0, stateful)
            if self._random.choice([True, True, False]):
                pod = structs.replace(pod, sidecar=Sidecar.PRESENT, restart=False)
            found.replacement = pod.uid
            self.pods[owner] = (*pods, pod)

    def _pod(self, name: str, place: int, stateful: bool) -> Replica:
        self._made += 1
        more: dict[str, Any] = {"ordinal": place} if stateful else {}
        ready = self._random.random() < 0.5
        uid = f"uid-{self._made}"
        return Replica(
            name=name, uid=uid, sidecar=Sidecar.MISSING, restart=True, ready=ready, **more
        )

    def _change(self, owner: str, pod: Replica) -> None:
        self.pods[owner] = tuple(pod if one.uid == pod.uid else one for one in self.pods[owner])
