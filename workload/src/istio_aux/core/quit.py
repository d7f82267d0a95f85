"""What to do about a pod's proxy now: the one decision that the quit controller performs.

Only the decision may live here. It is level-triggered: it looks at the pod as it is, so asking
twice gives the same answer, and which event made us ask does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from istio_aux.core import completion, ownership
from istio_aux.core.ladder import Rung, rungs
from istio_aux.core.pod import PROXY, Container, Pod, State, Struct
from istio_aux.core.policy import DeadProxy, Policy
from istio_aux.core.statusport import status_port
from istio_aux.core.wishes import (
    IGNORE_CONTAINERS,
    LONGEST_GRACE,
    QUIT_AFTER,
    Wishes,
    read_wishes,
)

Role = Literal["payload", "sidecar", "ignored"]


class ContainerVerdict(Struct, frozen=True):
    """What a container is to us, and whether the kubelet is done with it."""

    role: Role
    finished: bool
    why: str


class Decision(Struct, frozen=True, tag_field="action"):
    """What all answers have: a reason for people, and a verdict on each container by name."""

    reason: str
    containers: Mapping[str, ContainerVerdict]


class Ignore(Decision, frozen=True, tag="ignore"):
    """There is nothing to do, and no change that we wait for."""


class Wait(Decision, frozen=True, tag="wait"):
    """The proxy is still needed; ask again when the pod changes, or at ``until`` if that is set.

    ``blocked_by`` names the payload containers that may still run although another one is finished
    already: usually sidecars that nobody ends.
    """

    until: datetime | None = None
    blocked_by: tuple[str, ...] = ()


class Quit(Decision, frozen=True, tag="quit"):
    """Make the proxy exit: container ``proxy``, whose agent listens on TCP port ``status_port``.

    ``rungs`` are the ways that can work for this pod, in the order to try them.
    """

    proxy: str
    status_port: int
    rungs: tuple[Rung, ...]


class Report(Decision, frozen=True, tag="report"):
    """The proxy is gone for good although a payload container may still run: it has no network.

    ``delete`` says that the policy wants the pod deleted, and that its controller makes a new one.
    """

    proxy: str
    delete: bool


Action = Ignore | Wait | Quit | Report


class _Facts(Struct, frozen=True):
    """The pod as the rules below see it."""

    pod: Pod
    wishes: Wishes
    verdicts: dict[str, ContainerVerdict]
    unfinished: dict[str, str]
    """Payload containers that may still run, each with why."""
    proxy_running: bool
    proxy_finished: bool
    restarting: str | None
    """Why every container is about to start again, if so."""


def decide(
    pod: Pod, policy: Policy, now: datetime | None, *, seen: datetime | None = None
) -> Action:
    """Decide what to do about the proxy of ``pod``.

    Args:
        pod: the pod, as complete and as recent as the caller has it.
        policy: what the cluster admin set; annotations of the pod refine it.
        now: the present time with a zone; None: judge as if every grace period were over.
        seen: when the caller first saw that every payload container was finished, by the same clock
            as ``now``. None: the pod is seen once, and the times of its node must do.

    Returns:
        The first rule below that applies, in this order; it never raises.
    """
    facts = _observe(pod, policy)
    if reason := next(_nothing_to_do(facts), None):
        return Ignore(reason=reason, containers=facts.verdicts)
    if reason := next(_lost_proxy(facts), None):
        delete = policy.dead_proxy is DeadProxy.DELETE
        if delete and (obstacle := next(_keeps_lost_pod(facts), None)):
            reason, delete = f"{reason}; not deleted: {obstacle}", False
        return Report(reason=reason, containers=facts.verdicts, proxy=PROXY, delete=delete)
    if reason := next(_still_needed(facts), None):
        return Wait(reason=reason, containers=facts.verdicts, blocked_by=_blockers(facts))
    if until := _grace_ends(facts, policy, now, seen):
        reason = f"every payload container is finished; the grace period ends at {until:%H:%M:%S}"
        return Wait(reason=reason, containers=facts.verdicts, until=until)
    port = status_port(pod)
    return Quit(
        reason="every payload container is finished",
        containers=facts.verdicts,
        proxy=PROXY,
        status_port=port,
        rungs=rungs(port),
    )


def since(pod: Pod, decision: Action) -> datetime | None:
    """Since when a pod is as the decision says, by its container statuses; None: it does not show.

    Of a `Report` that is the end of its proxy, of all others that of its last finished payload
    container. The time is the node's.
    """
    of_proxy = isinstance(decision, Report)
    ended = [
        ended.replace(tzinfo=ended.tzinfo or UTC)
        for status in pod.statuses()
        if (verdict := decision.containers.get(status.name)) is not None
        and (status.name == PROXY if of_proxy else verdict.role == "payload")
        and verdict.finished
        and status.state is not None
        and status.state.terminated is not None
        and (ended := status.state.terminated.finished_at) is not None
    ]
    return max(ended, default=None)


def _nothing_to_do(facts: _Facts) -> Iterator[str]:
    """Reasons to leave the pod alone whatever its payload does."""
    pod = facts.pod
    if pod.metadata.deletion_timestamp is not None:
        yield "the pod is being deleted"
    if pod.status.phase in {"Succeeded", "Failed"}:
        yield f"the pod is over: phase {pod.status.phase}"
    if any(sidecar.name == PROXY for sidecar in pod.native_sidecars):
        yield f"{PROXY} is a native sidecar: the kubelet ends it after the payload"
    elif PROXY not in facts.verdicts:
        yield f"the pod has no container {PROXY}"
    if pod.restart_policy == "Always":
        yield "restartPolicy Always: the pod is not meant to end"
    if facts.wishes.opt_out:
        yield facts.wishes.opt_out
    if all(verdict.role != "payload" for verdict in facts.verdicts.values()):
        yield "the pod has no payload container"
    if facts.proxy_finished and not facts.unfinished and facts.restarting is None:
        yield f"every payload container is finished, and {PROXY} too"


def _lost_proxy(facts: _Facts) -> Iterator[str]:
    """The proxy will not run again, but a payload container may (istio#45627)."""
    if facts.restarting is not None or facts.pod.status.phase == "Unknown":
        return
    if facts.proxy_finished and facts.unfinished:
        why = facts.verdicts[PROXY].why
        yield f"{PROXY} {why}, but not finished: {_listed(facts.unfinished)}"


def _keeps_lost_pod(facts: _Facts) -> Iterator[str]:
    """Reasons not to delete a pod that lost its proxy although the policy would."""
    if obstacle := ownership.not_replaced(facts.pod) or ownership.fails_with(facts.pod):
        yield obstacle
    for problem in facts.wishes.problems:
        yield problem.why
    states = (facts.pod.container_status(name) for name in facts.unfinished)
    if all(status is None or status.state in {None, State()} for status in states):
        yield "the state of its payload is not known"


def _still_needed(facts: _Facts) -> Iterator[str]:
    """Reasons why the proxy must not, or cannot, be made to exit now."""
    phase = facts.pod.status.phase
    for problem in facts.wishes.problems:
        yield problem.why
    if phase == "Unknown":
        yield "phase Unknown: the node does not report"
    if facts.restarting is not None:
        yield facts.restarting
    if facts.unfinished:
        yield f"not finished: {_listed(facts.unfinished)}"
    if not facts.proxy_running:
        yield f"{PROXY} does not run: {facts.verdicts[PROXY].why}"
    if phase == "Pending":
        yield "phase Pending: a container has never started"
    if phase not in {None, "", "Running"}:
        yield f"phase {phase}: unknown to istio-aux"


def _blockers(facts: _Facts) -> tuple[str, ...]:
    """Payload containers that are waited for although another one is finished.

    Where no container is waited for any more, it is an annotation that cannot be understood.
    """
    if facts.restarting is not None or facts.pod.status.phase == "Unknown":
        return ()
    if not facts.unfinished:
        return tuple(f"annotation {problem.annotation}" for problem in facts.wishes.problems)
    payload = [verdict for verdict in facts.verdicts.values() if verdict.role == "payload"]
    return tuple(facts.unfinished) if any(verdict.finished for verdict in payload) else ()


def _grace_ends(
    facts: _Facts, policy: Policy, now: datetime | None, seen: datetime | None
) -> datetime | None:
    """When the pod's grace period ends, or the policy's, if that is still to come."""
    wish = facts.wishes.grace
    grace = min(policy.grace if wish is None else wish, LONGEST_GRACE)
    if now is None or grace <= 0:
        return None
    if seen is not None:
        until = min(seen, now) + timedelta(seconds=grace)
        return until if until > now else None
    ends = [
        ended.replace(tzinfo=ended.tzinfo or UTC)
        for name, verdict in facts.verdicts.items()
        if verdict.role == "payload"
        and (status := facts.pod.container_status(name)) is not None
        and status.state is not None
        and status.state.terminated is not None
        and (ended := status.state.terminated.finished_at) is not None
    ]
    # A node whose clock is ahead has no end that is still to come.
    until = min(max(ends, default=now), now) + timedelta(seconds=grace)
    return until if ends and until > now else None


def _observe(pod: Pod, policy: Policy) -> _Facts:
    wishes = read_wishes(pod)
    verdicts = dict(_verdicts(pod, wishes, policy))
    proxy, status = verdicts.get(PROXY), pod.container_status(PROXY)
    return _Facts(
        pod=pod,
        wishes=wishes,
        verdicts=verdicts,
        unfinished={
            name: verdict.why
            for name, verdict in verdicts.items()
            if verdict.role == "payload" and not verdict.finished
        },
        proxy_running=status is not None
        and status.state is not None
        and status.state.running is not None,
        proxy_finished=proxy is not None and proxy.finished,
        restarting=completion.restarting_all(pod),
    )


def _verdicts(pod: Pod, wishes: Wishes, policy: Policy) -> Iterator[tuple[str, ContainerVerdict]]:
    for sidecar in pod.native_sidecars:
        yield sidecar.name, _verdict("sidecar", sidecar, pod)
    for container in pod.containers:
        if container.name == PROXY:
            yield container.name, _verdict("sidecar", container, pod)
        elif cause := _ignored(container.name, wishes, policy):
            yield container.name, _verdict("ignored", container, pod, f"; ignored: {cause}")
        else:
            yield container.name, _verdict("payload", container, pod)


def _ignored(name: str, wishes: Wishes, policy: Policy) -> str | None:
    """Why a container holds nothing up, or None if it does; the more explicit wish counts."""
    if wishes.after and all(problem.annotation != QUIT_AFTER for problem in wishes.problems):
        named = name in wishes.after
        return None if named else f"not named by annotation {QUIT_AFTER}"
    if name in wishes.ignored:
        return f"annotation {IGNORE_CONTAINERS}"
    return "option ignore-containers" if name in policy.ignore_containers else None


def _verdict(role: Role, container: Container, pod: Pod, cause: str = "") -> ContainerVerdict:
    result = completion.finished(container, pod.container_status(container.name), pod)
    return ContainerVerdict(role=role, finished=result.finished, why=f"{result.why}{cause}")


def _listed(containers: Mapping[str, str]) -> str:
    """``main (running), logger (waiting: CrashLoopBackOff)``."""
    return ", ".join(f"{name} ({why})" for name, why in containers.items())
