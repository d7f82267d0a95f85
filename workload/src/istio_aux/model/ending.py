"""The end of a pod: by force, by its own script, or because of its mesh.

By force: deleted, evicted, preempted or past a deadline, every container gets SIGTERM at once.
The agent of a classic proxy then drains for ``terminationDrainDuration`` and exits, whatever the
payload does (istio pkg/envoy/agent.go Run). The kubelet ends a native proxy after the payload, with
what that leaves of the grace period (k8s@1.36 kuberuntime_termination_order.go waitForTurn).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from istio_aux.model.annotations import PROXY_CONFIG, START, Annotation, not_native_because
from istio_aux.model.documents import to_yaml
from istio_aux.model.findings import Code, Remark
from istio_aux.model.kubelet import finished
from istio_aux.model.moment import Moment, zoned
from istio_aux.model.owners import BATCH, api_of
from istio_aux.model.pod import ISTIOS_INIT, NOT_SET_UP, PROXY, Container, Pod
from istio_aux.model.sidecars import SHIPPED, known
from istio_aux.model.text import listed, one_line, quoted

LONG = 30  # Seconds, Kubernetes' default grace period: who asks for more has work to finish.
# Seconds. Measured beside Istio 1.31: with a grace period of 0 s a native proxy is killed and exits
# with 137 (5 of 5 pods), with 1 to 3 s on a busy machine, too, and from 5 s on never (0 of 4).
SHORT = 5
DRAIN = 5.0  # Seconds, Istio's default (pkg/config/mesh/mesh.go).
KILLED = frozenset({137, 143})  # Exit codes by SIGKILL, or by SIGTERM before the agent handles it.

# A native sidecar's exit code (k8s@1.36 pkg/controller/job pod_failure_policy.go matchOnExitCodes).
COUNTED = "a rule of podFailurePolicy that names no container counts its exit code"

_LONGEST = 64 * 1024  # Characters of a ProxyConfig that are searched.
_config = Annotation(PROXY_CONFIG, str, "YAML", longest=_LONGEST)
# The field in YAML or JSON, by either name, in seconds (protobuf's JSON mapping).
_DRAIN = re.compile(
    r"(?m)(?:^|[{,])[ \t]*[\"']?(?:terminationDrainDuration|termination_drain_duration)[\"']?"
    r"[ \t]*:[ \t]*[\"']?([0-9]{1,9}(?:\.[0-9]{1,9})?)s"
)

MOST_TEXT = 128 << 10  # Characters of the commands and variables of a pod; a search takes 1 ms.

ENDS = "the payload ends the proxy itself"  # The reason begins so; the rest says where.

# Texts in the container of a payload that ends its proxy itself.
ENDINGS = (
    # The path of pilot-agent (status/server.go), and of the admin port of Envoy.
    "quitquitquit",
    # redboxllc/scuttle and its ancestor monzo/envoy-preflight (main.go kill).
    "scuttle",
    "envoy-preflight",
    "ENVOY_ADMIN_API",
    "ISTIO_QUIT_API",
    # maksim-paskal/envoy-sidecar-helper (pkg/api/api.go); karlkfi/kubexit (README, Config).
    "envoy-sidecar-helper",
    "-envoy.endpoint",
    "-envoy.port",
    "-envoy.ready",
    "kubexit",
    "KUBEXIT_",
)

# Texts about another sidecar: the flag of cloud-sql-proxy, and ports.
_PORTS = "|".join(str(rule.port) for rule in SHIPPED.values())
_OTHERS = re.compile(rf"--quitquitquit|:(?:{_PORTS})/quitquitquit")

_, VALIDATION = ISTIOS_INIT


def is_long(pod: Pod) -> bool:
    """Whether the pod's payload may need the network for long after SIGTERM."""
    return (pod.spec.termination_grace_period_seconds or 0) > LONG


def is_short(pod: Pod) -> bool:
    """Whether the pod's grace period is too short for a native proxy to end by itself."""
    grace = pod.spec.termination_grace_period_seconds
    return grace is not None and grace < SHORT


def cut_off(pod: Pod) -> str:
    """Say what the payload loses beside a classic proxy, and what keeps it; empty: nothing.

    ``pod`` has such a proxy, or is to get one. For a Terminating pod
    ``deletionGracePeriodSeconds`` counts.
    """
    meta = pod.metadata
    grace = pod.spec.termination_grace_period_seconds or 0
    if meta.deletion_timestamp is not None:
        grace = meta.deletion_grace_period_seconds or 0
    seconds = drain(pod)
    if grace <= max(LONG, seconds):
        return ""
    return (
        f"a classic proxy exits {seconds:g} s after SIGTERM, and calls fail for the rest of {grace}"
        " s: istio-aux.io/start: native keeps the network where the cluster can, else"
        f" terminationDrainDuration: {grace}s in {PROXY_CONFIG}, and it takes all {grace} s to go"
    )


