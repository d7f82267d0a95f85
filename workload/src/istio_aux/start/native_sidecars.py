"""Native sidecars: why a pod's proxy had better not be one, and which other containers become one.

A native sidecar is an init container that restarts always (KEP-753). It starts before the payload,
and the kubelet ends it after the payload, so nothing has to quit it.

A pod for which a native proxy may do harm gets hold: it may fail, or be refused (`reasons`). Where
Istio makes sidecars native unasked, a pod gets hold only for a reason of `certain`, because a
classic proxy does harm, too: init containers start outside the mesh.

The option or the annotation names other containers; known ones need no name (`convert`). A
container that has a restart policy of its own is left alone, because its author means something
else. So is one that has a `resizePolicy`, which the API server refuses before Kubernetes 1.33
(validateInitContainers). Another webhook may add a sidecar after Istio's has been called. The API
server then calls ours again: so pods that Istio has injected are changed as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from istio_aux.model import ending, resources, sidecars
from istio_aux.model.annotations import (
    QUIT,
    QUIT_AFTER,
    SIDECARS,
    injected,
    templates,
    workflow_node,
)
from istio_aux.model.findings import Code, Remark
from istio_aux.model.limits import Limit
from istio_aux.model.owners import JobCounts
from istio_aux.model.pod import PROXY, Container, Pod
from istio_aux.model.pod_settings import PodSettings
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Amounts
from istio_aux.model.sidecars import How, SidecarRule
from istio_aux.model.text import UNDECODABLE, listed
from istio_aux.start import patch

MOST_JUDGED = 200  # A pod with more containers is not judged.

RAISES = "beside a native sidecar the pod needs more than is allowed"
UNTRIED = "templates that were not tried"
SHORT_GRACE = "its grace period is short"
"""Beginnings of the reasons, as is `ending.ENDS`; the rest names the container or the field."""

_SHELLS = frozenset({"sh", "ash", "bash", "dash"})
MOST = 50  # At most so many containers of a pod are converted: each takes a `move`.


def reasons(pod: Pod, how: StartPolicy) -> Iterator[Remark]:
    """Yield each reason against a native proxy, with a text such as ``what: where``."""
    if len(pod.containers) + len(pod.init_containers) > MOST_JUDGED:
        yield Remark(Code.TOO_MUCH, f"too much to judge: it has over {MOST_JUDGED} containers")
        return
    # The kubelet starts a native proxy again, which a Job counts (k8s pastBackoffLimitOnFailure).
    if pod.restart_policy != "Never":
        yield from ending.ends_its_proxy(pod)
    if raised := _raised(pod, how):
        yield Remark(Code.MORE_REQUESTED, f"{RAISES}: {raised}")
    if templates.on(pod.metadata) and templates.get(pod.metadata) != frozenset({"sidecar"}):
        yield Remark(Code.UNTRIED, f"{UNTRIED}: {templates.shown(pod.metadata)}")
    if ending.is_short(pod) and (how.counted if how.job else pod.of_batch_job):
        given = pod.spec.termination_grace_period_seconds
        yield Remark(
            Code.SHORT_GRACE,
            f"{SHORT_GRACE}: terminationGracePeriodSeconds {given}, under {ending.SHORT},"
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
    if not how.quits or settings.left_alone or settings.after or pod.regular_init_containers:
        return ""
    return next((it.text for it in ending.ends_its_proxy(pod) if it.code is Code.END_PROXY), "")


def depends_on_job(pod: Pod, how: StartPolicy, converted: patch.Step) -> bool:
    """Whether the plan depends on what the Job of a new pod counts, and that was not read yet."""
    if converted.ops:
        return how.job is None and pod.of_batch_job
    return how.capability.can and not injected.on(pod.metadata) and _asks(pod, how)


def _asks(pod: Pod, how: StartPolicy) -> bool:
    """Whether the pod's start depends on what its Job counts, and that was not read yet."""
    if how.job is not None or not pod.of_batch_job:
        return False
    strictest = msgspec.structs.replace(how, job=JobCounts(restarts=True))
    if how.capability is Capability.UNASKED:
        return bool(certain(pod, strictest))
    return ending.is_short(pod)


def _raised(pod: Pod, how: StartPolicy) -> str:
    """Which amount is refused with a native sidecar, but not with a classic one; empty: none."""
    if not pod.regular_init_containers:
        return ""  # Without them, both kinds of proxy need the same.
    try:
        own = resources.amounts(pod.spec.resources)
        proxy, _ = resources.size_of_proxy(pod, how.proxy)
        classic = resources.totals(pod, proxy, native=False)
        native = resources.totals(pod, proxy, native=True)
    except UNDECODABLE:
        return "not known, its resources cannot be read"
    if native != classic and how.limits is None:
        return "perhaps: it is not known what its namespace allows"
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


