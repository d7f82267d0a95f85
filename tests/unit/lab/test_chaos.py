"""The plan of a chaos, and its judge: a run can be repeated, and nothing bad goes unseen."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any, get_args

import pytest
from chaos import plan, storm
from chaos.outages import Ended
from chaos.outages import judge as judge_storm
from chaos.verdict import judge
from lab import meshed
from lab.kubelet import Exec
from lab.workloads import Workload
from lightkube.models import core_v1
from lightkube.resources.core_v1 import Pod

BAD = ("stuck", "early", "failed", "wrong")


def test_a_seed_makes_the_same_plan_again():
    assert plan.make(7, 50, 5) == plan.make(7, 50, 5)
    assert plan.make(7, 50, 5) != plan.make(8, 50, 5)


def test_a_plan_has_every_kind_of_pod_and_every_misbehaviour():
    drawn = plan.make(2026, 200, 50)

    assert {actor.kind for actor in drawn.actors} == set(plan.KINDS)
    wrong = {actor.misbehaviour[0] for actor in drawn.actors if actor.misbehaviour}
    assert wrong == {*plan.QUICK, *plan.SLOW}


@pytest.mark.parametrize("seed", range(20))
def test_a_container_ends_only_while_it_runs(seed: int):
    running: dict[tuple[str, str], bool] = {}
    for step in plan.make(seed, 50, 5).steps:
        key = (step.pod, step.container)
        if step.verb == "start":
            running |= {(step.pod, name): True for name in ("main", "upload")}
        elif step.verb == "finish":
            assert running[key]
            running[key] = False
        elif step.verb == "restart":
            assert not running[key]
            running[key] = True


def one(kind: str, ends: str | None, *, untouchable: bool = False) -> plan.Plan:
    assert ends in ("Succeeded", "Failed", None)
    actor = plan.Actor("pod", kind, {}, ends, untouchable)
    return plan.Plan(0, (actor,), (), (), ())


def pod(phase: str, proxy: int | None) -> Pod:
    made = meshed.pod("stage", "pod")
    terminated = core_v1.ContainerStateTerminated(exitCode=proxy) if proxy is not None else None
    container = core_v1.ContainerStatus(
        image="",
        imageID="",
        name="istio-proxy",
        ready=False,
        restartCount=0,
        state=core_v1.ContainerState(terminated=terminated),
    )
    made.status = core_v1.PodStatus(phase=phase, containerStatuses=[container])
    return made


def request(*unfinished: str) -> Exec:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return Exec("stage/pod", "uid", "istio-proxy", (), at, "exec", unfinished)


def test_a_pod_that_ends_as_its_payload_did_is_good():
    verdict = judge(one("succeeds", "Succeeded"), {"pod": pod("Succeeded", 0)}, [request()], 1.0)

    assert verdict.good


@pytest.mark.parametrize(
    ("story", "seen", "execs", "bad"),
    [
        (one("succeeds", "Succeeded"), pod("Running", None), [], "stuck"),
        (one("succeeds", "Succeeded"), pod("Succeeded", 0), [request("main")], "early"),
        (one("runs on", None, untouchable=True), pod("Running", None), [request()], "early"),
        (one("fails", "Failed"), pod("Failed", 137), [request()], "failed"),
        (one("succeeds", "Succeeded"), pod("Failed", 0), [request()], "wrong"),
        (one("runs on", None, untouchable=True), pod("Failed", None), [], "wrong"),
    ],
)
def test_what_must_not_be_is_seen(story: plan.Plan, seen: Pod, execs: list[Exec], bad: str):
    verdict = judge(story, {"pod": seen}, execs, 1.0)

    assert not verdict.good
    complaints = dataclasses.asdict(verdict)
    assert [what for what in BAD if complaints[what]] == [bad]


# ---- storms on the node tier


def test_a_storm_kills_each_victim_and_creates_every_kind_of_job() -> None:
    told = storm.make(3, 600, 300)

    assert {outage.victim for outage in told.outages} == {*get_args(storm.Victim)}
    assert {w.name.rpartition("-")[0] for _, w in told.jobs} == {*storm.KINDS}
    assert [at for at, _ in told.jobs] == sorted(at for at, _ in told.jobs)
    assert storm.make(3, 600, 300) == told


def container(name: str, code: int | None, second: int) -> dict[str, Any]:
    ended = {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{second:02}Z"}
    return {
        "name": name,
        "restartCount": 0,
        "state": {} if code is None else {"terminated": ended},
    }


def left(main: dict[str, Any], proxy: dict[str, Any], condition: str | None) -> Ended:
    """What is left of a Job that was written to complete."""
    conditions = [{"type": condition, "status": "True"}] if condition else []
    owner = {"metadata": {"name": "succeeds-0"}, "status": {"conditions": conditions}}
    ended = proxy["state"] and main["state"]
    phase = "Succeeded" if ended else "Running"
    pod = {
        "metadata": {"name": "succeeds-0-x"},
        "status": {"phase": phase, "containerStatuses": [main, proxy]},
    }
    return Ended(Workload("succeeds-0", {"kind": "Job"}, "Complete", (0,)), [owner], [pod])


MAIN, PROXY = container("main", 0, 5), container("istio-proxy", 0, 7)


def test_a_job_that_ends_as_without_a_sidecar_is_good() -> None:
    report = judge_storm(storm.make(3, 0, 0), [left(MAIN, PROXY, "Complete")], ["created"], 1.0)

    assert report.good
    assert (report.meshed, report.proxy_seconds) == (1, (2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    ("seen", "message", "bad"),
    [
        (left(MAIN, container("istio-proxy", None, 0), None), "", "stuck"),
        (left(container("main", 9, 5), PROXY, "Failed"), "", "wrong"),
        (left(container("main", 0, 9), PROXY, "Complete"), "", "early"),
        (left(container("main", None, 0), PROXY, "Complete"), "", "early"),
        (left(MAIN, container("istio-proxy", 137, 7), "Complete"), "", "failed"),
        (
            left(MAIN, PROXY, "Complete"),
            'webhook "start.istio-aux.io" denied the request',
            "refused",
        ),
        (left(MAIN, PROXY, "Complete"), 'failed calling webhook "start.istio-aux.io"', "refused"),
    ],
)
def test_what_must_not_be_is_seen_after_a_storm(seen: Ended, message: str, bad: str) -> None:
    report = dataclasses.asdict(judge_storm(storm.make(3, 0, 0), [seen], [message], 1.0))

    complaints = [what for what in ("stuck", "wrong", "early", "failed", "refused") if report[what]]
    assert bad in complaints


def test_a_refusal_by_istio_is_none_of_ours() -> None:
    message = 'failed calling webhook "namespace.sidecar-injector.istio.io": connection refused'

    assert judge_storm(storm.make(3, 0, 0), [left(MAIN, PROXY, "Complete")], [message], 1.0).good
