"""Which ports of a pod its peers may not reach through its proxy, and why.

Read: Services, PeerAuthentications and AuthorizationPolicies, reduced to the fields that count.
A refusal is reported only if it is certain. What cannot be read is named, not guessed. Ports are
those that the pod declares: environment variables such as MASTER_PORT name a port of the first
worker, not of this pod. DestinationRules, which may change what a client sends, are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from istio_aux.core import peers
from istio_aux.core.keys import Annotation, BadValueError, text_label
from istio_aux.core.pod import Metadata, Pod, Struct

STRICT, UNSET = "STRICT", "UNSET"
_SHOWN = 100  # Ports of a pod that are looked at; it may declare all 65,535.
_MOST = 1000  # Entries of a list of ports.


def _ports(text: str) -> set[str]:
    found = text.split(",", _MOST)
    if len(found) > _MOST:
        raise ValueError
    return set(map(str.strip, found))


_included, _excluded = (
    Annotation(name, _ports, f"ports separated by commas, at most {_MOST}", longest=8 * _MOST)
    for name in (peers.INCLUDED, peers.EXCLUDED)
)
# Labels that training-operator, MPI operator and JobSet give their pods.
_WORKERS = (text_label("training.kubeflow.org/job-name"), peers.of_jobset)


class WorkloadSelector(Struct, frozen=True):
    """``selector`` of Istio's policies; without labels it selects every pod."""

    match_labels: dict[str, str] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects a pod with these labels."""
        return (self.match_labels or {}).items() <= labels.items()


class MutualTls(Struct, frozen=True):
    """``mtls`` of a PeerAuthentication, or of one of its ports."""

    mode: str = UNSET


class PeerAuthenticationSpec(Struct, frozen=True):
    """``spec`` of a PeerAuthentication."""

    selector: WorkloadSelector | None = None
    mtls: MutualTls | None = None
    port_level_mtls: dict[str, MutualTls | None] | None = None


class PeerAuthentication(Struct, frozen=True):
    """Whether pods accept plaintext."""

    metadata: Metadata = Metadata()
    spec: PeerAuthenticationSpec = PeerAuthenticationSpec()

    @property
    def of_namespace(self) -> bool:
        """Whether it is for a whole namespace, or for the mesh."""
        return not (self.spec.selector and self.spec.selector.match_labels)


class AuthorizationPolicySpec(Struct, frozen=True):
    """``spec`` of an AuthorizationPolicy; an absent action is ``ALLOW``."""

    selector: WorkloadSelector | None = None
    action: str | None = None
    target_ref: dict[str, str] | None = None
    target_refs: tuple[dict[str, str], ...] | None = None


class AuthorizationPolicy(Struct, frozen=True):
    """What a pod's proxy lets pass."""

    metadata: Metadata = Metadata()
    spec: AuthorizationPolicySpec = AuthorizationPolicySpec()


class ServicePort(Struct, frozen=True):
    """A port of a Service; an absent ``targetPort`` is the port itself."""

    port: int = 0
    target_port: int | str | None = None
    protocol: str | None = None


class ServiceSpec(Struct, frozen=True):
    """``spec`` of a Service; without a selector it has no pods of its own."""

    selector: dict[str, str] | None = None
    ports: tuple[ServicePort, ...] | None = None


class PodService(Struct, frozen=True):
    """A Service of the pod's namespace."""

    metadata: Metadata = Metadata()
    spec: ServiceSpec = ServiceSpec()


class PeerFacts(Struct, frozen=True):
    """What was read about a pod's mesh; a text says why something could not be read.

    Attributes:
        services: of the pod's namespace.
        authentications: of the pod's namespace and of the root namespace.
        authorizations: of the same.
        root: Istio's root namespace; None if unknown.
    """

    services: tuple[PodService, ...] | str
    authentications: tuple[PeerAuthentication, ...] | str = ()
    authorizations: tuple[AuthorizationPolicy, ...] | str = ()
    root: str | None = None


class Mtls(Struct, frozen=True):
    """The mode of one port, and the policy that sets it; ``mode`` is empty if unknown."""

    mode: str
    source: str


def concerns(pod: Pod) -> bool:
    """Whether `refusals` says anything: the pod ends or has the annotation, a proxy, and ports."""
    asked = pod.restart_policy != "Always" or peers.own_peers.on(pod.metadata)
    ports = peers.declared_ports(pod) or _is_worker(pod)
    return asked and (pod.has_proxy or pod.has_native_proxy) and bool(ports)


def refusals(pod: Pod, found: PeerFacts) -> tuple[str, ...]:
    """Say for each declared port why its peers may not reach it, one line each."""
    if isinstance(found.services, str):
        return (found.services,)
    return tuple(_refusals(pod, found, found.services))


