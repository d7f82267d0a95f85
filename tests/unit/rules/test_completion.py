"""Whether a container is finished: the kubelet's own rules."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.quit.facts import depends_on_kubelet, finished, obeys, should_restart
from unit.rules.pods import EMPTY, MISSING, RUNNING, State, exited, job, ruled, waiting

RESTARTS: list[tuple[str, dict[str, Any], str | None, int, bool]] = [
    ("Never: success is the end", {}, "Never", 0, False),
    ("Never: failure is the end", {}, "Never", 1, False),
    ("OnFailure: failure is not", {}, "OnFailure", 1, True),
    ("Always: success is not the end", {}, "Always", 0, True),
    ("the container's Never beats the pod's OnFailure", {"restartPolicy": "Never"},
     "OnFailure", 1, False),
    ("the container's OnFailure beats the pod's Never", {"restartPolicy": "OnFailure"},
     "Never", 1, True),
    ("an unknown policy of the container leaves it to the pod", {"restartPolicy": "Sometimes"},
     "Never", 1, False),
    ("a rule with In matches", ruled("Restart", "In", 42), "Never", 42, True),
    ("a rule with NotIn matches", ruled("Restart", "NotIn", 0, 2), "Never", 1, True),
    ("a rule restarts even a success", ruled("Restart", "In", 0), "OnFailure", 0, True),
    ("an unknown action leaves it to the policies", ruled("Pray", "In", 42), "Never", 42, False),
    ("an unknown operator matches nothing", ruled("Restart", "Near", 42), "Never", 42, False),
    ("a rule without exit codes matches nothing",
     {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}, "Never", 0, False),
    ("without a policy of its own a container has no rules",
     {"restartPolicyRules": ruled("Restart", "In", 42)["restartPolicyRules"]}, "Never", 42, False),
    ("rules that do not match leave it to the container's policy",
     ruled("Restart", "In", 42, policy="OnFailure"), "Never", 1, True),
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


@pytest.mark.parametrize("reason", ["OOMKilled", "StartError", "Completed", ""])
@pytest.mark.parametrize(
    ("restart", "code", "expected"),
    [("OnFailure", 0, True), ("OnFailure", 1, False), ("Never", 0, True), ("Never", 137, True)],
)
def test_the_reason_decides_nothing(reason: str, restart: str, code: int, expected: bool) -> None:
    """Exit code and policy decide, whatever the reason is called (T1, T3)."""
    pod = job({"main": exited(code, reason)}, restart=restart)
    assert finished(pod.containers[0], pod).finished is expected


MARKS = [
    ("RestartingAllContainers", "will be restarted with all others"),
    ("ContainerStatusUnknown", "will be restarted (its state is unknown)"),
]


@pytest.mark.parametrize(("reason", "why"), MARKS)
@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_the_kubelets_own_marks_mean_another_start(policy: str, reason: str, why: str) -> None:
    """It reports the container as terminated, and starts it again (T12, kubernetes#22607)."""
    pod = job({"main": exited(137, reason)}, restart=policy)
    result = finished(pod.containers[0], pod)
    assert (result.finished, result.why) == (False, f"exited 137 ({reason}), {why}")


@pytest.mark.parametrize("reason", [reason for reason, _ in MARKS])
def test_nothing_restarts_in_a_pod_that_failed(reason: str) -> None:
    """Not even a native sidecar, or a container whose state the kubelet does not know."""
    pod = job({"main": exited(137, reason)}, sidecars={"a": exited(0)}, phase="Failed")
    for container in (*pod.containers, *pod.init_containers):
        assert finished(container, pod).finished


def test_statuses_that_contradict_each_other_say_nothing() -> None:
    """Whichever comes first (T9). A status that is there twice contradicts nothing."""
    done, running = ({"name": "main", "state": state} for state in (exited(0), RUNNING))
    for listed in ([done, running], [running, done], [done, running, done], [done, done]):
        pod = job({"main": MISSING}, status={"containerStatuses": listed})
        result = finished(pod.containers[0], pod)
        assert result.finished is (running not in listed)
        assert result.finished or result.why == "no status yet"


OLD, NEW = ("v1.33.13", "v1.9.1"), ("v1.35.0", "v1.36.3+k3s1", "1.36")
UNCLEAR = ("v1.34.4", "v1.350000", "v2.0.0", "", "v1." + "3" * 1_000_000)


def test_which_kubelets_obey_the_restart_policy_of_a_single_container() -> None:
    """From 1.35 on; 1.34 has a gate for it that nobody can ask for."""
    found = [{*map(obeys, versions)} for versions in (OLD, NEW, UNCLEAR)]
    assert found == [{False}, {True}, {None}]


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
