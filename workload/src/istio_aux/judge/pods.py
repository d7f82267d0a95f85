"""Finds what is wrong with one pod, by the rules of quit and repair, and how its mesh failed it.

`audit`, `explain` and `check` show these findings. `serve` shows what the same rules decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

import msgspec

from istio_aux.injector.capture import NodeAgents
from istio_aux.injector.injection import Expectation
from istio_aux.judge.installation import Judgement, Labels
from istio_aux.model import ending, owners
from istio_aux.model.ending import FailedPod, failure
from istio_aux.model.findings import Code, Remark
from istio_aux.model.found import Found, State
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import RacePolicy
from istio_aux.model.text import NO_COMMAND, Command, command
from istio_aux.quit.rules import Action, Quit, Report
from istio_aux.repair.rules import (
    SETTLED,
    Around,
    Candidate,
    NotKnown,
    RepairAction,
    ReportUnmeshed,
    as_admitted,
    decide,
)


def judge(
    pod: Pod,
    judged: Judgement,
    meshed: tuple[RepairAction, Expectation] | None = None,
    notes: Iterable[Remark] = (),
    *,
    lately: Moment | None = None,
) -> tuple[Found, ...]:
    """Return all findings about a pod. At most one has a state, and it comes first.

    ``judged`` is what the installation does about the pod, ``meshed`` the result of `outside`, if
    it was called. ``notes`` are findings of the caller, which the pod alone does not show. With
    ``lately``, a failure of the pod long before that time is no finding.
    """
    action, expectation = meshed or (None, None)
    of = about(pod)
    first = (
        _unmeshed(pod, of, action, expectation)
        or _hanging(pod, of, judged)
        or _failed(of, judged, failure(pod, lately))
    )
    remarks = [
        *notes,
        *judged.facts.settings.remarks(pod.metadata),
        *_in_doubt(action, expectation, first),
        *_end(pod),
    ]
    return (
        *filter(None, [first]),
        *(msgspec.structs.replace(of, code=each.code, reason=each.text) for each in remarks),
    )


def about(pod: Pod) -> Found:
    """Name a pod, its owner, age and node; nothing is found yet."""
    return Found(
        **pod.metadata.key._asdict(),
        owner=owners.workload(pod.metadata.controller, pod.labels),
        created=pod.metadata.creation_timestamp,
        node=pod.spec.node_name or "",
    )


def outside(
    pod: Pod,
    labels: Labels | None,
    judged: Judgement,
    expected: Callable[[InjectionRequest], Expectation],
    agents: NodeAgents,
    *,
    now: datetime,
) -> tuple[RepairAction, Expectation]:
    """Decide whether a pod is in its mesh, and return which mesh it is expected in.

    ``labels`` are those of its namespace. ``expected`` says whether Istio would inject the pod as
    admission would make it now. ``agents`` are those of Istio's CNI. ``now`` is the present, or the
    newest time of a file.
    """
    settings, asking = judged.installation.settings, judged.installation.applications
    candidate = Candidate.of(pod)
    new, expectation = as_admitted(candidate, labels, settings.pod_options, asking, expected)
    policy = settings.repair_policy
    if policy.race is RacePolicy.RESTART:  # Whether it is restarted depends on more than this pod.
        policy = msgspec.structs.replace(policy, race=RacePolicy.REPORT)
    agent = agents.on(candidate.node)
    since = max(candidate.addressed or candidate.created, agent.ready_since or 0.0)
    around = Around(expectation, agent=agent, settled=now.timestamp() >= since + SETTLED)
    return decide(new, around, policy), expectation


def state_of(pod: Pod, decision: Action) -> State | None:
    """The state of a pod by the decision about its proxy; None when all is well."""
    phase = pod.status.phase
    if phase not in {"Pending", "Running"}:  # The quit controller handles only these.
        return None
    if decision.blocked_by:
        return "unstarted" if decision.stage in {"unstarted", "held"} else "blocked"
    if isinstance(decision, Quit):
        return "stuck"
    return "lost" if isinstance(decision, Report) and phase == "Running" else None


def free(namespace: str, what: str) -> Command:
    """The command that frees the pods of a workload, or one pod."""
    return command("istio-aux quit -n {} {} --yes", namespace, what)


def command_to_select(state: str, judged: Judgement) -> Command:
    """The command that has an installation look after the pod, unless that frees nothing.

    In the states below something else keeps the pod even when it is looked after.
    """
    return NO_COMMAND if state in {"blocked", "unstarted", "lost"} else judged.change


def mesh_again(pod: Pod, action: ReportUnmeshed) -> tuple[str, Command]:
    """How a pod that is not in its mesh gets there, and the command for that, if one can do it.

    `restart-unmeshed` leaves pods of Jobs alone, because an eviction would lose their work.
    """
    if action.code is Code.NO_NETWORK:
        return "look at ztunnel on its node", NO_COMMAND
    owner = pod.metadata.controller
    if owner is None:
        return "delete the pod and apply it again", NO_COMMAND
    if owners.is_job(owner):
        return owners.again(owner.kind), NO_COMMAND
    return "restart it", command("istio-aux restart-unmeshed -n {} --yes", pod.metadata.namespace)


def _unmeshed(
    pod: Pod, about: Found, action: RepairAction | None, expectation: Expectation | None
) -> Found | None:
    """The finding about a pod that should be in its mesh and is not."""
    if not (isinstance(action, ReportUnmeshed) and action.unmeshed):
        return None
    fix, restart = mesh_again(pod, action)
    return msgspec.structs.replace(
        about,
        state="unmeshed",
        code=action.code,
        since=about.created,
        action="report",
        reason=action.reason,
        configuration=expectation.configuration if expectation else "",
        fix=fix,
        restart=restart,
    )


def _hanging(pod: Pod, about: Found, judged: Judgement) -> Found | None:
    """The finding about a pod that its proxy or another container keeps, or that lost its proxy."""
    decision, facts = judged.decision, judged.facts
    state = state_of(pod, decision)
    if state is None or decision.code is None:
        return None
    by = [*map(str, decision.blocked_by)] or (facts.outlasting if state == "stuck" else [])
    return msgspec.structs.replace(
        about,
        state=state,
        code=decision.code,
        since=facts.ended(PROXY) if state == "lost" else facts.held_since,
        action=judged.action,
        reason=decision.reason,
        by=tuple(by),
        containers=dict(facts.table),
        requests=None if state == "lost" else facts.requests,
        fix=decision.fix,
        left_out=judged.left_out,
        free=(
            free(about.namespace, about.name)
            if state == "stuck" and judged.left_out and not by
            else NO_COMMAND
        ),
        change=command_to_select(state, judged),
    )


def _failed(about: Found, judged: Judgement, found: FailedPod | None) -> Found | None:
    """The finding about a pod that its mesh failed, or whose payload ends its native proxy."""
    if found is None:
        return None
    return msgspec.structs.replace(
        about,
        state="failed",
        code=found.code,
        since=found.at,
        action=judged.action,
        reason=found.reason,
        containers=dict(judged.facts.table),
        fix=found.fix,
        policy=found.policy,
    )


def _in_doubt(
    action: RepairAction | None, expectation: Expectation | None, first: Found | None
) -> Iterator[Remark]:
    """Yield why it is not known whether a pod is in its mesh."""
    if isinstance(action, ReportUnmeshed) and not action.unmeshed:
        of = expectation if expectation and not expectation.ambient else action
        yield Remark(Code.MESH_UNKNOWN, of.reason)
    elif isinstance(action, NotKnown) and not (first and first.state != "failed"):
        yield Remark(Code.MESH_UNKNOWN, action.reason)


def _end(pod: Pod) -> Iterator[Remark]:
    """Yield what the pod will lose, or has lost, when it is ended by force."""
    classic = pod.has_proxy and pod.status.phase not in {"Succeeded", "Failed"}
    if text := ending.cut_off(pod) if classic else ending.killed(pod):
        yield Remark(Code.CUT_OFF if classic else Code.PROXY_KILLED, text)
