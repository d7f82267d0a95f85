"""What the rules need to know of a pod. `read` makes `PodFacts` of a pod, in one place.

Most of it is which containers are finished as the kubelet sees it: terminated, and never started
again. The reason of a state (``OOMKilled``, ``Error``, ``Completed``) is shown to people and
decides nothing, except for the two that are the kubelet's own marks, `RESTARTING_ALL` and
`UNKNOWN`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec
from msgspec import structs

from istio_aux.model import annotations, owners, resources
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT_AFTER, Overrides
from istio_aux.model.applications import application_of
from istio_aux.model.pod import (
    PROXY,
    Container,
    ContainerState,
    Pod,
    PodSpec,
    RestartRule,
    Struct,
    Terminated,
)
from istio_aux.model.policy import Policy
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import SidecarRule

# Reason of a state that was lost during a restart of all containers; the kubelet starts the
# container again whatever its exit code (k8s@1.36 pkg/kubelet/kubelet_pods.go getPhase).
RESTARTING_ALL = "RestartingAllContainers"
# Reason of a state that the container runtime no longer knows. The kubelet reports the container as
# terminated, and starts it again whatever its policy (k8s@1.36 pkg/kubelet/container/helpers.go
# ShouldContainerBeRestarted, kubernetes#22607).
UNKNOWN = "ContainerStatusUnknown"
_RESTARTED_ANYWAY = {RESTARTING_ALL: "with all others", UNKNOWN: "(its state is unknown)"}
_RESTARTING_RULES = frozenset({"Restart", "RestartAllContainers"})

KATIB_COLLECTORS = frozenset({"metrics-logger-and-collector", "metrics-collector"})
"""Names of collectors: of stdout and files; of TensorFlow events (katib common/const.go)."""
_KATIB_MARK = "echo completed > "  # Ends the training container's command (katib pod/utils.go).

_MINOR = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")
_NO_STATE = ContainerState()

Role = Literal["payload", "sidecar", "ignored"]


class Kubelet(NamedTuple):
    """What was found out about the kubelet of a node; see `obeys`."""

    obeys: bool | None
    until: float = math.inf  # By the monotonic clock. Then its version is read again.


OBEYS = Kubelet(True)


class ContainerVerdict(Struct, frozen=True):
    """The role of a container, and whether the kubelet is done with it."""

    role: Role
    finished: bool
    why: str


class PodFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as the rules see it.

    Attributes:
        version: resourceVersion.
        created: by the clock of the API server.
        native: the proxy is a native sidecar.
        containers: a verdict on each, by name: the native sidecars, then the others.
        unfinished: payload containers that may still run, each with why.
        sidecars: rules for those that are not finished, in the pod's order.
        target: the container that has to exit next.
        target_runs: whether the kubelet reports it as running.
        target_again: the rule by which the kubelet starts it again after it exits with 0.
        exits: of the containers that are terminated, without init containers.
        payload_ended: end of the last payload container that is finished; None: unknown.
        proxy_ended: end of the proxy if that is finished.
        restarting: why every container is about to start again, if so.
        unclear: whether a container is finished depends on the kubelet's version, not known here.
        asks: the version of the kubelet is to be read.
        unreported: no unfinished payload container has a state.
        irreplaceable: why the pod must not be deleted so that its controller makes a new one.
        training: Katib's training containers, in a pod whose collector can see the proxy.
        collectors: Katib's collectors that wait for the proxy.
        requests: what the pod holds, once a part of its payload is finished; None: unknown.
    """

    policy: Policy
    version: str
    node: str
    application: str
    labels: Mapping[str, str]
    created: datetime | None
    deleting: bool
    phase: str | None
    restart_policy: str
    native: bool
    overrides: Overrides
    containers: Mapping[str, ContainerVerdict]
    unfinished: Mapping[str, str]
    sidecars: tuple[SidecarRule, ...]
    target: str
    target_runs: bool
    target_again: str | None
    exits: Mapping[str, Terminated]
    payload_ended: datetime | None
    proxy_ended: datetime | None
    restarting: str | None
    unclear: bool
    asks: bool
    unreported: bool
    irreplaceable: str | None
    training: frozenset[str]
    collectors: frozenset[str]
    requests: Requests | None

    @property
    def proxy_finished(self) -> bool:
        """Whether the proxy is there and will not run again."""
        return PROXY in self.containers and self.containers[PROXY].finished

    @property
    def partly_finished(self) -> bool:
        """Whether a payload container is finished, or may be."""
        return self.unclear or any(
            verdict.finished for verdict in self.containers.values() if verdict.role == "payload"
        )


