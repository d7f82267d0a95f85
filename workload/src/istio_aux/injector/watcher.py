"""Watches everything that is behind Istio's webhooks, and publishes which injectors are live.

`injector.rules` decides. One loop reads all facts and publishes what follows from them, whichever
event woke it. `survey` reads webhooks and injection policies once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from istio_aux.injector import injection, rules
from istio_aux.injector.probe import InjectorProbe, Rhythm, read_slices
from istio_aux.injector.probe_rules import questions
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import now, system_clock
from istio_aux.kube.errors import (
    UNANSWERED,
    UNREAD,
    ApiError,
    Backoff,
    InvalidNameError,
    gap,
    jittered,
)
from istio_aux.kube.objects import Key
from istio_aux.kube.watch import Collection, Watch
from istio_aux.model import kept
from istio_aux.model.answers import Liveness
from istio_aux.model.election import Since
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Pod
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.model.text import UNDECODABLE
from istio_aux.model.webhooks import (
    SERVICE,
    ClientConfig,
    Configuration,
    ControlPlane,
    EndpointSlice,
    Namespace,
    Service,
    sorted_before,
)
from istio_aux.tasks import wait
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

SETTLE = 0.5
"""Seconds to wait before a change is published, so that a new injector or Service is published
together with its first answer."""

DEADLINE = 3.0  # Timeout of a ConfigMap read, for which the first state of its injector waits.

_EXPECTED = frozenset(
    {Liveness.LIVE, Liveness.ABSENT, Liveness.DEACTIVATED}
)  # These need no attention.

_RHYTHM = Rhythm()


class Namespaces(Mapping[str, Mapping[str, str]]):
    """Labels (`kept.labels`) by the name of the namespace; handles a watch of all namespaces.

    Attributes:
        terminating: those that are being deleted. They take no new pods (apiserver
            namespace/lifecycle admission.go), and may be in that state for days.
    """

    def __init__(self, changed: Callable[[str], None]) -> None:
        """``changed`` gets the name of a namespace that is relabelled or deleted."""
        self._changed = changed
        self._labels: dict[str, bytes] = {}  # As JSON, which costs least.
        self._uids: dict[str, str] = {}
        self.terminating: set[str] = set()

    def __getitem__(self, name: str) -> Mapping[str, str]:
        return msgspec.json.decode(self._labels[name], type=dict[str, str])

    def __iter__(self) -> Iterator[str]:
        return iter(self._labels)

    def __len__(self) -> int:
        return len(self._labels)

    def apply(self, resource: Namespace) -> None:
        """A namespace exists and looks like this."""
        name, labels = resource.metadata.name, kept.packed(kept.labels(resource))
        terminating = resource.metadata.deletion_timestamp is not None
        self._uids[name] = resource.metadata.uid
        if self._labels.get(name) != labels or terminating != (name in self.terminating):
            self._labels[name] = labels
            (self.terminating.add if terminating else self.terminating.discard)(name)
            self._changed(name)

    def delete(self, key: Key, _last: Namespace | None) -> None:
        """A namespace is gone, unless there is a new one of the same name."""
        if self._uids.get(key.name) == key.uid:
            del self._labels[key.name], self._uids[key.name]
            self.terminating.discard(key.name)
            self._changed(key.name)


K = TypeVar("K", Service, ClientConfig)
V = TypeVar("V", Watch[EndpointSlice], InjectorProbe)


class Watcher:
    """Watches what is behind Istio's webhooks.

    Attributes:
        configurations: the handler of the watch of all configurations: vendors' have names and
            labels of their own.
        control_planes: everything that is known, replaced at each change.
        called_before: Istio's configurations that the API server calls before ours, sorted.
        since: since when injectors are in their states, by configuration.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Namespaces,
        telemetry: Telemetry,
        *,
        changed: Callable[[rules.ControlPlanes], None],
        ours: str | None = None,
        root: str | None = None,
        selectors: NamespaceSelectors | None = None,
        rhythm: Rhythm = _RHYTHM,
        clock: Clock = system_clock,
    ) -> None:
        """``changed`` is called with each new `control_planes`.

        ``ours`` is the name of our own configuration, and ``root`` the namespace of the only
        control plane that matters; None for all. Probes prefer the namespaces of ``selectors``.
        """
        self.configurations = Collection[Configuration](self._reconfigured, kept.configuration)
        self.control_planes = rules.ControlPlanes()
        self.called_before: tuple[str, ...] = ()
        self.since: Mapping[str, Since] = {}
        self._client, self._namespaces, self._telemetry = client, namespaces, telemetry
        self._states = telemetry.gauge("injectors", "Istio's injectors, by state.", state=Liveness)
        self._called_before = telemetry.gauge(
            "configurations_called_before_ours",
            "Istio's webhook configurations that the API server calls before ours.",
        )
        self._outcomes = telemetry.counter(
            "injector_probes",
            "Probes of Istio's injectors, by outcome.",
            outcome=("injected", "refused", "unreachable"),
        )
        self._changed, self._ours, self._root = changed, ours, root
        self._selectors, self._rhythm, self._now = selectors, rhythm, clock
        self._news, self._reconfiguration = asyncio.Event(), asyncio.Event()
        self._hooks: tuple[injection.Hook, ...] = ()
        # None: it is unknown.
        self._policies: dict[ControlPlane, injection.InjectionPolicy | None] = {}
        # One watch for each Service: a cluster may have thousands of other slices. A slice that
        # moves to another Service may first appear in the other watch.
        self._watches: dict[Service, Watch[EndpointSlice]] = {}
        self._slices: dict[Service, Collection[EndpointSlice]] = {}
        self._probes: dict[ClientConfig, InjectorProbe] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}

    def _reconfigured(self) -> None:
        """Ask again, and report which configurations are called before ours if they changed."""
        self._hooks = injection.hooks_of(self.configurations.values())
        self._reconfiguration.set()
        self._ask_again()
        names = sorted_before(self._ours or "", self.configurations.values())
        if names != self.called_before:
            self.called_before = names
            self._called_before.set(len(names))
            _log.log(
                logging.WARNING if names else logging.INFO,
                "%s: called before it: %s",
                self._ours,
                ", ".join(names) or "none of Istio's configurations",
                extra={"event": "order", "before": names},
            )

    def _ask_again(self) -> None:
        """Ask all injectors now."""
        for probe in self._probes.values():
            probe.changed.set()
        self._news.set()

    def shown(self) -> list[rules.Injector]:
        """Return what `/status` shows; nothing until it is known."""
        return [
            msgspec.structs.replace(injector, since=self.since[injector.configuration].since)
            for injector in (self.control_planes.injectors if self.control_planes.known else ())
        ]

    def left_to_ambient(self, pod: Pod) -> str:
        """Why a new pod is left to ambient; a review lacks the labels of its namespace."""
        injection = InjectionRequest.of(pod, self._namespaces.get(pod.metadata.namespace, {}))
        ambient = injection.ambient  # It is empty for most pods: cheaper than to try all webhooks.
        return (
            ambient if ambient and self.control_planes.expected(injection).expected is False else ""
        )

    def start(self, how: StartPolicy, pod: Pod) -> StartPolicy:
        """How a new pod starts, by the injector that selects it."""
        return self.control_planes.start(
            how,
            InjectionRequest.of(pod, self._namespaces.get(pod.metadata.namespace, {})),
        )

    def recall(self, since: Mapping[str, Since]) -> None:
        """Take over `since` from the leader, for injectors in the same state."""
        ours = self.since if self.control_planes.known else since
        self.since = {
            name: theirs if (theirs := since.get(name)) and theirs.state == known.state else known
            for name, known in ours.items()
        }

    async def run(self, *listed: asyncio.Event) -> None:
        """Watch and publish until cancelled, once configurations and namespaces are ``listed``.

        Raises:
            ExceptionGroup: a watch or a probe has a defect.
        """
        for each in listed:
            await each.wait()
        for each in (self._slices, self._watches, self._probes, self._tasks):
            each.clear()
        deadline = now() + SETTLE
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_policies())
            while True:
                self._news.clear()
                self._reconcile(group)
                if (self._probed and not self._unlisted) or now() >= deadline:
                    self._publish()
                    # A watch that fails reports nothing.
                    await wait(self._news, self._rhythm.other if self._unlisted else None)
                    deadline = now() + SETTLE
                else:
                    await wait(self._news, deadline - now())

    @property
    def _probed(self) -> bool:
        return all(probe.result for probe in self._probes.values())

    @property
    def _unlisted(self) -> frozenset[Service]:
        """Services whose endpoints are unknown, perhaps for good."""
        return frozenset(
            service for service, watch in self._watches.items() if not watch.synced.is_set()
        )

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        """Watch the Services behind the webhooks and probe their injectors; stop all others."""
        targets = rules.targets(self._hooks, root=self._root)
        self._only(group, self._watches, [*filter(None, map(_service, targets))], self._watch)
        for gone in self._slices.keys() - self._watches.keys():
            del self._slices[gone]
        facts = self._facts()
        self._only(
            group,
            self._probes,
            [target for target in targets if rules.obstacle(target, facts) is None],
            self._probe,
        )

    def _only(
        self,
        group: asyncio.TaskGroup,
        parts: dict[K, V],
        wanted: Sequence[K],
        make: Callable[[K], V],
    ) -> None:
        """Start the parts that are wanted, and stop all others."""
        for gone in [each for each in parts if each not in wanted]:
            del parts[gone]
            self._tasks.pop(gone).cancel()
        for new in wanted:
            if new not in parts:
                part = parts[new] = make(new)
                self._tasks[new] = group.create_task(part.run())

    def _watch(self, service: Service) -> Watch[EndpointSlice]:
        slices = self._slices[service] = Collection(self._ask_again, kept.endpoints)
        return Watch(
            self._client,
            actions.collection("discovery.k8s.io/v1", "endpointslices", service.namespace),
            EndpointSlice,
            slices,
            failed=self._telemetry.unhandled,
            selection={"labelSelector": f"{SERVICE}={service.name}"},
            restarted=lambda reason: self._telemetry.watch_restarts.labels(reason).inc(),
            backoff=Backoff(first=0.25, longest=5.0),
        )

    def _probe(self, target: ClientConfig) -> InjectorProbe:
        return InjectorProbe(
            self._client,
            self._telemetry,
            target,
            # A webhook may be called in some namespaces only: those with our pods come first.
            questions=lambda: questions(
                target,
                self._hooks,
                self._namespaces,
                self._selectors,
                self._namespaces.terminating,
            ),
            outcomes=self._outcomes,
            news=self._news,
            rhythm=self._rhythm,
        )

    async def _read_policies(self) -> None:
        """Read the injection policies again and again, also those of istiods that are away.

        A policy stays when its istiod goes, and pods are judged by it. Without it a process that
        starts meanwhile would not know which pods should have a sidecar.
        """
        backoff = Backoff(2 * self._rhythm.other, self._rhythm.read)
        while True:
            self._reconfiguration.clear()
            self._policies = {
                plane: await read_policy(self._client, plane, self._policies.get(plane))
                for plane in sorted({hook.control_plane for hook in self._hooks})
            }
            self._news.set()
            pause = backoff.next()
            if all(self._policies.values()):
                backoff.reset()
                pause = jittered(self._rhythm.read)
            await wait(self._reconfiguration, pause)

    def _facts(self) -> rules.Facts:
        return rules.Facts(
            slices=[each for slices in self._slices.values() for each in slices.values()],
            unseen=self._unlisted,
            probes={target: it.result for target, it in self._probes.items() if it.result},
        )

    def _publish(self) -> None:
        facts, before = self._facts(), self.control_planes
        planes = rules.ControlPlanes(
            injectors=rules.evaluate(self._hooks, facts, root=self._root),
            hooks=self._hooks,
            policies={
                hook.control_plane: policy
                for hook in self._hooks
                if (policy := self._policies.get(hook.control_plane))
            },
            proxies={
                hook.configuration: facts.probes[hook.target].proxy
                for hook in self._hooks
                if hook.target in facts.probes
            },
            known=before.known
            or (self._probed and all(hook.control_plane in self._policies for hook in self._hooks)),
        )
        if planes == before:
            return
        self.control_planes = planes
        states = {injector.configuration: injector.state for injector in planes.injectors}
        for state in Liveness:
            self._states.labels(state).set(list(states.values()).count(state))
        if planes.known:
            today = self._now().date
            self.since = {
                name: known
                if (known := self.since.get(name)) and known.state == state
                else Since(state, today)
                for name, state in states.items()
            }
            _report(before if before.known else rules.ControlPlanes(), planes)
        self._changed(planes)