def mutual_tls(
    pod: Pod, port: int, policies: Iterable[PeerAuthentication], root: str | None
) -> Mtls:
    """Return the mode of a port, and the policy that decides it.

    The pod's own policy is before the namespace's, and that before the mesh's; of several, the
    oldest counts; only the pod's own has ports (istio policy_applier.go ComposePeerAuthentication).
    """
    namespace = pod.metadata.namespace
    mine = [policy for policy in policies if policy.metadata.namespace in {namespace, root}]
    of_pod = _oldest(
        policy
        for policy in mine
        if policy.metadata.namespace != root
        and not policy.of_namespace
        and policy.spec.selector
        and policy.spec.selector.selects(pod.labels)
    )
    if of_pod:
        of_port = (of_pod.spec.port_level_mtls or {}).get(str(port))
        if of_port and of_port.mode != UNSET:
            return Mtls(mode=of_port.mode, source=_name(of_pod))
    of_namespace, of_mesh = (
        _oldest(p for p in mine if p.of_namespace and p.metadata.namespace == where)
        for where in (namespace, root)
    )
    for policy in (of_pod, of_namespace, of_mesh):
        if policy and policy.spec.mtls and policy.spec.mtls.mode != UNSET:
            return Mtls(mode=policy.spec.mtls.mode, source=_name(policy))
    if root is None:
        return Mtls(mode="", source="Istio's root namespace is not known")
    return Mtls(mode="PERMISSIVE", source="no PeerAuthentication")


def _refusals(pod: Pod, found: PeerFacts, services: tuple[PodService, ...]) -> Iterator[str]:
    try:
        included = _included.of(pod.metadata) or {"*"}
        excluded = _excluded.of(pod.metadata) or set[str]()
    except BadValueError as error:
        yield str(error)
        return
    ports = peers.declared_ports(pod)
    by_port = _services(services, pod)
    for port in ports[:_SHOWN]:
        service = by_port.get(port)
        listed = included if included != {"*"} else excluded
        if (str(port) in listed) is (listed is excluded):  # The proxy does not receive it.
            if service:
                yield (
                    f"port {port} of Service {service} is not in {peers.INCLUDED}: clients in the"
                    " mesh may send mTLS, which the container cannot read"
                )
        elif service is None and (why := _plaintext(pod, port, found)):
            yield f"port {port} is in no Service: plaintext, {why}"
    if len(ports) > _SHOWN:
        yield f"and {len(ports) - _SHOWN} more ports"
    if _is_worker(pod) and included == {"*"} and (why := _plaintext(pod, 0, found)):
        yield f"ports that no Service has, as of gloo and NCCL: plaintext, {why}"


def _is_worker(pod: Pod) -> bool:
    """Whether it belongs to a Job of a training controller, whose pods talk to each other."""
    return any(label.on(pod.metadata) for label in _WORKERS)


def _plaintext(pod: Pod, port: int, found: PeerFacts) -> str:
    """Say what happens to plaintext; empty if nothing is known that refuses it."""
    if isinstance(found.authentications, str):
        return f"reset if mTLS is STRICT: {found.authentications}"
    mtls = mutual_tls(pod, port, found.authentications, found.root)
    if mtls.mode == STRICT:
        return f"reset under STRICT ({mtls.source})"
    if not mtls.mode:
        return f"reset if mTLS is STRICT: {mtls.source}"
    if isinstance(found.authorizations, str):
        return f"which an AuthorizationPolicy may refuse: {found.authorizations}"
    allows = (policy for policy in found.authorizations if _allows(policy, pod, found.root))
    if policy := next(allows, None):
        return f"which has no identity: AuthorizationPolicy {_name(policy)} may refuse it"
    return ""


def _allows(policy: AuthorizationPolicy, pod: Pod, root: str | None) -> bool:
    """Whether it is an ALLOW policy of this pod: then what no such policy allows is refused."""
    spec = policy.spec
    return (
        (spec.action or "ALLOW") == "ALLOW"
        and not (spec.target_ref or spec.target_refs)  # Those are for gateways and waypoints.
        and policy.metadata.namespace in {pod.metadata.namespace, root}
        and (spec.selector is None or spec.selector.selects(pod.labels))
    )


def _services(services: tuple[PodService, ...], pod: Pod) -> dict[int, str]:
    """The first Service of each port of this pod (kubernetes endpointslice FindPort)."""
    names = {
        declared.name: declared.container_port
        for container in (*pod.containers, *pod.native_sidecars)
        for declared in container.ports or ()
    }
    found = dict[int, str]()
    for service in services:
        selector = service.spec.selector
        if not selector or not selector.items() <= pod.labels.items():
            continue
        for each in service.spec.ports or ():
            target = each.target_port or each.port
            number = names.get(target) if isinstance(target, str) else target
            if number is not None and each.protocol in {None, "TCP"}:
                found.setdefault(number, service.metadata.name)
    return found


def _oldest(policies: Iterable[PeerAuthentication]) -> PeerAuthentication | None:
    known = (policy for policy in policies if policy.metadata.creation_timestamp)
    return min(known, key=lambda policy: str(policy.metadata.creation_timestamp), default=None)


def _name(policy: PeerAuthentication | AuthorizationPolicy) -> str:
    return f"{policy.metadata.namespace}/{policy.metadata.name}"
