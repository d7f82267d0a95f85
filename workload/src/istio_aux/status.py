"""The status port, plain HTTP: /livez, /readyz, /metrics and /status.

Only the answers may live here, and what of them concerns the charm; what they say is asked of those
who know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import version

import msgspec
from aiohttp import web

from istio_aux.core.policy import Capability, QuitMode, RacePolicy, StartMode
from istio_aux.injector.findings import InjectorStatus
from istio_aux.quit.findings import Blocked, Lost, Stuck
from istio_aux.repair.application_status import ApplicationMesh
from istio_aux.repair.controller import Unmeshed
from istio_aux.repair.suspended_jobs import SuspendedJob

UNMESHED = 500
"""How many pods without a sidecar are shown by name; after an outage it may be all there are."""

UNREADABLE = 20
"""How many objects that cannot be read are shown by name."""

METRICS = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"


class UnreadableObject(msgspec.Struct, frozen=True):
    """An object that cannot be read: what was known of it before still counts.

    Attributes:
        path: of its collection.
        namespace: empty for an object without one.
        name: empty if not even that can be read.
        reason: why.
    """

    path: str
    namespace: str
    name: str
    reason: str


class Status(msgspec.Struct, frozen=True, rename="kebab"):
    """What ``/status`` shows.

    Attributes:
        ready: as `/readyz` has it.
        missing: what stands in the way of ready, in lines for a person; what nobody's
            reviews wait for is said, but does not.
        start_mode: ``auto``, ``native``, ``hold`` or ``off``.
        capability: what cluster and Istio can do, ``unknown`` where that cannot be found out.
        capability_why: what makes it so; empty until it has been found out.
        called_before_us: those of Istio's webhook configurations that sort before ours; None where
            that is not known: not to be checked, not allowed, or not listed yet.
        injectors: Istio's, sorted by configuration; empty until it is known.
        injector_live: whether any of them is; None: not known yet.
        watched_pods: pods that may need their proxy to quit, in all namespaces.
        selected_namespaces: names, sorted.
        stuck_pods: whose proxy withstands, the oldest first; empty unless ``leader``.
        blocked_pods: that run on because of other containers, although one has finished.
        lost_pods: whose proxy ended before the payload.
        race: what becomes of pods that should have a sidecar and have none.
        unmeshed_pods: those pods, the oldest first, at most `UNMESHED`.
        unmeshed_total: how many of them there are.
        unmeshed_unknown: pods without a sidecar of which it is not known whether they should have
            one.
        suspended_jobs: which wait for their pods to go; only who leads knows any.
        applications: those that ask for sidecars by name.
        unreadable_objects: that are there but cannot be read, at most `UNREADABLE`.
        unreadable_total: how many of them there are.
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
    injectors: list[InjectorStatus]
    injector_live: bool | None
    watched_pods: int
    selected_namespaces: list[str]
    stuck_pods: list[Stuck]
    blocked_pods: list[Blocked]
    lost_pods: list[Lost]
    race: RacePolicy
    unmeshed_pods: list[Unmeshed]
    unmeshed_total: int
    unmeshed_unknown: int
    suspended_jobs: list[SuspendedJob]
    applications: list[ApplicationMesh]
    unreadable_objects: list[UnreadableObject]
    unreadable_total: int
    quits_total: int
    leader: bool
    lease_holder: str
    quit: QuitMode
    capability_why: str = ""
    version: str = version("istio-aux")


def digest(status: Status) -> bytes:
    """What differs whenever there is something else for the charm to show, and only then.

    Times are left out, and what changes all the time: counters, and how often was tried.
    """
    shown = (
        status.called_before_us,
        (status.capability, status.capability_why),
        [
            (found.configuration, found.revision, found.state, found.why)
            for found in status.injectors
        ],
        status.injector_live,
        status.selected_namespaces,
        [len(pods) for pods in (status.stuck_pods, status.blocked_pods, status.lost_pods)],
        (status.unmeshed_total, status.unmeshed_unknown),
        [(job.namespace, job.kind, job.name) for job in status.suspended_jobs],
        [(pod.namespace, pod.name, pod.reason) for pod in status.unmeshed_pods],
        status.applications,
    )
    return hashlib.blake2b(msgspec.json.encode(shown)).digest()


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

    async def last(_request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()  # One request a connection: see `serving.OneRequest`.

    application = web.Application()
    application.on_response_prepare.append(last)
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/status", show_status)
    application.router.add_get("/metrics", show_metrics)
    return application
