"""The judge of a storm: nothing bad goes unseen, and a storm leaves nobody out."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from chaos import storm
from chaos.outages import judge
from lab.outcome import Seen
from lab.workloads import Workload

NOTHING = storm.make(3, 0, 0)


def test_a_storm_kills_each_victim_and_creates_every_kind_of_job() -> None:
    told = storm.make(3, 600, 300)

    assert {outage.victim for outage in told.outages} == {*get_args(storm.Victim)}
    assert {w.name.rpartition("-")[0] for _, w in told.jobs} == {*storm.KINDS}


def container(name: str, code: int | None, second: int) -> dict[str, Any]:
    ended = {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}
    state = {} if code is None else {"terminated": ended}
    return {"name": name, "restartCount": 0, "state": state}


def left(main: dict[str, Any], proxy: dict[str, Any], condition: str | None) -> Seen:
    """What is left of a Job that was written to complete."""
    conditions = [{"type": condition, "status": "True"}] if condition else []
    owner = {"metadata": {"name": "succeeds-0"}, "status": {"conditions": conditions}}
    phase = "Succeeded" if proxy["state"] and main["state"] else "Running"
    status = {"phase": phase, "containerStatuses": [main, proxy]}
    pod = {"metadata": {"name": "succeeds-0-x"}, "status": status}
    return Seen(Workload("succeeds-0", {"kind": "Job"}, "Complete", (0,)), [owner], [pod])


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
def test_what_must_not_be_is_seen_after_a_storm(seen: Seen, message: str, bad: str | None) -> None:
    report = judge(NOTHING, [seen], [message], 1.0)

    assert report.good is (bad is None)
    if bad:
        assert dataclasses.asdict(report)[bad]
