"""What became of a pod and its twin, compared, and what was found, as text. Pure.

Only what happened counts, never what istio-aux decided or wrote.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lab.meshed import PROXY

from twins.manifests import Moment, Pair

HANGS = 60.0
"""Seconds. The least difference that counts."""
COMPLETE = "Complete"

Object = Mapping[str, Any]
Rule = str
"""One of `admitted`, `completes`, `reaches`, `runs`, `failures` and `time`."""
Verdict = Literal["same", "better", "worse"]


@dataclass(frozen=True)
class Half:
    """What became of one of the two Jobs of a pair."""

    end: str = ""  # `Complete`, or `Failed` with its reason; empty: it runs on.
    seconds: float = 0.0  # Until its end, or for which it was watched.
    refused: str = ""  # Why the API server admitted none of its pods.
    failures: int = 0  # As its Job counts them.
    reached: frozenset[str] = frozenset()  # Its containers that the service has served.
    runs: Mapping[str, int] = field(default_factory=dict[str, int])  # Of its author's containers.
    succeeded: frozenset[str] = frozenset()  # Containers that ended with 0 in some run.
    sidecars: frozenset[str] = frozenset()  # Its author's native ones.
    story: tuple[str, ...] = ()  # What its pods looked like in the end.

    @property
    def complete(self) -> bool:
        return self.end == COMPLETE

    @property
    def done(self) -> bool:
        """Whether each container that was started has succeeded, whatever became of the Job."""
        return bool(self.runs) and {*self.runs} <= self.succeeded


def half(
    job: Object,
    pods: Iterable[Object],
    calls: Iterable[str],
    *,
    seconds: float,
    refused: str = "",
) -> Half:
    """Read what became of a Job from its object, all of its pods as they were last seen, and the
    containers that have called the service."""
    pods = [*pods]
    runs, succeeded = Counter[str](), set[str]()
    for pod in pods:
        for status in _own(pod):
            ran, done = _ran(status), _ended_well(status)
            runs[status["name"]] += status.get("restartCount", 0) + ran
            if done:
                succeeded.add(status["name"])
    return Half(
        end=ended(job),
        seconds=seconds,
        refused="" if pods else refused,
        failures=(job.get("status") or {}).get("failed", 0),
        reached=frozenset(calls),
        runs={name: count for name, count in sorted(runs.items()) if count},
        succeeded=frozenset(succeeded),
        sidecars=frozenset(_native(job)),
        story=tuple(map(_told, pods)),
    )


def ended(job: Object) -> str:
    """How a Job has ended; empty if it runs on."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True":
            reason = condition.get("reason", "")
            return COMPLETE if condition["type"] == COMPLETE else f"Failed: {reason}"
    return ""


def losses(mine: Half, other: Half) -> dict[Rule, str]:
    """Say in what one of a pair is worse off than the other."""
    found: dict[Rule, str] = {}
    if mine.refused and not other.refused:
        found["admitted"] = f"is not admitted: {mine.refused}"
    if other.complete and not mine.complete:
        found["completes"] = f"does not complete: {mine.end or 'runs on'}"
    # Kubernetes ends a native sidecar with its payload, which a Job that hangs does not come to.
    ended = mine.sidecars if mine.end and not other.end else frozenset[str]()
    if missed := other.reached - mine.reached - ended:
        found["reaches"] = f"does not reach the service: {', '.join(sorted(missed))}"
    # Beside a Job that stays before its work is done, or that has failed where this one completes,
    # a Job may have begun again, as its author allows.
    fair = other.done or (other.end and (other.complete or not mine.complete))
    # How often a container fails that succeeds in neither Job is a matter of milliseconds.
    more = [
        f"{name} {count} times, not {other.runs[name]}"
        for name, count in mine.runs.items()
        if name in other.succeeded and count > other.runs[name]
    ]
    if fair and more:
        found["runs"] = f"runs more often: {', '.join(more)}"
    if fair and other.end and mine.failures > other.failures:
        found["failures"] = f"counts {mine.failures} failures, not {other.failures}"
    # A Job that fails later has not hung. Nor has one that got farther than one that failed, or
    # whose containers have all succeeded: who turns quit off knows that its proxy runs on.
    done = mine.done and {*other.runs} <= mine.succeeded
    farther = done or mine.reached - other.reached or mine.succeeded - other.succeeded
    hangs = other.complete or not (mine.end or farther)
    if other.end and hangs and (later := mine.seconds - other.seconds) >= HANGS:
        found["time"] = f"{'ends' if mine.end else 'hangs'} {later:.0f} s longer"
    return found


def verdict(ours: Half, twin: Half) -> Verdict:
    """Say how a Job was off with istio-aux, beside the one without."""
    if losses(ours, twin):
        return "worse"
    return "better" if losses(twin, ours) else "same"


@dataclass(frozen=True)
class Again:
    """How often a pair was worse off in several plays: with istio-aux, and without."""

    ours: Mapping[Rule, int]
    twins: Mapping[Rule, int]
    plays: int

    @property
    def worse(self) -> bool:
        return any(count > self.twins.get(rule, 0) for rule, count in self.ours.items())

    def __str__(self) -> str:
        rules = sorted({*self.ours, *self.twins})
        counts = [f"{r} {self.ours.get(r, 0)}:{self.twins.get(r, 0)}" for r in rules]
        return f"worse off in {self.plays} plays, with and without: {', '.join(counts) or 'none'}"


