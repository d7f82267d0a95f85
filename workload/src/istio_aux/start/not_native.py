"""Why a pod that ends gets hold: with a native sidecar it may fail, or be refused.

Where Istio makes sidecars native unasked, a pod gets hold only for a reason of `certain`, because a
classic proxy does harm, too: init containers start outside the mesh.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from istio_aux.model import ending, resources
from istio_aux.model.annotations import templates
from istio_aux.model.findings import Code, Remark
from istio_aux.model.limits import Limit
from istio_aux.model.owners import BATCH, JobCounts, api_of, controller
from istio_aux.model.pod import Pod
from istio_aux.model.pod_settings import PodSettings
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Amounts
from istio_aux.model.text import UNDECODABLE

MOST = 200  # A pod with more containers is not judged.

RAISES = "beside a native sidecar the pod needs more than is allowed"
UNTRIED = "templates that were not tried"
SHORT_GRACE = "its grace period is short"
"""Beginnings of the reasons, as is `ending.ENDS`; the rest names the container or the field."""


def reasons(pod: Pod, how: StartPolicy) -> Iterator[Remark]:
    """Yield each reason against a native proxy, with a text such as ``what: where``."""
    if len(pod.containers) + len(pod.init_containers) > MOST:
        yield Remark(Code.TOO_MUCH, f"too much to judge: it has over {MOST} containers")
        return
    # The kubelet starts a native proxy again, which a Job counts (k8s pastBackoffLimitOnFailure).
    if pod.restart_policy != "Never":
        yield from ending.ends_its_proxy(pod)
    if raised := _raised(pod, how):
        yield Remark(Code.MORE_REQUESTED, f"{RAISES}: {raised}")
    if templates.on(pod.metadata) and templates.get(pod.metadata) != frozenset({"sidecar"}):
        yield Remark(Code.UNTRIED, f"{UNTRIED}: {templates.shown(pod.metadata)}")
    if ending.is_short(pod) and (how.counted if how.job else is_of_job(pod)):
        given = pod.spec.termination_grace_period_seconds
        yield Remark(
            Code.SHORT_GRACE,
            f"{SHORT_GRACE}: terminationGracePeriodSeconds {given}, not {ending.SHORT},"
            f" and {ending.COUNTED}",
        )


def certain(pod: Pod, how: StartPolicy) -> str:
    """Why a native proxy surely fails the pod, and a classic one costs nothing; empty otherwise.

    The Job fails if the proxy restarts once in each pod. A classic proxy costs something if the pod
    has init containers, which start outside the mesh, or if istio-aux does not end the proxy.
    """
    if pod.restart_policy != "OnFailure" or how.job is None or not how.job.restarts:
        return ""
    settings = PodSettings.of(pod)
    if not how.quits or settings.left_alone or settings.after or own_init(pod):
        return ""
    return next((it.text for it in ending.ends_its_proxy(pod) if it.code is Code.END_PROXY), "")


def asks(pod: Pod, how: StartPolicy) -> bool:
    """Whether the pod's start depends on what its Job counts, and that was not read yet."""
    if how.job is not None or not is_of_job(pod):
        return False
    strictest = msgspec.structs.replace(how, job=JobCounts(restarts=True))
    if how.capability is Capability.UNASKED:
        return bool(certain(pod, strictest))
    return ending.is_short(pod)


def is_of_job(pod: Pod) -> bool:
    """Whether a batch Job controls the pod; what other kinds count is not read."""
    return api_of(controller(pod.metadata)) is BATCH


def own_init(pod: Pod) -> list[str]:
    """The init containers that end; a classic proxy starts after them."""
    return [each.name for each in pod.init_containers if each.restart_policy != "Always"]


def _raised(pod: Pod, how: StartPolicy) -> str:
    """Which amount is refused with a native sidecar, but not with a classic one; empty: none."""
    if not own_init(pod):
        return ""  # Without them, both kinds of proxy need the same.
    try:
        own = resources.amounts(pod.spec.resources)
        proxy, _ = resources.size_of_proxy(pod, how.proxy)
        classic = resources.totals(pod, proxy, native=False)
        native = resources.totals(pod, proxy, native=True)
    except UNDECODABLE:
        return "not known, its resources cannot be read"
    if native != classic and how.limits is None:
        return "perhaps, what its namespace allows is not known"
    if any(_refusals(pod, how, own, classic)):
        return ""
    return next(_refusals(pod, how, own, native), "")


def _refusals(pod: Pod, how: StartPolicy, own: Amounts, needs: Amounts) -> Iterator[str]:
    """Yield why the API server refuses a pod whose containers need ``needs``.

    ``own`` is what the pod requests as a whole (KEP-2837): its containers must not request more
    (k8s@1.36 core/validation validatePodResourceConsistency), and quotas count ``own`` instead.
    """
    requests = {name: own[name] for name in own if name.startswith("requests.")}
    counted = {name: needs[name] for name in needs if name not in own}
    if why := Limit(name="the pod's own resources", most=requests).refuses(needs):
        yield why
    has_deadline = pod.spec.active_deadline_seconds is not None
    for limit in how.limits or ():
        if limit.deadline in {None, has_deadline} and (why := limit.refuses(counted)):
            yield why
