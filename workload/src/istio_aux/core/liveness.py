"""Whether Istio's injector is live: whether a pod that it selects would get its sidecar now.

Only that question may live here; facts come in, and what is not known is not live. The checks run
from the weakest to the strongest: a configuration that is not deactivated, a caBundle whose
certificates are valid, a Service with a ready endpoint, and an answer to a probe. An istiod that
says that it is ready may not serve its webhook yet, so nothing short of the probe is proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from istio_aux.core.native import NOT_CHECKED, NativeCheck, least, never
from istio_aux.core.pod import Struct
from istio_aux.core.policy import Capability
from istio_aux.core.webhooks import ClientConfig, Configuration, EndpointSlice, Service, Webhook


class State(StrEnum):
    """How far an injector is from being live; in the order of the checks."""

    ABSENT = "absent"
    """There is no configuration of Istio's injector: pods are created without a sidecar."""
    DEACTIVATED = "deactivated"
    """No webhook of the configuration is called: pods are created without a sidecar."""
    NO_CA_BUNDLE = "no-ca-bundle"
    """Its istiod never came up. From here on pods are refused, as failurePolicy is Fail."""
    UNREADABLE = "unreadable"
    EXPIRED = "expired"
    NOT_YET_VALID = "not-yet-valid"
    NO_SERVICE = "no-service"
    NO_ENDPOINT = "no-endpoint"
    REFUSED = "refused"
    """The probe failed, or istiod would not inject its pod."""
    NOT_PROBED = "not-probed"
    """All that can be seen is well. Nobody has asked the injector itself."""
    LIVE = "live"


_ORDER = {state: place for place, state in enumerate(State)}


class Certificate(msgspec.Struct, frozen=True):
    """When a certificate of a caBundle is valid; both ends belong to it (RFC 5280, 4.1.2.5)."""

    not_before: datetime
    not_after: datetime


