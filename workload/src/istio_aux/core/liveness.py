"""Decides whether Istio's injector is live: whether a pod that it selects gets a sidecar now.

Facts come in. What is unknown is not live. The checks go from the weakest to the strongest: a
configuration that is not deactivated, a caBundle, a Service with a ready endpoint, and a probe that
got a sidecar. Only the probe is proof: a ready istiod may not serve its webhook yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from istio_aux.core.native import NOT_CHECKED, NativeCheck, least, never
from istio_aux.core.policy import Capability
from istio_aux.core.webhooks import ClientConfig, Configuration, EndpointSlice, Service, Webhook


class State(StrEnum):
    """How far an injector is from being live, in the order of the checks."""

    ABSENT = "absent"
    """There is no configuration of Istio's injector: pods are created without a sidecar."""
    DEACTIVATED = "deactivated"
    """No webhook of the configuration is called: pods are created without a sidecar."""
    NO_CA_BUNDLE = "no-ca-bundle"
    """Its istiod never came up. From this state on pods are refused: failurePolicy is Fail."""
    UNREADABLE = "unreadable"
    NO_SERVICE = "no-service"
    NO_ENDPOINT = "no-endpoint"
    REFUSED = "refused"
    """The probe failed, or istiod gave the probe's pod no sidecar."""
    NOT_PROBED = "not-probed"
    """Everything visible is well. No probe has reached the injector itself."""
    LIVE = "live"


_ORDER = {state: place for place, state in enumerate(State)}


class Probe(msgspec.Struct, frozen=True):
    """The result of asking an injector for a pod's sidecar.

    Attributes:
        injected: whether the answer was a sidecar.
        why: what happened instead, one line for people.
        native: whether a pod that asks for a native sidecar gets one; unknown after a dry run,
            which does not ask.
        asked: whether the question reached the injector. If not, nothing is known about it.
    """

    injected: bool
    why: str = ""
    native: Capability = Capability.UNKNOWN
    asked: bool = True


