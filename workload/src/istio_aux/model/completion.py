"""Whether a container is finished as the kubelet sees it: terminated, and never started again.

The reason of a state (``OOMKilled``, ``Error``, ``Completed``) is shown to people and decides
nothing, except for the two that are the kubelet's own marks, `RESTARTING_ALL` and `UNKNOWN`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import structs

from istio_aux.model.pod import (
    Container,
    ContainerStatus,
    Pod,
    PodSpec,
    RestartRule,
    Struct,
    Terminated,
)

# Reason of a state that was lost during a restart of all containers; the kubelet starts the
# container again whatever its exit code (k8s@1.36 pkg/kubelet/kubelet_pods.go getPhase).
RESTARTING_ALL = "RestartingAllContainers"
# Reason of a state that the container runtime no longer knows. The kubelet reports the container as
# terminated, and starts it again whatever its policy (k8s@1.36 pkg/kubelet/container/helpers.go
# ShouldContainerBeRestarted, kubernetes#22607).
UNKNOWN = "ContainerStatusUnknown"
_RESTARTED_ANYWAY = {RESTARTING_ALL: "with all others", UNKNOWN: "(its state is unknown)"}
_RESTARTING_RULES = frozenset({"Restart", "RestartAllContainers"})


class Finished(Struct, frozen=True):
    """Whether a container is finished, and why, in words for a person."""

    finished: bool
    why: str


_MINOR = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")


def obeys(kubelet: str) -> bool | None:
    """Whether a kubelet of this version obeys the restart policy and rules of single containers.

    KEP-5307: 1.34 has them behind a gate, which is off by default and which nobody can ask for.
    None: not known.
    """
    match = _MINOR.match(kubelet[:100])
    minor = int(match[1]) if match else 34
    return None if minor == 34 else minor > 34


class Kubelet(NamedTuple):
    """What was found out about the kubelet of a node; see `obeys`."""

    obeys: bool | None
    until: float  # By the monotonic clock. Then it is asked for again.


def depends_on_kubelet(pod: Pod) -> bool:
    """Whether a container is finished only for kubelets that obey its own policy, or do not."""
    return any(
        status.terminated is not None and _depends(container, pod, status.terminated.exit_code)
        for container in pod.containers
        for status in (pod.container_status(container.name),)
        if status is not None and container.restart_policy is not None
    )


def _depends(container: Container, pod: Pod, exit_code: int) -> bool:
    plain = structs.replace(container, restart_policy=None, restart_policy_rules=None)
    results = {should_restart(each, pod.spec, exit_code)[0] for each in (container, plain)}
    return len(results) > 1


def finished(
    container: Container, status: ContainerStatus | None, pod: Pod, *, obeyed: bool | None = True
) -> Finished:
    """Judge one container by its last reported status and its restart rules.

    ``obeyed`` is what `obeys` says of the pod's kubelet. A container without a status, or with an
    empty one, has not started: it is not finished. In a Succeeded or Failed pod no container starts
    again.
    """
    state = status.state if status else None
    if state is None:
        return Finished(finished=False, why="no status yet")
    if state.running is not None:
        return Finished(finished=False, why="running")
    if state.terminated is None:
        reason = state.waiting.reason if state.waiting else ""
        return Finished(finished=False, why=f"waiting: {reason}" if reason else "waiting")
    if pod.status.phase in {"Succeeded", "Failed"}:
        return Finished(finished=True, why=describe_exit(state.terminated))
    if mark := _RESTARTED_ANYWAY.get(state.terminated.reason):
        why = f"{describe_exit(state.terminated)}, will be restarted {mark}"
        return Finished(finished=False, why=why)
    code = state.terminated.exit_code
    again, rule = _restarts(container, pod, code, obeyed)
    verb = {None: "may be restarted", True: "will be restarted", False: "not restarted"}[again]
    why = f"{describe_exit(state.terminated)}, {verb} ({rule})"
    return Finished(finished=again is False, why=why)


def _restarts(
    container: Container, pod: Pod, exit_code: int, obeyed: bool | None
) -> tuple[bool | None, str]:
    """Whether the pod's kubelet starts a container again, None if it is not known, and why."""
    again, rule = should_restart(container, pod.spec, exit_code)
    if obeyed or container.restart_policy is None or not _depends(container, pod, exit_code):
        return again, rule
    if obeyed is None:
        return None, f"{rule}, which kubelets up to 1.34 ignore"
    return not again, f"restartPolicy {pod.restart_policy}; the kubelet ignores {rule}"


def describe_exit(terminated: Terminated) -> str:
    """``exited 137 (OOMKilled)``."""
    reason = f" ({terminated.reason})" if terminated.reason else ""
    return f"exited {terminated.exit_code}{reason}"


def should_restart(container: Container, spec: PodSpec, exit_code: int) -> tuple[bool, str]:
    """Whether the kubelet starts a container again after ``exit_code``, and the rule that says so.

    As kubelet ContainerShouldRestart (k8s@1.36 pkg/api/v1/pod/util.go): the first matching rule of
    the container, else its restartPolicy, else the pod's.
    """
    rule = matching_rule(container, exit_code)
    if rule is not None and rule.action in _RESTARTING_RULES:
        return True, f"restartPolicyRules: {rule.action}"
    for owner, policy in (
        ("container restartPolicy", container.restart_policy),
        ("restartPolicy", spec.restart_policy),
    ):
        match policy:
            case "Never":
                return False, f"{owner} {policy}"
            case "OnFailure":
                return exit_code != 0, f"{owner} {policy}"
            case "Always":
                return True, f"{owner} {policy}"
            case _:  # Absent, or unknown to this kubelet: the next owner decides.
                continue
    return True, "restartPolicy Always by default"


def matching_rule(container: Container, exit_code: int) -> RestartRule | None:
    """The first of ``restartPolicyRules`` that matches an exit code (KEP-5307)."""
    if container.restart_policy is None:  # The kubelet reads rules only beside a restartPolicy.
        return None
    for rule in container.restart_policy_rules or ():
        codes = rule.exit_codes
        if codes is None or codes.operator not in {"In", "NotIn"}:
            continue
        listed = exit_code in (codes.values or ())
        if listed == (codes.operator == "In"):
            return rule
    return None


def restarting_all(pod: Pod, *, obeyed: bool | None = True) -> str | None:
    """Why the kubelet is about to start every container of the pod again; None: it is not.

    As kubelet ShouldAllContainersRestart (KEP-5532): the condition says so, or any container, init
    containers and sidecars included, exited with a code whose rule is RestartAllContainers, or was
    lost on the way. The others may still be reported as terminated, but are not finished.
    """
    for condition in pod.status.conditions or ():
        if condition.type == "AllContainersRestarting" and condition.status == "True":
            return "all containers are being restarted"
    for status in pod.statuses():
        if status.terminated is not None and status.terminated.reason == RESTARTING_ALL:
            return "all containers are being restarted"
    if obeyed is False:
        return None
    ruled = {c.name: c for c in (*pod.init_containers, *pod.containers) if c.restart_policy_rules}
    # Where several statuses contradict each other, any of them may be true.
    for status in pod.statuses() if ruled else ():
        if (container := ruled.get(status.name)) is None or status.terminated is None:
            continue
        rule = matching_rule(container, status.terminated.exit_code)
        if rule is not None and rule.action == "RestartAllContainers":
            how = describe_exit(status.terminated)
            return f"all containers will be restarted: {container.name} {how}"
    return None
