"""Watches everything that is behind Istio's webhooks, and publishes which injectors are live.

`core.liveness` decides. One loop looks at all facts and publishes what follows from them, whichever
event woke it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import msgspec

from istio_aux.core import liveness, native
from istio_aux.core.election import Since
from istio_aux.core.injection import Hook, InjectionPolicy, hooks_of
from istio_aux.core.injection_probe import Question, question, questions, refusal
from istio_aux.core.liveness import Facts, Injector, Probe, State
from istio_aux.core.mesh import Mesh
from istio_aux.core.native import NativeCheck
from istio_aux.core.policy import Capability
from istio_aux.core.selectors import Selector
from istio_aux.core.webhooks import (
    SERVICE,
    Address,
    ClientConfig,
    Configuration,
    ControlPlane,
    EndpointSlice,
    Service,
    sorted_before,
)
from istio_aux.injector import policies
from istio_aux.injector.native_sidecars import NativeChecker
from istio_aux.injector.probe import RHYTHM, ProbeLoop, Prober, Rhythm
from istio_aux.injector.replica import Connection
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import Backoff, InvalidNameError, jittered
from istio_aux.kube.objects import Key, key_of
from istio_aux.kube.watch import Watch
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

SETTLE = 0.5
"""Seconds to wait for first answers before publishing: a new endpoint of a live injector, or the
first list of a new Service, is not news by itself."""

PORT = "https-webhook"
"""Name of the webhook's port in istiod's Service (istio service.yaml)."""

_EXPECTED = frozenset({State.LIVE, State.ABSENT, State.DEACTIVATED})
"""States that need no attention."""


InjectorProbe = ProbeLoop[tuple[Address, ...], Probe]
NativeProbe = ProbeLoop[tuple[Configuration, ...], NativeCheck]
K = TypeVar("K", Service, ClientConfig)
P = TypeVar("P", "Slices", InjectorProbe, NativeProbe)


class Watcher:
    """Handles a watch of all configurations: vendors' have names and labels of their own.

    Attributes:
        mesh: everything that is known, replaced at each change.
        called_before: Istio's configurations that the API server calls before ours, sorted.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        *,
        changed: Callable[[Mesh], None],
        ours: str | None = None,
        root: str | None = None,
        selector: Selector | None = None,
        rhythm: Rhythm = RHYTHM,
    ) -> None:
        """Prepare; nothing is asked before `run`.

        Args:
            client: open while `run` runs.
            namespaces: labels of all namespaces by name, kept up to date by their owner.
            telemetry: counts states and answers.
            changed: called with each new `mesh`.
            ours: name of our own configuration.
            root: namespace of the only control plane that matters; None for all of them.
            selector: namespaces in which pods will ask for native sidecars.
            rhythm: how often to ask injectors.
        """
        self.mesh = Mesh()
        self.called_before: tuple[str, ...] = ()
        self._client, self._namespaces, self._telemetry = client, namespaces, telemetry
        self._changed, self._ours, self._root = changed, ours, root
        self._selector, self._rhythm = selector, rhythm
        self._news = asyncio.Event()
        self._configurations: dict[Key, Configuration] = {}
        self._hooks: tuple[Hook, ...] = ()
        self._policies: dict[ControlPlane, InjectionPolicy] = {}
        self._targets: Mapping[ClientConfig, Sequence[tuple[str, str]]] = {}
        self._prober = Prober(client, telemetry)
        self._slices: dict[Service, Slices] = {}
        self._probes: dict[ClientConfig, InjectorProbe] = {}
        self._natives: dict[ClientConfig, NativeProbe] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._since: dict[str, Since] = {}
        self._recalled: Mapping[str, Since] = {}
        self._logged: dict[str, State] = {}
        self._logged_capability: tuple[Capability, str] | None = None

    def apply(self, resource: Configuration) -> None:
        """A configuration exists and looks like this."""
        self._configurations[key_of(resource)] = resource
        self._compare()

    def delete(self, key: Key, _last: Configuration | None) -> None:
        """A configuration is gone."""
        self._configurations.pop(key, None)
        self._compare()

    def _compare(self) -> None:
        """Report when other configurations are called before ours than before."""
        self._news.set()
        names = sorted_before(self._ours or "", self._configurations.values())
        if names == self.called_before:
            return
        self.called_before = names
        self._telemetry.called_before.set(len(names))
        _log.log(
            logging.WARNING if names else logging.INFO,
            "%s: called before it: %s",
            self._ours, ", ".join(names) or "none of Istio's configurations",
            extra={"event": "order", "before": names},
        )  # fmt: skip

    def shown(self) -> list[Injector]:
        """Return what `/status` shows; nothing until it is known."""
        return [
            msgspec.structs.replace(found, since=self._since[found.configuration].since)
            for found in (self.mesh.injectors if self.mesh.known else ())
        ]

    @property
    def since(self) -> Mapping[str, Since]:
        """Since when injectors are in their states, by configuration; or what was recalled."""
        return self._since if self.mesh.known else self._recalled

    def recall(self, since: Mapping[str, Since]) -> None:
        """Take over `since` from the present or last leader; what this process saw itself stays."""
        if not self.mesh.known:
            self._recalled = since
            return
        for name, known in self._since.items():
            told = since.get(name)
            if told and told.state == known.state:
                self._since[name] = told

    async def run(self, listed: asyncio.Event) -> None:
        """Watch and publish until cancelled, from when all configurations are ``listed``."""
        await listed.wait()
        clock = asyncio.get_running_loop().time
        deadline = clock() + SETTLE
        try:
            while True:
                pause: float | None = self._rhythm.other
                self._news.clear()
                try:
                    self._follow()
                    if not self._settled and clock() < deadline:
                        await self._wait(deadline - clock())
                        continue
                    self._publish()
                    # A watch that fails reports nothing.
                    pause = self._rhythm.other if self._unlisted else None
                # The process serves admission, too: it goes on.
                except Exception as error:
                    self._telemetry.internal_errors.inc()
                    extra = {"event": "internal-error"}
                    _log.exception("injector watcher: %s", error, extra=extra)
                    await asyncio.sleep(self._rhythm.other)
                await self._wait(pause)
                deadline = clock() + SETTLE
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _wait(self, pause: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._news.wait()

    @property
    def _settled(self) -> bool:
        loops = (*self._probes.values(), *self._natives.values())
        return not self._unlisted and all(loop.settled for loop in loops)

    @property
    def _unlisted(self) -> frozenset[Service]:
        """Services whose endpoints are unknown, perhaps for good."""
        found = self._slices.items()
        return frozenset(service for service, slices in found if not slices.listed)

    def _follow(self) -> None:
        """Watch the Services behind the webhooks and probe their injectors; stop all others.

        Raises:
            Exception: a watch or probe ended; the next call starts it again.
        """
        configurations = tuple(self._configurations.values())
        self._hooks = hooks_of(configurations)
        planes = {hook.control_plane for hook in self._hooks}
        self._policies = {key: found for key, found in self._policies.items() if key in planes}
        self._targets = liveness.targets(configurations, root=self._root)
        self._keep(self._slices, {s for s in map(_service, self._targets) if s}, self._watch)
        self._keep(self._probes, self._targets.keys(), self._probe)
        self._keep(self._natives, self._targets.keys(), self._native_probe)
        facts = self._facts()
        for target, probe in self._probes.items():
            probe.look(self._addresses(target, facts))
        for target, loop in self._natives.items():
            found = self._probes[target].result
            possible = found and found.injected and found.native is not Capability.CLASSIC
            loop.look(configurations if possible else None)

    def _keep(self, parts: dict[K, P], wanted: Collection[K], make: Callable[[K], P]) -> None:
        for key, part in list(parts.items()):
            task = self._tasks[part]
            if key not in wanted or task.done():
                del parts[key], self._tasks[part]
                task.cancel()
                if task.done() and not task.cancelled():
                    task.result()
        for key in wanted - parts.keys():
            part = parts[key] = make(key)
            task = self._tasks[part] = asyncio.create_task(part.run())
            task.add_done_callback(lambda _task: self._news.set())

    def _watch(self, service: Service) -> Slices:
        return Slices(self._client, service, self._news.set, self._telemetry)

    def _probe(self, target: ClientConfig) -> InjectorProbe:
        return ProbeLoop(
            str(_service(target) or target.url), partial(self._ask, target),
            partial(refusal, asked=False), self._news.set,
            telemetry=self._telemetry, rhythm=self._rhythm,
        )  # fmt: skip

    def _native_probe(self, target: ClientConfig) -> NativeProbe:
        def pods() -> Iterable[Question]:
            # A webhook may be called in some namespaces only: those with our pods come first.
            names = self._targets.get(target, ())
            return questions(names, self._hooks, self._namespaces, self._selector)

        checker = NativeChecker(self._client, pods, self._rhythm)
        return ProbeLoop(
            f"native sidecars of {_service(target) or target.url}", checker.ask,
            native.unknown, self._news.set,
            telemetry=self._telemetry, rhythm=self._rhythm, keeps=True,
        )  # fmt: skip

    async def _ask(
        self, target: ClientConfig, addresses: tuple[Address, ...], _last: Probe | None
    ) -> tuple[Probe, float, Connection | None]:
        """Ask an injector, and read the policies that belong to the answer; see `probe.Ask`."""
        names = self._targets.get(target, ())
        pod = question(target, names, self._hooks, self._namespaces)
        probe, connection = await self._prober.ask(target, addresses, pod)
        if not probe.injected:
            return probe, self._rhythm.other, None
        try:
            await self._read_policies(names)
        except BaseException:
            if connection:
                connection.drop()
            raise
        return probe, jittered(self._rhythm.live), connection

    async def _read_policies(self, names: Sequence[tuple[str, str]]) -> None:
        hooks = (hook for hook in self._hooks if (hook.configuration, hook.webhook) in names)
        for plane in {hook.control_plane for hook in hooks}:
            policy = await policies.read(self._client, plane, self._policies.get(plane))
            if policy:
                self._policies[plane] = policy
            else:
                self._policies.pop(plane, None)

    def _addresses(self, target: ClientConfig, facts: Facts) -> tuple[Address, ...] | None:
        """Return where to ask now; None: it cannot be live, or its endpoints are not listed yet."""
        if not liveness.can_be_probed(target, facts):
            return None
        if (service := _service(target)) is None:
            return ()
        slices = self._slices[service]
        return slices.addresses() if slices.listed or slices.failed else None

    def _facts(self) -> Facts:
        return Facts(
            slices=[each for slices in self._slices.values() for each in slices.found.values()],
            unseen=self._unlisted,
            probes={key: loop.result for key, loop in self._probes.items() if loop.result},
            checks={key: loop.result for key, loop in self._natives.items() if loop.result},
        )

    def _publish(self) -> None:
        facts = self._facts()
        mesh = Mesh(
            injectors=liveness.evaluate(self._configurations.values(), facts, root=self._root),
            hooks=self._hooks,
            policies=dict(self._policies),
            known=self.mesh.known
            or all(
                target in facts.probes or not liveness.can_be_probed(target, facts)
                for target in self._probes
            ),
        )
        if mesh == self.mesh:
            return
        self.mesh = mesh
        states = {found.configuration: found.state for found in mesh.injectors}
        for state in State:
            self._telemetry.injectors.labels(state).set(list(states.values()).count(state))
        if mesh.known:
            now = datetime.now(UTC)
            # What was recalled counts once: this process sees later changes itself.
            before, self._recalled = self._since or self._recalled, {}
            self._since = {
                name: known if (known := before.get(name)) and known.state == state
                else Since(state, now)
                for name, state in states.items()
            }  # fmt: skip
            self._report(mesh)
        self._changed(mesh)

    def _report(self, mesh: Mesh) -> None:
        """Log each new state, and a new capability once it is known."""
        for found in mesh.injectors:
            if self._logged.get(found.configuration) is not found.state:
                extra = {
                    "event": "injector",
                    "configuration": found.configuration,
                    "revision": found.revision,
                    "state": found.state,
                    "why": found.why,
                    "native": found.native,
                }
                _log.log(
                    logging.INFO if found.state in _EXPECTED else logging.WARNING,
                    "%s: %s: %s", found.configuration or "no injector", found.state, found.why,
                    extra=extra,
                )  # fmt: skip
        self._logged = {found.configuration: found.state for found in mesh.injectors}
        capability, why = reported = mesh.capability, mesh.capability_why
        if why and reported != self._logged_capability:
            self._logged_capability = reported
            _log.log(
                logging.WARNING if capability is Capability.UNKNOWN else logging.INFO,
                "start: %s: %s", capability, why,
                extra={"event": "capability", "capability": capability, "why": why},
            )  # fmt: skip


class Slices:
    """Watches the EndpointSlices of one Service: a cluster may have thousands of others.

    Attributes:
        found: all slices.
    """

    def __init__(
        self,
        client: Client,
        service: Service,
        changed: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        """Prepare; ``changed`` is called after each change."""
        self.found: dict[Key, EndpointSlice] = {}
        self._changed = changed
        self._watch = Watch(
            client,
            actions.collection("discovery.k8s.io/v1", "endpointslices", service.namespace),
            EndpointSlice,
            self,
            selection={"labelSelector": f"{SERVICE}={service.name}"},
            restarted=lambda reason: telemetry.watch_restarts.labels(reason).inc(),
            backoff=Backoff(first=0.25, longest=5.0),
        )
        self.run = self._watch.run

    @property
    def listed(self) -> bool:
        """Whether all of them are in `found`."""
        return self._watch.synced.is_set()

    @property
    def failed(self) -> bool:
        """Whether the last attempt to list or watch them failed."""
        return self._watch.trouble is not None

    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses of the ready endpoints, sorted."""
        found = (each.addresses(PORT) for each in self.found.values())
        return tuple(sorted({address for addresses in found for address in addresses}))

    def apply(self, resource: EndpointSlice) -> None:
        """A slice exists and looks like this."""
        self.found[key_of(resource)] = resource
        self._changed()

    def delete(self, key: Key, _last: EndpointSlice | None) -> None:
        """A slice is gone."""
        self.found.pop(key, None)
        self._changed()


def _service(target: ClientConfig) -> Service | None:
    """Return the Service to watch. The API server does not check its names."""
    if not target.service:
        return None
    try:
        return Service(
            actions.namespace_name(target.service.namespace),
            actions.object_name(target.service.name),
        )
    except InvalidNameError:
        return None
