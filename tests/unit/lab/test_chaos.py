"""The judges of a chaos and of a storm: nothing bad goes unseen, and a storm leaves nobody out."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, Literal, get_args

import pytest
from chaos import plan, storm
from chaos.outages import Ended
from chaos.outages import judge as judge_storm
from chaos.verdict import judge
from lab.kubelet import Exec
from lab.workloads import Workload
from lightkube.resources.core_v1 import Pod

NOTHING = storm.make(3, 0, 0)


def pod(phase: str, proxy: int | None) -> Pod:
    state = {} if proxy is None else {"terminated": {"exitCode": proxy}}
    made = Pod.from_dict({
        "metadata": {"name": "pod"},
        "status": {"phase": phase, "containerStatuses": [
            {"name": "istio-proxy", "image": "", "imageID": "", "ready": False, "restartCount": 0,
             "state": state},
        ]},
    })  # fmt: skip
    assert isinstance(made, Pod)
    return made


@pytest.mark.parametrize(
    ("ends", "seen", "unfinished", "bad"),
    [
        ("Succeeded", pod("Succeeded", 0), (), []),
        ("Succeeded", pod("Running", None), (), ["stuck"]),
        ("Succeeded", pod("Succeeded", 0), ("main",), ["early"]),
        (None, pod("Running", None), (), ["early"]),
        ("Failed", pod("Failed", 137), (), ["failed"]),
        ("Succeeded", pod("Failed", 0), (), ["wrong"]),
    ],
)
def test_what_must_not_be_is_seen(
    ends: Literal["Succeeded", "Failed"] | None,
    seen: Pod,
    unfinished: tuple[str, ...],
    bad: list[str],
) -> None:
    """After one request to a pod that ends so, or must not be touched."""
    actor = plan.Actor("pod", "kind", {}, ends, ends is None)
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    request = Exec("stage/pod", "uid", "istio-proxy", (), at, "exec", unfinished)

    verdict = judge(plan.Plan(0, (actor,), (), (), ()), {"pod": seen}, [request], 1.0)

    assert verdict.good is not bool(bad)
    complaints = dataclasses.asdict(verdict)
    assert [what for what in ("stuck", "early", "failed", "wrong") if complaints[what]] == bad


def test_a_storm_kills_each_victim_and_creates_every_kind_of_job() -> None:
    told = storm.make(3, 600, 300)

    assert {outage.victim for outage in told.outages} == {*get_args(storm.Victim)}
    assert {w.name.rpartition("-")[0] for _, w in told.jobs} == {*storm.KINDS}


def container(name: str, code: int | None, second: int) -> dict[str, Any]:
    ended = {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}
    state = {} if code is None else {"terminated": ended}
    return {"name": name, "restartCount": 0, "state": state}


def left(main: dict[str, Any], proxy: dict[str, Any], condition: str | None) -> Ended:
    """What is left of a Job that was written to complete."""
    conditions = [{"type": condition, "status": "True"}] if condition else []
    owner = {"metadata": {"name": "succeeds-0"}, "status": {"conditions": conditions}}
    phase = "Succeeded" if proxy["state"] and main["state"] else "Running"
    status = {"phase": phase, "containerStatuses": [main, proxy]}
    pod = {"metadata": {"name": "succeeds-0-x"}, "status": status}
    return Ended(Workload("succeeds-0", {"kind": "Job"}, "Complete", (0,)), [owner], [pod])


MAIN, PROXY = container("main", 0, 5), container("istio-proxy", 0, 7)
WELL = left(MAIN, PROXY, "Complete")


@pytest.mark.parametrize(
    ("seen", "message", "bad"),
    [
        (WELL, "created", None),
        (WELL, 'failed calling webhook "namespace.sidecar-injector.istio.io": refused', None),
        (left(MAIN, container("istio-proxy", None, 0), None), "", "stuck"),
        (left(container("main", 9, 5), PROXY, "Failed"), "", "wrong"),
        (left(container("main", None, 0), PROXY, "Complete"), "", "early"),
        (left(MAIN, container("istio-proxy", 137, 7), "Complete"), "", "failed"),
        (WELL, 'webhook "start.istio-aux.io" denied the request', "refused"),
    ],
)
def test_what_must_not_be_is_seen_after_a_storm(seen: Ended, message: str, bad: str | None) -> None:
    report = judge_storm(NOTHING, [seen], [message], 1.0)

    assert report.good is (bad is None)
    if bad:
        assert dataclasses.asdict(report)[bad]
