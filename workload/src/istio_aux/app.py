"""Wire the parts of ``serve`` together, run them, and stop them in the right order.

Only wiring may live here: no rule, no protocol.

The loop is asyncio's own. uvloop is faster, but a connection that the API server resets
while it starts makes uvloop 0.23 with aiohttp 3.14 abort the process, and earlier versions refuse
the descriptor for ever (MagicStack/uvloop#653): see ``test_client.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from istio_aux import settings as configuration
from istio_aux import status, telemetry
from istio_aux.admission.certificate import Certificate, CertificateError
from istio_aux.admission.server import Webhook
from istio_aux.core.namespace import Namespace
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy, QuitMode, Start
from istio_aux.core.webhooks import Configuration
from istio_aux.injector.order import CONFIGURATIONS, Order
from istio_aux.kube import access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import AccessError
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Lease
from istio_aux.kube.watch import Watch
from istio_aux.quit.controller import FIELDS, PODS, Controller
from istio_aux.quit.selection import Selection
from istio_aux.settings import Settings

_log = logging.getLogger(__name__)

IN_FLIGHT = 2.0
"""Seconds that requests and execs in flight have to end on SIGTERM. A review takes milliseconds."""

LINGER = 2.0
"""Seconds for which connections are still taken and served after SIGTERM: API servers learn a
second or so later that this process is no endpoint any more, and go on using connections that are
open (kubernetes#127335). With `IN_FLIGHT` it fits into the 5 s that Pebble leaves a service by
itself; the charm's layer leaves it 10 s (kill-delay)."""

ORDER = "order"
"""What the watch of webhook configurations is called in `/readyz`: it is for their order alone."""


def serve(config: Path, kubeconfig: Path | None = None) -> int:
    """Run webhook and quit controller until a signal comes; returns the exit status.

    0 after SIGTERM or SIGINT; 2, with one line on stderr, if settings, credentials or the
    certificate cannot be used; 1 if a port cannot be had.
    """
    try:
        settings = configuration.load(config)
        kubeconfig = kubeconfig or settings.kubeconfig
        credentials = access.load(kubeconfig) if kubeconfig else access.in_cluster(os.environ)
        certificate = Certificate(settings.tls_certificate, settings.tls_key)
    except (configuration.SettingsError, AccessError, CertificateError) as error:
        print(error, file=sys.stderr)  # noqa: T201  (logging is not set up before settings are)
        return 2
    telemetry.log_to(level=settings.log_level)
    try:
        asyncio.run(_Service(settings, credentials, certificate).run())
    except OSError as error:
        _log.error("%s", error, extra={"event": "start"})
        return 1
    return 0


class _Service:
    """The parts of one process and their order. A class because the status port asks them all."""

    def __init__(
        self, settings: Settings, credentials: access.Access, certificate: Certificate
    ) -> None:
        self._settings = settings
        self._certificate = certificate
        self._telemetry = telemetry.Telemetry()
        # Nobody has told the capability yet; whoever finds it out replaces this.
        self._start = Start(mode=settings.start_mode)
        self._webhook = Webhook(self._telemetry, lambda: self._start)
        self._client = Client(credentials)
        self._selection = Selection()
        self._events = Events(self._client, socket.gethostname())
        mode = settings.quit_mode
        lease = settings.lease if mode is not QuitMode.OFF else None
        self._controller = Controller(
            self._client, self._selection, self._telemetry, self._events,
            policy=Policy(
                ignore_containers=settings.ignore_containers,
                grace=settings.quit_grace,
                dead_proxy=settings.dead_proxy,
            ),
            mode=mode,
            leading=False,
        )  # fmt: skip
        self._leads = False
        name = identity(settings.webhook_address.port)
        self._lease = Lease(self._client, *lease, name, changed=self._lead) if lease else None
        self._lead(mode is not QuitMode.OFF and lease is None)
        self._watches: dict[str, Watch[Namespace] | Watch[Pod] | Watch[Configuration]] = {
            "namespaces": Watch(
                self._client, "/api/v1/namespaces", Namespace, self._selection,
                selection={"labelSelector": str(settings.namespace_selector)},
                restarted=self._count_restart,
            ),
        }  # fmt: skip
        if mode is not QuitMode.OFF:
            self._watches["pods"] = Watch(
                self._client, PODS, Pod, self._controller,
                selection={"fieldSelector": FIELDS},
                restarted=self._count_restart,
            )  # fmt: skip
        ours = settings.webhook_configuration
        self._order = Order(ours, self._telemetry) if ours else None
        if self._order:
            self._watches[ORDER] = Watch(
                self._client, CONFIGURATIONS, Configuration, self._order,
                restarted=self._count_restart,
            )  # fmt: skip
        self._listening = False

    async def run(self) -> None:
        """Serve until a signal comes, then stop cleanly."""
        stop = self._signals()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            health = status.application(self._status, self._telemetry.render)
            where = await _listen(stack, health, self._settings.status_address)
            address = self._settings.webhook_address
            hook = await self._webhook.listen(address.host, address.port, self._certificate.context)
            stack.push_async_callback(self._webhook.close, 0)
            self._listening = True
            shown = {"status": where, "webhook": str(configuration.Address(*hook))}
            _log.info("listening", extra={"event": "start", **shown})
            await self._work(stop)
            self._webhook.drain()
            self._listening = False
            _log.info("stopping", extra={"event": "stop"})
            await asyncio.gather(self._hand_over(), asyncio.sleep(LINGER))
            await self._webhook.close(IN_FLIGHT)
        _log.info("stopped", extra={"event": "stopped"})

    async def _hand_over(self) -> None:
        """End what is being done to pods, and let another process lead."""
        await self._controller.stop(IN_FLIGHT)
        if self._lease:
            # Only now: whoever leads next must not meet an exec of ours.
            await self._lease.release()

    async def _work(self, stop: asyncio.Event) -> None:
        """Run the endless parts until ``stop``; an error in one of them ends all."""
        async with asyncio.TaskGroup() as group:
            endless = [
                group.create_task(work)
                for work in (
                    *(watch.run() for watch in self._watches.values()),
                    self._events.run(),
                    self._certificate.follow(),
                    *((self._lease.run(),) if self._lease else ()),
                )
            ]
            await stop.wait()
            for task in endless:
                task.cancel()

    def _signals(self) -> asyncio.Event:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():  # The second one: whoever sends it does not want to wait.
                telemetry.flush()  # os._exit, unlike any other end, would not.
                os._exit(1)
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        return stop

    def _lead(self, leads: bool) -> None:
        self._leads = leads
        self._telemetry.leader.set(leads)
        self._controller.lead(leads)

    def _count_restart(self, reason: str) -> None:
        self._telemetry.watch_restarts.labels(reason).inc()

    def _status(self) -> status.Status:
        missing = {
            name: "no complete list yet" + (f": {watch.trouble}" if watch.trouble else "")
            for name, watch in self._watches.items()
            if not watch.synced.is_set()
        }
        before = self._order.called_before if self._order and ORDER not in missing else None
        if not self._listening:
            missing["webhook"] = "not listening"
        return status.Status(
            # Reviews are answered whatever the order is. And were this process unready for want of
            # the right to read it, a rollout that brings the right would wait for ever.
            ready=all(name == ORDER and self._watches[name].refused for name in missing),
            missing=[f"{name}: {what}" for name, what in missing.items()],
            start_mode=self._start.mode,
            capability=self._start.capability,
            called_before_us=before,
            watched_pods=self._controller.watched,
            selected_namespaces=self._selection.names(),
            stuck_pods=self._controller.stuck(),
            blocked_pods=self._controller.blocked(),
            lost_pods=self._controller.lost(),
            quits_total=self._telemetry.quits_total,
            leader=self._leads,
            lease_holder=self._lease.holder if self._lease else "",
            quit=self._settings.quit_mode,
        )


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


async def _listen(
    stack: AsyncExitStack, application: web.Application, address: configuration.Address
) -> str:
    """Serve the status port; returns where, with the port that the system chose if it may."""
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=IN_FLIGHT)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, address.host or None, address.port, reuse_address=True).start()
    host, port = runner.addresses[0][:2]
    return str(configuration.Address(host, port))
