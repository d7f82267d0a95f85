"""Why a pod that ends is held where it could ask for a native sidecar: with that it would be worse.

It may fail, or be refused. Where Istio makes sidecars native unasked, only what fails for `certain`
is changed: the harm that a classic proxy does to init containers is certain, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from istio_aux.model import ending, resources
from istio_aux.model.annotations import read_overrides, templates
from istio_aux.model.findings import Code, Remark
from istio_aux.model.limits import Limit
from istio_aux.model.owners import BATCH, JobCounts, api_of, controller
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Amounts
from istio_aux.model.scripts import ends_its_proxy
from istio_aux.model.text import UNDECODABLE

MOST = 200  # Containers that are looked at.

RAISES = "beside a native sidecar the pod needs more than is allowed"
UNTRIED = "templates that were not tried"
HURRIED = "its grace period is short"
"""What reasons begin with, beside `scripts.ENDS`; the rest says where."""


def reasons(pod: Pod, how: StartPolicy) -> Iterator[Remark]:
    """Yield each reason, with a text such as ``what: where``."""
    if len(pod.containers) + len(pod.init_containers) > MOST:
        yield Remark(Code.TOO_MUCH, f"too much to judge: it has over {MOST} containers")
        return
    # The kubelet starts a native proxy again, which a Job counts (k8s pastBackoffLimitOnFailure).
    if pod.restart_policy != "Never":
        yield from ends_its_proxy(pod)
    if raised := _raised(pod, how):
        yield Remark(Code.RAISED, f"{RAISES}: {raised}")
    if templates.on(pod.metadata) and templates.get(pod.metadata) != frozenset({"sidecar"}):
        yield Remark(Code.UNTRIED, f"{UNTRIED}: {templates.shown(pod.metadata)}")
    if ending.is_short(pod) and (how.counted if how.job else is_of_job(pod)):
        given = pod.spec.termination_grace_period_seconds
        yield Remark(
            Code.HURRIED,
            f"{HURRIED}: terminationGracePeriodSeconds {given}, not {ending.SHORT},"
            f" and {ending.COUNTED}",
        )


def certain(pod: Pod, how: StartPolicy) -> str:
    """Why a native proxy fails the pod for certain, and a classic one costs nothing; or empty.

    A restart of the proxy in each pod is too much for their Job. A classic proxy would let own init
    containers start outside the mesh, and it runs on where istio-aux does not end it.
    """
    if pod.restart_policy != "OnFailure" or how.job is None or not how.job.restarts:
        return ""
    overrides = read_overrides(pod)
    if not how.quits or overrides.opt_out or overrides.after or own_init(pod):
        return ""
    return next((it.text for it in ends_its_proxy(pod) if it.code is Code.END_PROXY), "")


def asks(pod: Pod, how: StartPolicy) -> bool:
    """Whether it depends on what the Job of the pod counts how the pod starts."""
    if how.job is not None or not is_of_job(pod):
        return False
    strictest = msgspec.structs.replace(how, job=JobCounts(restarts=True))
    if how.capability is Capability.UNASKED:
        return bool(certain(pod, strictest))
    return ending.is_short(pod)


def is_of_job(pod: Pod) -> bool:
    """Whether a Job of Kubernetes' own controls it: no other one's counts are read."""
    return api_of(controller(pod.metadata)) is BATCH


def own_init(pod: Pod) -> list[str]:
    """The init containers that end, which start before a classic proxy."""
    return [each.name for each in pod.init_containers if each.restart_policy != "Always"]


def _raised(pod: Pod, how: StartPolicy) -> str:
    """What a native sidecar raises above what is allowed, where a classic one does not."""
    if not own_init(pod):
        return ""  # Nothing ends before the containers start.
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
    """Yield why the API server refuses a pod whose containers need so much.

    ``own`` is what the pod requests as a whole (KEP-2837): its containers must not request more
    (k8s@1.36 core/validation validatePodResourceConsistency), and quotas count that instead.
    """
    requests = {name: own[name] for name in own if name.startswith("requests.")}
    counted = {name: needs[name] for name in needs if name not in own}
    if why := Limit(name="the pod's own resources", most=requests).refuses(needs):
        yield why
    has_deadline = pod.spec.active_deadline_seconds is not None
    for limit in how.limits or ():
        if limit.deadline in {None, has_deadline} and (why := limit.refuses(counted)):
            yield why
