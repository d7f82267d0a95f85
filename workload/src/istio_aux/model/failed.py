"""How a mesh failed a pod whose payload succeeded, never began, or ends its proxy itself.

Only commands ask this: `serve` does not watch pods that are over.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from istio_aux.model.annotations import START, not_native_because
from istio_aux.model.documents import to_yaml
from istio_aux.model.findings import Code
from istio_aux.model.kubelet import finished
from istio_aux.model.moment import Moment, in_utc, zoned
from istio_aux.model.owners import BATCH, Job, JobApi, api_of, controller
from istio_aux.model.pod import ISTIOS_INIT, NOT_SET_UP, PROXY, Pod
from istio_aux.model.sidecars import known
from istio_aux.model.text import listed, one_line

LATELY = 3600.0  # Seconds for which lists of failed pods show a pod after its end.
MOST_RULES = 20  # Rules of a podFailurePolicy (k8s@1.36 batch/validation maxPodFailurePolicyRules).
LONGEST = 300  # Characters of what another controller says.

_, VALIDATION = ISTIOS_INIT


class FailedPod(NamedTuple):
    """What became of a pod because of its mesh."""

    code: Code
    reason: str
    fix: str = ""  # What keeps the next pod from failing like that.
    at: datetime | None = None  # When the last container ended; None: unknown.
    policy: str = ""  # A podFailurePolicy in YAML, for the next Job.

    @property
    def text(self) -> str:
        """All of it in a line."""
        return "; ".join(filter(None, (self.reason, self.fix)))


def failure(pod: Pod) -> FailedPod | None:
    """Say how the mesh failed a pod that is meant to end; None: it did not.

    The containers of a pod that is ended by force exit with any code: such a pod has a reason, or
    is being deleted (k8s@1.36 pkg/kubelet eviction_manager.go, active_deadline.go, preemption.go).
    """
    if (
        pod.status.reason
        or pod.metadata.deletion_timestamp is not None
        or pod.restart_policy == "Always"
    ):
        return None
    if pod.status.phase in {"Pending", "Running"}:
        return next(_ends_proxy(pod), None)
    found = next(_failed(pod), None) if pod.status.phase == "Failed" else None
    ends = (zoned(each.finished_at) for each in pod.exits.values())
    return found and found._replace(at=max(filter(None, ends), default=None))


def recent_failure(pod: Pod, now: Moment) -> FailedPod | None:
    """As `failure`, but None for a pod that ended more than `LATELY` ago."""
    found = failure(pod)
    if found is None or pod.status.phase != "Failed":
        return found
    return found if found.at and now.wall - found.at.timestamp() < LATELY else None


def _failed(pod: Pod) -> Iterator[FailedPod]:
    """How the mesh failed a pod whose phase is Failed."""
    exits = pod.exits
    owner = controller(pod.metadata)
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
            owner = controller(pod.metadata)
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
    names = list[str]()
    for each in (*pod.init_containers, *pod.containers):
        state = pod.states.get(each.name)
        began = zoned(state.running.started_at) if state and state.running else None
        if each.name != PROXY and each.restart_policy != "Always" and began and at and began < at:
            names.append(each.name)
    return names


def too_early(pod: Pod, name: str) -> str:
    """What to do about an init container of the payload, which runs before a classic proxy."""
    first = _held(pod) or f"`{START}: native` has the proxy start first"
    return f"{name} runs before {PROXY}: {first}"


def _held(pod: Pod) -> str:
    """Why admission did not ask for a native proxy; empty if it did, or none was possible."""
    because = not_native_because.get(pod.metadata)
    held = f"istio-aux holds it, not native: {one_line(because)}" if because else ""
    return held and f"{held}; without that its proxy would be native, and start first"


def _policy(pod: Pod) -> str:
    """The podFailurePolicy by which a Job ignores pods whose network was not set up; or empty.

    A rule can name only containers of the template. So the rule for istio-validation names none,
    and first come rules by which the payload's own exits count (k8s@1.36 batch/validation
    validatePodFailurePolicyRuleOnExitCodes).
    """
    if pod.restart_policy != "Never" or api_of(controller(pod.metadata)) is not BATCH:
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
    return to_yaml({"podFailurePolicy": {"rules": rules}}) if len(rules) <= MOST_RULES else ""


# Conditions of a Job that makes no pods; the first true one counts.
_NO_PODS = ("Failed", "FailureTarget", "Complete", "Completed", "Succeeded", "Suspended")


def of_job(job: Job, api: JobApi | None) -> str:
    """Why a Job has no pods, or makes no more; empty if it does not say."""
    said = list[str]()
    conditions = {
        it.type: it for it in (job.status and job.status.conditions) or () if it.status == "True"
    }
    if found := next((conditions[name] for name in _NO_PODS if name in conditions), None):
        at = zoned(found.last_transition_time)
        when = f" since {in_utc(at):%Y-%m-%d %H:%M}Z" if at else ""
        said.append(
            one_line(
                ": ".join(filter(None, (f"it is {found.type}{when}", found.reason, found.message))),
                LONGEST,
            )
        )
    elif job.run_policy.suspend:
        said.append("it is suspended")
    manager = job.run_policy.managed_by
    if manager and api and manager != api.manager:
        said.append(f"{one_line(manager)} manages it (managedBy), perhaps in another cluster")
    return "; ".join(said)
