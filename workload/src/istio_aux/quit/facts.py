"""What the rules need to know of a pod.

Most of it is which containers are finished as the kubelet sees it: terminated, and never started
again. The reason of a state (``OOMKilled``, ``Error``, ``Completed``) is shown to people and
decides nothing, except for the two that are the kubelet's own marks, `RESTARTING_ALL` and
`UNKNOWN`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal, NamedTuple

from msgspec import structs

from istio_aux.model import annotations, owners, resources
from istio_aux.model.annotations import QUIT_AFTER, SIDECARS
from istio_aux.model.owners import PodController
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
from istio_aux.model.sidecars import How, SidecarRule

# Reason of a state that was lost during a restart of all containers; the kubelet starts the
# container again whatever its exit code (k8s@1.36 pkg/kubelet/kubelet_pods.go getPhase).
RESTARTING_ALL = "RestartingAllContainers"
# Reason of a state that the container runtime no longer knows. The kubelet reports the container as
# terminated, and starts it again whatever its policy (k8s@1.36 pkg/kubelet/container/helpers.go
# ShouldContainerBeRestarted, kubernetes#22607).
UNKNOWN = "ContainerStatusUnknown"
_RESTARTED_ANYWAY = {RESTARTING_ALL: "with all others", UNKNOWN: "(its state is unknown)"}
_RESTARTING_RULES = frozenset({"Restart", "RestartAllContainers"})

# Containers that end once every other container of the pod has ended: the mounter of GCS FUSE, when
# it is no native sidecar (gcs-fuse-csi-driver pkg/csi_driver/utils.go putExitFile).
ENDS_LAST = frozenset({"gke-gcsfuse-sidecar"})

_MINOR = re.compile(r"v?1\.([0-9]{1,4})(?![0-9])")
_NO_STATE = ContainerState()

Role = Literal["payload", "sidecar", "ignored"]


class Kubelet(NamedTuple):
    """What is known about the kubelet of a node; see `obeys`."""

    obeys: bool | None
    until: float = math.inf  # By the monotonic clock. Then its version is read again.


OBEYS = Kubelet(True)


class ContainerVerdict(Struct, frozen=True):
    """The role of a container, and whether the kubelet is done with it."""

    role: Role
    finished: bool
    why: str


class PodFacts:
    """A pod as the rules see it: the pod, and what follows from it. Nothing raises.

    The annotations of the pod, ``overrides``, refine the ``policy`` of the cluster's admin.
    """

    def __init__(self, pod: Pod, policy: Policy, kubelet: Kubelet | None = OBEYS) -> None:
        """Read a pod. ``kubelet`` is None if the version of the pod's kubelet was not read."""
        self.pod, self.policy, self._kubelet = pod, policy, kubelet
        self._obeyed = kubelet.obeys if kubelet else None
        self.overrides = annotations.read_overrides(pod)
        # Those of the annotation count, but for a native one that stays, if it can be told to exit.
        quits = {rule.container for rule in policy.sidecars if rule.how is How.QUIT}
        self._rules = {
            rule.container: rule
            for rule in (*policy.sidecars, *self.overrides.sidecars)
            if rule.container not in self.overrides.after
            and not (rule.how is How.NATIVE and rule.container in quits)
        }

    @cached_property
    def containers(self) -> Mapping[str, ContainerVerdict]:
        """A verdict on each container, by name: the native sidecars, then the others."""
        verdicts, native = dict[str, ContainerVerdict](), self.pod.native_sidecars
        told = (name for name, rule in self._rules.items() if rule.how is How.QUIT)
        ending = {PROXY, *told, *(container.name for container in native)}
        for container in (*native, *self.pod.containers):
            role, cause = "payload", None
            if container.name in ending:
                role = "sidecar"
            elif cause := self._ignored(container.name):
                role = "ignored"
            done, why = finished(container, self.pod, obeyed=self._obeyed)
            why = f"{why}; ignored: {cause}" if cause else why
            verdicts[container.name] = ContainerVerdict(role=role, finished=done, why=why)
        return verdicts

    def _ignored(self, name: str) -> str | None:
        """Why a container does not keep the proxy running; None: it does."""
        after, problems = self.overrides.after, self.overrides.problems
        if after and all(problem.annotation != QUIT_AFTER for problem in problems):
            return None if name in after else f"not named by annotation {QUIT_AFTER}"
        rule = self._rules.get(name)
        if rule is None or rule.how is not How.IGNORE:
            return None
        return f"annotation {SIDECARS}" if rule in self.overrides.sidecars else "option sidecars"

    @cached_property
    def unfinished(self) -> Mapping[str, str]:
        """Payload containers that may still run, each with the reason."""
        verdicts = self.containers.items()
        return {n: v.why for n, v in verdicts if v.role == "payload" and not v.finished}

    @cached_property
    def finished_payload(self) -> list[str]:
        """Payload containers that will not run again."""
        return [n for n, v in self.containers.items() if v.role == "payload" and v.finished]

    @cached_property
    def outlasting(self) -> list[str]:
        """Ignored containers that run on after the proxy: they keep the pod, without network."""
        verdicts = self.containers.items()
        left = [n for n, v in verdicts if v.role == "ignored" and not v.finished]
        return [name for name in left if name not in ENDS_LAST]

    @property
    def proxy_finished(self) -> bool:
        """Whether the proxy is there and will not run again."""
        return PROXY in self.containers and self.containers[PROXY].finished

    @property
    def unclear(self) -> bool:
        """Whether the unknown version of the kubelet decides if a container is finished."""
        return self._obeyed is None and depends_on_kubelet(self.pod)

    @property
    def asks(self) -> bool:
        """Whether the version of the kubelet is to be read."""
        return self._kubelet is None and self.unclear

    @property
    def partly_finished(self) -> bool:
        """Whether a payload container is finished, or may be."""
        return bool(self.finished_payload) or self.unclear

    @cached_property
    def restarting(self) -> str | None:
        """Why every container is about to start again, if so."""
        return restarting_all(self.pod, obeyed=self._obeyed)

    @cached_property
    def sidecars(self) -> tuple[SidecarRule, ...]:
        """The rules for those that are told to exit and are not finished, in the pod's order."""
        return tuple(
            rule
            for container in self.pod.containers
            if (rule := self._rules.get(container.name)) is not None
            and rule.how is How.QUIT
            and not self.containers[container.name].finished
        )

    @property
    def target(self) -> str:
        """The container that has to exit next."""
        return self.sidecars[0].container if self.sidecars else PROXY

    def state(self, container: str) -> ContainerState:
        """What the kubelet reports of a container; an empty state if it reports nothing."""
        return self.pod.states.get(container, _NO_STATE)

    @cached_property
    def exits(self) -> Mapping[str, Terminated]:
        """How each container exited that is terminated, without init containers."""
        exits = self.pod.exits
        return {c.name: exits[c.name] for c in self.pod.containers if c.name in exits}

    @property
    def controller(self) -> PodController:
        """What makes another pod in the place of this one, if anything does."""
        return owners.controls(self.pod)

    @property
    def created(self) -> datetime | None:
        """The creation of the pod, by the clock of the API server."""
        return _zoned(self.pod.metadata.creation_timestamp)

    @cached_property
    def payload_ended(self) -> datetime | None:
        """The end of the last payload container that is finished; None: unknown."""
        return max(filter(None, map(self.ended, self.finished_payload)), default=None)

    def ended(self, container: str) -> datetime | None:
        """The end of a container that is terminated; None: unknown."""
        ended = self.exits.get(container)
        return _zoned(ended.finished_at) if ended else None

    @property
    def requests(self) -> Requests | None:
        """What the pod holds, once a part of its payload is finished; None: unknown."""
        return resources.requests(self.pod) if self.partly_finished else None


def _zoned(at: datetime | None) -> datetime | None:
    """A time without a zone, from a person's file, counts as UTC."""
    return at and at.replace(tzinfo=at.tzinfo or UTC)


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