def drain(pod: Pod) -> float:
    """Seconds for which the agent of a classic proxy works on after SIGTERM."""
    found = _DRAIN.search(pod.proxy_config or _config.get(pod.metadata) or "", 0, _LONGEST)
    return float(found[1]) if found else DRAIN


def killed(pod: Pod) -> str:
    """Say that a finished pod's native proxy was killed, and which grace is enough; or empty.

    The kubelet writes how a native proxy ended together with the last phase of its pod, and not
    earlier (k8s@1.36 kubelet.go SyncTerminatingPod, status_manager.go mergePodStatus).
    """
    ended = pod.exits.get(PROXY) if pod.has_native_proxy else None
    phase = pod.status.phase
    if (
        phase not in {"Succeeded", "Failed"}
        or ended is None
        or ended.exit_code not in KILLED
        or ended.reason == "OOMKilled"
    ):
        return ""
    grace = pod.spec.termination_grace_period_seconds
    enough = f"terminationGracePeriodSeconds was {grace}: {SHORT} is enough"
    if not is_short(pod):
        enough = (
            f"its payload left it nothing of {LONG if grace is None else grace} s of grace: the"
            f" payload's time and {SHORT} s more is enough"
        )
    reason = f"{PROXY} was killed with exit code {ended.exit_code}: {enough}"
    counts = phase == "Failed" and pod.of_batch_job
    return f"{reason}; {COUNTED}" if counts else reason


def ends_its_proxy(pod: Pod) -> Iterator[Remark]:
    """Yield the container whose text ends the proxy, or that the text is too long to judge."""
    length = 0
    for container in (*pod.init_containers, *pod.containers):
        text = said(container)
        length += len(text)
        if length > MOST_TEXT:
            yield Remark(
                Code.TOO_MUCH,
                f"too much to judge: its commands and variables have over {MOST_TEXT >> 10} KiB",
            )
            return
        text = _OTHERS.sub(" ", text)
        kills = pod.spec.share_process_namespace and "kill" in text
        words = (*ENDINGS, "pilot-agent", "envoy") if kills else ENDINGS
        word = next((each for each in words if each in text), "")
        if word and container.name != PROXY:
            yield Remark(Code.END_PROXY, f"{ENDS}: {word} in container {quoted(container.name)}")
            return


def said(container: Container) -> str:
    """The name, command and variables of a container."""
    return "\n".join(
        (
            container.name,
            *(container.command or ()),
            *(container.args or ()),
            *(f"{variable.name}={variable.value}" for variable in container.env or ()),
        )
    )


class FailedPod(NamedTuple):
    """What became of a pod because of its mesh."""

    code: Code
    reason: str
    fix: str = ""  # What keeps the next pod from failing like that.
    at: datetime | None = None  # When the last container ended; None: unknown.
    policy: str = ""  # A podFailurePolicy in YAML, for the next Job.


def failure(pod: Pod, now: Moment | None = None) -> FailedPod | None:
    """Say how the mesh failed a pod that is meant to end; None: it did not.

    With ``now``, one that ended more than an hour ago does not count. Only commands ask this:
    `serve` does not watch pods that are over.

    The containers of a pod that is ended by force exit with any code: such a pod has a reason, or
    is being deleted (k8s@1.36 pkg/kubelet eviction_manager.go, active_deadline.go, preemption.go).
    """
    if (
        pod.status.reason
        or pod.metadata.deletion_timestamp is not None
        or pod.restart_policy == "Always"
    ):
        return None
    if pod.status.phase != "Failed":
        return next(_ends_proxy(pod), None) if pod.status.phase in {"Pending", "Running"} else None
    ends = (zoned(each.finished_at) for each in pod.exits.values())
    at = max(filter(None, ends), default=None)
    if now and not (at and now.wall - at.timestamp() < 3600):
        return None
    return next((each._replace(at=at) for each in _failed(pod)), None)