_UNASKED = Probe(injected=False, why="it has not been asked yet", asked=False)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about what is behind the webhooks.

    Attributes:
        slices: EndpointSlices of the webhooks' Services; others do no harm.
        unseen: Services whose slices cannot be read; only the probe counts for them.
        probes: the last result for each endpoint.
        checks: the last check of native sidecars for each endpoint.
    """

    slices: Sequence[EndpointSlice] = ()
    unseen: frozenset[Service] = frozenset()
    probes: Mapping[ClientConfig, Probe] = {}
    checks: Mapping[ClientConfig, NativeCheck] = {}


class Injector(msgspec.Struct, frozen=True, kw_only=True):
    """One of Istio's webhook configurations and the istiod behind it; shown by ``/status``.

    Attributes:
        why: the reason for the state, one line for people.
        configuration: name of the configuration, empty if there is none.
        revision: of Istio, empty if there is no configuration.
        native: the sidecar of a pod that asks for a native one; unknown unless the injector is
            live.
        native_why: the reason, one line; empty until it was checked.
        since: when the leader of that time first saw this state; `evaluate` does not know it.
    """

    state: State
    why: str
    configuration: str = ""
    revision: str = ""
    native: Capability = Capability.UNKNOWN
    native_why: str = ""
    since: datetime | None = None

    @property
    def live(self) -> bool:
        """Whether it has proven that it injects."""
        return self.state is State.LIVE


def evaluate(
    configurations: Iterable[Configuration], facts: Facts, *, root: str | None = None
) -> tuple[Injector, ...]:
    """Decide for each injector whether it is live.

    Args:
        configurations: all of them; those that are not Istio's are ignored.
        facts: about what is behind them.
        root: namespace of the only control plane that matters; None for all control planes.

    Returns:
        At least one, sorted by configuration. Deactivated ones are left out if another one is
        active: `istioctl install` leaves one behind on purpose.
    """
    active: list[Injector] = []
    deactivated: list[Injector] = []
    for configuration in sorted(configurations, key=lambda found: found.metadata.name):
        webhooks = _webhooks(configuration, root)
        found = dict.fromkeys(webhook.client_config for webhook in webhooks if _called(webhook))
        if found:
            active.append(_worst(configuration, [_check(target, facts) for target in found]))
        elif webhooks:
            why = "none of its webhooks is called for new pods"
            deactivated.append(_worst(configuration, [_Verdict(State.DEACTIVATED, why)]))
    where = f" for a control plane in namespace {root}" if root else ""
    absent = f"no webhook configuration of Istio's injector{where}"
    return tuple(active or deactivated) or (Injector(state=State.ABSENT, why=absent),)


def targets(
    configurations: Iterable[Configuration], *, root: str | None = None
) -> Mapping[ClientConfig, Sequence[tuple[str, str]]]:
    """Return the endpoints to probe, each with the configurations and webhooks that lead to it."""
    found: dict[ClientConfig, list[tuple[str, str]]] = {}
    for configuration in configurations:
        for webhook in filter(_called, _webhooks(configuration, root)):
            names = (configuration.metadata.name, webhook.name)
            found.setdefault(webhook.client_config, []).append(names)
    return found


def can_be_probed(target: ClientConfig, facts: Facts) -> bool:
    """Whether a probe could show that an endpoint is live: everything visible is well."""
    seen = msgspec.structs.replace(facts, probes={})
    return _check(target, seen).state is State.NOT_PROBED


def capability(injectors: Iterable[Injector]) -> NativeCheck:
    """Return the sidecar of a new pod that asks for a native one, whichever injector selects it.

    Only live injectors count: the others make no sidecars now. The reason names the injector that
    decides. It is empty while a check is due.
    """
    return least(
        NativeCheck(each.native, each.native_why and f"{each.configuration}: {each.native_why}")
        for each in injectors
        if each.live
    )


class _Verdict(msgspec.Struct, frozen=True):
    """The state of one endpoint."""

    state: State
    why: str
    native: NativeCheck = NOT_CHECKED


def _webhooks(configuration: Configuration, root: str | None) -> list[Webhook]:
    return [
        webhook
        for webhook in configuration.webhooks or ()
        if webhook.is_istios
        and (root is None or root == configuration.control_plane(webhook).namespace)
    ]


def _called(webhook: Webhook) -> bool:
    return webhook.injects and webhook.creates_pods


def _worst(configuration: Configuration, verdicts: Sequence[_Verdict]) -> Injector:
    """Webhooks of one configuration may lead to several endpoints: the worst one counts."""
    worst = min(verdicts, key=lambda found: _ORDER[found.state])
    live = worst.state is State.LIVE
    native = least(found.native for found in verdicts) if live else NOT_CHECKED
    return Injector(
        state=worst.state,
        why=worst.why,
        configuration=configuration.metadata.name,
        revision=configuration.revision,
        native=native.capability,
        native_why=native.why,
    )


def _check(target: ClientConfig, facts: Facts) -> _Verdict:
    # A vendor that runs istiod for its users may give a URL and rely on the system's certificates.
    if not target.ca_bundle and not target.url:
        return _Verdict(State.NO_CA_BUNDLE, "no caBundle: its istiod has never been up")
    if target.ca_bundle and not target.anchors:
        return _Verdict(State.UNREADABLE, "its caBundle holds no certificate that can be read")
    return _unreachable(target, facts) or _probed(target, facts)


def _probed(target: ClientConfig, facts: Facts) -> _Verdict:
    probe = facts.probes.get(target, _UNASKED)
    if not probe.injected:
        return _Verdict(State.REFUSED if probe.asked else State.NOT_PROBED, probe.why)
    classic = probe.native is Capability.CLASSIC
    native = never() if classic else facts.checks.get(target, NOT_CHECKED)
    return _Verdict(State.LIVE, "it injects", native)


def _unreachable(target: ClientConfig, facts: Facts) -> _Verdict | None:
    """Return why the API server cannot reach it, or None. Of a URL nothing is visible."""
    if target.service is None:
        leads = "it names neither Service nor URL"
        return None if target.url else _Verdict(State.NO_SERVICE, leads)
    service = Service(target.service.namespace, target.service.name)
    slices = [found for found in facts.slices if found.service == service]
    if service in facts.unseen or any(found.ready for found in slices):
        return None
    if not slices:
        return _Verdict(State.NO_SERVICE, f"Service {service} has no EndpointSlice")
    return _Verdict(State.NO_ENDPOINT, f"Service {service} has no ready endpoint")
