"""Decides whether an injector of Istio's is live, by its webhooks, its Service and its probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from istio_aux.injector.injection import Expectation, Hook, Policies, expected
from istio_aux.model.answers import Injector, Liveness
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Amounts
from istio_aux.model.webhooks import ClientConfig, EndpointSlice, Service


class NativeCheck(msgspec.Struct, frozen=True):
    """Which pods get a native sidecar, and the reason in one line."""

    capability: Capability
    why: str


NOT_CHECKED = NativeCheck(Capability.UNKNOWN, "")
"""There was no check yet, so there is no reason."""


class Probe(msgspec.Struct, frozen=True):
    """The result of asking an injector for a pod's sidecar."""

    injected: bool  # Whether the answer was a sidecar.
    why: str = ""  # What happened instead, one line for people.
    native: NativeCheck = NOT_CHECKED  # Which pods get a native sidecar.
    proxy: Amounts | None = None  # What the sidecar requests and may use.
    # Whether the question reached the injector. If not, nothing is known about it.
    reached: bool = True


_NOT_PROBED = Probe(injected=False, why="it has not been probed yet", reached=False)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about what is behind the webhooks."""

    # EndpointSlices of the webhooks' Services; others do no harm.
    slices: Sequence[EndpointSlice] = ()
    # Services whose slices cannot be read; only the probe counts for them.
    unseen: frozenset[Service] = frozenset()
    probes: Mapping[ClientConfig, Probe] = {}  # The last result for each endpoint.


UNKNOWN = Expectation(expected=None, reason="Istio's webhooks are not known")


class ControlPlanes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about Istio's injectors at one moment.

    The watcher replaces the value as a whole, so a decision never mixes two moments.
    """

    # See `evaluate`; empty until the configurations are listed.
    injectors: tuple[Injector, ...] = ()
    # The webhooks of all configurations, in any state (`injection.hooks_of`).
    hooks: tuple[Hook, ...] = ()
    policies: Policies = {}  # Each istiod's, as far as they can be read.
    proxies: Mapping[str, Amounts | None] = {}  # What sidecars need, by configuration.
    # Whether the configurations are listed, each injector was probed once, and each policy was read
    # once or cannot be read. Until then no decision may rest on this value.
    known: bool = False

    def expected(self, injection: InjectionRequest) -> Expectation:
        """Whether a pod would get a sidecar if it were created now; see `injection.expected`."""
        return expected(injection, self.hooks, self.policies) if self.known else UNKNOWN

    @property
    def native(self) -> NativeCheck:
        """Which new pods get a native sidecar, whichever injector selects them.

        Only live injectors count: the others make no sidecars now. The reason names the
        injector that decides.
        """
        return least(
            NativeCheck(each.native, each.native_why and f"{each.configuration}: {each.native_why}")
            for each in self.injectors
            if each.live
        )

    def start(self, how: StartPolicy, injection: InjectionRequest) -> StartPolicy:
        """How a new pod with this request starts, by the injector that selects it."""
        natives = {each.configuration: each.native for each in self.injectors}
        chosen = next(iter(natives), "")
        if len({*natives.values()}) > 1:  # Only then it matters which one.
            chosen = self.expected(injection).configuration
        return msgspec.structs.replace(
            how,
            capability=natives.get(
                chosen,
                Capability.UNKNOWN if chosen else self.native.capability,
            ),
            proxy=self.proxies.get(chosen),
        )

    @property
    def any_live(self) -> bool | None:
        """Whether an injector is live; None if none is known to be live, and some are unknown."""
        answers = {self.live(injector.configuration) for injector in self.injectors}
        if True in answers:
            return True
        return None if None in answers or not answers else False

    @property
    def istiod(self) -> str:
        """Whether an istiod answers, in a clause for people; empty if that is not known."""
        if self.any_live is None:
            return ""
        away = "; ".join(f"{it.configuration}: {it.why}" for it in self.injectors if not it.live)
        return "an injector is live" if self.any_live else f"no injector is live: {away}"

    def live(self, configuration: str) -> bool | None:
        """Whether the injector of ``configuration`` is live; None if that is unknown.

        A probe that got a sidecar counts even before the others were probed. An injector that is
        not in `injectors` is not live: its configuration is gone, or is not Istio's.
        """
        states = {it.state for it in self.injectors if it.configuration == configuration}
        if Liveness.LIVE in states:
            return True
        return None if Liveness.NOT_PROBED in states or not self.known else False


