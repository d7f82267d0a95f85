"""What to do about a pod's proxy now, and the ways to make the proxy exit.

Sidecars that the policy has a rule for go before the proxy, one after another. `decide` is
level-triggered: it looks at the pod as it is, so the event that caused the call does not matter.
`attempt` says what follows from one decision after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Literal, NamedTuple

from msgspec import structs

from istio_aux.model import ending, kept, owners
from istio_aux.model.findings import Code
from istio_aux.model.kubelet import should_restart
from istio_aux.model.moment import Moment, in_utc
from istio_aux.model.names import REQUEST_PORTS
from istio_aux.model.pod import ISTIOS_INIT, PROXY, ContainerState
from istio_aux.model.pod_settings import LONGEST_GRACE
from istio_aux.model.policy import DeadProxy, QuitLimits, QuitMode
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import listed, shortened
from istio_aux.quit.facts import BEING_MADE, PodFacts
from istio_aux.quit.pairs import PAIRS

FINISHED = "every payload container is finished"
# While a pod is Terminating, its status does not show that the payload has ended: the kubelet
# writes that only after the last container has ended (k8s@1.36 kubelet.go SyncTerminatingPod).
LEFT_ALONE = f"{PROXY} is left alone, as its payload may still need it"
NOT_BEGUN = "its payload has never started"
ENDED_EARLY = f"the pod is being deleted, and {NOT_BEGUN}"
NEVER_MET = "the payload was started after that, and has had no network from the start"
TERMINATING_FOR = 300.0  # Seconds past its grace period after which a pod should be gone.
_MOST_FINALIZERS = 3
_LONGEST_KEEPER = 100

FAILURES = 3  # Restarts after which an init container counts as one that fails again and again.
# Seconds after which a container that ended should run again: the kubelet waits for 300 s at most,
# and reports that as `waiting`. Kubelets 1.35.0 to 1.35.2 forget some (kubernetes#137146).
NOT_RESTARTED = 900.0

Stage = Literal["unstarted", "held", "blocked", "ending", "deleted"]


class Blocker(NamedTuple):
    """What keeps a pod from completing: a container, or another thing if it has a ``kind``."""

    name: str
    kind: Literal["", "annotation", "node", "finalizer"] = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind else self.name


class Decision(kept.Reasoned, frozen=True, kw_only=True, tag_field="action"):
    """Common to all decisions: a reason for people.

    ``blocked_by`` keeps a pod from starting, completing or going: containers, an annotation with a
    bad value, its node, or finalizers. ``fix`` is the setting that unblocks the pod, if one is
    known; the reason contains it, too.

    ``stage``: ``unstarted`` if a container keeps the payload from starting; ``held`` if the hook of
    a hold does; ``ending`` if only native sidecars block; ``deleted`` if its node or finalizers
    keep a pod that is being deleted. Each stage is usual for a moment; once it lasts, it is a
    finding with this ``code``.
    """

    blocked_by: tuple[Blocker, ...] = ()
    stage: Stage = "blocked"
    fix: str = ""
    code: Code | None = None

    @property
    def action(self) -> str:
        """``ignore``, ``wait``, ``quit`` or ``report``."""
        return str(self.__struct_config__.tag)


class Ignore(Decision, frozen=True, tag="ignore"):
    """Nothing to do about the proxy, and no change to wait for."""


class Wait(Decision, frozen=True, tag="wait"):
    """The proxy is still needed: decide again when the pod changes, or at ``until`` if it is set.

    ``target`` is the container that is told to exit at ``until``.
    """

    until: Moment | None = None
    target: str = PROXY


class Way(StrEnum):
    """A way to make a proxy exit with 0 (observed with Istio 1.28 and 1.30).

    None of them needs a shell in the image (istio.io#5073).
    """

    EXEC = "exec"  # The agent's own client, in the container, to the agent's status server.
    PORT_FORWARD = "port-forward"  # ``POST /quitquitquit`` to the status port.
    ENVOY = "exec-envoy"  # The same client to Envoy's admin port; the agent exits with Envoy.


class Quit(Decision, frozen=True, tag="quit"):
    """Make the container ``target`` exit, which listens on TCP port ``port``, if that is not 0.

    ``ways`` are the ways that can work for this pod, in the order to try them. ``rule``: how the
    target is told if it is not the proxy.
    """

    port: int
    ways: tuple[Way, ...]
    rule: SidecarRule | None = None

    @property
    def target(self) -> str:
        """The name of the container."""
        return self.rule.container if self.rule else PROXY


class Report(Decision, frozen=True, tag="report"):
    """The proxy is gone for good although a payload container may still run: it has no network.

    ``delete``: the policy deletes such pods, and the controller of this one makes a new one.
    """

    delete: bool


Action = Ignore | Wait | Quit | Report


def decide(facts: PodFacts, now: Moment | None, *, seen: Moment | None = None) -> Action:
    """Decide what to do about the proxy of a pod: the first rule that applies. Never raises.

    Without ``now`` every grace period counts as over. ``seen``: when the caller first saw that
    every payload container was finished; None: only the clock of the pod's node tells.
    """
    late = _not_restarted(facts, now)
    if not_begun := _unstarted(facts) or _held(facts):
        return not_begun
    if reason := next(_nothing_to_do(facts), None):
        stage, holders = _holders(facts, late)
        if holders and stage != "deleted":
            kept_by = {str(each): why for each, why in holders.items()}
            reason = f"{reason}; the pod is kept by {_listed(kept_by)}{late}"
        return _coded(Ignore(reason=reason, blocked_by=tuple(holders), stage=stage), facts, late)
    if reason := next(_lost_proxy(facts), None):
        delete = facts.policy.dead_proxy is DeadProxy.DELETE
        if delete and (obstacle := next(_keeps_lost_pod(facts), None)):
            reason = f"{reason}; not deleted: {obstacle}"
            delete = False
        return Report(reason=reason, delete=delete, code=Code.PROXY_LOST)
    if reason := next(_still_needed(facts), None):
        wait = Wait(
            reason=reason + late,
            blocked_by=_blockers(facts, late),
            fix=facts.lacks if reason == facts.lacks else "",
        )
        return _coded(wait, facts, late)
    if until := _grace_ends(facts, now, seen):
        return Wait(
            reason=f"{FINISHED}; the grace period ends at {until.date:%H:%M:%S}",
            until=until,
            target=facts.target,
        )
    rule = next(iter(facts.sidecars), None)
    reason = FINISHED
    if facts.outlasting:
        reason += f"; then {listed(facts.outlasting)} would keep the pod, without network"
    port = rule.port if rule else facts.settings.status_port
    reason += f"; {rule.container} goes before {PROXY}" if rule else ""
    return Quit(
        reason=reason,
        port=port,
        ways=(Way.PORT_FORWARD,) if rule else ways_to(port),
        rule=rule,
        code=Code.RUNS_ON,
    )


def decide_once(facts: PodFacts, now: Moment | None, *, asks: bool = False) -> Action:
    """Decide from the timestamps in the pod alone; a stage counts if they show that it lasts.

    A hold counts only for a caller that ``asks`` the proxy then whether it is ready.
    """
    decision = decide(facts, now)
    since = facts.held_since
    least = QuitLimits().blocked_after
    if decision.stage == "deleted":
        since = facts.gone_by
        least = TERMINATING_FOR
    lasts = decision.stage != "held"
    if now and since and (lasts or asks):
        lasts = now.wall - since.timestamp() >= least
    if decision.stage == "deleted" and now is None:  # Its grace period may not be over in a file.
        lasts = not facts.not_ended
    if decision.stage == "blocked" or lasts:
        return structs.replace(decision, reason=lasting_reason(decision))
    return structs.replace(decision, blocked_by=(), code=None)


def lasting_reason(decision: Action) -> str:
    """The reason of a decision whose stage has lasted."""
    by = decision.blocked_by if decision.stage == "deleted" else ()
    if not by:
        return decision.reason
    node = by[0].kind == "node"
    late = "the node does not finish" if node else "no controller removes them"
    return f"{decision.reason}; {late}"


def _unstarted(facts: PodFacts) -> Wait | None:
    """Wait if a container keeps the payload from starting; None if none does."""
    if holders := _keeps_from_starting(facts):
        return Wait(
            reason=f"the payload has not started: {_listed(holders)}{_too_early(facts)}",
            blocked_by=tuple(map(Blocker, holders)),
            stage="unstarted",
            code=Code.NOT_STARTED,
        )
    return None


def _held(facts: PodFacts) -> Wait | Quit | None:
    """What to do about a pod whose payload is held by the hook of its proxy, if anything.

    The kubelet sends no SIGTERM before the hook has ended (kubernetes#116032). So a deletion waits
    for the hook, also one by a Job that is suspended, past its deadline or finished (k8s@1.36
    job_controller.go syncJob, manageJob). No payload uses the proxy yet, so it is told to exit,
    which ends the hook. In all other pods that are being deleted the proxy is left alone.
    """
    if facts.holding is None:
        return None
    if facts.pod.metadata.deletion_timestamp is None:
        reason = f"the payload waits for {PROXY}"
        if since := facts.held_since and in_utc(facts.held_since):
            until = since + timedelta(seconds=facts.holding)
            reason += f" since {since:%H:%M:%S}Z, until {until:%H:%M:%S}Z at most"
        return Wait(reason=reason, blocked_by=(Blocker(PROXY),), stage="held", code=Code.HELD_BACK)
    if facts.settings.left_alone:
        return None
    port = facts.settings.status_port
    return Quit(
        reason=f"{ENDED_EARLY}: the hook of {PROXY} keeps it",
        port=port,
        ways=ways_to(port),
        code=Code.HELD_BACK,
    )


def loses_network(facts: PodFacts) -> str:
    """Say what the payload of a pod that is being deleted loses; empty if it loses nothing."""
    if facts.pod.metadata.deletion_timestamp is None or not facts.unfinished:
        return ""
    lost = ending.cut_off(facts.pod) if facts.state(PROXY).running else ""
    return f"deleted, and not finished: {_listed(facts.unfinished)}; {lost}" if lost else ""


def performed(decision: Action, mode: QuitMode) -> tuple[str, str]:
    """What a `Task` does about a pod that istio-aux looks after, by its decision, and why."""
    reason = decision.reason
    if isinstance(decision, Quit) and mode is QuitMode.DRY_RUN:
        return "report", f"{reason}; quit: dry-run: {decision.target} is not told to exit"
    if isinstance(decision, Report) and decision.delete:
        deleted = mode is QuitMode.ENABLED
        how = "the pod is deleted" if deleted else "quit: dry-run: the pod is not deleted"
        return decision.action, f"{reason}; dead-proxy: delete: {how}"
    return decision.action, reason


def ways_to(status_port: int) -> tuple[Way, ...]:
    """The ways that can work for an agent on this status port, in order.

    Port 0: the status server is off, and only Envoy's admin port is left. The client in the
    container accepts only `REQUEST_PORTS`; a port-forward reaches every port.
    """
    if status_port in REQUEST_PORTS:
        return (Way.EXEC, Way.PORT_FORWARD, Way.ENVOY)
    return (Way.PORT_FORWARD, Way.ENVOY) if status_port else (Way.ENVOY,)


def _nothing_to_do(facts: PodFacts) -> Iterator[str]:
    """Reasons to leave the pod alone whatever its payload does."""
    phase = facts.pod.status.phase
    if facts.gone_by:
        yield _deleted(facts)
    if phase in {"Succeeded", "Failed"}:
        yield f"the pod is finished: phase {phase}"
    if facts.pod.has_native_proxy:
        if not facts.sidecars:
            yield f"{PROXY} is a native sidecar: the kubelet ends it after the payload"
    elif PROXY not in facts.containers:
        yield f"the pod has no container {PROXY}"
    if facts.pod.restart_policy == "Always":
        yield "restartPolicy Always: the pod is not meant to end"
    if facts.settings.opt_out:
        yield facts.settings.opt_out
    if all(verdict.role != "payload" for verdict in facts.containers.values()):
        yield "the pod has no payload container"
    if how := _ended_by_payload(facts):
        yield f"{how}; not finished: {_listed(facts.unfinished)}"
    rest = facts.unfinished or facts.sidecars or facts.restarting is not None
    if facts.proxy_finished and not rest:
        yield f"every payload container is finished, and {PROXY} too"


def _deleted(facts: PodFacts) -> str:
    """Say since when a pod is being deleted, and what the kubelet and finalizers still show."""
    not_ended = facts.not_ended
    since = facts.held_since
    reason = f"the pod is being deleted since {in_utc(since):%Y-%m-%d %H:%M}Z" if since else ""
    said = f"not ended: {_listed(not_ended)}" if not_ended else "every container has ended"
    reason += f"; as the kubelet last said, {said}"
    if not_ended and facts.pod.has_proxy:
        reason += f"; {LEFT_ALONE if facts.payload_started else NOT_BEGUN}"
    names = [shortened(each, _LONGEST_KEEPER) for each in facts.pod.metadata.finalizers or ()]
    return f"{reason}; finalizers: {listed(names, most=_MOST_FINALIZERS)}" if names else reason


def _keeps_deleted(facts: PodFacts) -> tuple[Blocker, ...]:
    """What keeps a Terminating pod that has a proxy and is meant to end.

    The kubelet finishes once no container runs and no volume is mounted, and then sets the grace
    period to 0 (k8s@1.36 kubelet.go SyncTerminatedPod, status_manager.go canBeDeleted). After that
    only finalizers keep the pod (apiserver store.go ShouldDeleteDuringUpdate).
    """
    pod = facts.pod
    meta = facts.pod.metadata
    has_proxy = pod.has_proxy or pod.has_native_proxy
    if not (facts.gone_by and has_proxy) or pod.restart_policy == "Always":
        return ()
    if meta.finalizers and not meta.deletion_grace_period_seconds:
        names = meta.finalizers[:_MOST_FINALIZERS]
        return tuple(Blocker(shortened(name, _LONGEST_KEEPER), "finalizer") for name in names)
    return (Blocker(shortened(pod.spec.node_name or "unknown", _LONGEST_KEEPER), "node"),)


def _ended_by_payload(facts: PodFacts) -> str:
    """How a payload ended its classic proxy itself, and runs on; empty if it did not.

    A proxy that gives up before the payload starts exits with 0, too (istio#45627).
    """
    ended = facts.exits.get(PROXY)
    if not facts.proxy_finished or facts.restarting is not None or not ended or ended.exit_code:
        return ""
    if not {*ending.outlived(facts.pod, ended.finished_at)} & {*facts.unfinished}:
        return ""
    return next(
        (it.text for it in ending.ends_its_proxy(facts.pod) if it.code is Code.END_PROXY), ""
    )


def _lost_proxy(facts: PodFacts) -> Iterator[str]:
    """The proxy will not run again, but a payload container may (istio#45627)."""
    if facts.restarting is not None or facts.pod.status.phase == "Unknown":
        return
    if facts.proxy_finished and facts.unfinished:
        lost = (
            f"{PROXY} {facts.containers[PROXY].why}, but not finished: {_listed(facts.unfinished)}"
        )
        yield f"{lost}; {NEVER_MET}" if facts.never_met else lost


def _keeps_lost_pod(facts: PodFacts) -> Iterator[str]:
    """Reasons not to delete a pod that lost its proxy although the policy would."""
    owner = facts.pod.metadata.controller
    if obstacle := owners.obstacle(owner):
        yield obstacle
    elif owner and (fails := owners.failure(owner, facts.pod.restart_policy)):
        yield fails
    yield from facts.settings.unclear_end.values()
    if facts.unclear or all(facts.state(n) == ContainerState() for n in facts.unfinished):
        yield "the state of its payload is not known"


def _still_needed(facts: PodFacts) -> Iterator[str]:
    """Reasons why the proxy must not, or cannot, be made to exit now."""
    phase = facts.pod.status.phase
    yield from facts.settings.unclear_end.values()
    if phase == "Unknown":
        yield "phase Unknown: the node does not report"
    if facts.restarting is not None:
        yield facts.restarting
    if facts.initializing:
        name, verdict = next(iter(facts.initializing.items()))
        yield f"not finished: init container {name} ({verdict.why}){_too_early(facts)}"
    if facts.unfinished:
        yield f"not finished: {_listed(facts.unfinished)}"
    yield from _stays(facts)
    if phase == "Pending":
        yield "phase Pending: a container has never started"
    if phase not in {None, "", "Running"}:
        yield f"phase {phase}: unknown to istio-aux"


def _stays(facts: PodFacts) -> Iterator[str]:
    """Reasons why the container that is next cannot be made to exit."""
    target = facts.target
    container = next((each for each in facts.pod.containers if each.name == target), None)
    again, rule = should_restart(container, facts.pod.spec, 0) if container else (False, "")
    if again:
        yield f"{target} is started again after it exits with 0 ({rule})"
    if not facts.state(target).running:
        yield f"{target} does not run: {facts.containers[target].why}"
    if facts.lacks:
        yield facts.lacks


def _too_early(facts: PodFacts) -> str:
    """What to do about an init container of the payload that runs before a classic proxy."""
    name, verdict = next(iter(facts.initializing.items()))
    if verdict.role != "init" or name in ISTIOS_INIT or not facts.pod.has_proxy:
        return ""
    return f"; {ending.too_early(facts.pod, name)}"


def _keeps_from_starting(facts: PodFacts) -> dict[str, str]:
    """The container that keeps the payload from starting, and its state.

    Istio's containers always count (istio#51883, istio#23457), and so do native sidecars
    (gcs-fuse-csi-driver#1619). An init container of the payload may work for hours, so it counts
    when it fails again and again. No container counts while its image or the network is on its way.
    """
    pod = facts.pod
    ends = pod.restart_policy != "Always" and pod.metadata.deletion_timestamp is None
    if not (ends and pod.names_proxy and facts.initializing):
        return {}
    name, verdict = next(iter(facts.initializing.items()))
    state = facts.state(name)
    waits = state.waiting.reason if state.waiting else ""
    if state.running or state.terminated or waits == "CrashLoopBackOff":
        own = verdict.role == "init" and name not in ISTIOS_INIT
        return {} if own and pod.restarts(name) < FAILURES else {name: verdict.why}
    return {} if waits in BEING_MADE else {name: verdict.why}


def _not_restarted(facts: PodFacts, now: Moment | None) -> str:
    """Name payload containers that the kubelet should have started again long ago; or empty."""
    if now is None or facts.restarting is not None:
        return ""
    ends = ((name, facts.ended(name)) for name in facts.unfinished)
    late = [n for n, at in ends if at and now.wall - at.timestamp() >= NOT_RESTARTED]
    return f"; the kubelet has not started {listed(late)} again for long" if late else ""


def _blockers(facts: PodFacts, late: str) -> tuple[Blocker, ...]:
    """What keeps the pod although a container is finished: other containers, or an annotation."""
    if facts.restarting is not None or facts.pod.status.phase == "Unknown":
        return ()
    if facts.unfinished:
        return tuple(map(Blocker, facts.unfinished)) if facts.partly_finished or late else ()
    return (
        *(Blocker(key, "annotation") for key in facts.settings.unclear_end),
        *([Blocker(facts.target)] if any(_stays(facts)) else []),
    )


def _holders(facts: PodFacts, late: str) -> tuple[Stage, dict[Blocker, str]]:
    """What keeps the pod from completing where the proxy does not: containers, each with why.

    The kubelet ends a native proxy after all containers, and a classic one may have exited already.
    Then a regular container that never ends keeps the pod, even if it is ignored (katib#2614).
    After the regular containers the kubelet ends the native sidecars, the last one first
    (kuberuntime_termination_order.go), within the pod's grace period, which may be an hour
    (istio#36534).
    """
    pod = facts.pod
    if facts.gone_by:
        return "deleted", dict.fromkeys(_keeps_deleted(facts), "")
    alone = pod.has_native_proxy or facts.proxy_finished
    if not (
        alone
        and pod.restart_policy != "Always"
        and facts.restarting is None
        and pod.status.phase == "Running"
        and (facts.finished_payload or late)
    ):
        return "blocked", {}
    verdicts = facts.containers
    if others := [n for n, v in verdicts.items() if v.role != "sidecar" and not v.finished]:
        return "blocked", {Blocker(name): verdicts[name].why for name in others}
    native = [each.name for each in pod.native_sidecars if facts.state(each.name).running]
    return "ending", {Blocker(name): verdicts[name].why for name in native[-1:]}


def _coded(decision: Wait | Ignore, facts: PodFacts, late: str) -> Wait | Ignore:
    """The decision with its code, and what frees the pod if a container waits for the proxy."""
    by = {each.name for each in decision.blocked_by if not each.kind}
    for code, (fix, found) in PAIRS.items():
        others, waiting = found(facts.pod)
        if others and not by & others and by & waiting:
            return structs.replace(decision, reason=f"{decision.reason}; {fix}", fix=fix, code=code)
    invalid = any(each.kind == "annotation" for each in decision.blocked_by)
    code = Code.BAD_VALUE if invalid else Code.FORGOTTEN if late else Code.KEPT
    code = Code.TERMINATING if decision.stage == "deleted" else code
    return structs.replace(decision, code=code) if decision.blocked_by else decision


def _grace_ends(facts: PodFacts, now: Moment | None, seen: Moment | None) -> Moment | None:
    override = facts.settings.grace
    grace = min(facts.policy.grace if override is None else override, LONGEST_GRACE)
    if now is None or grace <= 0 or (seen := seen or payload_end(facts, now)) is None:
        return None
    until = Moment(seen.monotonic + grace, seen.wall + grace)
    return until if until.monotonic > now.monotonic else None


def payload_end(facts: PodFacts, now: Moment) -> Moment | None:
    """When the payload ended by the node's clock, as a time by ours; None: unknown.

    The node's clock may be wrong: the result is between the pod's creation and ``now``.
    """
    if facts.payload_ended is None:
        return None
    begin = max(facts.payload_ended, facts.created or facts.payload_ended)
    wall = min(begin.timestamp(), now.wall)
    return Moment(now.monotonic - (now.wall - wall), wall)


def _listed(containers: Mapping[str, str]) -> str:
    """Join them: ``main (running), logger (waiting: CrashLoopBackOff)``."""
    return listed([f"{name} ({why})" for name, why in containers.items()])
