"""The status port, plain HTTP: /livez, /readyz, /metrics, /status and /pods.

Anyone who reaches it may ask as often as they like. So what looks at all pods is kept for a second.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
from aiohttp import web

from istio_aux.model.answers import (
    PAGE,
    STATES,
    TEXT,
    Holder,
    ListedPod,
    PodPage,
    ProcessStatus,
)
from istio_aux.model.policy import Capability
from istio_aux.model.text import printable_json

T = TypeVar("T")

KEPT = 1.0  # Seconds for which an answer is given again.
METRICS = "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"


class Shown(NamedTuple):
    """What the charm shows of a status: without times, counters and numbers of attempts.

    Attributes:
        live: the configurations of the live injectors.
        native: whether sidecars are native.
        troubled: how many pods are stuck, blocked, lost and unmeshed, but for those that may soon
            be well.
        rest: everything else.
    """

    live: frozenset[str]
    native: bool
    troubled: tuple[int, ...]
    rest: tuple[object, ...]

    @classmethod
    def of(cls, status: ProcessStatus) -> Shown:
        """Return what is shown of ``status``."""
        injectors = status.injectors
        troubled = (status.stuck_pods, status.blocked_pods, status.lost_pods)
        lasting = (sum(pod.lasting for pod in pods) for pods in troubled)
        return cls(
            live=frozenset(each.configuration for each in injectors if each.live),
            native=status.capability is Capability.NATIVE,
            troubled=(*lasting, status.unmeshed_total),
            rest=(
                status.called_before_us, status.capability, status.capability_why,
                status.certificate, status.injector_live, status.selected_namespaces,
                status.unmeshed_unknown, status.applications,
                [(each.configuration, each.revision, each.state, each.why) for each in injectors],
                [(each.by, each.pods, each.requests, each.fix) for each in status.holders],
                [(pod.namespace, pod.name, pod.reason) for pod in status.unmeshed_pods],
                [(job.namespace, job.kind, job.name) for job in status.suspended_jobs],
            ),
        )  # fmt: skip

    def is_worse_than(self, before: Shown) -> bool:
        """Whether something that was well ``before`` is not now; more of the same is no news."""
        new = zip(self.troubled, before.troubled, strict=True)
        return (
            bool(before.live - self.live)
            or any(now and not then for now, then in new)
            or (before.native and not self.native)
        )


def page(
    pods: Sequence[ListedPod],
    *,
    after: str = "",
    limit: int = PAGE,
    leader: bool = False,
    holders: Iterable[Holder] = (),
) -> PodPage:
    """Return a page of at most ``limit`` pods after the pod ``after`` (NAMESPACE/NAME).

    Args:
        pods: all pods, in the order of `place`.
        after: the last pod of the page before; empty for the first page.
        limit: pods in the page, at most.
        leader: whether this process leads.
        holders: of the stuck and blocked pods.
    """
    namespace, _, name = after.partition("/")
    begin = bisect_right(pods, (namespace, name), key=place)
    shown = [
        msgspec.structs.replace(pod, reason=_clipped(pod.reason), owner=_clipped(pod.owner))
        for pod in pods[begin : begin + limit]
    ]
    more = "/".join(place(shown[-1])) if begin + limit < len(pods) else ""
    return PodPage(len(pods), shown, more, leader, list(holders))


def place(pod: ListedPod) -> tuple[str, str]:
    """Return where a pod stands in the pages: before pods with later namespaces or names."""
    return pod.namespace, pod.name


def _clipped(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"


class Kept(Generic[T]):
    """Returns what ``compute`` does, and computes it at most once in `KEPT` seconds."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute, self._until = compute, 0.0
        self._result: T | None = None

    def __call__(self) -> T:
        """Return a result that is less than `KEPT` seconds old."""
        now = asyncio.get_running_loop().time()
        if self._result is None or now >= self._until:
            self._result, self._until = self._compute(), now + KEPT
        return self._result


def application(
    readiness: Callable[[], tuple[bool, list[str]]],
    status: Callable[[], ProcessStatus],
    metrics: Callable[[], bytes],
    pods: Callable[[], tuple[list[ListedPod], bool]],
) -> web.Application:
    """Make the application of the status port.

    ``readiness`` returns whether this process is ready, and lines about what is missing; ``pods``
    the pods that need a look, and whether this process leads.
    """

    def list_pods() -> tuple[dict[tuple[str, ...], list[ListedPod]], bool, list[Holder]]:
        listed_pods, leader = pods()
        return {STATES: sorted(listed_pods, key=place)}, leader, status().holders

    listed, kept_metrics = Kept(list_pods), Kept(metrics)
    kept_status = Kept(lambda: printable_json(msgspec.json.encode(status())))

    async def livez(_request: web.Request) -> web.Response:
        # An answer shows that the event loop runs.
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        ready, missing = readiness()
        text = ("ok\n" if ready else "") + "".join(f"{line}\n" for line in missing)
        return web.Response(status=200 if ready else 503, text=text)

    async def show_status(_request: web.Request) -> web.Response:
        return web.Response(body=kept_status(), content_type="application/json")

    async def show_pods(request: web.Request) -> web.Response:
        query = request.query
        states = tuple(state for state in STATES if state in query.getall("state", [])) or STATES
        limit = query.get("limit", str(PAGE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= PAGE):
            raise web.HTTPBadRequest(text=f"limit: expected 1 to {PAGE}\n")
        by_states, leader, holders = listed()
        if states not in by_states:
            by_states[states] = [pod for pod in by_states[STATES] if pod.state in states]
        shown = page(
            by_states[states],
            after=query.get("after", ""),
            limit=int(limit),
            leader=leader,
            holders=holders if {"stuck", "blocked"} & {*states} else (),
        )
        return web.Response(
            body=printable_json(msgspec.json.encode(shown)), content_type="application/json"
        )

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(body=kept_metrics(), headers={"Content-Type": METRICS})

    async def last(_request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()  # Probes and scrapes need one request a connection.
        response.headers["Connection"] = "close"  # aiohttp has made the other headers already.

    application = web.Application()
    application.on_response_prepare.append(last)
    application.router.add_get("/livez", livez)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/status", show_status)
    application.router.add_get("/pods", show_pods)
    application.router.add_get("/metrics", show_metrics)
    return application
