"""What admission changes in a new pod: it asks for a sidecar, which starts before the payload.

`hold` has a classic proxy start first; `native_sidecars` says which proxies and other containers
are native.

Plans are idempotent: a pod that has what it needs gets no operations. Istio's rules are those of
pkg/kube/inject: inject.go injectRequired, reorderPod, and injection-template.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from msgspec.structs import replace

from istio_aux.model import ending, resources
from istio_aux.model.annotations import (
    EXCLUDED,
    INCLUDED,
    INJECT,
    INJECTED,
    JOBSET,
    MPI_OPERATOR,
    NATIVE_SIDECAR,
    NO_SIGNAL,
    NOT_NATIVE,
    OPERATOR,
    PEERS,
    SIGNALLED_WITH,
    START,
    STARTED_WITH,
    injected,
    mark,
    native_asked,
    not_native_because,
    start_order,
    text_label,
    workflow_node,
)
from istio_aux.model.findings import Code, Remark
from istio_aux.model.owners import JobCounts
from istio_aux.model.pod import ISTIOS_INIT, PROXY, Container, OwnerReference, Pod
from istio_aux.model.pod_settings import InjectionRequest, PodSettings
from istio_aux.model.policy import Capability, Peers, StartMode, StartPolicy
from istio_aux.model.text import one_line
from istio_aux.start import hold, native_sidecars, patch
from istio_aux.start.patch import Step

MAX_ANNOTATIONS = 256 << 10  # Bytes (apimachinery ValidateAnnotationsSize).

_signalled = mark(SIGNALLED_WITH)
_authors = (mark(INCLUDED), mark(EXCLUDED))
_of_jobset, _operator = text_label(JOBSET), text_label(OPERATOR)


class Plan(Step, frozen=True):
    """All that admission changes in a pod: its steps, joined. ``ops`` set ``writes``, too."""

    job: OwnerReference | None = None  # The pod's Job, if the plan depends on what it counts.

    @property
    def labels(self) -> bool:
        """Whether the pod gets the label by which it asks for a sidecar."""
        return bool(self.ops) and self.ops[0].path.startswith("/metadata/labels")

    @classmethod
    def of(cls, pod: Pod, steps: Sequence[Step]) -> Plan:
        """Join steps, without what is there already. If annotations would be too large: none."""
        there = (pod.metadata.annotations or {}).items()
        written = chain.from_iterable(each.writes.items() for each in steps)
        writes = dict(entry for entry in written if entry not in there)
        warnings = tuple(chain.from_iterable(each.warnings for each in steps))
        if writes and (why := _too_large(pod, writes)):
            return cls(why, warnings=(f"left alone: {why}", *warnings))
        ops = chain.from_iterable(each.ops for each in steps)
        return cls(
            "; ".join(filter(None, (each.reason for each in steps))),
            writes,
            (*ops, *_entries("annotations", pod.metadata.annotations, writes)),
            warnings,
            next(filter(None, (each.started_with for each in steps)), None),
            any(each.native for each in steps),
        )


Excluded = Callable[[Pod], str]
"""Returns why admission leaves a new pod unchanged; empty if it does not."""


def left_to_ambient(pod: Pod) -> str:
    """Why admission leaves the pod to an ambient mesh, by the pod alone; empty if it does not."""
    injection = InjectionRequest.of(pod)
    return "" if injection.asks else injection.ambient


def plan(
    pod: Pod,
    how: StartPolicy,
    *,
    requested: bool = False,
    excluded: Excluded = left_to_ambient,
) -> Plan:
    """Plan start order, native sidecars, inbound ports and label of a new pod.

    ``requested``: the pod's application asks for a sidecar. A pod gets no change if ``how.pods``
    does not match its labels, or if ``excluded`` returns a reason.
    """
    if not how.pods.matches(pod.labels):
        return Plan(ops=(), reason=how.pods.mismatch)
    if why := excluded(pod):
        return Plan(ops=(), reason=why)
    meta = pod.metadata
    found = InjectionRequest.of(pod)
    wanted = how.inject is not None and how.inject.matches(pod.labels)
    injection, unlabelled = found.with_label(wanted=wanted, requested=requested)
    settings = PodSettings.of(pod)
    told = map(str, settings.remarks(meta))
    label = () if injection is found else _entries("labels", meta.labels, {INJECT: "true"})
    refused = next(injection.refusals(), "")
    ordered = (settings.start or how.mode) is not StartMode.NONE
    steps = [order := _start_order(pod, how, settings.start, refused), _said(pod, order)]
    depends = False
    if not refused:
        steps += [_peers(pod, how.peers, settings), _losses(pod, how, native=order.native)]
        converted = native_sidecars.convert(
            pod, how, settings, proxy_first=order.native, known=ordered
        )
        steps.append(converted)
        if ordered or converted.ops:
            depends = native_sidecars.depends_on_job(pod, how, converted)
    planned = Plan.of(pod, steps)
    reason = planned.reason
    if label:
        reason = "; ".join([f'added label {INJECT}: "true"', *([reason] if planned.ops else [])])
    elif unlabelled and not planned.ops:
        reason = unlabelled
    return replace(
        planned,
        ops=label + planned.ops,
        reason=reason,
        warnings=(*told, *planned.warnings),
        job=meta.controller if depends else None,
    )


def _said(pod: Pod, order: Step) -> Step:
    """Write the start order, and make the signal of Argo Workflows to a held proxy do nothing.

    Argo does not signal a native proxy.
    """
    if order.started_with is None:
        return Step()
    writes = {STARTED_WITH: order.started_with}
    unsaid = not _signalled.on(pod.metadata) and not injected.on(pod.metadata)
    if order.started_with == "hold" and workflow_node.on(pod.metadata) and unsaid:
        writes[SIGNALLED_WITH] = NO_SIGNAL
    return Step(writes=writes)


def _peers(pod: Pod, option: Peers, settings: PodSettings) -> Step:
    """Say which ports of a new pod Istio's proxy receives; peers reach the others directly.

    Workers of a distributed Job listen on ports that no Service declares. A client's proxy knows
    only the ports of Services, so it sends plaintext to all others, which STRICT mTLS resets (istio
    PassthroughCluster). Istio's annotation `includeInboundPorts` leaves them out of the mesh: the
    node redirects the listed ports to the proxy and no others (istio
    tools/istio-iptables/pkg/capture/run.go handleInboundPortsInclude). What the pod sends is not
    changed.

    Nothing here changes the label `security.istio.io/tlsMode`: one endpoint without it turns the
    clients of a whole headless Service to plaintext.

    A bad value of the pod's own annotation opens no port. The option is for pods that end; the
    annotation counts whether the pod ends or not.
    """
    own = settings.peers
    if (own or option) is Peers.MESH or (own is None and pod.restart_policy == "Always"):
        return Step()
    # A list would also undo what the author excludes: istio-iptables excludes ports only from `*`.
    decided = any(each.on(pod.metadata) for each in (injected, *_authors))
    if decided or PEERS in settings.problems:
        return Step()
    in_no_service = _of_jobset.on(pod.metadata) or _operator.get(pod.metadata) == MPI_OPERATOR
    ports = ",".join(map(str, () if in_no_service else _declared_ports(pod)))
    return Step(f"inbound ports of the proxy: {ports or 'none'}", {INCLUDED: ports})


def _declared_ports(pod: Pod) -> list[int]:
    """Return the TCP ports that a pod declares, without those of Istio's proxy, sorted.

    Istio redirects no other protocol. Native sidecars count, other init containers do not: they
    have ended when a Service leads to the pod (kubernetes endpointslice FindPort has this rule).
    """
    return sorted(
        {
            port.container_port
            for container in (*pod.containers, *pod.native_sidecars)
            for port in container.ports or ()
            if container.name != PROXY and port.protocol in {None, "TCP"}
        }
    )


def _losses(pod: Pod, how: StartPolicy, *, native: bool) -> Step:
    """Warn of a pod that loses its network as it ends, or is refused, because of its sidecar."""
    lost = "" if native else ending.cut_off(pod)
    small = resources.too_small(pod, native=native, proxy=how.proxy)
    remarks = Remark(Code.CUT_OFF, lost), Remark(Code.REFUSED, small)
    return Step(warnings=tuple(str(each) for each in remarks if each.text))


def before_injection(pod: Pod) -> Pod:
    """The pod without its sidecar, as its controller creates the next one."""
    added = {PROXY, *ISTIOS_INIT}
    kept = {**(pod.metadata.annotations or {})}
    kept.pop(INJECTED, None)
    if kept.pop(NOT_NATIVE, None) is not None:  # Admission asked for a classic proxy.
        kept.pop(NATIVE_SIDECAR, None)
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=kept),
        spec=replace(
            pod.spec,
            containers=tuple(c for c in pod.containers if c.name != PROXY),
            init_containers=tuple(c for c in pod.init_containers if c.name not in added),
        ),
    )


def after_injection(pod: Pod, made: Plan) -> Pod:
    """The pod with the sidecar that Istio gives it after ``made``; unchanged if it gets none."""
    injection = InjectionRequest.of(pod)
    injection = injection.labelled() if made.labels else injection
    refused = next(injection.refusals(), "") or ("" if injection.asks else injection.ambient)
    if pod.names_proxy or refused:
        return pod
    native = made.native
    proxy = Container(name=PROXY, restart_policy="Always" if native else None)
    return replace(
        pod,
        spec=replace(
            pod.spec,
            containers=pod.containers if native else (*pod.containers, proxy),
            init_containers=(*pod.init_containers, proxy) if native else pod.init_containers,
        ),
    )


def effective_start(pod: Pod) -> str | None:
    """Return the start order that admission asked for, and why it has no effect if so; or None."""
    match start_order.get(pod.metadata):
        case None:
            return None
        case "native" as requested if pod.has_native_proxy:
            why = ""
        case "native" as requested:
            why = "the sidecar is a classic one" if pod.has_proxy else hold.ABSENT
        case requested if pod.has_native_proxy:
            why = "the sidecar is a native one"
        case requested:
            ops, why = hold.hook(pod)
            if not ops and ops is not None:
                because = not_native_because.get(pod.metadata)
                return f"{requested}, not native: {one_line(because)}" if because else requested
            why = f"{PROXY} does not hold the payload back" if ops else why
    return f"asked for {requested}, but {why}" if why else requested


def _start_order(pod: Pod, how: StartPolicy, own: StartMode | None, refused: str) -> Step:
    unsaid = not native_asked.on(pod.metadata)
    asked = native_asked.get(pod.metadata) is True
    unasked = unsaid and how.capability is Capability.UNASKED
    if own is StartMode.NONE:
        refused = f'annotation {START}: "none"'
    elif own is None and how.mode is StartMode.NONE:
        refused = "start-mode: none"
    if refused:
        native = pod.has_native_proxy if injected.on(pod.metadata) else asked or unasked
        return Step(refused, native=native)
    merge = hold.read(pod)
    if injected.on(pod.metadata):
        return hold.after_istio(pod, merge)
    return (_unasked if unasked else _on_request)(pod, how, own, merge)


def _on_request(
    pod: Pod,
    how: StartPolicy,
    own: StartMode | None,
    merge: hold.Merge,
) -> Step:
    """Ask for a native sidecar where it can be had and does no harm, else hold."""
    unsaid = not native_asked.on(pod.metadata)
    asked = native_asked.get(pod.metadata) is True
    due = _native_is_due(pod, how, own)
    harm = None
    if asked or (due and unsaid):
        harm = next(native_sidecars.reasons(pod, how), None)
    if harm and not (asked or own is StartMode.NATIVE):
        return hold.order(
            pod,
            merge,
            harm.text if pod.restart_policy != "Always" else "",
        )
    warnings = _although(harm, "as its author asks")
    if due and unsaid:
        return _native(own, merge, how, warnings)
    if asked and (due or how.capability.can):
        return Step(
            f'annotation {NATIVE_SIDECAR}: "true" is already there',
            native=True,
            warnings=warnings,
        )
    return replace(hold.order(pod, merge, warnings=warnings), native=asked)


def _unasked(
    pod: Pod,
    how: StartPolicy,
    own: StartMode | None,
    merge: hold.Merge,
) -> Step:
    """Leave the start to Istio, which makes the proxy native, unless that surely fails the Job."""
    if own is not StartMode.NATIVE and (harm := native_sidecars.certain(pod, how)):
        order = hold.order(pod, merge, harm)
        classic = {NATIVE_SIDECAR: "false", NOT_NATIVE: one_line(harm, 255)}
        return replace(order, writes={**classic, **order.writes})
    # The author gets no warning about a Job or limits that were not read.
    known = replace(
        how,
        job=how.job or JobCounts(),
        limits=how.limits or (),
    )
    ends = pod.restart_policy != "Always"
    harm = next(native_sidecars.reasons(pod, known), None) if ends else None
    warnings = _although(harm, "as Istio makes it unasked")
    if (own or how.mode) is StartMode.HOLD:
        return replace(hold.order(pod, merge, warnings=warnings), native=True)
    return Step("Istio makes its sidecar native unasked", native=True, warnings=warnings)


def _although(harm: Remark | None, why: str) -> tuple[str, ...]:
    """Warn the author if the proxy is native although it may do ``harm``."""
    if harm is None:
        return ()
    return (str(harm._replace(text=f"native, {why}, although {harm.text}")),)


def _native_is_due(pod: Pod, how: StartPolicy, own: StartMode | None) -> bool:
    """Whether the author, or the mode for pods that end or have a long grace, prefers native."""
    if own is StartMode.NATIVE:
        return True
    mode = own or how.mode
    can = how.capability.can
    if pod.restart_policy == "Always" and not (can and ending.is_long(pod)):
        return False
    return mode is StartMode.NATIVE or (mode is StartMode.AUTO and can)


def _native(
    own: StartMode | None,
    merge: hold.Merge,
    how: StartPolicy,
    warnings: tuple[str, ...],
) -> Step:
    """Ask for a native sidecar, unless the author declines hold and does not ask for native.

    The author's text stays, with a warning if Istio refuses it.
    """
    if merge.declined and own is not StartMode.NATIVE:
        return Step(merge.reason, warnings=warnings)
    if merge.refused and merge.warning:
        warnings = (merge.warning, *warnings)
    if how.counted:
        counted = f"{PROXY}: {ending.COUNTED}, which is 137 if it is killed"
        warnings = (*warnings, counted)
    return Step(
        "added native sidecar",
        {NATIVE_SIDECAR: "true"},
        warnings=warnings,
        started_with="native",
        native=True,
    )


def _too_large(pod: Pod, writes: dict[str, str]) -> str:
    every = {**(pod.metadata.annotations or {}), **writes}
    size = len("".join([*every, *every.values()]).encode())
    if size <= MAX_ANNOTATIONS:
        return ""
    return f"the annotations would have {size} bytes, and {MAX_ANNOTATIONS} are allowed"


def _entries(
    field: str,
    there: dict[str, str] | None,
    entries: dict[str, str],
) -> tuple[patch.Op, ...]:
    if not entries:
        return ()
    if there is None:
        return (patch.Add(f"/metadata/{field}", entries),)
    return tuple(
        patch.Add(patch.pointer("metadata", field, key), value) for key, value in entries.items()
    )
