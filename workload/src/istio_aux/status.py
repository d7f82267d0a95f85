"""The status port, plain HTTP: /livez, /readyz, /metrics and /status.

Only the answers may live here; what they say is asked of those who know.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

import msgspec
from aiohttp import web

from istio_aux.core.policy import Capability, QuitMode, StartMode
from istio_aux.quit.findings import Blocked, Lost, Stuck

METRICS = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"


class Status(msgspec.Struct, frozen=True, rename="kebab"):
    """What ``/status`` shows.

    Attributes:
        ready: as `/readyz` has it.
        missing: what stands in the way of ready, in lines for a person; that the order may not be
            checked is said, but does not.
        start_mode: ``auto``, ``native``, ``hold`` or ``off``.
        capability: what cluster and Istio can do, ``unknown`` until that has been found out.
        called_before_us: those of Istio's webhook configurations that sort before ours; None where
            that is not known: not to be checked, not allowed, or not listed yet.
        watched_pods: pods that may need their proxy to quit, in all namespaces.
        selected_namespaces: names, sorted.
        stuck_pods: whose proxy withstands, the oldest first; empty unless ``leader``.
        blocked_pods: that run on because of other containers, although one has finished.
        lost_pods: whose proxy ended before the payload.
        quits_total: proxies that this process saw exit after it told them to.
        leader: whether this process is the one that acts.
        lease_holder: identity of the one that acts, empty if unknown or without election.
        quit: ``on``, ``dry-run`` or ``off``.
        version: of istio-aux.
    """

    ready: bool
    missing: list[str]
    start_mode: StartMode
    capability: Capability
    called_before_us: tuple[str, ...] | None
    watched_pods: int
    selected_namespaces: list[str]
    stuck_pods: list[Stuck]
    blocked_pods: list[Blocked]
    lost_pods: list[Lost]
    quits_total: int
    leader: bool
    lease_holder: str
    quit: QuitMode
    version: str = version("istio-aux")


def application(status: Callable[[], Status], metrics: Callable[[], bytes]) -> web.Application:
    """Make the application of the status port."""

    async def livez(_request: web.Request) -> web.Response:
        # That this runs at all shows that the event loop does.
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        now = status()
        text = ("ok\n" if now.ready else "") + "".join(f"{line}\n" for line in now.missing)
        return web.Response(status=200 if now.ready else 503, text=text)

    async def show_status(_request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(status()), content_type="application/json")

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": METRICS})

    application = web.Application()
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/status", show_status)
    application.router.add_get("/metrics", show_metrics)
    return application
