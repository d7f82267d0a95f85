"""What the burst benchmark makes of containerd's events, a watch, the audit log and our own log."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.burst_numbers import Freed, Observed, join
from benchmarks.driver import MeasurementError

NOON = 1795867200.0  # 2026-11-28T12:00:00Z
DAY = "2026-11-28"


def clock(seconds: float) -> str:
    return f"12:00:{seconds:09.6f}"


def containerd(topic: str, seconds: float, **event: Any) -> str:
    return f"{DAY} {clock(seconds)}123 +0000 UTC k8s.io {topic} {json.dumps(event)}"


def ended(container: str, seconds: float, task: str = "", status: int = 0) -> str:
    """The exit of a container, or of a command in it."""
    exited = {"exited_at": f"{DAY}T{clock(seconds)}123Z"} | (
        {"exit_status": status} if status else {}
    )
    return containerd("/tasks/exit", 59, container_id=container, id=task or container, **exited)


def command(container: str, seconds: float) -> str:
    return containerd("/tasks/exec-started", seconds, container_id=container, exec_id="e", pid=1)


def status(pod: str, *, payload_ended: bool, native: bool = False) -> bytes:
    state = {"terminated": {"exitCode": 0}} if payload_ended else {"running": {}}
    payload = {"name": "main", "containerID": f"containerd://{pod}-main", "state": state}
    proxy = {"name": "istio-proxy", "containerID": f"containerd://{pod}-proxy", "state": {}}
    lists = ([payload], [proxy]) if native else ([payload, proxy], [])
    fields = dict(zip(("containerStatuses", "initContainerStatuses"), lists, strict=True))
    return json.dumps(
        {"type": "x", "object": {"metadata": {"name": pod}, "status": fields}}
    ).encode()


def audit(pod: str, stage: str, seconds: float) -> dict[str, Any]:
    return {
        "stage": stage,
        "objectRef": {"name": pod, "subresource": "exec"},
        "requestReceivedTimestamp": f"{DAY}T{clock(3)}Z",
        "stageTimestamp": f"{DAY}T{clock(seconds)}Z",
    }


def decided(pod: str, seconds: float) -> dict[str, Any]:
    at = f"{DAY}T{clock(seconds)[:-3]}+00:00"
    return {"event": "decision", "action": "quit", "pod": pod, "time": at}


CLASSIC = Observed(
    watch=[
        (NOON, status("a", payload_ended=False)),
        (NOON + 2, status("a", payload_ended=True)),
        (NOON + 9, status("a", payload_ended=True)),
    ],
    containerd=[
        command("a-proxy", 0.5),  # Before the payload's end: somebody else's.
        ended("a-main", 1),
        command("a-proxy", 4),
        ended("a-proxy", 4.5, task="e"),
        ended("a-proxy", 6),
    ],
    audit=[audit("a", "ResponseStarted", 4), audit("a", "ResponseComplete", 5)],
    log=[{"event": "ready"}, decided("a", 2.5)],
)


def test_the_way_of_a_classic_proxy_is_told_in_seconds_since_the_exit_of_its_payload() -> None:
    spread, pods = join(CLASSIC)

    told = Freed(stored=1, seen=1.5, sent=2, started=3, answered=4, exited=5, execs=1)
    assert (spread, [rounded(pod) for pod in pods]) == (0, [told])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "pod a: nothing was observed of 'a-main'"),
        ([ended("a-main", 1), command("a-proxy", 2)], "pod a: nothing was observed of 'a-proxy'"),
        (
            [ended("a-main", 1), command("a-proxy", 2), ended("a-proxy", 3, status=137)],
            "pod a: its proxy exited with 137",
        ),
    ],
    ids=["payload", "proxy", "killed"],
)
def test_a_pod_of_which_something_is_missing_or_whose_proxy_failed_is_no_number(
    lines: list[str], why: str
) -> None:
    with pytest.raises(MeasurementError, match=why):
        join(Observed(CLASSIC.watch, lines))


def rounded(pod: Freed) -> Freed:
    return Freed(**{name: value and round(value, 3) for name, value in asdict(pod).items()})
