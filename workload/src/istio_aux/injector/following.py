"""Follow what is behind Istio's webhooks: the endpoints of their Services, and their injectors.

Only the gathering of facts may live here, not what they mean or who is told. `look` brings what is
followed in line with the configurations that there are; to look again costs nothing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from istio_aux.core import liveness
from istio_aux.core.injection import Hook, InjectionPolicy, hooks_of
from istio_aux.core.injection_probe import question, questions
from istio_aux.core.liveness import Certificate, Facts
from istio_aux.core.native import NativeCheck
from istio_aux.core.policy import Capability
from istio_aux.core.selectors import Selector
from istio_aux.core.webhooks import Address, ClientConfig, Configuration, ControlPlane, Service
from istio_aux.injector import nativeprobe, policies, trust
from istio_aux.injector.inquiry import Inquiry, Rhythm
from istio_aux.injector.nativeprobe import NativeProbe
from istio_aux.injector.probe import Found, Prober
from istio_aux.injector.slices import Slices
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import InvalidNameError
from istio_aux.telemetry import Telemetry

PORT = "https-webhook"
"""What istiod's Service calls the port of its webhook (istio service.yaml)."""


class _Check(NamedTuple):
    """Beside the inquiry of an injector: whether it can make native sidecars."""

    target: ClientConfig


T = TypeVar("T", Service, ClientConfig, _Check)


