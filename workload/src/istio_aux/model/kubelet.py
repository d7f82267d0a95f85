"""What a kubelet does: which containers are finished, that is terminated and never started again.

The reason of a state (``OOMKilled``, ``Error``, ``Completed``) is shown to people and decides
nothing, except for the two that are the kubelet's own marks, those of `_RESTARTED_ANYWAY`.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from msgspec import structs

from istio_aux.model.pod import Container, Pod, PodSpec, RestartRule, Terminated

# Reasons of a container state that was lost during a restart of all containers (k8s@1.36
# pkg/kubelet/kubelet_pods.go getPhase), and of one that the container runtime no longer knows
# (pkg/kubelet/container/helpers.go ShouldContainerBeRestarted, kubernetes#22607). The kubelet
# starts the container again whatever its exit code and policy.
_RESTARTING_ALL = "RestartingAllContainers"
_RESTARTED_ANYWAY = {
    _RESTARTING_ALL: "with all others",
    "ContainerStatusUnknown": "(its state is unknown)",
}

_MINOR = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")


class Kubelet(NamedTuple):
    """What is known about the kubelet of a node; see `obeys`."""

    obeys: bool | None
    until: float = math.inf  # Until when the version counts (monotonic).


OBEYS = Kubelet(True)


class Finished(NamedTuple):
    """Whether a container is finished, and why, in words for a person."""

    finished: bool
    why: str


def obeys(kubelet: str) -> bool | None:
    """Whether a kubelet of this version obeys the restart policy and rules of single containers.

    KEP-5307: 1.34 has them behind a gate, which is off by default and not shown by the API.
    None: not known.
    """
    match = _MINOR.match(kubelet[:100])
    minor = int(match[1]) if match else 34
    return None if minor == 34 else minor > 34


def depends_on_kubelet(pod: Pod) -> bool:
    """Whether a container of the pod is finished for some kubelets only (see `obeys`)."""
    return any(
        (ended := pod.exits.get(container.name)) is not None
        and _depends(container, pod, ended.exit_code)
        for container in pod.containers
    )


def _depends(container: Container, pod: Pod, exit_code: int) -> bool:
    plain = structs.replace(container, restart_policy=None, restart_policy_rules=None)
    again, _ = should_restart(container, pod.spec, exit_code)
    return again is not should_restart(plain, pod.spec, exit_code)[0]


def finished(container: Container, pod: Pod, *, obeyed: bool | None = True) -> Finished:
    """Judge one container by its last reported state and its restart rules.

    ``obeyed`` is what `obeys` says of the pod's kubelet. A container without a state, or with an
    empty one, has not started: it is not finished. In a Succeeded or Failed pod no container starts
    again.
    """
    state = pod.states.get(container.name)
    if state is None or state.running is not None:
        return Finished(False, "running" if state else "no status yet")
    if state.terminated is None:
        reason = state.waiting.reason if state.waiting else ""
        return Finished(False, f"waiting: {reason}" if reason else "waiting")
    how = _exit(state.terminated)
    code = state.terminated.exit_code
    if pod.status.phase in {"Succeeded", "Failed"}:
        return Finished(True, how)
    if mark := _RESTARTED_ANYWAY.get(state.terminated.reason):
        return Finished(False, f"{how}, will be restarted {mark}")
    again, rule = should_restart(container, pod.spec, code)
    depends = not obeyed and _depends(container, pod, code)
    if depends and obeyed is None:
        why = f"{how}, may be restarted ({rule}, which kubelets up to 1.34 ignore)"
        return Finished(False, why)
    if depends:
        again = not again
        rule = f"restartPolicy {pod.restart_policy}; the kubelet ignores {rule}"
    verb = "will be restarted" if again else "not restarted"
    return Finished(not again, f"{how}, {verb} ({rule})")


def _exit(terminated: Terminated) -> str:
    """Write an exit as ``exited 137 (OOMKilled)``."""
    reason = f" ({terminated.reason})" if terminated.reason else ""
    return f"exited {terminated.exit_code}{reason}"


def should_restart(container: Container, spec: PodSpec, exit_code: int) -> tuple[bool, str]:
    """Whether the kubelet starts a container again after ``exit_code``, and the rule that says so.

    The kubelet's ContainerShouldRestart (k8s@1.36 pkg/api/v1/pod/util.go) reads the first matching
    rule of the container, else its restartPolicy, else the pod's.
    """
    rule = _matching_rule(container, exit_code)
    if rule is not None and rule.action in {"Restart", "RestartAllContainers"}:
        return True, f"restartPolicyRules: {rule.action}"
    again = {"Never": False, "OnFailure": exit_code != 0, "Always": True}
    for owner, policy in (
        ("container restartPolicy", container.restart_policy),
        ("restartPolicy", spec.restart_policy),
    ):
        if policy in again:  # Else it is absent, or unknown to this kubelet.
            return again[policy], f"{owner} {policy}"
    return True, "restartPolicy Always by default"


def _matching_rule(container: Container, exit_code: int) -> RestartRule | None:
    """The first of ``restartPolicyRules`` that matches an exit code (KEP-5307)."""
    if container.restart_policy is None:  # The kubelet reads rules only beside a restartPolicy.
        return None
    for rule in container.restart_policy_rules or ():
        codes = rule.exit_codes
        if codes is None or codes.operator not in {"In", "NotIn"}:
            continue
        if (exit_code in (codes.values or ())) == (codes.operator == "In"):
            return rule
    return None


def restarting_all(pod: Pod, *, obeyed: bool | None = True) -> str | None:
    """Why the kubelet is about to start every container of the pod again; None: it is not.

    The kubelet's ShouldAllContainersRestart (KEP-5532): the condition says so, or any container,
    init containers and sidecars included, exited with a code whose rule is RestartAllContainers, or
    was lost on the way. The others may still be reported as terminated, but are not finished.
    """
    # Where several statuses contradict each other, any of them may be true.
    ended = [(it.name, how) for it in pod.statuses() if it.state and (how := it.state.terminated)]
    lost = any(how.reason == _RESTARTING_ALL for _, how in ended)
    if lost or pod.has_condition("AllContainersRestarting"):
        return "all containers are being restarted"
    if obeyed is False:
        return None
    ruled = {c.name: c for c in (*pod.init_containers, *pod.containers) if c.restart_policy_rules}
    for name, how in ended:
        rule = _matching_rule(ruled[name], how.exit_code) if name in ruled else None
        if rule and rule.action == "RestartAllContainers":
            return f"all containers will be restarted: {name} {_exit(how)}"
    return None