def _report(before: rules.ControlPlanes, planes: rules.ControlPlanes) -> None:
    """Log each new state, and a new capability once it is known."""
    logged = {injector.configuration: injector.state for injector in before.injectors}
    for injector in planes.injectors:
        if logged.get(injector.configuration) is not injector.state:
            _log.log(
                logging.INFO if injector.state in _EXPECTED else logging.WARNING,
                "%s: %s: %s",
                injector.configuration or "no injector",
                injector.state,
                injector.why,
                extra={
                    "event": "injector",
                    "configuration": injector.configuration,
                    "revision": injector.revision,
                    "state": injector.state,
                    "why": injector.why,
                    "native": injector.native,
                },
            )
    capability, why = planes.native.capability, planes.native.why
    if why and planes.native != before.native:
        _log.log(
            logging.WARNING if capability is Capability.UNKNOWN else logging.INFO,
            "start: %s: %s",
            capability,
            why,
            extra={"event": "capability", "capability": capability, "why": why},
        )


def _service(target: ClientConfig) -> Service | None:
    """Return the Service to watch. The API server does not check its names."""
    with suppress(InvalidNameError):
        if target.service:
            return Service(
                actions.namespace_name(target.service.namespace),
                actions.object_name(target.service.name),
            )
    return None


async def read_policy(
    client: Client,
    plane: ControlPlane,
    known: injection.InjectionPolicy | None,
) -> injection.InjectionPolicy | None:
    """Read the injection policy of an istiod; None if it is unknown, as it is behind a URL.

    The last policy, ``known``, stays while the API server does not answer or the text cannot be
    read. So it does in istiod.
    """
    if not plane.namespace:
        return None
    try:
        async with asyncio.timeout(DEADLINE):
            data = await actions.read_config_map(client, plane.namespace, plane.config_map)
        return injection.read_policy(data[injection.POLICY_KEY])
    except ApiError as error:
        why, policy = str(error), known if error.code >= 500 or error.code == 429 else None
    except UNANSWERED as error:
        why, policy = str(error) or "no answer in time", known
    except (*UNDECODABLE, KeyError) as error:
        why, policy = f"no injection policy: {error}", known
    _log.debug(
        "ConfigMap %s/%s: %s",
        plane.namespace,
        plane.config_map,
        why,
        extra={"event": "policy", "revision": plane.revision},
    )
    return policy


