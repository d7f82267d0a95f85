"""A tiny cluster in which anything may happen to pods that are restarted, and which keeps count."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from istio_aux.model.election import Checkpoint, Replaced, read_checkpoint
from istio_aux.model.moment import Moment
from istio_aux.repair.rollout import (
    Failure,
    Next,
    Replica,
    Rollout,
    RolloutLimits,
    Sidecar,
    first_in_line,
    next_step,
    observed,
    recalled,
    refused,
    restored,
    started,
)
from msgspec import structs

LIMITS = RolloutLimits(
    at_once=2, share=2, patience=100, unconfirmed=10, first_retry=5, last_retry=20, unreplaced=10**6
)


class Open:
    """An eviction that happened, until its replacement has proved itself. It may be changed."""

    def __init__(self, pod: Replica, since: float) -> None:
        self.pod, self.since = pod, since
        self.replacement = ""


class World:
    """Some controllers, their pods, and what is really under way.

    ``pods``, ``gone`` and ``rollouts`` are what the leader knows, ``open`` and ``drained`` what is
    true: which pods we have evicted, and which somebody else has. The replacements of ``hopeless``
    controllers came without a sidecar. ``transitions`` are those between states of rollouts.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._seconds, self._made, self._drift = 0.0, 0, 0.0
        self.pods: dict[str, tuple[Replica, ...]] = {}
        self.gone: dict[str, dict[str, float]] = {}
        self.rollouts: dict[str, Rollout] = {}
        self.open: dict[str, Open] = {}
        self.drained: dict[str, Open] = {}
        self.hopeless: set[str] = set()
        self._former: dict[str, Rollout] = {}
        self._former_gone: dict[str, dict[str, float]] = {}
        self.transitions: set[tuple[str, str, str]] = set()
        for number in range(self._random.randint(1, 4)):
            count, stateful = self._random.randint(1, 3), self._random.random() < 0.5
            pods = [self._pod(f"web-{place}", place, stateful) for place in range(count)]
            self.pods[f"shop/{number}"] = tuple(pods)
            self.rollouts[f"shop/{number}"], self.gone[f"shop/{number}"] = Rollout(), {}

    @property
    def now(self) -> Moment:
        """The wall clock drifts, and is the API server's only by chance."""
        return Moment(self._seconds, 1e9 + self._seconds + self._drift)

    def happen(self) -> None:
        """Time passes, and something happens to one controller's pods."""
        self._seconds += self._random.choice([0, 1, 6, 11, 60])
        self._drift += self._random.choice([0, 0, 0, -1e6, 1e6])
        owner = self._random.choice(sorted(self.pods))
        if self._random.random() < 0.5 and self.pods[owner]:
            pod = self._random.choice(self.pods[owner])
            self._change(owner, structs.replace(pod, ready=not (pod.ready or pod.deleting)))
        elif owner in self.open:
            self._replace(owner, self.open[owner])
        elif owner in self.drained:
            self._replace(owner, self.drained[owner])
            if self.drained[owner].replacement:
                del self.drained[owner]
        elif self._random.random() < 0.2 and self.pods[owner]:
            pod = self._random.choice(self.pods[owner])
            if not pod.deleting:
                self.drained[owner] = Open(pod, self._seconds)
                self._evict(owner, pod)

    def look(self) -> None:
        """All pods are seen as they are; what has proved itself is no longer under way."""
        for owner, own in self._former.items():
            gone = self._former_gone.setdefault(owner, {})
            new = observed(own, self.pods[owner], self.now, LIMITS, gone)
            self._former[owner] = Rollout() if new.idle else new
        for owner, pods in self.pods.items():
            self._enter(
                owner, "observed",
                observed(self.rollouts[owner], pods, self.now, LIMITS, self.gone[owner]),
            )  # fmt: skip
            found = self.open.get(owner)
            for pod in pods:
                if found is None or pod.uid != found.replacement:
                    continue
                if pod.restart or pod.ready:
                    del self.open[owner]

    def change_leader(self) -> None:
        """Another process leads, a new one or the one before. It knows what the last one stored."""
        failed = {
            owner: Moment(0.0, rollout.failure.created).date
            for owner, rollout in self.rollouts.items()
            if rollout.failure
        }
        replaced = {
            owner: rollout.replacing.old
            for owner, rollout in self.rollouts.items()
            if rollout.replacing
        }
        left = read_checkpoint(Checkpoint(failed=failed, replaced=replaced).text())
        assert left
        new = self._random.choice([True, False]) or not self._former
        own = dict.fromkeys(self.pods, Rollout()) if new else self._former
        self.rollouts, self._former = dict(own), self.rollouts
        # It cannot know which pod of a StatefulSet went just before it came.
        gone = {owner: {} for owner in self.pods} if new else self._former_gone
        self.gone, self._former_gone = gone, self.gone
        self._drift = self._random.choice([0.0, -1e6, 1e6])
        for owner, pods in self.pods.items():
            if new and owner in self.drained and self.drained[owner].pod.uid not in uids(pods):
                del self.drained[owner]
            if at := left.failed.get(owner):
                self._restore(owner, recalled(at, self.now, LIMITS))
            if old := left.replaced.get(owner):
                self._restore(owner, old)

    def _restore(self, owner: str, what: Failure | Replaced) -> None:
        rollout = restored(self.rollouts[owner], self.pods[owner], self.now, what)
        self._enter(owner, "restored", rollout)

    def act(self) -> None:
        """Do what is next, with any outcome, and compare it with what is true."""
        found = {
            owner: step.pod
            for owner, pods in self.pods.items()
            if isinstance(step := next_step(self.rollouts[owner], pods, self.now, LIMITS), Next)
        }
        begun = {
            owner: rollout.replacing.since
            for owner, rollout in self.rollouts.items()
            if rollout.replacing
        }
        for owner in first_in_line(dict.fromkeys(found, 0.0), begun, {}, self.now, LIMITS):
            pods, chosen = self.pods[owner], found[owner]
            assert chosen in pods
            assert chosen.restart
            assert owner not in self.open
            assert owner not in self.hopeless
            drained = self.drained.pop(owner, None)
            # Of a ReplicaSet, nobody can see that a pod is gone.
            if drained and (chosen.ordinal is not None or drained.pod.uid in uids(pods)):
                assert self._seconds >= drained.since + LIMITS.patience
            self._enter(owner, "started", started(self.rollouts[owner], pods, chosen, self.now))
            outcome = self._random.choice(["evicted", "unanswered", "refused"])
            if outcome == "evicted":
                self.open[owner] = Open(chosen, self._seconds)
                self._evict(owner, chosen)
            if outcome == "refused":
                self._enter(
                    owner, "refused", refused(self.rollouts[owner], "429", self.now, LIMITS)
                )

        recent = [o for o in self.open.values() if self._seconds < o.since + LIMITS.patience]
        assert len(recent) <= LIMITS.at_once

    def _evict(self, owner: str, pod: Replica) -> None:
        sidecar = pod.sidecar if pod.sidecar is Sidecar.PRESENT else Sidecar.UNWANTED
        going = structs.replace(pod, deleting=True, ready=False, restart=False, sidecar=sidecar)
        self._change(owner, going)

    def _enter(self, owner: str, how: str, rollout: Rollout) -> None:
        before, after = state(self.rollouts[owner]), state(rollout)
        if before != after:
            self.transitions.add((before, how, after))
        self.rollouts[owner] = rollout

    def _replace(self, owner: str, found: Open) -> None:
        """The evicted pod goes, or its controller makes a new one, with a sidecar or without."""
        pods = self.pods[owner]
        stateful = found.pod.ordinal is not None
        if any(pod.uid == found.pod.uid for pod in pods):
            self.pods[owner] = tuple(pod for pod in pods if pod.uid != found.pod.uid)
            if stateful:
                for gone in (self.gone, self._former_gone):
                    gone.setdefault(owner, {})[found.pod.name] = self._seconds
        elif not found.replacement:
            name = found.pod.name if stateful else f"web-n{self._made}"
            pod = self._pod(name, found.pod.ordinal or 0, stateful)
            if self._random.choice([True, True, False]):
                pod = structs.replace(pod, sidecar=Sidecar.PRESENT, restart=False)
                self.hopeless.discard(owner)
            elif owner in self.open:
                self.hopeless.add(owner)
            found.replacement = pod.uid
            self.pods[owner] = (*pods, pod)
            for gone in (self.gone, self._former_gone):
                gone.setdefault(owner, {}).pop(name, None)

    def _pod(self, name: str, place: int, stateful: bool) -> Replica:
        self._made += 1
        more: dict[str, Any] = {"ordinal": place} if stateful else {}
        ready = self._random.random() < 0.5
        return Replica(
            name=name, uid=f"uid-{self._made}", sidecar=Sidecar.MISSING, restart=True, ready=ready,
            created=1e9 + self._seconds, **more,
        )  # fmt: skip

    def _change(self, owner: str, pod: Replica) -> None:
        self.pods[owner] = tuple(pod if one.uid == pod.uid else one for one in self.pods[owner])


def state(rollout: Rollout) -> str:
    """The state of a rollout, by its name in the table of `istio_aux.repair.rollout`."""
    if rollout.failure:
        return "failed"
    if rollout.replacing:
        return "replacing"
    return "backing off" if rollout.refusals else "idle"


def uids(pods: Iterable[Replica]) -> set[str]:
    return {pod.uid for pod in pods}