def convert(
    pod: Pod, how: StartPolicy, settings: PodSettings, *, proxy_first: bool, known: bool = True
) -> patch.Step:
    """Make native sidecars of a new pod's named containers, and of known ones if ``known``.

    The containers keep their order and come after the init containers. A bad annotation converts
    nothing.

    Without ``proxy_first`` nothing is converted: with istio-cni a sidecar that starts before the
    proxy has no network. If it waits for the network in a probe or a hook, the pod never starts.
    """
    if why := settings.problems.get(SIDECARS):
        return patch.Step(why)
    by_default = _known(pod, settings) if known else ()
    rules = sidecars.combined(how.sidecars, settings.sidecars, by_default)
    chosen = {name for name, rule in rules.items() if rule.how is How.NATIVE}
    placed = [
        (place, container)
        for place, container in enumerate(pod.containers)
        if container.name in chosen
    ]
    named = [container for _, container in placed]
    if not named:
        return patch.Step()
    if why := _impossible(pod, how, proxy_first=proxy_first):
        text = _left(named, why)
        by_author = {rule.container for rule in settings.sidecars} & {
            container.name for container in named
        }
        return patch.Step(text, warnings=(text,) if by_author or how.counted else ())
    if why := _too_many(pod, named):
        text = _left(named, why)
        return patch.Step(text, warnings=(text,))
    kept = [container for container in named if _has_rules(container)]
    moved = {place: container for place, container in placed if not _has_rules(container)}
    reasons = list[str]()
    warnings = list[str]()
    if moved:
        reasons.append(f"made native: {_listed(moved.values())}")
    if kept:
        warnings.append(_left(kept, "it has a restartPolicy or a resizePolicy of its own"))
    return patch.Step(
        "; ".join(reasons + warnings),
        ops=tuple(_operations(pod, moved)),
        warnings=tuple(warnings),
    )


def _known(pod: Pod, settings: PodSettings) -> Iterator[SidecarRule]:
    """Yield rules for known sidecars that are native by default: no pod is worse off with them.

    Nothing is yielded if the pod ends them itself: by `quit-after`, by a script, by a payload that
    asks for their end (a native one would start again, which a Job counts), or by Argo Workflows,
    which signals them (3.6 signal.go). A sidecar with a postStart hook is left out, too: the hook
    may wait for the payload.
    """
    if pod.restart_policy == "Always" or workflow_node.on(pod.metadata):
        return
    rows = {each.name: row for each in pod.containers if (row := sidecars.known(each))}
    payload = [each for each in pod.containers if each.name not in {PROXY, *rows}]
    if not (rows and payload):
        return
    unclear = settings.problems.keys() & {QUIT, QUIT_AFTER}
    if settings.opt_out or settings.after or unclear:
        return
    text = "\n".join(map(ending.said, (*payload, *pod.init_containers)))
    kills = pod.spec.share_process_namespace and "kill" in text
    if kills or len(text) > ending.MOST_TEXT:
        return
    for each in pod.containers:
        row = rows.get(each.name)
        if row is None or not row.native or _has_rules(each):
            continue
        if row.path and row.path in text:
            continue
        if each.lifecycle and each.lifecycle.post_start:
            continue
        program = each.command[0].rpartition("/")[2] if each.command else ""
        if row.is_script or program not in _SHELLS:
            yield SidecarRule(each.name, how=How.NATIVE)


def _impossible(pod: Pod, how: StartPolicy, *, proxy_first: bool) -> str:
    if pod.restart_policy == "Always":
        return "restartPolicy Always: the pod is not meant to end"
    if how.counted:
        return ending.COUNTED
    match how.capability:
        case Capability.NATIVE | Capability.UNASKED:
            return "" if proxy_first else f"{PROXY} is not native, so it would start after them"
        case Capability.CLASSIC:
            return "sidecars cannot be native here"
        case Capability.UNKNOWN:
            return "it is not known whether sidecars can be native here"


def _too_many(pod: Pod, named: Sequence[Container]) -> str:
    if len(named) > MOST:
        return f"they are {len(named)}, not at most {MOST}"
    if len(named) == len(pod.containers):
        return "the pod would have no payload"
    return ""


def _operations(pod: Pod, places: Collection[int]) -> Iterator[patch.Op]:
    if places and pod.spec.init_containers is None:  # Absent or null.
        yield patch.Add("/spec/initContainers", [])
    for done, place in enumerate(places):
        to = patch.pointer("spec", "initContainers", len(pod.init_containers) + done)
        yield patch.Move(to, patch.pointer("spec", "containers", place - done))
        yield patch.Add(f"{to}/restartPolicy", "Always")


def _has_rules(container: Container) -> bool:
    return bool(
        container.restart_policy is not None
        or container.restart_policy_rules
        or container.resize_policy
    )


def _left(containers: Iterable[Container], why: str) -> str:
    return f"sidecars: left alone: {_listed(containers)}: {why}"


def _listed(containers: Iterable[Container]) -> str:
    return listed([container.name for container in containers])