async def away(client: Client, planes: rules.ControlPlanes) -> str:
    """Say which injectors have no ready istiod behind their Service; empty if none is known."""
    services = {it.service for it in rules.targets(planes.hooks) if it.service}
    try:
        slices = [each for service in services for each in await read_slices(client, service)]
    except UNREAD:
        return ""
    return "; ".join(
        f"{each.configuration}: {each.why}"
        for each in rules.evaluate(planes.hooks, rules.Facts(slices=slices))
        if each.state is not Liveness.NOT_PROBED
    )


async def survey(client: Client) -> tuple[rules.ControlPlanes, tuple[str, ...]]:
    """Read webhooks and injection policies once, as `audit` does, and say what cannot be read.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        configurations = await actions.list_kept(
            client,
            actions.CONFIGURATIONS,
            Configuration,
            {},
            kept.configuration,
        )
    except UNREAD as error:  # An unread configuration may be Istio's.
        return rules.ControlPlanes(), (gap(error, "list mutatingwebhookconfigurations"),)
    hooks = injection.hooks_of(configurations)
    planes = sorted({hook.control_plane for hook in hooks if hook.control_plane.namespace})
    found = {plane: await read_policy(client, plane, None) for plane in planes}
    policies = {plane: policy for plane, policy in found.items() if policy}
    return rules.ControlPlanes(hooks=hooks, policies=policies, known=True), tuple(
        f"no policy in ConfigMap {plane.namespace}/{plane.config_map}"
        for plane in planes
        if plane not in policies
    )