def _failed(pod: Pod) -> Iterator[FailedPod]:
    """How the mesh failed a pod whose phase is Failed."""
    exits = pod.exits
    owner = pod.metadata.controller
    if VALIDATION in exits and exits[VALIDATION].exit_code == NOT_SET_UP:
        yield FailedPod(
            Code.NOT_SET_UP,
            f"{VALIDATION} exited {NOT_SET_UP}: Istio's CNI plugin had not set up its network, and"
            " the payload never began",
            policy=_policy(pod),
        )
    if not pod.has_proxy:
        return
    for each in pod.init_containers:
        own = each.restart_policy != "Always" and each.name not in ISTIOS_INIT
        if own and each.name in exits and exits[each.name].exit_code:
            yield FailedPod(
                Code.INIT_FAILED,
                f"init container {each.name} {finished(each, pod).why}",
                too_early(pod, each.name),
            )
    failed = [
        each for each in pod.containers if each.name not in exits or exits[each.name].exit_code
    ]
    if [each.name for each in failed] == [PROXY] and PROXY in exits and len(pod.containers) > 1:
        why = f"every other container exited with 0, but {PROXY} {finished(failed[0], pod).why}"
        again = f", and {owner} counts a failure" if owner else ""
        yield FailedPod(
            Code.PROXY_FAILED,
            f"{why}: the pod has failed{again}",
            _held(pod) or f"`{START}: native`: the exit code of a native proxy does not fail a pod",
        )


def _ends_proxy(pod: Pod) -> Iterator[FailedPod]:
    """Yield that a running payload ends its native proxy itself, as a script may.

    A proxy that never got ready is killed, and exits with 0, too: then the payload has not begun.
    """
    for status in pod.status.init_container_statuses or ():
        ended = status.last_state and status.last_state.terminated
        if status.name != PROXY or not pod.has_native_proxy or not ended or ended.exit_code:
            continue
        if beside := outlived(pod, ended.finished_at):
            owner = pod.metadata.controller
            again = status.restart_count
            counts = pod.restart_policy == "OnFailure" and api_of(owner) is BATCH
            times = f"{again} time{'' if again == 1 else 's'}"
            yield FailedPod(
                Code.PROXY_ENDED,
                f"{PROXY} exited 0 and was started again ({times}), while {listed(beside)} ran:"
                " the payload ends the proxy itself"
                + (f", which {owner} counts as a failure each time" if counts else ""),
                "take out what ends it: a native proxy ends by itself after the payload",
                zoned(ended.finished_at),
            )


def outlived(pod: Pod, ended: datetime | None) -> list[str]:
    """The payload containers that ran when the proxy ended, and still run."""
    at = zoned(ended)
    running = ((name, state.running) for name, state in pod.states.items() if state.running)
    began = {name: zoned(state.started_at) for name, state in running}
    before = {name for name, start in began.items() if start and at and start < at} - {PROXY}
    return [
        each.name
        for each in (*pod.init_containers, *pod.containers)
        if each.name in before and each.restart_policy != "Always"
    ]


def too_early(pod: Pod, name: str) -> str:
    """What to do about an init container of the payload, which runs before a classic proxy."""
    first = _held(pod) or f"`{START}: native` has the proxy start first"
    return f"{name} runs before {PROXY}: {first}"


def _held(pod: Pod) -> str:
    """Why admission did not ask for a native proxy; empty if it did, or none was possible."""
    because = not_native_because.get(pod.metadata)
    if not because:
        return ""
    return (
        f"istio-aux holds it, not native: {one_line(because)}; without that its proxy would be"
        " native, and start first"
    )


def _policy(pod: Pod) -> str:
    """The podFailurePolicy by which a Job ignores pods whose network was not set up; or empty.

    A rule can name only containers of the template. So the rule for istio-validation names none,
    and first come rules by which the payload's own exits count (k8s@1.36 batch/validation
    validatePodFailurePolicyRuleOnExitCodes).
    """
    if pod.restart_policy != "Never" or not pod.of_batch_job:
        return ""
    own = [
        each.name
        for each in (*pod.init_containers, *pod.containers)
        if each.name not in {PROXY, *ISTIOS_INIT} and not known(each)
    ]
    on = {"operator": "In", "values": [NOT_SET_UP]}
    rules = [
        *({"action": "Count", "onExitCodes": {"containerName": name, **on}} for name in own),
        {"action": "Ignore", "onExitCodes": on},
    ]
    # A podFailurePolicy has 20 at most (k8s@1.36 batch/validation maxPodFailurePolicyRules).
    return to_yaml({"podFailurePolicy": {"rules": rules}}) if len(rules) <= 20 else ""
