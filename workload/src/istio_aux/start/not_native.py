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
from istio_aux.model.pod import PROXY, Container, Pod
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Amounts
from istio_aux.model.sidecars import SHIPPED
from istio_aux.model.text import UNDECODABLE, quoted

LONGEST = 128 << 10  # Characters of the commands and variables of a pod; a search takes 1 ms.
MOST = 200  # Containers that are looked at.

ENDS = "the payload ends the proxy itself"
RAISES = "beside a native sidecar the pod needs more than is allowed"
UNTRIED = "templates that were not tried"
HURRIED = "its grace period is short"
"""What reasons begin with; the rest says where."""

ENDINGS = (
    # The path of pilot-agent (status/server.go), and of the admin port of Envoy.
    "quitquitquit",
    # redboxllc/scuttle and its ancestor monzo/envoy-preflight (main.go kill).
    "scuttle", "envoy-preflight", "ENVOY_ADMIN_API", "ISTIO_QUIT_API",
    # maksim-paskal/envoy-sidecar-helper (pkg/api/api.go); karlkfi/kubexit (README, Config).
    "envoy-sidecar-helper", "-envoy.endpoint", "-envoy.port", "-envoy.ready", "kubexit", "KUBEXIT_",
)  # fmt: skip
"""What a payload says that ends its proxy itself."""

# About another sidecar: the flag of cloud-sql-proxy, and ports.
_OTHERS = ("--quitquitquit", *(f":{rule.port}/quitquitquit" for rule in SHIPPED.values()))


def reasons(pod: Pod, how: StartPolicy) -> Iterator[Remark]:
    """Yield each reason, with a text such as ``what: where``."""
    if len(pod.containers) + len(pod.init_containers) > MOST:
        yield Remark(Code.TOO_MUCH, f"too much to judge: it has over {MOST} containers")
        return
    if pod.restart_policy != "Never":
        yield from ends_its_proxy(pod)
    if raised := _raised(pod, how):
        yield Remark(Code.RAISED, f"{RAISES}: {raised}")
    if templates.on(pod.metadata) and templates.get(pod.metadata) != frozenset({"sidecar"}):
        yield Remark(Code.UNTRIED, f"{UNTRIED}: {templates.shown(pod.metadata)}")
    if ending.is_short(pod) and (how.counted if how.job else is_of_job(pod)):
        given = f"terminationGracePeriodSeconds {pod.spec.termination_grace_period_seconds}"
        why = f"{given}, not {ending.SHORT}, and {ending.COUNTED}"
        yield Remark(Code.HURRIED, f"{HURRIED}: {why}")


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
    unasked = how.capability is Capability.UNASKED
    return bool(certain(pod, strictest)) if unasked else ending.is_short(pod)


def is_of_job(pod: Pod) -> bool:
    """Whether a Job of Kubernetes' own controls it: no other one's counts are read."""
    return api_of(controller(pod.metadata)) is BATCH


def own_init(pod: Pod) -> list[str]:
    """The init containers that end, which start before a classic proxy."""
    return [each.name for each in pod.init_containers if each.restart_policy != "Always"]


def ends_its_proxy(pod: Pod) -> Iterator[Remark]:
    """A native proxy is started again, which a Job counts (k8s job pastBackoffLimitOnFailure)."""
    length = 0
    for container in (*pod.init_containers, *pod.containers):
        text = said(container)
        length += len(text)
        if length > LONGEST:
            much = f"its commands and variables have over {LONGEST >> 10} KiB"
            yield Remark(Code.TOO_MUCH, f"too much to judge: {much}")
            return
        text = without_others(text)
        kills = pod.spec.share_process_namespace and "kill" in text
        words = (*ENDINGS, "pilot-agent", "envoy") if kills else ENDINGS
        word = next((each for each in words if each in text), "")
        if word and container.name != PROXY:
            what = f"{ENDS}: {word} in container {quoted(container.name)}"
            yield Remark(Code.END_PROXY, what)
            return


def without_others(text: str) -> str:
    """A text without what is about another sidecar than the proxy."""
    for other in _OTHERS:
        text = text.replace(other, " ")
    return text


def said(container: Container) -> str:
    """The name, command and variables of a container."""
    words = (container.name, *(container.command or ()), *(container.args or ()))
    variables = (f"{variable.name}={variable.value}" for variable in container.env or ())
    return "\n".join((*words, *variables))


def _raised(pod: Pod, how: StartPolicy) -> str:
    """What a native sidecar raises above what is allowed, where a classic one does not."""
    if not own_init(pod):
        return ""  # Nothing ends before the containers start.
    try:
        own = resources.amounts(pod.spec.resources)
        proxy, _ = resources.size_of_proxy(pod, how.proxy)
        classic, native = (resources.totals(pod, proxy, native=each) for each in (False, True))
    except UNDECODABLE:
        return "not known, its resources cannot be read"
    if native != classic and how.limits is None:
        return "perhaps, what its namespace allows is not known"
    alike = any(_refusals(pod, how, own, classic))
    return "" if alike else next(_refusals(pod, how, own, native), "")


def _refusals(pod: Pod, how: StartPolicy, own: Amounts, needs: Amounts) -> Iterator[str]:
    """Yield why the API server refuses a pod whose containers need so much.

    ``own`` is what the pod requests as a whole (KEP-2837): its containers must not request more
    (k8s@1.36 core/validation validatePodResourceConsistency), and quotas count that instead.
    """
    requests = {name: own[name] for name in own if name.startswith("requests.")}
    counted = {name: needs[name] for name in needs if name not in own}
    yield from filter(None, [Limit(name="the pod's own resources", most=requests).refuses(needs)])
    has_deadline = pod.spec.active_deadline_seconds is not None
    for limit in how.limits or ():
        if limit.deadline in {None, has_deadline} and (why := limit.refuses(counted)):
            yield why