def evaluate(
    hooks: Iterable[Hook],
    facts: Facts,
    *,
    root: str | None = None,
) -> tuple[Injector, ...]:
    """Decide for each injector whether it is live; at least one, sorted by configuration.

    Only control planes in the namespace ``root`` matter; None: all. Deactivated injectors
    are left out if another is active: `istioctl install` leaves such a configuration on purpose.
    """
    groups = groupby(_of(hooks, root), lambda hook: hook.configuration)
    found = tuple(_worst([*group], facts) for _, group in groups)
    if found:
        return tuple(it for it in found if it.state is not Liveness.DEACTIVATED) or found
    where = f" for a control plane in namespace {root}" if root else ""
    return (
        Injector(
            state=Liveness.ABSENT,
            why=f"no webhook configuration of Istio's injector{where}",
        ),
    )


def targets(hooks: Iterable[Hook], *, root: str | None = None) -> tuple[ClientConfig, ...]:
    """Return the endpoints to probe, each once."""
    return tuple(dict.fromkeys(hook.target for hook in _of(hooks, root) if hook.active))


def _of(hooks: Iterable[Hook], root: str | None) -> Iterable[Hook]:
    return (hook for hook in hooks if root in {None, hook.control_plane.namespace})


def _worst(hooks: Sequence[Hook], facts: Facts) -> Injector:
    """Webhooks of one configuration may lead to several endpoints: the worst one counts."""
    injectors = [_check(target, facts) for target in targets(hooks)] or [
        Injector(state=Liveness.DEACTIVATED, why="none of its webhooks is called for new pods")
    ]
    worst = min(injectors, key=lambda each: [*Liveness].index(each.state))
    native = least(NativeCheck(each.native, each.native_why) for each in injectors if worst.live)
    return msgspec.structs.replace(
        worst,
        configuration=hooks[0].configuration,
        revision=hooks[0].control_plane.revision,
        native=native.capability,
        native_why=native.why,
    )


def least(checks: Iterable[NativeCheck]) -> NativeCheck:
    """Combine checks: one classic sidecar decides, and all must be native, or native unasked."""
    order = (Capability.CLASSIC, Capability.UNKNOWN, Capability.NATIVE, Capability.UNASKED)
    return min(
        checks,
        key=lambda check: (order.index(check.capability), bool(check.why)),
        default=NOT_CHECKED,
    )


def _check(target: ClientConfig, facts: Facts) -> Injector:
    if problem := obstacle(target, facts):
        return problem
    probe = facts.probes.get(target, _NOT_PROBED)
    if probe.injected:
        return Injector(
            state=Liveness.LIVE,
            why="it injects",
            native=probe.native.capability,
            native_why=probe.native.why,
        )
    return Injector(state=Liveness.REFUSED if probe.reached else Liveness.NOT_PROBED, why=probe.why)


def obstacle(target: ClientConfig, facts: Facts) -> Injector | None:
    """Return why the API server cannot call it, or None; then a probe can show that it is live."""
    service = target.service and Service(target.service.namespace, target.service.name)
    slices = [part for part in facts.slices if part.service == service]
    seen = service is not None and service not in facts.unseen
    checks = (
        (
            not (target.ca_bundle or target.url),
            Liveness.NO_CA_BUNDLE,
            "no caBundle: its istiod has never been up",
        ),
        # A vendor that runs istiod for its users may give a URL and rely on the system's
        # certificates.
        (
            target.ca_bundle and not target.has_certificate,
            Liveness.UNREADABLE,
            "its caBundle holds no certificate that can be read",
        ),
        (
            not (service or target.url),
            Liveness.NO_SERVICE,
            "it names neither Service nor URL",
        ),
        (
            seen and not slices,
            Liveness.NO_SERVICE,
            f"Service {service} has no EndpointSlice",
        ),
        (
            seen and not any(part.ready for part in slices),
            Liveness.NO_ENDPOINT,
            f"Service {service} has no ready endpoint",
        ),
    )
    return next((Injector(state=state, why=why) for bad, state, why in checks if bad), None)