def read(pod: Pod, policy: Policy, kubelet: Kubelet | None = OBEYS) -> PodFacts:
    """Read all that matters for the quit of a pod. Never raises.

    ``kubelet``: what is known about the pod's kubelet; None: its version was not read.
    """
    obeyed, depends = kubelet.obeys if kubelet else None, depends_on_kubelet(pod)
    overrides = annotations.read_overrides(pod)
    rules = {r.container: r for r in policy.sidecars if r.container not in overrides.after}
    verdicts = dict(_verdicts(pod, overrides, policy, rules, obeyed))
    unfinished = {
        name: verdict.why
        for name, verdict in verdicts.items()
        if verdict.role == "payload" and not verdict.finished
    }
    sidecars = tuple(
        rules[container.name]
        for container in pod.containers
        if container.name in rules and not verdicts[container.name].finished
    )
    target = sidecars[0].container if sidecars else PROXY
    exits = {c.name: pod.exits[c.name] for c in pod.containers if c.name in pod.exits}
    ends = {name: _zoned(ended.finished_at) for name, ended in exits.items()}
    finished_payload = [n for n, v in verdicts.items() if v.role == "payload" and v.finished]
    proxy = verdicts.get(PROXY)
    unclear = obeyed is None and depends
    training, collectors = _katib(pod)
    controller = owners.controls(pod)
    return PodFacts(
        policy=policy,
        version=pod.metadata.resource_version,
        node=pod.spec.node_name or "",
        application=application_of(pod),
        labels=pod.labels,
        created=_zoned(pod.metadata.creation_timestamp),
        deleting=pod.metadata.deletion_timestamp is not None,
        phase=pod.status.phase,
        restart_policy=pod.restart_policy,
        native=pod.has_native_proxy,
        overrides=overrides,
        containers=verdicts,
        unfinished=unfinished,
        sidecars=sidecars,
        target=target,
        target_runs=pod.states.get(target, _NO_STATE).running is not None,
        target_again=_starts_again(pod, target),
        exits=exits,
        payload_ended=max(filter(None, map(ends.get, finished_payload)), default=None),
        proxy_ended=ends.get(PROXY) if proxy and proxy.finished else None,
        restarting=restarting_all(pod, obeyed=obeyed),
        unclear=unclear,
        asks=kubelet is None and depends,
        unreported=all(pod.states.get(name, _NO_STATE) == _NO_STATE for name in unfinished),
        irreplaceable=controller.obstacle or controller.failure or None,
        training=training,
        collectors=collectors,
        requests=resources.requests(pod) if finished_payload or unclear else None,
    )


def _verdicts(
    pod: Pod,
    overrides: Overrides,
    policy: Policy,
    rules: Mapping[str, SidecarRule],
    obeyed: bool | None,
) -> Iterator[tuple[str, ContainerVerdict]]:
    for native, containers in ((True, pod.native_sidecars), (False, pod.containers)):
        for container in containers:
            role, cause = "payload", None
            if native or container.name == PROXY or container.name in rules:
                role = "sidecar"
            elif cause := _ignored(container.name, overrides, policy):
                role = "ignored"
            done, why = finished(container, pod, obeyed=obeyed)
            why = f"{why}; ignored: {cause}" if cause else why
            yield container.name, ContainerVerdict(role=role, finished=done, why=why)


def _ignored(name: str, overrides: Overrides, policy: Policy) -> str | None:
    """Why a container does not keep the proxy running; None: it does."""
    if overrides.after and all(found.annotation != QUIT_AFTER for found in overrides.problems):
        return None if name in overrides.after else f"not named by annotation {QUIT_AFTER}"
    if name in overrides.ignored:
        return f"annotation {IGNORE_CONTAINERS}"
    return "option ignore-containers" if name in policy.ignore_containers else None


