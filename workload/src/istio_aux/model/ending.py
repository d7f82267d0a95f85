"""The end of a pod by force: what its payload loses, and whether a native proxy had enough time.

Whether it is deleted, evicted, preempted or past a deadline, every container gets SIGTERM at once.
The agent of a classic proxy then drains for ``terminationDrainDuration`` and exits, whatever the
payload does (istio pkg/envoy/agent.go Run). The kubelet ends a native proxy after the payload, with
what that leaves of the grace period (k8s@1.36 kuberuntime_termination_order.go waitForTurn).
"""

from __future__ import annotations

import re

from istio_aux.model.annotations import PROXY_CONFIG, Annotation
from istio_aux.model.owners import BATCH, api_of, controller
from istio_aux.model.pod import PROXY, Pod

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
    ended = pod.exits.get(PROXY)
    phase = pod.status.phase
    if phase not in {"Succeeded", "Failed"} or not pod.has_native_proxy or ended is None:
        return ""
    if ended.exit_code not in KILLED or ended.reason == "OOMKilled":
        return ""
    grace = pod.spec.termination_grace_period_seconds
    enough = f"terminationGracePeriodSeconds was {grace}: {SHORT} is enough"
    if not is_short(pod):
        enough = (
            f"its payload left it nothing of {LONG if grace is None else grace} s of grace: the"
            f" payload's time and {SHORT} s more is enough"
        )
    reason = f"{PROXY} was killed with exit code {ended.exit_code}: {enough}"
    counts = phase == "Failed" and api_of(controller(pod.metadata)) is BATCH
    return f"{reason}; {COUNTED}" if counts else reason
