"""The schedule of a run on the node tier: Jobs, and what is killed while they run. Pure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Literal, get_args

from lab import workloads
from lab.workloads import TALK, Workload, container, job, pod, template, training_job

Victim = Literal["workload", "pebble", "unit", "api-server", "injector"]
# How often each of them is killed beside the others.
SHARES: dict[Victim, int] = {
    "workload": 5, "pebble": 3, "unit": 2, "api-server": 1, "injector": 2,
}  # fmt: skip
# Seconds between two outages, and how long a victim that does not come back by itself is away.
SHORTEST_GAP, LONGEST_GAP = 4.0, 16.0
SHORTEST_OUTAGE, LONGEST_OUTAGE = 0.5, 8.0
# The payload's last work needs the network, so it shows a proxy that quit too early. It is tried
# for a minute: the API server, to which it talks, may be the one that was killed.
LAST_WORK = f"n=0; until {TALK}; do n=$((n + 1)); [ $n -lt 300 ] || exit 9; usleep 200000; done"
# Jobs start in this part of the time.
STARTS = 0.9


@dataclasses.dataclass(frozen=True)
class Outage:
    """``victim`` is killed ``at`` seconds after the beginning.

    ``lasts``: seconds until it is started again, unless something else starts it.
    """

    at: float
    victim: Victim
    lasts: float


@dataclasses.dataclass(frozen=True)
class Storm:
    """A run: the Jobs with the seconds after which they are created, and the outages, in order."""

    seed: int
    seconds: float
    jobs: tuple[tuple[float, Workload], ...]
    outages: tuple[Outage, ...]


def _work(rng: random.Random) -> str:
    return f"sleep {rng.randint(1, 12)}; {LAST_WORK}"


def _fails_once(rng: random.Random) -> str:
    first = f"touch /notes/tried; sleep {rng.randint(1, 4)}; exit {workloads.RETRY}"
    return f"[ -e /notes/tried ] || {{ {first}; }}; {_work(rng)}"


def _succeeds(rng: random.Random, name: str) -> Workload:
    return Workload(name, job(template(container(_work(rng)))), "Complete", (0,))


def _fails(rng: random.Random, name: str) -> Workload:
    return Workload(name, job(template(container(f"{_work(rng)}; exit 3"))), "Failed", (3,))


def _retries(rng: random.Random, name: str) -> Workload:
    pod = template(container(_fails_once(rng)), restart="OnFailure")
    return Workload(name, job(pod, backoffLimit=4), "Complete", (0,), restarts=1)


def _two_payloads(rng: random.Random, name: str) -> Workload:
    pod = template(container(_work(rng)), container(_work(rng), name="upload"))
    return Workload(name, job(pod), "Complete", (0, 0))


def _bare_pod(rng: random.Random, name: str) -> Workload:
    return Workload(name, pod(container(_work(rng))), "Succeeded", (0,))


def _tfjob(rng: random.Random, name: str) -> Workload:
    worker = template(container(_work(rng), name="tensorflow"))
    return Workload(name, training_job("TFJob", Worker=(1, worker)), "Succeeded", (0,))


# How many of ten are of a kind, and what makes one of a name.
KINDS: dict[str, tuple[int, Callable[[random.Random, str], Workload]]] = {
    "succeeds": (3, _succeeds),
    "fails": (2, _fails),
    "retries": (2, _retries),
    "two-payloads": (1, _two_payloads),
    "bare-pod": (1, _bare_pod),
    "tfjob": (1, _tfjob),
}


def make(seed: int, seconds: float, jobs: int) -> Storm:
    """Return the run of a seed; each kind of victim is killed once at least if there is time."""
    rng = random.Random(seed)
    shares = [share for share, _ in KINDS.values()]
    told: list[tuple[float, Workload]] = []
    for number, kind in enumerate(rng.choices(list(KINDS), shares, k=jobs)):
        _, made = KINDS[kind]
        told.append((rng.uniform(0, STARTS * seconds), made(rng, f"{kind}-{number}")))
    first = list(get_args(Victim))
    rng.shuffle(first)
    outages: list[Outage] = []
    # A short run has time for each victim, too.
    longest = max(SHORTEST_GAP, min(LONGEST_GAP, seconds / len(SHARES)))
    at = rng.uniform(0, longest)
    while at < seconds:
        victim = first.pop() if first else rng.choices(list(SHARES), list(SHARES.values()))[0]
        outages.append(Outage(at, victim, rng.uniform(SHORTEST_OUTAGE, LONGEST_OUTAGE)))
        at += rng.uniform(SHORTEST_GAP, longest)
    return Storm(seed, seconds, tuple(sorted(told, key=lambda each: each[0])), tuple(outages))
