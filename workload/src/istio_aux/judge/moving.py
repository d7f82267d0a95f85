"""What breaks, or stays behind, when a cluster goes native or ambient, and what to do about it.

The rules are those of admission (`start.native_sidecars`) in a cluster where Istio makes sidecars
native unasked. A `Survey` groups the results by namespace, and names the first objects of each
group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec.structs import replace

from istio_aux.injector.injection import injection_label
from istio_aux.injector.rules import ControlPlanes
from istio_aux.judge.preflight import NAMED, CheckResult, Verdict, note, problem
from istio_aux.model import ending, resources
from istio_aux.model.annotations import (
    DATAPLANE,
    INJECT,
    NATIVE_SIDECAR,
    PROXY_CONFIG,
    START,
    TEMPLATES,
    matching_prefixes,
    native_asked,
    start_order,
)
from istio_aux.model.findings import Code
from istio_aux.model.limits import Limits
from istio_aux.model.owners import JobCounts, group
from istio_aux.model.pod import Pod, Resource, Struct
from istio_aux.model.pod_settings import InjectionRequest, PodSettings, ambient_by
from istio_aux.model.policy import Capability, StartMode, StartPolicy
from istio_aux.model.templates import WORKLOADS
from istio_aux.model.text import listed
from istio_aux.model.webhooks import revision_label
from istio_aux.start import native_sidecars
from istio_aux.start.plan import before_injection

MOST = 100  # Namespaces that are shown.
# The port on which ztunnel listens in the network of a captured pod (istio cni/pkg/config).
TUNNEL = 15008

# Prefixes of annotation keys that have no effect without a sidecar.
_FOR_SIDECARS = (
    "istio-aux.io/",
    "sidecar.istio.io/",
    "traffic.sidecar.istio.io/",
    PROXY_CONFIG,
    TEMPLATES,
)
_TAKE_OUT = "take that out"


class _Port(Struct, frozen=True):
    protocol: str | None = None  # TCP, if it is not given.
    port: int | str | None = None
    end_port: int | None = None

    @property
    def reached(self) -> bool:
        """Whether the rule allows `TUNNEL`; a named port is taken for another one."""
        if self.protocol not in {None, "TCP"}:
            return False
        if not isinstance(self.port, int):
            return self.port is None
        return self.port <= TUNNEL <= (self.end_port or self.port)


class _Ingress(Struct, frozen=True):
    ports: tuple[_Port, ...] | None = None


class _PolicySpec(Struct, frozen=True):
    ingress: tuple[_Ingress, ...] | None = None


class NetworkPolicy(Resource, frozen=True):
    """A NetworkPolicy: only the ports of its ingress rules are read."""

    spec: _PolicySpec = _PolicySpec()


class To(StrEnum):
    """What the cluster moves to."""

    NATIVE = "native"
    AMBIENT = "ambient"


# Findings about objects of a namespace; `Survey.results` says which, and how many.
_FOUND = {
    each.code: each
    for each in (
        note(
            "namespaces",
            Code.END_PROXY,
            "end the proxy, which is started again: their Job may count that",
            f"{_TAKE_OUT}: the kubelet ends a native proxy after the payload",
        ),
        problem(
            "namespaces",
            Code.MORE_REQUESTED,
            "will be refused: beside a native sidecar they need more than is allowed",
            "lower what init containers ask for, or raise what quotas and limits allow",
        ),
        note(
            "namespaces",
            Code.UNTRIED,
            f"have {native_sidecars.UNTRIED}",
            f'try them on one pod with {NATIVE_SIDECAR}: "true"',
        ),
        problem(
            "namespaces",
            Code.SHORT_GRACE,
            f"may fail: {native_sidecars.SHORT_GRACE}, and their Job counts exit codes of proxies",
            f"set terminationGracePeriodSeconds to {ending.SHORT} or more",
        ),
        note("namespaces", Code.TOO_MUCH, "are too much to judge", "look at them"),
    )
}
_FAILS = replace(
    _FOUND[Code.END_PROXY],
    what="fail: they end the proxy, and their Job allows no restart",
    result=Verdict.PROBLEM,
)
_KEPT = replace(
    _FAILS,
    what=f"stay classic: {ending.ENDS}, and their Job allows no restart",
    result=Verdict.NOTE,
)
_SIDECARS = {
    To.NATIVE: note(
        "namespaces",
        Code.HAVE_SIDECARS,
        "pods have a classic sidecar",
        "nothing: the pods after them go native",
    ),
    To.AMBIENT: note(
        "namespaces",
        Code.HAVE_SIDECARS,
        "pods have a sidecar",
        "create them again once their namespace is moved",
    ),
}
_REFUSING = {
    To.NATIVE: note(
        "namespaces",
        Code.REFUSE,
        f"refuse a sidecar by {INJECT}",
        f"{_TAKE_OUT}: pods with a native one end",
    ),
    To.AMBIENT: note(
        "namespaces",
        Code.REFUSE,
        f"refuse a sidecar by {INJECT}, and would be in the ambient mesh",
        f"label them {DATAPLANE}: none if that is not meant",
    ),
}
_INIT = note(
    "namespaces",
    Code.INIT,
    "have init containers of their own, which will run inside the mesh",
    "see that they reach what they call: without the sidecar, or before it, they were outside",
)
_COUNTING = problem(
    "namespaces",
    Code.COUNTED,
    f"will fail by exit codes of proxies, such as 137 and 143: {ending.COUNTED}",
    "name a container in each onExitCodes",
)
_SMALL = problem(
    "namespaces",
    Code.REFUSED,
    "will be refused: resources for the whole pod have no room for a sidecar",
    "raise them by what the proxy requests, 0.1 CPUs and 128Mi of memory by default",
)
_CLASSIC = note(
    "namespaces",
    Code.CLASSIC_BY_ANNOTATION,
    "stay classic by their own annotation",
    f"take out {START} or {NATIVE_SIDECAR}",
)
_ASKING = note(
    "namespaces",
    Code.ASKS_FOR_SIDECAR,
    f"ask for a sidecar by {INJECT}, which wins over ambient",
    _TAKE_OUT,
)
_ENDING = note(
    "namespaces",
    Code.END_PROXY,
    "end a proxy that will not be there, and may fail by that",
    _TAKE_OUT,
)
_PORTS = problem(
    "namespaces",
    Code.CLOSED_TO_AMBIENT,
    f"close port {TUNNEL}, by which pods of an ambient mesh are reached",
    f"allow TCP port {TUNNEL}",
)
_BOTH = note(
    "namespaces",
    Code.INJECTION_WINS,
    "labels win over the one for ambient",
    "remove them when the namespace is moved",
)


class Survey:
    """Collects the obstacles in the namespaces of a cluster."""

    def __init__(
        self,
        to: To,
        mesh: ControlPlanes,
        namespaces: Mapping[str, Mapping[str, str]],
        limits: Limits,
    ) -> None:
        self._to, self._mesh, self._namespaces, self._limits = to, mesh, namespaces, limits
        self._found = defaultdict[str, dict[CheckResult, dict[str, None]]](dict)
        for name, labels in namespaces.items():
            keys = [key.name for key in (injection_label, revision_label) if key.on(labels)]
            for key in keys if to is To.AMBIENT and ambient_by({}, labels) else ():
                self._add(name, _BOTH, key)

    def see(self, pod: Pod, *, kept: bool) -> None:
        """Judge an existing pod. The next one is judged by the template of its workload, if any.

        ``kept``: whether istio-aux looks after the pod, and keeps it classic where it must be.
        """
        about, owner = pod.metadata, pod.metadata.controller
        if pod.has_sidecar if self._to is To.AMBIENT else pod.has_proxy and pod.has_sidecar:
            found = _SIDECARS[self._to]
            if self._to is To.NATIVE and not self._mesh.native.capability.can:
                found = replace(found, do="nothing: they stay so until Istio makes native ones")
            self._add(about.namespace, found, about.name)
        if owner is None or not WORKLOADS.get((group(owner), owner.kind)):
            self.template(
                before_injection(pod),
                str(owner or f"Pod/{about.name}"),
                kept=kept,
            )

    def template(
        self,
        pod: Pod,
        name: str,
        *,
        kept: bool,
        job: JobCounts | None = None,
    ) -> None:
        """Judge the next pod of a workload; ``job`` is what its Job counts as a failure."""
        where = pod.metadata.namespace
        injection = InjectionRequest.of(pod, self._namespaces.get(where, {}))
        any_pod = InjectionRequest(namespace=where, namespace_labels=injection.namespace_labels)
        if any(self._mesh.expected(each).expected for each in (injection, any_pod)):
            how = self._mesh.start(StartPolicy(job=job, limits=self._limits.of(where)), injection)
            how = replace(how, capability=Capability.UNASKED)
            native = self._to is To.NATIVE
            for found in _native(pod, injection, how, kept) if native else _ambient(pod, injection):
                self._add(where, found, name)
            if pod.regular_init_containers:
                self._add(where, _INIT, name)

    def policy(self, policy: NetworkPolicy) -> None:
        """Judge a NetworkPolicy alone: whether another one opens the port is not read."""
        about, ports = policy.metadata, [rule.ports for rule in policy.spec.ingress or ()]
        meshed = self._mesh.expected(
            InjectionRequest(
                namespace=about.namespace,
                namespace_labels=self._namespaces.get(about.namespace, {}),
            )
        ).expected
        if meshed and ports and all(of and not any(p.reached for p in of) for of in ports):
            self._add(about.namespace, _PORTS, f"NetworkPolicy/{about.name}")

    def results(self) -> Iterator[CheckResult]:
        """What was found, by namespace, those with a problem first."""
        well = {
            name: all(each.result is not Verdict.PROBLEM for each in found)
            for name, found in self._found.items()
        }
        for name in sorted(self._found, key=lambda name: (well[name], name))[:MOST]:
            for found, names in self._found[name].items():
                yield replace(
                    found,
                    check=f"namespace {name}" if name else found.check,
                    what=f"{len(names)} {found.what}: {listed(names, most=NAMED)}",
                )
        if (more := len(self._found) - MOST) > 0:
            yield CheckResult("namespaces", Verdict.NOTE, f"and {more} more", "move the first ones")
        if not self._found:
            yield CheckResult("namespaces", Verdict.OK, "nothing breaks, and nothing stays behind")

    def _add(self, namespace: str, found: CheckResult, name: str) -> None:
        self._found[namespace].setdefault(found, {})[name] = None


def _native(
    pod: Pod, injection: InjectionRequest, how: StartPolicy, kept: bool
) -> Iterator[CheckResult]:
    if kept and native_sidecars.certain(pod, how):
        yield _KEPT
    else:
        for reason in native_sidecars.reasons(pod, how):
            fails = reason.code is Code.END_PROXY and how.job is not None and how.job.restarts
            yield _FAILS if fails else _FOUND[reason.code]
    if how.counted:
        yield _COUNTING
    if resources.too_small(pod, native=True, proxy=how.proxy):
        yield _SMALL
    if injection.asks is False:
        yield _REFUSING[To.NATIVE]
    mode = PodSettings.of(pod).start
    if native_asked.get(pod.metadata) is False or mode in {StartMode.HOLD, StartMode.NONE}:
        yield _CLASSIC


def _ambient(pod: Pod, injection: InjectionRequest) -> Iterator[CheckResult]:
    if any(ending.ends_its_proxy(pod)):
        yield _ENDING
    if injection.asks is not None:
        yield _ASKING if injection.asks else _REFUSING[To.AMBIENT]
    # Annotations that our admission wrote are not the author's.
    keys = [] if start_order.on(pod.metadata) else matching_prefixes(pod.metadata, _FOR_SIDECARS)
    if keys:
        yield note(
            "namespaces",
            Code.NO_EFFECT,
            f"have annotations without effect ({listed(keys)})",
            _TAKE_OUT,
        )
