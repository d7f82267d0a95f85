"""Whether a container is finished: the kubelet's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.quit.facts import depends_on_kubelet, finished, obeys, should_restart
from unit.rules.pods import EMPTY, MISSING, RUNNING, State, exited, job, ruled, waiting

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
    ("rules that do not match leave it to the container's policy",
     ruled("Restart", "In", 42, policy="OnFailure"), "Never", 1, True),
    ("a rule without values and In matches nothing", ruled("Restart", "In"), "Never", 0, False),
    ("a rule without values and NotIn matches everything",
     ruled("Restart", "NotIn"), "Never", 0, True),
    ("a second rule counts when the first does not match",
     {"restartPolicy": "Never", "restartPolicyRules": [
         *ruled("Restart", "In", 1)["restartPolicyRules"],
         *ruled("Restart", "In", 42)["restartPolicyRules"]]}, "Never", 42, True),
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
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (False, why)


REASONS = [
    "OOMKilled",
    "StartError",
    "ContainerCannotRun",
    "Error",
    "Completed",
    "DeadlineExceeded",
    "",
]


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(("code", "expected"), [(0, True), (1, False)])
def test_the_reason_string_decides_nothing(reason: str, code: int, expected: bool) -> None:
    """Under OnFailure the exit code alone decides, whatever the reason is called (T3)."""
    pod = job({"main": exited(code, reason)}, restart="OnFailure")
    assert finished(pod.containers[0], pod).finished is expected


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("code", [0, 1, 137])
def test_under_never_every_exit_is_the_end(reason: str, code: int) -> None:
    """Neither the exit code nor the reason matters then (T1, T3)."""
    pod = job({"main": exited(code, reason)})
    assert finished(pod.containers[0], pod).finished


def test_a_container_lost_while_all_restart_is_not_finished() -> None:
    """The one reason that counts is the kubelet's own mark, whatever the policy (T12)."""
    pod = job({"main": exited(137, "RestartingAllContainers")})
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (
        False,
        "exited 137 (RestartingAllContainers), will be restarted with all others",
    )


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_container_whose_state_is_unknown_is_not_finished(policy: str) -> None:
    """The kubelet reports it as terminated, and starts it again (kubernetes#22607)."""
    pod = job({"main": exited(137, "ContainerStatusUnknown")}, restart=policy)
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (
        False,
        "exited 137 (ContainerStatusUnknown), will be restarted (its state is unknown)",
    )


@pytest.mark.parametrize("reason", ["RestartingAllContainers", "ContainerStatusUnknown"])
def test_nothing_restarts_in_a_pod_that_failed(reason: str) -> None:
    """Not even a container that was lost while all were restarted, or whose state is unknown."""
    pod = job({"main": exited(137, reason)}, phase="Failed")
    assert finished(pod.containers[0], pod).finished


def test_what_ended_before_the_last_start_does_not_count() -> None:
    """A container that runs again is not finished, whatever its lastState says (T4)."""
    status = {
        "name": "main",
        "state": RUNNING,
        "lastState": exited(0),
        "restartCount": 3,
    }
    pod = job({"main": RUNNING}, status={"containerStatuses": [status]})
    assert not finished(pod.containers[0], pod).finished


def test_statuses_that_contradict_each_other_say_nothing() -> None:
    """Whichever comes first, the container is not finished (T9)."""
    both = [{"name": "main", "state": exited(0)}, {"name": "main", "state": RUNNING}]
    for listed in (both, both[::-1], [*both, both[0]]):
        pod = job({"main": MISSING}, status={"containerStatuses": listed})
        result = finished(pod.containers[0], pod)
        assert (result.finished, result.why) == (False, "no status yet")


def test_a_status_that_is_there_twice_counts_once() -> None:
    """Two reports that say the same contradict nothing (T9)."""
    twice = [{"name": "main", "state": exited(0)}] * 2
    pod = job({"main": MISSING}, status={"containerStatuses": twice})
    assert finished(pod.containers[0], pod).finished


def test_in_a_completed_pod_every_terminated_container_is_finished() -> None:
    """A native sidecar's restartPolicy Always means nothing once the phase is Succeeded."""
    pod = job({"main": exited(0)}, sidecars={"istio-proxy": exited(0)}, phase="Succeeded")
    sidecar = pod.init_containers[0]
    assert finished(sidecar, pod).finished


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("v1.33.13", False),
        ("v1.9.1", False),
        ("v1.34.4", None),
        ("v1.35.0", True),
        ("v1.36.3+k3s1", True),
        ("1.36", True),
        ("v1.350000", None),
        ("v2.0.0", None),
        ("", None),
        ("v1." + "3" * 1_000_000, None),
    ],
    ids=lambda value: str(value)[:12],
)
def test_which_kubelets_obey_the_restart_policy_of_a_single_container(
    version: str, found: bool | None
) -> None:
    """From 1.35 on; 1.34 has a gate for it that nobody can ask for."""
    assert obeys(version) is found


@pytest.mark.parametrize(
    ("own", "restart", "code", "obeyed", "why"),
    [
        ("Never", "OnFailure", 1, False,
         ("exited 1, will be restarted (restartPolicy OnFailure; "
         "the kubelet ignores container restartPolicy Never)")),
        ("Never", "OnFailure", 1, None,
         ("exited 1, may be restarted (container restartPolicy Never, "
         "which kubelets up to 1.34 ignore)")),
        ("OnFailure", "Never", 1, None,
         ("exited 1, may be restarted (container restartPolicy OnFailure, "
         "which kubelets up to 1.34 ignore)")),
        ("Never", "OnFailure", 1, True, ""),
        ("OnFailure", "Never", 1, False, ""),
        ("OnFailure", "Never", 0, None, ""),
    ],
)  # fmt: skip
def test_a_container_is_finished_if_its_kubelet_says_so(
    own: str, restart: str, code: int, obeyed: bool | None, why: str
) -> None:
    """Its own policy counts only for a kubelet that obeys it; unknown is not finished."""
    pod = job({"main": exited(code)}, restart=restart, details={"main": {"restartPolicy": own}})
    (main,) = pod.containers
    found = finished(main, pod, obeyed=obeyed)
    assert found.finished is not bool(why)
    assert why in {"", found.why}
    assert depends_on_kubelet(pod) is (code != 0)