def _starts_again(pod: Pod, target: str) -> str | None:
    for container in pod.containers:
        if container.name == target:
            again, rule = should_restart(container, pod.spec, 0)
            return rule if again else None
    return None


def _zoned(at: datetime | None) -> datetime | None:
    """A time without a zone, from a person's file, counts as UTC."""
    return at and at.replace(tzinfo=at.tzinfo or UTC)


def _katib(pod: Pod) -> tuple[frozenset[str], frozenset[str]]:
    """The training containers, and the collectors that wait for the proxy; see `quit.rules`.

    Only what Katib's webhook writes counts: other containers of these names are none of its
    collectors. Without `waitAllProcesses` in its configuration, Katib writes no ``-w`` and true
    counts.
    """
    running = {name for name, state in pod.states.items() if state.running}
    if pod.spec.share_process_namespace is not True or PROXY not in running:
        return frozenset(), frozenset()
    arguments = {container.name: container.args or () for container in pod.containers}
    training = {n for n, words in arguments.items() if any(_KATIB_MARK in word for word in words)}
    waiting = {n for n, words in arguments.items() if ("-w", "false") not in pairwise(words)}
    return frozenset(training), KATIB_COLLECTORS & waiting & running


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
    """Whether a container is finished only for kubelets that obey its own policy, or do not."""
    return any(
        container.restart_policy is not None
        and (ended := pod.exits.get(container.name)) is not None
        and _depends(container, pod, ended.exit_code)
        for container in pod.containers
    )


def _depends(container: Container, pod: Pod, exit_code: int) -> bool:
    plain = structs.replace(container, restart_policy=None, restart_policy_rules=None)
    results = {should_restart(each, pod.spec, exit_code)[0] for each in (container, plain)}
    return len(results) > 1


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
    how, code = _exit(state.terminated), state.terminated.exit_code
    if pod.status.phase in {"Succeeded", "Failed"}:
        return Finished(True, how)
    if mark := _RESTARTED_ANYWAY.get(state.terminated.reason):
        return Finished(False, f"{how}, will be restarted {mark}")
    again, rule = should_restart(container, pod.spec, code)
    verb = "will be restarted" if again else "not restarted"
    if not obeyed and container.restart_policy is not None and _depends(container, pod, code):
        again = obeyed is None or not again
        if obeyed is None:
            verb, rule = "may be restarted", f"{rule}, which kubelets up to 1.34 ignore"
        else:
            verb = "will be restarted" if again else "not restarted"
            rule = f"restartPolicy {pod.restart_policy}; the kubelet ignores {rule}"
    return Finished(not again, f"{how}, {verb} ({rule})")


def _exit(terminated: Terminated) -> str:
    """``exited 137 (OOMKilled)``."""
    reason = f" ({terminated.reason})" if terminated.reason else ""
    return f"exited {terminated.exit_code}{reason}"


def should_restart(container: Container, spec: PodSpec, exit_code: int) -> tuple[bool, str]:
    """Whether the kubelet starts a container again after ``exit_code``, and the rule that says so.

    As kubelet ContainerShouldRestart (k8s@1.36 pkg/api/v1/pod/util.go): the first matching rule of
    the container, else its restartPolicy, else the pod's.
    """
    rule = _matching_rule(container, exit_code)
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

    As kubelet ShouldAllContainersRestart (KEP-5532): the condition says so, or any container, init
    containers and sidecars included, exited with a code whose rule is RestartAllContainers, or was
    lost on the way. The others may still be reported as terminated, but are not finished.
    """
    for condition in pod.status.conditions or ():
        if condition.type == "AllContainersRestarting" and condition.status == "True":
            return "all containers are being restarted"
    # Where several statuses contradict each other, any of them may be true.
    ended = [(status.name, status.terminated) for status in pod.statuses() if status.terminated]
    if any(how.reason == RESTARTING_ALL for _, how in ended):
        return "all containers are being restarted"
    if obeyed is False:
        return None
    ruled = {c.name: c for c in (*pod.init_containers, *pod.containers) if c.restart_policy_rules}
    for name, how in ended:
        rule = _matching_rule(ruled[name], how.exit_code) if name in ruled else None
        if rule is not None and rule.action == "RestartAllContainers":
            return f"all containers will be restarted: {name} {_exit(how)}"
    return None
