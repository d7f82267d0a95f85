"""What to do about a pod's proxy now, and the ways to make the proxy exit.

Sidecars that the policy has a rule for go before the proxy, one after another. `decide` is
level-triggered: it looks at the pod as it is, so the event that caused the call does not matter.
`state` says what follows from one decision after another.

Katib's trials are a case of their own. The metrics collector reports what the training container
wrote, once that has ended. By default it waits for the first process of every other container:
Katib makes the pod share its processes, so pilot-agent is one of them, in a classic or in a native
sidecar (katib#1638, katib#2614). The sidecar in turn ends after the collector. If the sidecar is
told to exit earlier, the collector has no network for its report. So nothing may be done about the
pod: the collector must not wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Literal

from msgspec import structs

from istio_aux.model import completion, owners
from istio_aux.model.annotations import (
    IGNORE_CONTAINERS,
    LONGEST_GRACE,
    QUIT_AFTER,
    Overrides,
    read_overrides,
    status_port,
)
from istio_aux.model.moment import Moment, by_other_clock, zoned
from istio_aux.model.names import REQUEST_PORTS, quit_command
from istio_aux.model.pod import PROXY, Container, ContainerState, Pod, Struct
from istio_aux.model.policy import DeadProxy, Policy, QuitVia, Rung
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import listed

KATIB_COLLECTORS = frozenset({"metrics-logger-and-collector", "metrics-collector"})
"""Names of collectors: of stdout and files; of TensorFlow events (katib common/const.go)."""

KATIB_FIX = (
    "Katib's metrics collector waits for istio-proxy: set waitAllProcesses: false "
    "in ConfigMap katib-config, runtime.metricsCollectors, for new trials"
)
"""The setting is there in Katib 0.16 to 0.19 (katib pkg/apis/config/v1beta1/types.go)."""

_MARK = "echo completed > "  # The end of the training container's command (katib pod/utils.go).


def katib_fix(pod: Pod, unfinished: Iterable[str]) -> str:
    """`KATIB_FIX` if the pod's collector waits for its proxy although the training has ended.

    ``unfinished`` are the containers that may still run. Only what Katib's webhook writes counts:
    other containers of these names are none of its collectors.
    """
    if pod.spec.share_process_namespace is not True or not pod.runs(PROXY):
        return ""
    trained = [container.name for container in pod.containers if _is_training(container)]
    running = frozenset(unfinished)
    if not trained or not running.isdisjoint(trained):
        return ""
    waiting = (
        container.name in KATIB_COLLECTORS
        and container.name in running
        and pod.runs(container.name)
        and _waits_for_all(container)
        for container in pod.containers
    )
    return KATIB_FIX if any(waiting) else ""


def _is_training(container: Container) -> bool:
    return any(_MARK in argument for argument in container.args or ())


def _waits_for_all(container: Container) -> bool:
    """Without `waitAllProcesses` in its configuration, Katib writes no ``-w`` and true counts."""
    return ("-w", "false") not in pairwise(container.args or ())


FINISHED = "every payload container is finished"

Role = Literal["payload", "sidecar", "ignored"]


class ContainerVerdict(Struct, frozen=True):
    """The role of a container, and whether the kubelet is done with it."""

    role: Role
    finished: bool
    why: str


class Decision(Struct, frozen=True, kw_only=True, tag_field="action"):
    """Common to all decisions: a reason for people, and a verdict on each container by name.

    ``blocked_by`` names the containers that keep the pod from completing although another one is
    finished already: usually sidecars that nobody ends. ``fix`` is the setting that unblocks the
    pod, if one is known; the reason contains it, too.
    """

    reason: str
    containers: Mapping[str, ContainerVerdict]
    blocked_by: tuple[str, ...] = ()
    fix: str = ""

    @property
    def action(self) -> str:
        """``ignore``, ``wait``, ``quit`` or ``report``."""
        return str(self.__struct_config__.tag)


class Ignore(Decision, frozen=True, tag="ignore"):
    """Nothing to do about the proxy, and no change to wait for."""


class Wait(Decision, frozen=True, tag="wait"):
    """The proxy is still needed; decide again when the pod changes, or at ``until`` if it is set.

    What blocks the pod may also be an annotation or an option. ``target`` is the container that is
    told to exit at ``until``.
    """

    until: Moment | None = None
    target: str = PROXY


class Quit(Decision, frozen=True, tag="quit"):
    """Make the container ``target`` exit; its agent listens on TCP port ``status_port``, if not 0.

    ``rungs`` are the ways that can work for this pod, in the order to try them. ``rule``: how the
    target is told if it is not the proxy.
    """

    status_port: int
    rungs: tuple[Rung, ...]
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


class _Facts(Struct, frozen=True):
    """The pod as the rules below see it."""

    pod: Pod
    overrides: Overrides
    verdicts: dict[str, ContainerVerdict]
    unfinished: dict[str, str]  # Payload containers that may still run, each with why.
    sidecars: tuple[SidecarRule, ...]  # Of those that are not finished, in the pod's order.
    running: frozenset[str]
    proxy_finished: bool
    restarting: str | None  # Why every container is about to start again, if so.
    unclear: bool  # Whether a container is finished depends on the version of the kubelet.


def decide(
    pod: Pod,
    policy: Policy,
    now: Moment | None,
    *,
    seen: Moment | None = None,
    obeyed: bool | None = True,
) -> Action:
    """Decide what to do about the proxy of ``pod``: the first rule that applies. Never raises.

    Args:
        pod: its annotations refine the policy.
        policy: what the cluster admin set.
        now: the present; None: every grace period counts as over.
        seen: when the caller first saw that every payload container was finished; None: the clock
            of the pod's node must do, see `moment.by_other_clock`.
        obeyed: whether the pod's kubelet obeys restart policies of single containers; None: it is
            not known, see `completion.obeys`.
    """
    facts = _observe(pod, policy, obeyed)
    if reason := next(_nothing_to_do(facts), None):
        if holders := _holders(facts):
            reason = f"{reason}; the pod is held by {_listed(holders)}"
        return _held(
            Ignore(reason=reason, containers=facts.verdicts, blocked_by=tuple(holders)), pod
        )
    if reason := next(_lost_proxy(facts), None):
        delete = policy.dead_proxy is DeadProxy.DELETE
        if delete and (obstacle := next(_keeps_lost_pod(facts), None)):
            reason, delete = f"{reason}; not deleted: {obstacle}", False
        return Report(reason=reason, containers=facts.verdicts, delete=delete)
    if reason := next(_still_needed(facts), None):
        wait = Wait(reason=reason, containers=facts.verdicts, blocked_by=_blockers(facts))
        return _held(wait, pod)
    rule = next(iter(facts.sidecars), None)
    if until := _grace_ends(facts, policy, now, seen):
        reason = f"{FINISHED}; the grace period ends at {until.date:%H:%M:%S}"
        target = rule.container if rule else PROXY
        return Wait(reason=reason, containers=facts.verdicts, until=until, target=target)
    port = rule.port if rule else status_port(pod)
    reason, ways = _ruled(rule, policy.via) if rule else _told_by(port, policy.via)
    if not ways:
        blockers = ("option quit-via",)
        return Wait(reason=reason, containers=facts.verdicts, blocked_by=blockers)
    return Quit(reason=reason, containers=facts.verdicts, status_port=port, rungs=ways, rule=rule)


def since(pod: Pod, decision: Action) -> datetime | None:
    """When the proxy of a `Report`, or else the last payload container, ended; None: unknown.

    The time is by the clock of the pod's node.
    """
    of_proxy = isinstance(decision, Report)
    names = (
        name
        for name, verdict in decision.containers.items()
        if verdict.finished and (name == PROXY if of_proxy else verdict.role == "payload")
    )
    return max(_ends(pod, names), default=None)


def rungs(status_port: int, via: QuitVia = QuitVia.AUTO) -> tuple[Rung, ...]:
    """The ways that can work for an agent on this status port, in order; empty if ``via`` has none.

    Port 0: the status server is off, which leaves Envoy's admin. Only port-forward reaches ports
    that the client does not accept.
    """
    ways: tuple[Rung, ...] = (Rung.EXEC, Rung.PORT_FORWARD, Rung.ENVOY)
    if status_port not in REQUEST_PORTS:
        ways = (Rung.PORT_FORWARD, Rung.ENVOY) if status_port else (Rung.ENVOY,)
    if via is QuitVia.AUTO:
        return ways
    forwards = via is QuitVia.PORT_FORWARD
    return tuple(way for way in ways if (way is Rung.PORT_FORWARD) is forwards)


def _told_by(port: int, via: QuitVia) -> tuple[str, tuple[Rung, ...]]:
    """The reason to tell the proxy to exit and the ways to do it, or why there are none."""
    ways = rungs(port, via)
    if not ways:
        return f"{FINISHED}, but status port 0 is off, and quit-via is {via}", ways
    if Rung.PORT_FORWARD in rungs(port) and not {Rung.EXEC, Rung.PORT_FORWARD} & {*ways}:
        return f"{FINISHED}; quit-via is {via}, which cannot reach status port {port}", ways
    return FINISHED, ways


def _ruled(rule: SidecarRule, via: QuitVia) -> tuple[str, tuple[Rung, ...]]:
    """The reason to tell another sidecar to exit, and the way of its rule, or why it cannot."""
    way, needs = (
        (Rung.EXEC, QuitVia.EXEC) if rule.command else (Rung.PORT_FORWARD, QuitVia.PORT_FORWARD)
    )
    if via not in {QuitVia.AUTO, needs}:
        return f"{FINISHED}, but quit-via is {via}, which cannot tell {rule.container}", ()
    return f"{FINISHED}; {rule.container} goes before {PROXY}", (way,)


def command(rung: Rung, status_port: int) -> tuple[str, ...]:
    """The command to run in the proxy's container.

    Raises:
        ValueError: ``rung`` runs no command.
    """
    if rung is Rung.PORT_FORWARD:
        raise ValueError(f"rung {rung}: it runs no command")
    return quit_command(status_port if rung is Rung.EXEC else None)


def _nothing_to_do(facts: _Facts) -> Iterator[str]:
    """Reasons to leave the pod alone whatever its payload does."""
    pod = facts.pod
    if pod.metadata.deletion_timestamp is not None:
        yield "the pod is being deleted"
    if pod.status.phase in {"Succeeded", "Failed"}:
        yield f"the pod is finished: phase {pod.status.phase}"
    if pod.has_native_proxy:
        if not facts.sidecars:
            yield f"{PROXY} is a native sidecar: the kubelet ends it after the payload"
    elif PROXY not in facts.verdicts:
        yield f"the pod has no container {PROXY}"
    if pod.restart_policy == "Always":
        yield "restartPolicy Always: the pod is not meant to end"
    if facts.overrides.opt_out:
        yield facts.overrides.opt_out
    if all(verdict.role != "payload" for verdict in facts.verdicts.values()):
        yield "the pod has no payload container"
    rest = facts.unfinished or facts.sidecars
    if facts.proxy_finished and not rest and facts.restarting is None:
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
    if obstacle := owners.not_replaced(facts.pod) or owners.fails_with(facts.pod):
        yield obstacle
    for problem in facts.overrides.problems:
        yield problem.why
    states = (facts.pod.container_status(name) for name in facts.unfinished)
    if facts.unclear or all(not s or s.state in {None, ContainerState()} for s in states):
        yield "the state of its payload is not known"


def _still_needed(facts: _Facts) -> Iterator[str]:
    """Reasons why the proxy must not, or cannot, be made to exit now."""
    phase = facts.pod.status.phase
    for problem in facts.overrides.problems:
        yield problem.why
    if phase == "Unknown":
        yield "phase Unknown: the node does not report"
    if facts.restarting is not None:
        yield facts.restarting
    if facts.unfinished:
        yield f"not finished: {_listed(facts.unfinished)}"
    yield from _stays(facts)
    if phase == "Pending":
        yield "phase Pending: a container has never started"
    if phase not in {None, "", "Running"}:
        yield f"phase {phase}: unknown to istio-aux"


def _stays(facts: _Facts) -> Iterator[str]:
    """Reasons why the container that is next cannot be made to exit."""
    target = next((rule.container for rule in facts.sidecars), PROXY)
    for container in facts.pod.containers:
        again, rule = completion.should_restart(container, facts.pod.spec, 0)
        if container.name == target and again:
            yield f"{target} is started again after it exits with 0 ({rule})"
    if target not in facts.running:
        yield f"{target} does not run: {facts.verdicts[target].why}"


def _blockers(facts: _Facts) -> tuple[str, ...]:
    """What keeps the pod although a container is finished: other containers, or an annotation."""
    if facts.restarting is not None or facts.pod.status.phase == "Unknown":
        return ()
    if not facts.unfinished:
        problems = [f"annotation {problem.annotation}" for problem in facts.overrides.problems]
        stays = any(_stays(facts)) and facts.sidecars
        return (*problems, *(rule.container for rule in facts.sidecars[:1] if stays))
    payload = [verdict for verdict in facts.verdicts.values() if verdict.role == "payload"]
    some = facts.unclear or any(verdict.finished for verdict in payload)
    return tuple(facts.unfinished) if some else ()


def _holders(facts: _Facts) -> dict[str, str]:
    """The containers that keep the pod from completing where the proxy does not, each with why.

    The kubelet ends a native proxy after all containers, and a classic one may have exited already.
    Then a container that nobody ends holds the pod, even if it is ignored (katib#2614).
    """
    pod, verdicts = facts.pod, facts.verdicts
    ends = pod.restart_policy != "Always" and pod.metadata.deletion_timestamp is None
    if not ends or facts.restarting is not None or pod.status.phase != "Running":
        return {}
    if not (pod.has_native_proxy or facts.proxy_finished):
        return {}
    if not any(found.role == "payload" and found.finished for found in verdicts.values()):
        return {}
    return {
        name: found.why
        for name, found in verdicts.items()
        if found.role != "sidecar" and not found.finished
    }


def _held(decision: Wait | Ignore, pod: Pod) -> Wait | Ignore:
    """The decision with the setting that ends what holds the pod, if one is known."""
    fix = katib_fix(pod, decision.blocked_by)
    if not fix:
        return decision
    return structs.replace(decision, reason=f"{decision.reason}; {fix}", fix=fix)


def _grace_ends(
    facts: _Facts, policy: Policy, now: Moment | None, seen: Moment | None
) -> Moment | None:
    """When the pod's grace period ends, or the policy's, if that is still to come."""
    override = facts.overrides.grace
    grace = min(policy.grace if override is None else override, LONGEST_GRACE)
    if now is None or grace <= 0:
        return None
    if seen is None:
        payload = (name for name, found in facts.verdicts.items() if found.role == "payload")
        if not (ended := max(_ends(facts.pod, payload), default=None)):
            return None
        seen = by_other_clock(ended, now, facts.pod.metadata.creation_timestamp)
    until = Moment(seen.monotonic + grace, seen.wall + grace)
    return until if until.monotonic > now.monotonic else None


def _ends(pod: Pod, names: Iterator[str]) -> Iterator[datetime]:
    """When the containers of these names ended, of those that did."""
    for name in names:
        if (ended := pod.ended(name)) and (at := ended.finished_at):
            yield zoned(at)


def _observe(pod: Pod, policy: Policy, obeyed: bool | None) -> _Facts:
    overrides = read_overrides(pod)
    verdicts = dict(_verdicts(pod, overrides, policy, obeyed))
    proxy, rules = verdicts.get(PROXY), _rules(overrides, policy)
    return _Facts(
        pod=pod,
        overrides=overrides,
        verdicts=verdicts,
        unfinished={
            name: verdict.why
            for name, verdict in verdicts.items()
            if verdict.role == "payload" and not verdict.finished
        },
        sidecars=tuple(
            rules[container.name]
            for container in pod.containers
            if container.name in rules and not verdicts[container.name].finished
        ),
        running=frozenset(filter(pod.runs, verdicts)),
        proxy_finished=proxy is not None and proxy.finished,
        restarting=completion.restarting_all(pod, obeyed=obeyed),
        unclear=obeyed is None and completion.depends_on_kubelet(pod),
    )


def _verdicts(
    pod: Pod, overrides: Overrides, policy: Policy, obeyed: bool | None
) -> Iterator[tuple[str, ContainerVerdict]]:
    rules = _rules(overrides, policy)
    for sidecar in pod.native_sidecars:
        yield sidecar.name, _verdict("sidecar", sidecar, pod, obeyed)
    for container in pod.containers:
        if container.name == PROXY or container.name in rules:
            yield container.name, _verdict("sidecar", container, pod, obeyed)
        elif cause := _ignored(container.name, overrides, policy):
            yield container.name, _verdict("ignored", container, pod, obeyed, f"; ignored: {cause}")
        else:
            yield container.name, _verdict("payload", container, pod, obeyed)


def _rules(overrides: Overrides, policy: Policy) -> dict[str, SidecarRule]:
    """The rules for sidecars, by name, without those that the author declares to be payload."""
    return {r.container: r for r in policy.sidecars if r.container not in overrides.after}


def _ignored(name: str, overrides: Overrides, policy: Policy) -> str | None:
    """Why a container does not keep the proxy running; None: it does."""
    if overrides.after and all(found.annotation != QUIT_AFTER for found in overrides.problems):
        return None if name in overrides.after else f"not named by annotation {QUIT_AFTER}"
    if name in overrides.ignored:
        return f"annotation {IGNORE_CONTAINERS}"
    return "option ignore-containers" if name in policy.ignore_containers else None


def _verdict(
    role: Role, container: Container, pod: Pod, obeyed: bool | None, cause: str = ""
) -> ContainerVerdict:
    status = pod.container_status(container.name)
    result = completion.finished(container, status, pod, obeyed=obeyed)
    return ContainerVerdict(role=role, finished=result.finished, why=f"{result.why}{cause}")


def _listed(containers: Mapping[str, str]) -> str:
    """``main (running), logger (waiting: CrashLoopBackOff)``."""
    return listed([f"{name} ({why})" for name, why in containers.items()])
