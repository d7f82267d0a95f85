"""The process of ``serve``: start, run endless tasks, stop in the right order.

The event loop is asyncio's own. If the API server resets a connection that is being opened, uvloop
0.23 with aiohttp 3.14 aborts the process, and earlier versions refuse that file descriptor forever
(MagicStack/uvloop#653): see ``test_client.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from istio_aux import status, telemetry
from istio_aux.kube import access
from istio_aux.kube.errors import AccessError
from istio_aux.model.webhooks import Address
from istio_aux.serving import Listener, ServingLimits
from istio_aux.settings import Settings, SettingsError, load
from istio_aux.start.webhook import Certificate, CertificateError
from istio_aux.tasks import endless_task, running
from istio_aux.wiring import Wiring

_log = logging.getLogger(__name__)

# Seconds that requests and execs in flight have to end on SIGTERM. A review takes milliseconds.
IN_FLIGHT = 2.0

# Seconds for which connections are still accepted and served after SIGTERM. API servers learn about
# a second later that this process is no longer an endpoint, and keep using open connections
# (kubernetes#127335). With `IN_FLIGHT` it fits into the 5 s of Pebble's default kill-delay; the
# charm's layer has 10 s.
LINGER = 2.0


def serve(config: Path, kubeconfig: Path | None = None) -> int:
    """Run webhook and controllers until a signal comes; returns the exit status.

    0 after a signal; 1 if a port is not available; 2, with one line on stderr, if a file is bad.
    """
    try:
        settings = load(config)
        kubeconfig = kubeconfig or settings.kubeconfig
        credentials = access.load(kubeconfig) if kubeconfig else access.in_cluster(os.environ)
        certificate = Certificate(settings.tls_certificate, settings.tls_key)
    except (SettingsError, AccessError, CertificateError) as error:
        print(error, file=sys.stderr)  # noqa: T201  (logging is not set up before settings are)
        return 2
    telemetry.log_to(level=settings.log_level)
    if settings.skipped:
        _log.warning(
            "%s: unknown keys, left out: %s",
            config,
            ", ".join(settings.skipped),
            extra={"event": "start"},
        )
    raise_descriptors()
    try:
        asyncio.run(_run(settings, credentials, certificate))
    except OSError as error:
        _log.error("%s", error, extra={"event": "start"})
        return 1
    return 0


def raise_descriptors() -> None:
    """Raise the soft limit of open descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _run(settings: Settings, credentials: access.Access, certificate: Certificate) -> None:
    """Serve until a signal comes, then stop cleanly."""
    wiring = Wiring(settings, credentials, lambda: certificate.fingerprint)
    loop = asyncio.get_running_loop()

    def failed(what: str, error: BaseException | None) -> None:  # Admission goes on.
        wiring.telemetry.unhandled(f"{what}: {error!r}", error)

    def callback_failed(_loop: object, context: dict[str, Any]) -> None:
        """Report an exception in a callback, or in a task whose result is not read."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):  # An error of one connection.
            loop.default_exception_handler(context)
        else:
            failed(str(context.get("message", "callback")), error)

    stop = _signals()
    works = {**wiring.work(), "certificate": certificate.follow}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(wiring.client)
        where = await _listen(
            stack,
            status.application(wiring.readiness, wiring.status, wiring.metrics, wiring.pods),
            settings.status_address,
        )
        hook = await wiring.webhook.listen(
            settings.webhook_address.host, settings.webhook_address.port, certificate.context
        )
        stack.push_async_callback(wiring.webhook.close, 0)
        wiring.listening = True
        _log.info(
            "listening",
            extra={"event": "start", "status": where, "webhook": str(Address(*hook))},
        )
        loop.set_exception_handler(callback_failed)
        async with running(*(endless_task(name, work, failed) for name, work in works.items())):
            await stop.wait()
        wiring.webhook.drain()
        wiring.listening = False
        _log.info("stopping", extra={"event": "stop"})
        await asyncio.gather(wiring.hand_over(IN_FLIGHT), asyncio.sleep(LINGER))
        await wiring.webhook.close(IN_FLIGHT)
    _log.info("stopped", extra={"event": "stopped"})


def _signals() -> asyncio.Event:
    """Return an event that is set by the first signal; the second one ends the process at once."""
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stop


async def _listen(stack: AsyncExitStack, application: web.Application, address: Address) -> str:
    """Serve the status port; return its address, with the real port if the setting is 0."""
    runner = web.AppRunner(application, shutdown_timeout=IN_FLIGHT)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    assert runner.server, "it is there after setup"
    # Probes, Pebble, Prometheus and the charm make few connections.
    limits = ServingLimits(connections=128, memory=8 << 20, idle=10.0)
    listener = Listener(runner.server, limits)
    where = await listener.listen(address.host, address.port)
    stack.push_async_callback(listener.close, 0)
    return str(Address(*where))
