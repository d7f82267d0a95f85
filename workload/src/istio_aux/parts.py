"""The parts of ``serve``: which there are, what they tell each other, and what they say together.

Only wiring may live here: no rule, no protocol. When they run and how they end is for `app`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from istio_aux import status
from istio_aux.admission.server import Webhook
from istio_aux.core import checkpoint
from istio_aux.core.applications import Applications
from istio_aux.core.checkpoint import Checkpoint
from istio_aux.core.pod import Pod
from istio_aux.core.policy import QuitMode, RacePolicy, Start
from istio_aux.core.webhooks import Configuration, Namespace
from istio_aux.injector.namespaces import Namespaces
from istio_aux.injector.order import CONFIGURATIONS, Order
from istio_aux.injector.watcher import Watcher
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Lease
from istio_aux.notices import Notices
from istio_aux.quit import controller as quitting
from istio_aux.quit.selection import Selection
from istio_aux.repair import controller as repairing
from istio_aux.repair.following import ApplicationsFile
from istio_aux.settings import Settings
from istio_aux.telemetry import Telemetry
from istio_aux.watches import Need, Watches

NAMESPACES = actions.collection("v1", "namespaces")


class Parts:
    """All parts of one process.

    Attributes:
        client: to be open while anything runs.
        listening: whether reviews are being answered.
    """

    def __init__(self, settings: Settings, credentials: Access) -> None:
        """Make them and connect them; nothing runs yet."""
        self._settings = settings
        self.listening = False
        self.telemetry = Telemetry()
        self.client = Client(credentials)
        # What cluster and Istio can do is unknown until the injector has shown it.
        self._start = Start(mode=settings.start_mode)
        self.webhook = Webhook(self.telemetry, lambda: self._start)
        self._selection = Selection()
        self._namespaces = Namespaces()
        source = "/".join(settings.lease) if settings.lease else ""
        self._events = Events(self.client, socket.gethostname(), source=source)
        self._quit = quitting.Controller(
            self.client, self._selection, self.telemetry, self._events,
            policy=settings.quit_policy,
            mode=settings.quit,
            leading=False,
        )  # fmt: skip
        self._watcher = Watcher(
            self.client, self._namespaces, self.telemetry,
            root=settings.root_namespace, selector=settings.namespace_selector,
        )  # fmt: skip
        self._repair = repairing.Repair(
            self.client, self._namespaces, self.telemetry, self._events,
            policy=settings.repair_policy,
        )  # fmt: skip
        self._watcher.changed = self._mesh_changed
        self._namespaces.listen(self._repair.relabelled)
        self._applications = ApplicationsFile(settings.applications, self._ask)
        self._watches = self._watch()
        name, lease = identity(settings.webhook_address.port), settings.lease
        self._lease = (
            Lease(
                self.client, *lease, name,
                changed=self._lead, checkpoint=self._checkpoint, recall=self._recall,
                unfit=self._unfit,
            )
            if lease
            else None
        )  # fmt: skip
        self._lead(False)

    def _watch(self) -> Watches:
        settings, never = self._settings, Need.NEVER
        watches = Watches(self.client, self.telemetry)
        selector = {"labelSelector": str(settings.namespace_selector)}
        watches.add("namespaces", NAMESPACES, Namespace, self._selection, selection=selector)
        running = None
        if settings.quit is not QuitMode.OFF:
            fields = {"fieldSelector": quitting.FIELDS}
            running = watches.add("pods", quitting.PODS, Pod, self._quit, selection=fields)
        ours = settings.webhook_configuration
        self._order = Order(ours, self.telemetry) if ours else None
        if self._order:
            configurations = watches.add(
                "order", CONFIGURATIONS, Configuration, self._order, self._watcher,
                need=Need.UNLESS_REFUSED,
            )  # fmt: skip
        else:
            configurations = watches.add(
                "injectors", CONFIGURATIONS, Configuration, self._watcher, need=never
            )
        self._watcher.listed = configurations.synced
        watches.add("all namespaces", NAMESPACES, Namespace, self._namespaces, need=never)
        if settings.repair_policy.race is not RacePolicy.OFF:
            fields = {"fieldSelector": repairing.FIELDS}
            pods = watches.add(
                "all pods", quitting.PODS, Pod, self._repair,
                selection=fields, need=never, after=running,
            )  # fmt: skip
            self._repair.listed = pods.synced
        return watches

    def work(self) -> dict[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Begin, on the loop; returns what has to run for as long as the process does, by name."""
        self._lead(self._lease is None)
        works = {
            **self._watches.work(),
            "events": self._events.run,
            "injectors": self._watcher.run,
            "repair": self._repair.run,
            "applications": self._applications.follow,
        }
        if self._lease:
            works["lease"] = self._lease.run
        if self._settings.pebble_socket:
            works["notices"] = Notices(self._settings.pebble_socket, self._digest).run
        return works

    async def hand_over(self, patience: float) -> None:
        """End what is being done to pods, within ``patience`` seconds; let another process lead."""
        await asyncio.gather(self._quit.stop(patience), self._repair.stop(patience))
        if self._lease:
            # Only now: whoever leads next must not meet an exec or an eviction of ours.
            await self._lease.release()

    def status(self) -> status.Status:
        """What is known at this moment."""
        missing = self._watches.missing()
        before = self._order.called_before if self._order and "order" not in missing else None
        if not self.listening:
            missing["webhook"] = "not listening"
        mesh, unreadable = self._watcher.mesh, self._watches.unreadable()
        return status.Status(
            ready=self.listening and self._watches.ready,
            missing=[f"{name}: {what}" for name, what in missing.items()],
            start_mode=self._start.mode,
            capability=self._start.capability,
            capability_why=mesh.capability_why,
            called_before_us=before,
            injectors=self._watcher.shown(),
            injector_live=mesh.any_live,
            watched_pods=self._quit.watched,
            selected_namespaces=self._selection.names(),
            stuck_pods=self._quit.stuck(),
            blocked_pods=self._quit.blocked(),
            lost_pods=self._quit.lost(),
            race=self._settings.repair_policy.race,
            unmeshed_pods=self._repair.unmeshed(status.UNMESHED),
            unmeshed_total=self._repair.unmeshed_total,
            unmeshed_unknown=self._repair.unknown,
            suspended_jobs=self._repair.suspended(),
            applications=self._repair.applications(),
            unreadable_objects=unreadable[: status.UNREADABLE],
            unreadable_total=len(unreadable),
            quits_total=self.telemetry.quits_total,
            leader=self._leads,
            lease_holder=self._lease.holder if self._lease else "",
            quit=self._settings.quit,
        )

    def _digest(self) -> bytes:
        return status.digest(self.status())

    def _mesh_changed(self) -> None:
        mesh = self._watcher.mesh
        self._start = Start(mode=self._settings.start_mode, capability=mesh.capability)
        self._repair.look(mesh)

    def _checkpoint(self) -> str:
        """What the next leader must know, and the next process is to know."""
        return Checkpoint(self._repair.failed, self._watcher.since).text()

    def _recall(self, text: str) -> None:
        found = checkpoint.read(text)
        self._repair.failed = found.failed
        self._watcher.recall(found.injectors)

    def _ask(self, applications: Applications) -> None:
        self._selection.ask(applications)
        self._repair.ask(applications)

    def _unfit(self) -> str:
        """Say why another process should lead: who sees no pods frees none of them."""
        if self._settings.quit is not QuitMode.OFF:
            return self._watches.dead("pods")
        repairs = self._settings.repair_policy.race is not RacePolicy.OFF
        return self._watches.dead("all pods") if repairs else ""

    def _lead(self, leads: bool) -> None:
        self._leads = leads
        self.telemetry.leader.set(leads)
        self._quit.lead(leads)
        self._repair.lead(leads)


def identity(port: int) -> str:
    """Name this process as a candidate: the same again only for its successor after it has died.

    Whoever listens on ``port`` is alone in its network namespace, and a process listens before it
    leads. So one that was killed and started again resumes its Lease instead of waiting until it
    lapses, while a pod of the same name, on another node or beside one that does not end, is
    another candidate. Port 0 is nobody's: then every process has a name of its own.
    """
    try:
        place = (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            str(Path("/proc/self/ns/net").readlink()),
        )
    except OSError:
        place = ()
    own = " ".join((*place, str(port))) if place and port else secrets.token_hex(8)
    return f"{socket.gethostname()}_{hashlib.sha256(own.encode()).hexdigest()[:8]}"
