"""Judges a run by what the scripted kubelet recorded and the API server stores."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from lab import meshed
from lab.kubelet import Exec
from lightkube.resources.core_v1 import Pod

from chaos.plan import Actor, Plan


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The pods that had what must not be, each with what it was; all empty when all is well.

    Attributes:
        stuck: finished payload, and the pod did not end.
        early: told to quit while a payload container ran or was to run again, or at all if that
            was never right.
        failed: a proxy that did not exit with 0.
        wrong: ended in another phase than its payload.
        kills: how often the program was killed.
        pods: how many there were by kind.
        execs: how many requests to quit there were, successful or not.
        repeated: how many of them a well-behaved pod got beyond its first.
        freed: seconds from the last life's start until every pod had ended.
    """

    stuck: Sequence[str]
    early: Sequence[str]
    failed: Sequence[str]
    wrong: Sequence[str]
    kills: int
    pods: Mapping[str, int]
    execs: int
    repeated: int
    freed: float

    @property
    def good(self) -> bool:
        """Whether nothing happened that must not."""
        return not (self.stuck or self.early or self.failed or self.wrong)


def pending(plan: Plan, pods: Mapping[str, Pod]) -> list[str]:
    """The pods that have yet to end."""
    return [a.name for a in plan.actors if a.ends and _phase(pods[a.name]) in ("Running", None)]


def judge(plan: Plan, pods: Mapping[str, Pod], execs: Sequence[Exec], freed: float) -> Verdict:
    """Judge a run by its pods, by name, and everything that was asked of their kubelet."""
    by_pod: dict[str, list[Exec]] = collections.defaultdict(list)
    for request in execs:
        by_pod[request.pod.partition("/")[2]].append(request)
    stuck = set(pending(plan, pods))
    ended = [a for a in plan.actors if a.ends and a.name not in stuck]
    return Verdict(
        stuck=sorted(stuck),
        early=[e for actor in plan.actors for e in _early(actor, by_pod[actor.name])],
        failed=[
            f"{a.name}: {code}"
            for a in ended
            if (code := meshed.proxy_exit_code(pods[a.name])) != 0
        ],
        wrong=[
            f"{a.name}: {_phase(pods[a.name])}, not {a.ends}"
            for a in plan.actors
            if a.name not in stuck and _phase(pods[a.name]) != (a.ends or "Running")
        ],
        kills=len(plan.lives),
        pods=dict(collections.Counter(a.kind for a in plan.actors)),
        execs=len(execs),
        repeated=sum(max(0, len(by_pod[a.name]) - 1) for a in plan.actors if not a.misbehaviour),
        freed=round(freed, 1),
    )


def _early(actor: Actor, execs: Sequence[Exec]) -> list[str]:
    if actor.untouchable:
        return [f"{actor.name}: {e.via} at {e.at:%H:%M:%S.%f}" for e in execs]
    return [f"{actor.name}: while {', '.join(e.unfinished)} ran" for e in execs if e.unfinished]


def _phase(pod: Pod) -> str | None:
    return pod.status.phase if pod.status else None
