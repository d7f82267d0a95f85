"""Plays a storm on the node tier: creates its Jobs, kills its victims, judges what is left.

The schedule, Jobs and what is killed while they run, is pure. Everything is real but Istio and
Juju. The judges are the Job controller, the training-operator and the kubelet: what they report of
each Job is compared with how it was written to end.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import httpx2
import lab.istio
import lab.juju
from lab import processes
from lab.juju.container import Container
from lab.meshed import PROXY
from lab.workloads import (
    RETRY,
    TALK,
    Seen,
    Workload,
    await_ends,
    container,
    describes,
    job,
    pod,
    proxies,
    template,
    training_job,
)
from lightkube import ApiError
from lightkube.resources.core_v1 import Event

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
    first = f"touch /notes/tried; sleep {rng.randint(1, 4)}; exit {RETRY}"
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
    told = [
        (rng.uniform(0, STARTS * seconds), KINDS[kind][1](rng, f"{kind}-{number}"))
        for number, kind in enumerate(rng.choices(list(KINDS), shares, k=jobs))
    ]
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


CONTAINER = "istio-aux"
# What a client sees while the API server is away, or Istio's webhook refuses.
AWAY = (ApiError, httpx2.TransportError)
# Seconds in which nothing ends, after which what runs counts as stuck. A payload tries for a minute
# to reach the API server, and retries of a quit are up to 30 s apart.
QUIET = 240.0


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where a storm plays; the namespace is injected by ``istio`` and selected by ``app``."""

    cluster: lab.Cluster
    app: lab.juju.App
    istio: lab.istio.Istio
    namespace: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What a storm left; the first five are empty when all is well."""

    stuck: Sequence[str]  # Jobs that did not end.
    wrong: Sequence[str]  # Jobs that ended in another way than without a sidecar.
    early: Sequence[str]  # Pods whose proxy ended before their payload.
    failed: Sequence[str]  # Proxies that did not exit with 0.
    refused: Sequence[str]  # Creations that istio-aux refused.
    jobs: Mapping[str, int]  # How many there were by kind.
    outages: Mapping[Victim, int]
    meshed: int  # How many pods had a sidecar.
    seconds: float  # Until everything had ended.

    @property
    def good(self) -> bool:
        return not (self.stuck or self.wrong or self.early or self.failed or self.refused)


def play(storm: Storm, stage: Stage) -> Report:
    """Let the storm happen; everything that was killed runs again at the end."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        killed = pool.submit(_on_time, begin, ((o.at, o) for o in storm.outages), _killer(stage))
        created = pool.submit(_on_time, begin, storm.jobs, _creator(stage))
        refused = [*created.result()]
        killed.result()
    workloads = [workload for _, workload in storm.jobs]
    with stage.cluster.client() as client:
        [ended] = await_ends(client, [(stage.namespace,)], workloads, quiet=QUIET)
        told = [str(e.message) for e in client.list(Event, namespace=stage.namespace)]
    return judge(storm, ended.values(), [*refused, *told], time.monotonic() - begin)


def judge(storm: Storm, ended: Iterable[Seen], messages: Iterable[str], seconds: float) -> Report:
    """Judge a storm by what is left of its workloads, and by what creators were told. Pure."""
    ended = [*ended]
    over = [one for one in ended if one.over]
    sidecars = [pod for one in ended for pod in one.pods if proxies([pod])]
    return Report(
        stuck=sorted(one.workload.name for one in ended if not one.over),
        wrong=[
            f"{one.workload.name}: {result}"
            for one in over
            if not describes(one.workload, result := one.outcome)
        ],
        early=[_name(pod) for pod in sidecars if _lost(pod)],
        failed=[
            f"{_name(pod)}: {proxy.exit_code}"
            for one in over
            for pod in one.pods
            for proxy in proxies([pod])
            if proxy.exit_code != 0
        ],
        refused=sorted({text for text in messages if _ours(text)}),
        jobs=dict(collections.Counter(w.name.rpartition("-")[0] for _, w in storm.jobs)),
        outages=dict(collections.Counter(outage.victim for outage in storm.outages)),
        meshed=len(sidecars),
        seconds=round(seconds, 1),
    )


def _ours(message: str) -> bool:
    """Whether the API server refused something because of istio-aux.

    Its messages name the webhook or the policy (apiserver plugin/webhook/errors).
    """
    # What follows the name may have paths of this machine, with any word in them.
    failed = re.search('failed calling webhook "[^"]*istio-aux', message)
    return bool(failed) or ("denied" in message and "istio-aux" in message)


def _on_time(
    begin: float, told: Iterable[tuple[float, Any]], act: Callable[[Any], Any]
) -> list[Any]:
    """Call ``act`` for each thing at its time; returns what is true of what that returns."""
    found: list[Any] = []
    for at, each in told:
        # The plan is made of these times: random moments are what is tested.
        time.sleep(max(0.0, begin + at - time.monotonic()))
        if result := act(each):
            found.append(result)
    return found


def _creator(stage: Stage) -> Callable[[Workload], str]:
    """Create a workload; returns the refusal by istio-aux, if that was the answer."""
    client = stage.cluster.client()

    def create(workload: Workload) -> str:
        refusal = ""

        def created() -> bool:
            nonlocal refusal
            try:
                client.create(workload.in_namespace(stage.namespace))
            except ApiError as error:
                if _ours(str(error)):
                    refusal = str(error)
                # An attempt whose answer was lost.
                if error.status.code != 409:
                    raise
            return True

        lab.until(created, what=f"{workload.name} to be created", ignoring=AWAY)
        return refusal

    return create


def _killer(stage: Stage) -> Callable[[Outage], None]:
    """Kill a victim; it runs again when this returns, or is about to."""
    cluster, istio = stage.cluster, stage.istio
    units = itertools.cycle(range(len(stage.app.units)))

    def container() -> Container:
        return stage.app.units[next(units)].containers[CONTAINER]

    def workload(_seconds: float) -> None:
        # Pebble starts it again. It may not have yet, after the last time.
        with contextlib.suppress(ProcessLookupError, IndexError):
            if pid := container().service_pid(CONTAINER):
                os.kill(pid, signal.SIGKILL)

    def away(process: lab.Process, seconds: float) -> None:
        process.end()
        time.sleep(seconds)  # The length of the outage is what is tested.
        process.start()

    def pebble(seconds: float) -> None:
        # The kubelet starts an emptied container in its place.
        away(container().process, seconds)

    def unit(_seconds: float) -> None:
        stage.app.replace_pod(next(units), killed=True)

    def api_server(seconds: float) -> None:
        away(cluster.process("kube-apiserver"), seconds)
        cluster.await_api()

    def injector(seconds: float) -> None:
        away(istio.process, seconds)
        processes.await_listener(istio.process, cluster.host, istio.port)

    kill: Mapping[Victim, Callable[[float], None]] = {
        "workload": workload,
        "pebble": pebble,
        "unit": unit,
        "api-server": api_server,
        "injector": injector,
    }
    return lambda outage: kill[outage.victim](outage.lasts)


def _lost(pod: Mapping[str, Any]) -> bool:
    """Whether the proxy ended before the payload."""
    ends: dict[bool, list[str]] = {True: [], False: []}
    for status in pod["status"].get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        # What runs on ends after all else; times of one format are ordered as texts.
        ends[status["name"] == PROXY].append(ended.get("finishedAt") or "later")
    return bool(ends[True]) and max(ends[True]) < max(ends[False])


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])