def again(plays: Sequence[tuple[Half, Half]]) -> Again:
    """Count the losses of each side."""
    ours = Counter(rule for mine, twin in plays for rule in losses(mine, twin))
    twins = Counter(rule for mine, twin in plays for rule in losses(twin, mine))
    return Again(ours, twins, len(plays))


def may_still_matter(ours: Half, twin: Half) -> bool:
    """Whether time alone may change the verdict: then a pair is watched on.

    A Job that has completed is worse off only by what its twin may still reach.
    """
    if (ours.end and twin.end) or ours.complete:
        return False
    return not (twin.end and ours.seconds - twin.seconds >= HANGS)


def _native(job: Object) -> list[str]:
    """The names of the native sidecars that a Job's author has written."""
    spec = ((job.get("spec") or {}).get("template") or {}).get("spec") or {}
    every = spec.get("initContainers") or ()
    return [each["name"] for each in every if each.get("restartPolicy") == "Always"]


def _own(pod: Object) -> list[Object]:
    """The statuses of the containers that the author of a pod has written."""
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    istios = {PROXY, "istio-init", "istio-validation"}
    return [each for each in every if each["name"] not in istios]


def _ran(status: Object) -> bool:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    return bool({"running", "terminated"} & state.keys() or "terminated" in last)


def _ended_well(status: Object) -> bool:
    states = (status.get("state") or {}, status.get("lastState") or {})
    return any((each.get("terminated") or {"exitCode": 1})["exitCode"] == 0 for each in states)


def _told(pod: Object) -> str:
    """One line about a pod: its phase, and each of its containers."""
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    kept = ("started-with", "not-native")
    notes = [
        f"{key}={value}"
        for key, value in (pod["metadata"].get("annotations") or {}).items()
        if key.startswith("istio-aux.io/") and key.partition("/")[2] in kept
    ]
    return " ".join(
        [f"{status.get('phase', '')}{' (deleted)' * ('deletionTimestamp' in pod['metadata'])}:"]
        + [f"{each['name']}={_state(each)}" for each in every]
        + notes
    )


def _state(status: Object) -> str:
    state = status.get("state") or {}
    if ended := state.get("terminated"):
        text = f"{ended['exitCode']}"
    elif waits := state.get("waiting"):
        text = waits.get("reason", "waiting")
    else:
        text = "running" if state else "unknown"
    restarts = status.get("restartCount", 0)
    return f"{text} (restarted {restarts} times)" if restarts else text


HEAD = ("world", "pairs", "same", "better", "worse", "complete with", "without", "seconds")


@dataclass
class Count:
    """What was found in one world."""

    verdicts: dict[Verdict, int] = field(
        default_factory=lambda: {"same": 0, "better": 0, "worse": 0}
    )
    complete: list[int] = field(default_factory=lambda: [0, 0])  # With istio-aux, and without.
    seconds: float = 0.0

    def add(self, ours: Half, twin: Half, seen: Verdict) -> None:
        self.verdicts[seen] += 1
        self.complete[0] += ours.complete
        self.complete[1] += twin.complete


def table(counts: Mapping[str, Count]) -> str:
    """The counts by world."""
    rows = [
        (
            name, sum(count.verdicts.values()), *count.verdicts.values(), *count.complete,
            round(count.seconds),
        )
        for name, count in counts.items()
    ]  # fmt: skip
    return "\n".join(
        "".join(f"{cell!s:>15}" if at else f"{cell:<12}" for at, cell in enumerate(row))
        for row in (HEAD, *rows)
    )


def told(pair: Pair, ours: Half, twin: Half, again: Again | None = None) -> str:
    """What happened to a pair, with its manifests."""
    values = "; ".join(f"{dimension}: {value}" for dimension, value in pair.values.items())
    lines = [
        f"{'WORSE' if again and again.worse else verdict(ours, twin)}: {pair.name}",
        *(f"  {text}" for text in losses(ours, twin).values()),
        *([f"  {again}"] if again else []),
        *([f"  {values}"] if values else []),
        *described("with", ours),
        *described("without", twin),
        *(f"  {line}" for line in pair.text.splitlines()),
    ]
    return "\n".join(lines)


def described(name: str, of: Half) -> list[str]:
    """What became of one Job, and of each of its pods."""
    reached = ", ".join(sorted(of.reached)) or "none"
    runs = ", ".join(f"{name} {count}" for name, count in of.runs.items()) or "none"
    end = f"{of.end or of.refused or 'runs on'} after {of.seconds:.0f} s"
    counted = f"failures: {of.failures}; reached the service: {reached}; runs: {runs}"
    return [f"  {name}: {end}; {counted}", *(f"    {line}" for line in of.story)]


def line(world: str, moment: Moment, pair: Pair, ours: Half, twin: Half) -> str:
    """A line of JSON about a pair."""
    found = {
        "world": world, "pair": pair.name, **moment.values, **pair.values,
        "worse": losses(ours, twin), "better": losses(twin, ours),
        "with": described("with", ours), "without": described("without", twin),
    }  # fmt: skip
    return json.dumps(found)
