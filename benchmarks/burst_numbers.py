"""What the burst benchmark measures: observations joined by pod. Data and arithmetic only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from benchmarks.driver import MeasurementError

CLASSIC, NATIVE = "classic with istio-aux", "native"
"""The two kinds of sidecar."""

PAYLOAD, PROXY = "main", "istio-proxy"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much of everything.

    Attributes:
        jobs: Jobs of a burst, of one pod each.
        rounds: bursts of each kind.
        settle: seconds for which nothing happens before a burst.
        limit: seconds after which something counts as broken.
    """

    jobs: int
    rounds: int
    settle: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Freed:
    """One pod, in seconds since containerd saw its payload exit.

    Attributes:
        stored: a watch brought the status in which the payload is finished.
        seen: istio-aux logged that the proxy is to quit.
        sent: the API server received the exec that tells it.
        started: containerd started the command in the proxy's container: the quit, or the kubelet's
            preStop hook.
        answered: the API server ended the exec.
        exited: containerd saw the proxy exit.
        execs: how often the proxy was told.
    """

    stored: float
    seen: float | None
    sent: float | None
    started: float
    answered: float | None
    exited: float
    execs: int


@dataclass(frozen=True, kw_only=True)
class Burst:
    """Pods whose payloads ended at once.

    Attributes:
        kind: of the sidecars.
        spread: seconds from the first exit of a payload to the last.
        pods: in the order in which their payloads ended.
        cpu: seconds of CPU by process, and ``elapsed``.
    """

    kind: str
    spread: float
    pods: list[Freed]
    cpu: dict[str, float]


@dataclass
class Observed:
    """What was written down during a burst.

    Attributes:
        watch: lines of a watch of the pods, each with the time of its arrival.
        containerd: lines of `ctr events`.
        audit: events of the API server's audit log.
        log: lines of istio-aux.
    """

    watch: Sequence[tuple[float, bytes]]
    containerd: Iterable[str]
    audit: Iterable[Mapping[str, Any]] = ()
    log: Iterable[Mapping[str, Any]] = ()


class _State(msgspec.Struct):
    terminated: dict[str, Any] | None = None


class _Status(msgspec.Struct, rename="camel"):
    name: str
    container_id: str = msgspec.field(name="containerID", default="")
    state: _State = msgspec.field(default_factory=_State)


class _Statuses(msgspec.Struct, rename="camel"):
    container_statuses: list[_Status] = []
    init_container_statuses: list[_Status] = []


class _Metadata(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Statuses


class _Event(msgspec.Struct):
    object: _Pod


@dataclass
class _Containers:
    """By container: when it exited and with which status, and when commands in it started."""

    exits: dict[str, tuple[float, int]] = field(default_factory=dict)
    execs: dict[str, list[float]] = field(default_factory=dict)


def join(observed: Observed) -> tuple[float, list[Freed]]:
    """Seconds between the first and the last exit of a payload, and all pods in that order.

    Raises MeasurementError: something of a pod is not there, or a proxy failed.
    """
    ids: dict[str, dict[str, str]] = {}
    stored: dict[str, float] = {}
    for at, line in observed.watch:
        pod = msgspec.json.decode(line, type=_Event).object
        for status in pod.status.container_statuses + pod.status.init_container_statuses:
            ids.setdefault(pod.metadata.name, {})[status.name] = status.container_id[13:]
            if status.name == PAYLOAD and status.state.terminated:
                stored.setdefault(pod.metadata.name, at)
    containers = _containers(observed.containerd)
    seen = {
        line["pod"]: datetime.fromisoformat(line["time"]).timestamp()
        for line in observed.log
        if line["event"] == "decision" and line["action"] == "quit"
    }
    sent, answered = _execs(observed.audit)
    found: list[tuple[float, Freed]] = []
    for name, of in ids.items():
        try:
            ended, _ = containers.exits[of[PAYLOAD]]
            exited, status = containers.exits[of[PROXY]]
            commands = [at for at in containers.execs[of[PROXY]] if at > ended]
            pod = Freed(
                stored=stored[name] - ended,
                seen=seen[name] - ended if name in seen else None,
                sent=sent[name] - ended if name in sent else None,
                started=commands[0] - ended,
                answered=answered[name] - ended if name in sent else None,
                exited=exited - ended,
                execs=len(commands),
            )
        except (KeyError, IndexError) as error:
            raise MeasurementError(f"pod {name}: nothing was observed of {error}") from error
        if status:
            raise MeasurementError(f"pod {name}: its proxy exited with {status}")
        found.append((ended, pod))
    found.sort(key=lambda each: each[0])
    return found[-1][0] - found[0][0], [pod for _, pod in found]


def _containers(lines: Iterable[str]) -> _Containers:
    """Reads `ctr events`: date, time, zone twice, namespace, topic, JSON."""
    found = _Containers()
    for line in lines:
        date, clock, _, _, _, topic, text = line.split(" ", 6)
        if topic == "/tasks/exit":
            event = json.loads(text)
            # The exit of a command has an id of its own.
            if event["id"] == event["container_id"]:
                at = datetime.fromisoformat(event["exited_at"]).timestamp()
                found.exits[event["id"]] = at, event.get("exit_status", 0)
        elif topic == "/tasks/exec-started":
            at = datetime.fromisoformat(f"{date}T{clock}Z").timestamp()
            found.execs.setdefault(json.loads(text)["container_id"], []).append(at)
    return found


def _execs(audit: Iterable[Mapping[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """By pod: when its first exec was received, and when its last one had ended."""
    sent: dict[str, float] = {}
    answered: dict[str, float] = {}
    for event in audit:
        if event["objectRef"].get("subresource") == "exec":
            name = event["objectRef"]["name"]
            sent.setdefault(
                name, datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
            )
            if event["stage"] == "ResponseComplete":
                answered[name] = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
    return sent, answered