class Following:
    """All that is followed. A class because it goes on between two looks.

    Attributes:
        hooks: of all configurations (`injection.hooks_of`).
        policies: of the istiods, as far as they could be read.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        *,
        root: str | None,
        selector: Selector | None,
        rhythm: Rhythm,
        news: Callable[[], None],
    ) -> None:
        """Prepare; ``news`` is called whenever facts have changed, the rest is `Watcher`'s."""
        self.hooks: tuple[Hook, ...] = ()
        self.policies: dict[ControlPlane, InjectionPolicy] = {}
        self._client, self._namespaces, self._telemetry = client, namespaces, telemetry
        self._root, self._rhythm, self._news = root, rhythm, news
        self._selector = selector
        self._prober = Prober(client, telemetry)
        self._targets: Mapping[ClientConfig, Sequence[tuple[str, str]]] = {}
        self._slices: dict[Service, Slices] = {}
        self._inquiries: dict[ClientConfig, Inquiry] = {}
        self._natives: dict[_Check, NativeProbe] = {}
        self._certificates: dict[str, Sequence[Certificate]] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}

    @property
    def due(self) -> list[asyncio.Event]:
        """Set once what is under way, and to be known soon, is known."""
        listed = [slices.listed for slices in self._slices.values()]
        asked = [inquiry.settled for inquiry in self._inquiries.values()]
        return listed + asked + [probe.settled for probe in self._natives.values()]

    @property
    def unlisted(self) -> frozenset[Service]:
        """Services whose endpoints are not known, and may never be."""
        return frozenset(
            service for service, slices in self._slices.items() if not slices.listed.is_set()
        )

    def look(self, configurations: Sequence[Configuration], now: datetime) -> None:
        """Follow the Services behind these webhooks, ask their injectors, and leave all others.

        Raises:
            Exception: what ended a part that should not end; the next look begins with it anew.
        """
        self.hooks = hooks_of(configurations)
        planes = {hook.control_plane for hook in self.hooks}
        self.policies = {key: found for key, found in self.policies.items() if key in planes}
        self._targets = liveness.targets(configurations, root=self._root)
        bundles = {target.ca_bundle for target in self._targets if target.ca_bundle}
        self._certificates = {
            bundle: self._certificates.get(bundle) or trust.certificates(bundle)
            for bundle in bundles
        }
        services = {service for service in map(_service, self._targets) if service}
        self._drop(self._slices, self._slices.keys() - services)
        self._drop(self._inquiries, self._inquiries.keys() - self._targets.keys())
        for service in services - self._slices.keys():
            slices = Slices(self._client, service, self._news, self._count_restart)
            self._slices[service] = slices
            self._start(service, slices.run())
        checked = {_Check(target) for target in self._targets}
        self._drop(self._natives, self._natives.keys() - checked)
        for target in self._targets.keys() - self._inquiries.keys():
            ask = functools.partial(self._ask, target)
            name = str(_service(target) or target.url)
            inquiry = Inquiry(name, ask, self._news, self._telemetry, self._rhythm)
            self._inquiries[target] = inquiry
            self._start(target, inquiry.run())
        for key in checked - self._natives.keys():
            check = functools.partial(self._check_native, key.target)
            name = f"native sidecars of {_service(key.target) or key.target.url}"
            probe = NativeProbe(name, check, self._news, self._telemetry, self._rhythm)
            self._natives[key] = probe
            self._start(key, probe.run())
        facts = self.facts()
        for target, inquiry in self._inquiries.items():
            inquiry.look(self._addresses(target, facts, now))
        for key, probe in self._natives.items():
            # Which webhooks there are is what the answer depends on.
            probe.look(configurations if _may_be_native(self._inquiries[key.target]) else None)

    def facts(self) -> Facts:
        """All that is known now."""
        return Facts(
            slices=[each for slices in self._slices.values() for each in slices.found],
            unseen=self.unlisted,
            certificates=self._certificates,
            probes={
                target: inquiry.probe
                for target, inquiry in self._inquiries.items()
                if inquiry.probe
            },
            checks={key.target: probe.found for key, probe in self._natives.items() if probe.found},
        )

    def asked(self, facts: Facts, now: datetime) -> bool:
        """Whether each injector that can be asked has been asked once."""
        return all(
            target in facts.probes or not liveness.askable(target, facts, now)
            for target in self._inquiries
        )

    async def stop(self) -> None:
        """Follow nothing any more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _start(self, key: Service | ClientConfig | _Check, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _task: self._news())

    def _drop(self, kept: dict[T, Any], gone: Iterable[T]) -> None:
        """Leave what is gone, and what has ended by itself."""
        for key in {*gone, *(key for key in kept if self._tasks[key].done())}:
            del kept[key]
            task = self._tasks.pop(key)
            if task.done() and not task.cancelled():
                task.result()
            task.cancel()

    def _addresses(
        self, target: ClientConfig, facts: Facts, now: datetime
    ) -> tuple[Address, ...] | None:
        """Where to ask now; None where there is no use in asking, or not yet."""
        if not liveness.askable(target, facts, now):
            return None
        if (service := _service(target)) is None:
            return ()
        slices = self._slices[service]
        return slices.addresses(PORT) if slices.listed.is_set() or slices.unreadable else None

    async def _ask(self, target: ClientConfig, addresses: Sequence[Address]) -> Found:
        """Ask an injector, and read what goes with it; see `Inquiry`."""
        names = self._targets.get(target, ())
        asked = question(target, names, self.hooks, self._namespaces)
        found = await self._prober.ask(target, addresses, asked)
        try:
            if found.probe.injected:
                await self._read_policies(names)
        except BaseException:
            if found.connection:
                found.connection.close()
            raise
        return found

    async def _check_native(self, target: ClientConfig) -> NativeCheck:
        names = self._targets.get(target, ())
        # What a webhook does to pods may depend on the namespace: those of our own come first.
        asked = questions(names, self.hooks, self._namespaces, self._selector)
        return await nativeprobe.check(self._client, asked)

    async def _read_policies(self, names: Sequence[tuple[str, str]]) -> None:
        """Read those of the istiods that answer these webhooks; hardly ever are they several."""
        hooks = (hook for hook in self.hooks if (hook.configuration, hook.webhook) in names)
        for plane in {hook.control_plane for hook in hooks}:
            policy = await policies.read(self._client, plane, self.policies.get(plane))
            if policy:
                self.policies[plane] = policy
            else:
                self.policies.pop(plane, None)

    def _count_restart(self, reason: str) -> None:
        self._telemetry.watch_restarts.labels(reason).inc()


def _may_be_native(inquiry: Inquiry) -> bool:
    probe = inquiry.probe
    return probe is not None and probe.injected and probe.native is not Capability.CLASSIC


def _service(target: ClientConfig) -> Service | None:
    """The Service to follow, if there can be one: the API server checks no such name."""
    if not target.service:
        return None
    try:
        return Service(
            actions.namespace_name(target.service.namespace),
            actions.object_name(target.service.name),
        )
    except InvalidNameError:
        return None