class Probe(msgspec.Struct, frozen=True):
    """What came of asking an injector for a pod's sidecar.

    Attributes:
        injected: whether it answered with a sidecar.
        why: what happened instead, one line; for people.
        native: whether a pod that asked for a native sidecar was given one; unknown after a dry
            run, which did not ask.
        asked: whether the injector has heard the question; if not, nothing is known of it.
    """

    injected: bool
    why: str = ""
    native: Capability = Capability.UNKNOWN
    asked: bool = True


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of what is behind the webhooks.

    Attributes:
        slices: EndpointSlices of the webhooks' Services; others do no harm.
        certificates: of each caBundle, by its base64 text; a missing or empty one is unreadable.
        probes: the newest of each endpoint; a new caBundle makes another endpoint of it.
        checks: of native sidecars, the newest of each endpoint, as far as there are.
        unseen: Services whose slices cannot be read: of them only the probe can tell.
    """

    slices: Sequence[EndpointSlice] = ()
    unseen: frozenset[Service] = frozenset()
    certificates: Mapping[str, Sequence[Certificate]] = {}
    probes: Mapping[ClientConfig, Probe] = {}
    checks: Mapping[ClientConfig, NativeCheck] = {}


class Injector(Struct, frozen=True):
    """One of Istio's webhook configurations and the istiod behind it.

    Attributes:
        why: what makes it so; one line, for people.
        configuration: name of the configuration, empty when there is none.
        revision: of Istio, empty when there is no configuration.
        native: what the sidecars of pods are that ask for native ones; unknown unless it is live.
        native_why: what makes it so, one line; empty while that has not been found out.
        until: the first moment at which time alone may change the state, if it can; ask again then.
    """

    state: State
    why: str
    configuration: str = ""
    revision: str = ""
    native: Capability = Capability.UNKNOWN
    native_why: str = ""
    until: datetime | None = None

    @property
    def live(self) -> bool:
        """Whether it has proven that it injects."""
        return self.state is State.LIVE


def evaluate(
    configurations: Iterable[Configuration],
    facts: Facts,
    now: datetime,
    *,
    root: str | None = None,
) -> tuple[Injector, ...]:
    """Say of each injector whether it is live.

    Args:
        configurations: all that may be Istio's; others are passed over.
        facts: about what is behind them.
        now: the time, with its zone.
        root: the namespace of the only control plane that matters; None for all of them.

    Returns:
        At least one, sorted by the name of the configuration. Deactivated ones are left out where
        another is active: `istioctl install` leaves one behind on purpose.
    """
    active: list[Injector] = []
    deactivated: list[Injector] = []
    for configuration in sorted(configurations, key=lambda found: found.metadata.name):
        webhooks = _webhooks(configuration, root)
        found = dict.fromkeys(webhook.client_config for webhook in webhooks if _called(webhook))
        if found:
            active.append(_of(configuration, [_check(target, facts, now) for target in found]))
        elif webhooks:
            why = "none of its webhooks is called for new pods"
            deactivated.append(_of(configuration, [_Checked(State.DEACTIVATED, why)]))
    return tuple(active or deactivated) or (_absent(root),)


def targets(
    configurations: Iterable[Configuration], *, root: str | None = None
) -> Mapping[ClientConfig, Sequence[tuple[str, str]]]:
    """Say which endpoints there are to ask.

    Returns:
        Each with its webhooks: the names of the configuration and of the webhook in it.
    """
    found: dict[ClientConfig, list[tuple[str, str]]] = {}
    for configuration in configurations:
        for webhook in filter(_called, _webhooks(configuration, root)):
            names = (configuration.metadata.name, webhook.name)
            found.setdefault(webhook.client_config, []).append(names)
    return found


def askable(target: ClientConfig, facts: Facts, now: datetime) -> bool:
    """Whether asking an endpoint could show that it is live: all that can be seen of it is well."""
    seen = msgspec.structs.replace(facts, probes={})
    return _check(target, seen, now).state is State.NOT_PROBED


def capability(injectors: Iterable[Injector]) -> NativeCheck:
    """What the sidecar of a new pod that asks for a native one would be, whoever selects the pod.

    Only live injectors count: the others make no sidecar at all now. A reason names the one that
    decides; it is empty while there is something to be found out still.
    """
    return least(
        NativeCheck(each.native, each.native_why and f"{each.configuration}: {each.native_why}")
        for each in injectors
        if each.live
    )


class _Checked(msgspec.Struct, frozen=True):
    """What was found of one endpoint."""

    state: State
    why: str
    native: NativeCheck = NOT_CHECKED
    until: datetime | None = None


def _webhooks(configuration: Configuration, root: str | None) -> list[Webhook]:
    return [
        webhook
        for webhook in configuration.webhooks or ()
        if webhook.is_istios and _belongs(webhook, root)
    ]


def _called(webhook: Webhook) -> bool:
    return webhook.injects and webhook.creates_pods


def _belongs(webhook: Webhook, root: str | None) -> bool:
    service = webhook.client_config.service
    return root is None or (service is not None and service.namespace == root)


def _absent(root: str | None) -> Injector:
    where = f" for a control plane in namespace {root}" if root else ""
    return Injector(state=State.ABSENT, why=f"no webhook configuration of Istio's injector{where}")


def _of(configuration: Configuration, checked: Sequence[_Checked]) -> Injector:
    """Webhooks of one configuration may lead to several endpoints: the worst of them counts."""
    worst = min(checked, key=lambda found: _ORDER[found.state])
    live = worst.state is State.LIVE
    native = least(found.native for found in checked) if live else NOT_CHECKED
    return Injector(
        state=worst.state,
        why=worst.why,
        configuration=configuration.metadata.name,
        revision=configuration.revision,
        native=native.capability,
        native_why=native.why,
        until=min((found.until for found in checked if found.until), default=None),
    )


def _check(target: ClientConfig, facts: Facts, now: datetime) -> _Checked:
    trust = _trust(target, facts.certificates, now)
    if trust.state is not State.LIVE:
        return trust
    if (problem := _unreachable(target, facts)) is not None:
        state, why = problem
    elif (probe := facts.probes.get(target)) is None:
        state, why = State.NOT_PROBED, "it has not been asked yet"
    elif not probe.asked:
        state, why = State.NOT_PROBED, probe.why
    elif not probe.injected:
        state, why = State.REFUSED, probe.why
    else:
        return _Checked(State.LIVE, "it injects", _native(target, facts, probe), trust.until)
    return _Checked(state, why, until=trust.until)


def _native(target: ClientConfig, facts: Facts, probe: Probe) -> NativeCheck:
    if probe.native is Capability.CLASSIC:
        return never()
    return facts.checks.get(target, NOT_CHECKED)


def _trust(
    target: ClientConfig, known: Mapping[str, Sequence[Certificate]], now: datetime
) -> _Checked:
    """One valid certificate is enough: while a CA is replaced, the bundle holds both."""
    bundle = target.ca_bundle
    if not bundle:
        if target.url:  # Of a vendor that runs istiod for its users: trusted as the system does.
            return _Checked(State.LIVE, "")
        return _Checked(State.NO_CA_BUNDLE, "no caBundle: its istiod has never been up")
    certificates = known.get(bundle, ())
    if not certificates:
        return _Checked(State.UNREADABLE, "its caBundle holds no certificate that can be read")
    valid = [found for found in certificates if found.not_before <= now <= found.not_after]
    if valid:
        last = max(found.not_after for found in valid)
        return _Checked(State.LIVE, "", until=last + datetime.resolution)
    to_come = [found.not_before for found in certificates if now < found.not_before]
    if to_come:
        first = min(to_come)
        why = f"its caBundle is not valid before {first:%Y-%m-%d %H:%M:%S %Z}"
        return _Checked(State.NOT_YET_VALID, why, until=first)
    last = max(found.not_after for found in certificates)
    return _Checked(State.EXPIRED, f"its caBundle expired at {last:%Y-%m-%d %H:%M:%S %Z}")


def _unreachable(target: ClientConfig, facts: Facts) -> tuple[State, str] | None:
    """What keeps the API server from reaching it, or None; of a URL nothing can be seen."""
    if target.service is None:
        return None if target.url else (State.NO_SERVICE, "it names neither Service nor URL")
    service = Service(target.service.namespace, target.service.name)
    slices = [found for found in facts.slices if found.service == service]
    if service in facts.unseen or any(found.ready for found in slices):
        return None
    if not slices:
        return State.NO_SERVICE, f"Service {service} has no EndpointSlice"
    return State.NO_ENDPOINT, f"Service {service} has no ready endpoint"
