"""Whether a container is finished: the kubelet's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.core.completion import finished, should_restart
from unit.core.pods import EMPTY, MISSING, RUNNING, State, exited, job, ruled, waiting

RESTARTS: list[tuple[str, dict[str, Any], str | None, int, bool]] = [
    ("Never: success is the end", {}, "Never", 0, False),
    ("Never: failure is the end", {}, "Never", 1, False),
    ("OnFailure: success is the end", {}, "OnFailure", 0, False),
    ("OnFailure: failure is not", {}, "OnFailure", 1, True),
    ("Always: success is not the end", {}, "Always", 0, True),
    ("no policy is Always", {}, None, 0, True),
    ("the container's Never beats the pod's OnFailure", {"restartPolicy": "Never"},
     "OnFailure", 1, False),
    ("the container's OnFailure beats the pod's Never", {"restartPolicy": "OnFailure"},
     "Never", 1, True),
    ("the container's Always beats the pod's Never", {"restartPolicy": "Always"},
     "Never", 0, True),
    ("an unknown policy of the container leaves it to the pod", {"restartPolicy": "Sometimes"},
     "Never", 1, False),
    ("a rule with In matches", ruled("Restart", "In", 42), "Never", 42, True),
    ("a rule with In does not match", ruled("Restart", "In", 42), "Never", 41, False),
    ("a rule with NotIn matches", ruled("Restart", "NotIn", 0, 2), "Never", 1, True),
    ("a rule with NotIn does not match", ruled("Restart", "NotIn", 0, 2), "Never", 2, False),
    ("a rule restarts even a success", ruled("Restart", "In", 0), "OnFailure", 0, True),
    ("a rule may restart all", ruled("RestartAllContainers", "In", 42), "Never", 42, True),
    ("an unknown action leaves it to the policies", ruled("Pray", "In", 42), "Never", 42, False),
    ("an unknown operator matches nothing", ruled("Restart", "Near", 42), "Never", 42, False),
    ("a rule without exit codes matches nothing",
     {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, "Never", 0, False),
    ("without a policy of its own a container has no rules",
     {"restartPolicyRules": ruled("Restart", "In", 42)["restartPolicyRules"]}, "Never", 42, False),
    ("only the first rule that matches counts",
     {"restartPolicy": "Never", "restartPolicyRules": [
         *ruled("Pray", "In", 42)["restartPolicyRules"],
         *ruled("Restart", "In", 42)["restartPolicyRules"]]}, "Never", 42, False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("details", "policy", "code", "again"),
    [row[1:] for row in RESTARTS],
    ids=[r[0] for r in RESTARTS],
)
def test_restart_rules(details: dict[str, Any], policy: str | None, code: int, again: bool) -> None:
    """Rules, then the container's policy, then the pod's, as the kubelet asks them (T12)."""
    pod = job({"main": exited(code)}, restart=policy, details={"main": details})
    assert should_restart(pod.containers[0], pod.spec, code)[0] is again


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (MISSING, "no status yet"),
        (EMPTY, "waiting"),
        (RUNNING, "running"),
        (waiting("CrashLoopBackOff"), "waiting: CrashLoopBackOff"),
        ({"running": {}, "terminated": {"exitCode": 0}}, "running"),
    ],
)
def test_a_container_that_has_not_ended_is_not_finished(state: State, why: str) -> None:
    """Waiting, absent and contradictory reports are all "not finished" (T4, T9)."""
    pod = job({"main": state})
    result = finished(pod.containers[0], pod.container_status("main"), pod)
    assert (result.finished, result.why) == (False, why)


@pytest.mark.parametrize("reason", ["OOMKilled", "StartError", "ContainerCannotRun", "Error", ""])
@pytest.mark.parametrize(("code", "expected"), [(0, True), (1, False)])
def test_the_reason_string_decides_nothing(reason: str, code: int, expected: bool) -> None:
    """Under OnFailure the exit code alone decides, whatever the reason is called (T3)."""
    pod = job({"main": exited(code, reason)}, restart="OnFailure")
    assert finished(pod.containers[0], pod.container_status("main"), pod).finished is expected


def test_in_a_pod_that_is_over_whatever_ended_is_finished() -> None:
    """A native sidecar's restartPolicy Always means nothing once the phase is Succeeded."""
    pod = job({"main": exited(0)}, sidecars={"istio-proxy": exited(0)}, phase="Succeeded")
    sidecar = pod.init_containers[0]
    assert finished(sidecar, pod.container_status("istio-proxy"), pod).finished
