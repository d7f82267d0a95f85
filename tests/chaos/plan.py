"""The schedule of a run: pods, how their payloads end, when the program is killed. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

from lab import versions
from lab.kubelet import Misbehaviour

# Pebble's backoff-delay in the charm's layer, doubled at each death. Its limit is 10 s there, with
# which a run would be mostly waiting; with this one the program is up about half of the time.
FIRST_DELAY, LONGEST_DELAY = 0.2, 2.0
# Seconds of a life. The program is ready some 1.5 s after its start, so that many a life ends
# before the first list is complete, and others in the middle of work.
SHORTEST_LIFE, LONGEST_LIFE = 0.3, 5.0

STATUS_PORT = "status.sidecar.istio.io/port"
RESTART = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}

# `killed` is none of them: it ends the proxy with 137, which is nobody's success.
QUICK: tuple[Misbehaviour, ...] = (
    "refuse",
    "unavailable",
    "exit-137",
    "close-without-status",
    "reset",
)
# These cost a whole attempt of 8 or 10 s, which at the end of a run nobody wants to wait for.
SLOW: tuple[Misbehaviour, ...] = ("hang", "lie", "not-found")

Verb = Literal["start", "finish", "crash-loop", "restart"]


@dataclasses.dataclass(frozen=True)
class Step:
    """One thing that happens to a pod, ``at`` seconds after the beginning."""

    at: float
    pod: str
    verb: Verb
    container: str = "main"
    exit_code: int = 0


@dataclasses.dataclass(frozen=True)
class Actor:
    """One pod.

    Attributes:
        name: its name.
        kind: the word for its story.
        what: arguments of ``meshed.pod``.
        ends: the phase in which it must end; None: its payload runs on, so that it never may.
        untouchable: no quit may ever be sent to it.
        misbehaviour: what its first quits meet, and how many of them do.
    """

    name: str
    kind: str
    what: Mapping[str, Any]
    ends: Literal["Succeeded", "Failed"] | None
    untouchable: bool = False
    misbehaviour: tuple[Misbehaviour, int] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run: who plays, what happens when, and how long each life and each death lasts."""

    seed: int
    actors: tuple[Actor, ...]
    steps: tuple[Step, ...]
    lives: tuple[float, ...]
    delays: tuple[float, ...]


# A kind: more arguments of `meshed.pod`, exit codes of `main` in turn, phase at the end.
Kind = tuple[dict[str, Any], tuple[int, ...], Literal["Succeeded", "Failed"] | None]

KINDS: dict[str, Callable[[random.Random], Kind]] = {
    "succeeds": lambda _: ({}, (0,), "Succeeded"),
    "fails": lambda r: ({}, (r.choice((1, 137)),), "Failed"),
    "retries": lambda r: (
        {"restart_policy": "OnFailure"},
        (1,) * r.randint(1, 3) + (0,),
        "Succeeded",
    ),
    "two payloads": lambda _: ({"payload": ("main", "upload")}, (0,), "Succeeded"),
    "custom port": lambda _: ({"annotations": {STATUS_PORT: "15520"}}, (0,), "Succeeded"),
    "restart rule": lambda _: (
        {"more": {"main": {"restartPolicy": "Never", "restartPolicyRules": [RESTART]}}},
        (42, 0),
        "Succeeded",
    ),
    "native": lambda _: ({"sidecar": "native"}, (0,), "Succeeded"),
    "crash loop": lambda _: ({"restart_policy": "OnFailure"}, (1, 1), None),
    "runs on": lambda _: ({}, (), None),
}
if not versions.CONTAINER_RESTARTS.there:
    del KINDS["restart rule"]
UNTOUCHABLE = ("native", "crash loop", "runs on")
WEIGHTS = {"succeeds": 5, "retries": 4, "two payloads": 4}


def make(seed: int, pods: int, kills: int) -> Plan:
    """The plan of a seed: that many pods, of which most finish, and that many deaths."""
    rng = random.Random(seed)
    lives = tuple(rng.uniform(SHORTEST_LIFE, LONGEST_LIFE) for _ in range(kills))
    delays = tuple(min(FIRST_DELAY * 2**n, LONGEST_DELAY) for n in range(kills))
    end = sum(lives) + sum(delays)
    weights = [WEIGHTS.get(kind, 1) for kind in KINDS]
    actors: list[Actor] = []
    steps: list[Step] = []
    for number, kind in enumerate(rng.choices(list(KINDS), weights, k=pods)):
        what, exit_codes, ends = KINDS[kind](rng)
        name = f"{kind.replace(' ', '-')}-{number}"
        start, last = sorted(rng.uniform(0, end) for _ in range(2))
        possible = (*QUICK, *SLOW) if last < end / 2 else QUICK
        wrong = (rng.choice(possible), rng.randint(1, 2)) if rng.random() < 0.3 else None
        actors.append(Actor(name, kind, what, ends, kind in UNTOUCHABLE, wrong))
        steps.append(Step(start, name, "start"))
        steps.extend(_story(rng, name, exit_codes, start, last, restarted=ends is not None))
        if "payload" in what:
            steps.append(Step(rng.uniform(start, end), name, "finish", "upload"))
    in_order = tuple(sorted(steps, key=lambda step: step.at))
    return Plan(seed, tuple(actors), in_order, lives, delays)


def _story(
    rng: random.Random,
    name: str,
    exit_codes: tuple[int, ...],
    start: float,
    last: float,
    *,
    restarted: bool,
) -> list[Step]:
    """The runs of ``main``, each of which ends with its exit code and waits before the next one."""
    moments = iter(sorted(rng.uniform(start, last) for _ in range(3 * len(exit_codes))))
    told: list[Step] = []
    for exit_code, more in itertools.zip_longest(exit_codes, exit_codes[1:]):
        told.append(Step(next(moments), name, "finish", exit_code=exit_code))
        if more is not None or not restarted:
            told.append(Step(next(moments), name, "crash-loop"))
        if more is not None:
            told.append(Step(next(moments), name, "restart"))
    return told
