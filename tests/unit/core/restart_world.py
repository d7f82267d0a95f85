"""A tiny cluster in which anything may happen to pods that are restarted, and which keeps count."""

from __future__ import annotations

from random import Random
from typing import Any

from istio_aux.core.pacing import (
    Group,
    Member,
    Mesh,
    Next,
    Pace,
    begun,
    due,
    refused,
    seen,
    step,
    superseded,
)
from msgspec import structs

PACE = Pace(at_once=2, patience=100, doubt=10, first_retry=5, last_retry=20)


class Open:
    """An eviction that happened, until its replacement has proved itself. It may be changed."""

    def __init__(self, victim: Member, since: float) -> None:
        self.victim, self.since = victim, since
        self.replacement = ""


class World:
    """Some controllers, their pods, and what is really under way. A class because it changes.

    ``owners`` is what istio-aux knows, ``open`` what is true, ``hopeless`` those whose replacement
    was seen without a sidecar.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self.now, self._made = 0.0, 0
        self.owners: dict[str, Group] = {}
        self.open: dict[str, Open] = {}
        self.hopeless: set[str] = set()
        for number in range(self._random.randint(1, 4)):
            count, stateful = self._random.randint(1, 3), self._random.random() < 0.5
            pods = [self._pod(f"web-{place}", place, stateful) for place in range(count)]
            self.owners[f"owner-{number}"] = Group(tuple(pods))

    def happen(self) -> None:
        """Time passes, and something happens to one controller's pods."""
        self.now += self._random.choice([0, 1, 6, 11, 60])
        owner = self._random.choice(sorted(self.owners))
        if self._random.random() < 0.5 and self.owners[owner].members:
            pod = self._random.choice(self.owners[owner].members)
            self._change(owner, structs.replace(pod, ready=not (pod.ready or pod.deleting)))
        elif owner in self.open:
            self._replace(owner, self.open[owner])

    def look(self) -> None:
        """All pods are seen as they are; what has proved itself is no longer under way."""
        for owner, group in self.owners.items():
            self.owners[owner] = Group(group.members, seen(group, self.now, PACE))
            found = self.open.get(owner)
            for pod in group.members:
                if found is None or pod.uid != found.replacement:
                    continue
                if pod.restart:
                    self.hopeless.add(owner)
                if pod.restart or pod.ready:
                    del self.open[owner]

    def act(self) -> None:
        """Do what is due, with any outcome, and hold it against what is true."""
        steps = {owner: step(group, self.now, PACE) for owner, group in self.owners.items()}
        found = {owner: one for owner, one in steps.items() if isinstance(one, Next)}
        waiting = {owner: self.owners[owner].course for owner in found}
        under_way = [group.course for group in self.owners.values() if group.course.victim]
        for owner in due(waiting, under_way, self.now, PACE):
            group, chosen = self.owners[owner], found[owner].pod
            assert chosen in group.members
            assert chosen.restart
            assert owner not in self.open
            assert owner not in self.hopeless
            course = begun(group, chosen, self.now)
            outcome = self._random.choice(["evicted", "unanswered", "refused", "superseded"])
            if outcome == "evicted":
                self.open[owner] = Open(chosen, self.now)
                self._change(owner, structs.replace(chosen, deleting=True, restart=False))
            if outcome == "refused":
                course = refused(course, "429", self.now, PACE)
            if outcome == "superseded":
                course = superseded(course, "409", self.now, PACE)
            self.owners[owner] = Group(self.owners[owner].members, course)
        recent = [one for one in self.open.values() if self.now < one.since + PACE.patience]
        assert len(recent) <= PACE.at_once

    def _replace(self, owner: str, found: Open) -> None:
        """The victim goes, or its controller makes a new pod, with a sidecar or without."""
        members = self.owners[owner].members
        if any(pod.uid == found.victim.uid for pod in members):
            kept = tuple(pod for pod in members if pod.uid != found.victim.uid)
            self.owners[owner] = structs.replace(self.owners[owner], members=kept)
        elif not found.replacement:
            stateful = found.victim.ordinal is not None
            name = found.victim.name if stateful else f"web-n{self._made}"
            pod = self._pod(name, found.victim.ordinal or 0, stateful)
            if self._random.choice([True, True, False]):
                pod = structs.replace(pod, mesh=Mesh.MESHED, restart=False)
            found.replacement = pod.uid
            group = self.owners[owner]
            self.owners[owner] = structs.replace(group, members=(*group.members, pod))

    def _pod(self, name: str, place: int, stateful: bool) -> Member:
        self._made += 1
        more: dict[str, Any] = {"ordinal": place} if stateful else {}
        ready = self._random.random() < 0.5
        uid = f"uid-{self._made}"
        return Member(name=name, uid=uid, mesh=Mesh.UNMESHED, restart=True, ready=ready, **more)

    def _change(self, owner: str, pod: Member) -> None:
        group = self.owners[owner]
        members = tuple(pod if one.uid == pod.uid else one for one in group.members)
        self.owners[owner] = structs.replace(group, members=members)
