"""A payload that is held by the hook of its proxy: how long, what is told, and what ends it.

The statuses are those of Istio 1.31 on a kubelet 1.36.3 while the hook waits.
"""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import QUIT, QUIT_AFTER
from istio_aux.model.pod import Pod
from istio_aux.model.policy import DeadProxy, QuitPolicy
from istio_aux.quit.rules import LEFT_ALONE, NEVER_MET, NOT_BEGUN, Ignore, Quit, Report, Wait, Way
from unit.rules.pods import (
    EMPTY,
    ENDED,
    INIT,
    JOB,
    MISSING,
    NEW,
    RUNNING,
    SET_UP,
    State,
    blockers,
    decided,
    document,
    exited,
    hook,
    job,
    judged,
    moment,
    row,
    statuses,
    waiting,
    while_held,
)


def held(main: State = NEW, proxy: State = NEW, **fields: Any) -> Pod:
    """A pod whose hook waits."""
    return job({"istio-proxy": proxy, "main": main}, **while_held(**fields))


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["pilot-agent", "wait"], 60),
        (["pilot-agent", "wait", "--timeoutSeconds=300"], 300),
        (["pilot-agent", "wait", "--timeoutSeconds=300", "--periodMillis=9"], None),
        (["pilot-agent", "wait", "--url=http://localhost:15020/healthz/ready"], None),
        (["pilot-agent", "wait", "--timeoutSeconds=1234567"], None),
        (["pilot-agent wait"], None),
        ([], None),
    ],
)
def test_how_long_a_hook_waits_is_known_of_those_that_istio_and_we_write(
    command: list[str], seconds: int | None
) -> None:
    [proxy] = job({"istio-proxy": None}, details={"istio-proxy": hook(*command)}).containers
    assert proxy.holds == seconds


def test_a_payload_that_is_held_says_since_when_and_until_when_at_most() -> None:
    decision = decided(Wait, held())
    assert (blockers(decision), decision.stage, decision.code) == (
        ("istio-proxy",),
        "held",
        "IA0119",
    )
    assert decision.reason == (
        "the payload waits for istio-proxy since 08:16:29Z, until 08:21:29Z at most"
    )


@pytest.mark.parametrize(("seconds", "by"), [(None, ()), (59, ()), (60, ("istio-proxy",))])
def test_a_payload_that_is_held_for_a_moment_is_no_finding(
    seconds: float | None, by: tuple[str, ...]
) -> None:
    """Nor in a file: a status alone does not show whether an image is pulled."""
    now = None if seconds is None else moment(ENDED, seconds)
    decision = judged(held(), now).decision
    assert (blockers(decision), bool(decision.code)) == (by, bool(by))


@pytest.mark.parametrize(
    "pod",
    [
        row("the hook waits", held(deleting=True)),
        row("the kubelet reports the proxy", held(proxy=RUNNING, deleting=True)),
        row("Istio's own hook waits", held(details={"istio-proxy": hook("pilot-agent", "wait")},
                                           deleting=True)),
        row("a native sidecar has started before", held(
            deleting=True, init={**SET_UP, "vault": RUNNING},
            spec={"initContainers": [*INIT["initContainers"],
                                     {"name": "vault", "restartPolicy": "Always"}]},
            status={"initContainerStatuses": [*statuses(SET_UP), {
                "name": "vault", "started": True, "state": RUNNING}]})),
    ],
)  # fmt: skip
def test_the_proxy_of_a_deleted_pod_whose_payload_never_started_is_told_to_exit(pod: Pod) -> None:
    """kubernetes#116032: nothing else ends such a pod before its hook."""
    decision = decided(Quit, pod)
    assert (decision.target, decision.port, decision.code) == (
        "istio-proxy",
        15020,
        "IA0119",
    )
    assert decision.ways[0] is Way.EXEC
    assert NOT_BEGUN in decision.reason


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        row("the payload runs", held(RUNNING, RUNNING, phase="Running", deleting=True), LEFT_ALONE),
        row("the payload is reported as running", held(RUNNING, deleting=True), LEFT_ALONE),
        row("the payload has ended", held(exited(0), deleting=True), LEFT_ALONE),
        row("the payload has run before", held(
            status={"initContainerStatuses": statuses(SET_UP), "containerStatuses": [
                {"name": "istio-proxy", "state": NEW},
                {"name": "main", "state": NEW, "restartCount": 1}]}, deleting=True), LEFT_ALONE),
        row("nothing is known of the payload", held(MISSING, deleting=True), LEFT_ALONE),
        row("the payload has no state", held(EMPTY, deleting=True), LEFT_ALONE),
        row("no image: no hook", held(waiting("ImagePullBackOff"), deleting=True), LEFT_ALONE),
        row("the proxy has ended", held(proxy=exited(0), deleting=True), NOT_BEGUN),
        row("an init container runs", held(init={"istio-init": RUNNING}, deleting=True), NOT_BEGUN),
        row("nothing is known of an init container", held(init={}, deleting=True), NOT_BEGUN),
        row("another hook", held(details={"istio-proxy": hook("sleep", "9")}, deleting=True),
            NOT_BEGUN),
        row("no hook", held(details={}, deleting=True), NOT_BEGUN),
        row("a payload starts before the proxy", job(
            {"main": NEW, "istio-proxy": NEW}, **while_held(deleting=True)), NOT_BEGUN),
        row("its author has the proxy stay", held(annotations={QUIT: "false"}, deleting=True),
            NOT_BEGUN),
        row("an annotation is invalid", held(annotations={QUIT_AFTER: "?"}, deleting=True),
            NOT_BEGUN),
        row("a Deployment's", held(restart="Always", deleting=True), NOT_BEGUN),
    ],
)  # fmt: skip
def test_the_proxy_of_any_other_deleted_pod_is_left_alone(pod: Pod, reason: str) -> None:
    """The reason does not say that a payload needs the proxy which has never started."""
    assert reason in decided(Ignore, pod).reason


LATE: State = {"running": {"startedAt": "2026-11-21T08:16:30Z"}}


@pytest.mark.parametrize(
    ("main", "restarts", "says"),
    [
        row("after the proxy had ended", LATE, 0, True),
        row("in the same second", {"running": {"startedAt": "2026-11-21T08:16:29Z"}}, 0, True),
        row("before that", RUNNING, 0, False),
        row("and it had run before", LATE, 1, False),
        row("but when is not known", {"running": {}}, 0, False),
    ],
)
@pytest.mark.parametrize("policy", DeadProxy)
def test_a_payload_that_was_started_after_its_proxy_had_ended_never_had_a_network(
    policy: DeadProxy, main: State, restarts: int, says: bool
) -> None:
    """istio#45627: the hold gave up."""
    body = document({"istio-proxy": exited(0), "main": main}, owner=JOB, restart="OnFailure")
    body["status"]["containerStatuses"][1]["restartCount"] = restarts

    decision = decided(Report, pods.convert(body), QuitPolicy(dead_proxy=policy))
    assert (NEVER_MET in decision.reason) is says
    assert decision.delete is (policy is DeadProxy.DELETE)
