"""The wiring of ``serve``: controllers, what they report to each other, readiness, status."""

from __future__ import annotations

import asyncio
import functools
import math
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from typing import Any

from msgspec import structs

from istio_aux import revision
from istio_aux.injector.rules import ControlPlanes
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Leadership, Lease, own_identity
from istio_aux.model import answers
from istio_aux.model.applications import Applications
from istio_aux.model.documents import Cooperative
from istio_aux.model.election import Checkpoint, read_checkpoint
from istio_aux.model.found import HELD, SERVED, Found
from istio_aux.model.limits import LIMITED, Limits
from istio_aux.model.moment import Clock, TokenLife, token_life
from istio_aux.model.pod import Metadata, Pod
from istio_aux.model.policy import Capability, QuitMode, RacePolicy, StartPolicy
from istio_aux.quit.attempt import QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.repair.controller import RepairController
from istio_aux.repair.reports import follow_applications
from istio_aux.repair.rollout import Sidecar
from istio_aux.settings import Settings
from istio_aux.start.webhook import AdmissionWebhook
from istio_aux.status import Kept, place, send_notices
from istio_aux.telemetry import Telemetry
from istio_aux.watches import MeshWatch, Need

_TROUBLES = ("stuck", "blocked", "lost", "unstarted")


class Wiring:
    """All components of one process. ``client`` must be open while they run.

    ``listening`` says whether reviews are answered.
    """

    def __init__(
        self,
        settings: Settings,
        credentials: Access,
        certificate: Callable[[], str] = str,
        *,
        client: Client | None = None,
        clock: Clock = system_clock,
        identity: str = "",
    ) -> None:
        """Create and connect them; `work` starts them.

        ``certificate`` returns the fingerprint of the certificate that the webhook serves.
        ``identity`` names this process among the candidates for the Lease; see `own_identity`.
        """
        self._settings, self._certificate = settings, certificate
        self.listening = False
        self.telemetry = Telemetry()
        self.client = client or Client(credentials)
        # The capability is unknown until the injector is probed.
        self._start = settings.start(Capability.UNKNOWN)
        self._events = Events(
            self.client,
            socket.gethostname(),
            source="/".join(settings.lease or ()),
            clock=clock,
        )
        self._mesh_watch = MeshWatch(
            self.client,
            settings,
            self.telemetry,
            changed=self._control_planes_changed,
            relabelled=self._relabelled,
            clock=clock,
            ordered=settings.webhook_configuration is not None,
        )
        self._watches, self._injectors = self._mesh_watch.watches, self._mesh_watch.injectors
        self._leadership = Leadership()
        if lease := settings.lease:
            self._leadership = Lease(
                self.client,
                *lease,
                identity or own_identity(settings.webhook_address.port),
                checkpoint=self._checkpoint,
                recall=self._recall,
                unfit=self._watches.dead,
                clock=clock,
            )
        self.webhook = AdmissionWebhook(
            self.telemetry,
            self._start_of,
            self.client,
            excluded=self._injectors.left_to_ambient,
        )
        self._scope = QuitScope(
            policy=settings.quit_policy,
            limits=settings.quit_limits,
            mode=settings.quit,
            options=settings.pod_options,
        )
        self._quit = QuitController(
            self.client,
            self._mesh_watch.namespaces,
            self.telemetry,
            self._events,
            self._scope,
            clock=clock,
            leadership=self._leadership,
        )
        self._repair = RepairController(
            self.client,
            self._mesh_watch.namespaces,
            self.telemetry,
            self._events,
            policy=settings.repair_policy,
            options=settings.pod_options,
            clock=clock,
            terminating=self._mesh_watch.namespaces.terminating,
            leadership=self._leadership,
        )
        self._listed = self._watch_pods()
        self._limits = Limits()
        self._limited = [
            self._watches.add(
                name,
                actions.collection("v1", name),
                kind,
                self._limits,
                need=Need.NEVER,
            )
            for name, kind in LIMITED.items()
        ]
        self._credentials = credentials
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "ready": (
                "Whether /readyz answers 200.",
                lambda: self._ready,
            ),
            "leader": (
                "Whether this process is the one that acts.",
                lambda: self._leadership.held,
            ),
            "pods_with_sidecar": (
                "Pods that istio-aux looks after and that have a sidecar; NaN: not known.",
                lambda: found.pods if (found := self._sidecars()) else math.nan,
            ),
            "token_issue_timestamp_seconds": (
                "When the present token was issued; 0: not known.",
                lambda: self._token_life().iat,
            ),
            "token_expiration_timestamp_seconds": (
                "When the present token expires; 0: not known.",
                lambda: self._token_life().exp,
            ),
        }
        for name, (meaning, value) in gauges.items():
            self.telemetry.gauge(name, meaning).set_function(value)

    def _watch_pods(self) -> asyncio.Event:
        """Watch pods for the enabled controllers; the event is set after the first full list."""
        quits = self._settings.quit is not QuitMode.DISABLED
        repairs = self._settings.repair_policy.race is not RacePolicy.NONE
        if not (quits or repairs):
            return asyncio.Event()
        handlers = [*([self._quit] if quits else []), *([self._repair.store] if repairs else [])]
        return self._watches.add(
            "pods",
            actions.PODS,
            Pod,
            *handlers,
            need=Need.ALWAYS if quits else Need.NEVER,
            selection=actions.NOT_TERMINAL if repairs else actions.JOBS,
        ).synced

    def work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the endless tasks by name; call this in the event loop."""
        works = {
            **self._mesh_watch.work(),
            "events": self._events.run,
            "repair": functools.partial(self._repair.run, self._listed),
        }
        if isinstance(self._leadership, Lease):
            works["lease"] = self._leadership.run
        if file := self._settings.applications:
            works["applications"] = functools.partial(follow_applications, file, self._ask)
        if pebble := self._settings.pebble_socket:
            works["notices"] = functools.partial(send_notices, pebble, Kept(self.status))
        return works

    async def hand_over(self, patience: float) -> None:
        """End all actions on pods within ``patience`` seconds, then let another process lead."""
        await asyncio.gather(self._quit.stop(patience), self._repair.stop(patience))
        # Only now: the next leader must not meet an exec or an eviction of ours.
        await self._leadership.release()

    def readiness(self) -> tuple[bool, list[str]]:
        """Return whether this process is ready, and what is missing, in lines for a person."""
        missing = self._watches.missing()
        if not self.listening:
            missing["webhook"] = "not listening"
        return self._ready, [f"{name}: {what}" for name, what in missing.items()]

    def status(self) -> Cooperative[answers.ProcessStatus]:
        """Return the present status."""
        troubled = yield from self._quit.survey()
        totals, held = Counter[str](), list[Found]()
        listed = {state: list[Found]() for state in _TROUBLES}
        for number, pod in enumerate(troubled):
            if number % answers.SLICE == 0:
                yield
            totals[pod.state] += pod.lasting
            if pod.state in listed and len(listed[pod.state]) < answers.LONGEST:
                listed[pod.state].append(pod)
            if pod.state in HELD and pod.lasting:
                held.append(pod)
        holders = (yield from answers.group(held))[: answers.MOST]
        # Count right before the list is made: pods change whenever this computation yields.
        total, unknown = map(self._repair.store.count, (Sidecar.MISSING, Sidecar.UNKNOWN))
        unmeshed = yield from self._repair.unmeshed(answers.LONGEST)
        ready, missing = self.readiness()
        known = self._settings.webhook_configuration and "order" not in self._watches.missing()
        planes, unreadable = self._injectors.control_planes, self._watches.unreadable()
        expires = self._token_life().exp
        selected = sorted(
            self._scope.namespaces.difference(self._mesh_watch.namespaces.terminating)
        )
        ambient = 0
        for number, name in enumerate(selected):
            if number % answers.SLICE == 0:
                yield
            ambient += bool(self._injectors.left_to_ambient(Pod(metadata=Metadata(namespace=name))))
        return answers.ProcessStatus(
            ready=ready,
            missing=missing,
            version=version("istio-aux"),
            revision=revision(),
            unknown_keys=self._settings.skipped,
            start_mode=self._start.mode,
            capability=self._start.capability,
            capability_why=planes.native.why,
            called_before_us=self._injectors.called_before if known else None,
            injectors=self._injectors.shown(),
            injector_live=planes.any_live,
            watched_pods=len(self._quit.known),
            selected_namespaces=selected[: answers.LONGEST],
            selected_total=len(selected),
            ambient_total=ambient,
            sidecars=self._sidecars(),
            stuck_pods=listed["stuck"],
            stuck_total=totals["stuck"],
            blocked_pods=listed["blocked"],
            blocked_total=totals["blocked"],
            lost_pods=listed["lost"],
            lost_total=totals["lost"],
            unstarted_pods=listed["unstarted"],
            unstarted_total=totals["unstarted"],
            holders=holders,
            race=self._settings.repair_policy.race,
            unmeshed_pods=unmeshed,
            unmeshed_total=total,
            unmeshed_unknown=unknown,
            applications=self._repair.applications(),
            unreadable_objects=unreadable[: answers.UNREADABLE],
            unreadable_total=len(unreadable),
            leader=self._leadership.held,
            lease_holder=self._leadership.holder,
            quit=self._settings.quit,
            token_expires=datetime.fromtimestamp(expires, UTC) if expires else None,
            certificate=self._certificate(),
        )

    def _sidecars(self) -> answers.Sidecars | None:
        """How many pods have a sidecar; None: not known."""
        if (
            self._settings.repair_policy.race is RacePolicy.NONE
            or {"pods", "namespaces"} & self._watches.missing().keys()
        ):
            return None
        found = self._repair.store.sidecars(self._scope.namespaces)
        return answers.Sidecars(
            found.total(),
            len(found),
            dict(sorted(found.items(), key=lambda each: (-each[1], each[0]))[: answers.LONGEST]),
        )

    def pods(self) -> Cooperative[tuple[list[Found], bool]]:
        """Return the pods that need attention, in the order of `place`, and whether this leads."""
        unmeshed = yield from self._repair.unmeshed()
        troubled = yield from self._quit.survey()
        found = yield from answers.in_order(
            chain(unmeshed, (each for each in troubled if each.state in SERVED)), place
        )
        return found, self._leadership.held

    def metrics(self) -> Cooperative[bytes]:
        """Return all metrics."""
        yield from self._quit.survey()
        return self.telemetry.render()

    @property
    def _ready(self) -> bool:
        return self.listening and self._watches.ready

    def _token_life(self) -> TokenLife:
        return token_life(self._credentials.token()) or TokenLife(0, 0)

    def _relabelled(self, namespace: str) -> None:
        self._repair.store.invalidate(namespace)
        self._quit.relabelled(namespace)

    def _start_of(self, pod: Pod) -> StartPolicy:
        """How a new pod starts, by its injector and by what its namespace allows."""
        known = all(watch.synced.is_set() for watch in self._limited)
        return self._injectors.start(
            structs.replace(
                self._start,
                limits=self._limits.of(pod.metadata.namespace) if known else None,
            ),
            pod,
        )

    def _control_planes_changed(self, control_planes: ControlPlanes) -> None:
        self._start = structs.replace(
            self._start,
            capability=control_planes.native.capability,
        )
        self._scope.istiod = control_planes.istiod
        self._repair.store.set_injectors(control_planes)

    def _checkpoint(self) -> str:
        return Checkpoint(self._repair.failed, self._injectors.since, self._repair.replaced).text()

    def _recall(self, text: str, lost: bool) -> bool:
        """Restore the checkpoint of the Lease; False: there is none, but this process has one."""
        if stored := read_checkpoint(text):
            self._repair.recall(stored.failed, stored.replaced, lost=lost)
            self._injectors.recall(stored.injectors)
        return bool(stored) or not (self._repair.failed or self._repair.replaced)

    def _ask(self, applications: Applications) -> None:
        self._quit.set_applications(applications)
        self._repair.store.set_applications(applications)
