"""What others see of the process: the status port, and the notices that wake the charm.

The port is plain HTTP: /livez, /readyz, /metrics, /status and /pods. Clients may send requests as
often as they like. So an answer that needs all pods is cached, and its computation yields to other
tasks.

A custom notice of Pebble wakes the charm when the status that the charm shows changes. The status
is compared with the last one that Pebble accepted (level, not edge). So no change is lost while
Pebble is away, and a change that is reverted meanwhile sends no notice. Each notice runs a hook for
a second or two, and a unit whose hooks never end runs no action and never settles. So notices are
at least `GAP` seconds apart.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import aiohttp
import msgspec
from aiohttp import web

from istio_aux.kube.clock import now
from istio_aux.kube.errors import Backoff
from istio_aux.kube.objects import run_cooperatively
from istio_aux.model import answers
from istio_aux.model.documents import Cooperative
from istio_aux.model.found import HELD, SERVED, Found
from istio_aux.model.text import printable_json, shortened

_log = logging.getLogger(__name__)

T = TypeVar("T")

KEPT, RARELY, LONGEST = 1.0, 20, 10.0
"""Seconds that a result is cached: `RARELY` times as long as it took, from `KEPT` to `LONGEST`."""

KEY = "istio-aux.io/changed"  # Juju turns each repetition of the notice that it sees into an event.
GAP = 10.0  # Seconds between two notices.
DEADLINE = 5.0  # Seconds for Pebble's answer.


def shown_by_charm(status: answers.ProcessStatus) -> tuple[object, ...]:
    """The part of a status that the charm shows: it has no times, counters or attempts."""
    return (
        status.stuck_total,
        status.blocked_total,
        status.lost_total,
        status.unstarted_total,
        status.unmeshed_total,
        status.called_before_us,
        status.capability,
        status.capability_why,
        status.certificate,
        status.injector_live,
        status.selected_namespaces,
        status.selected_total,
        status.unmeshed_unknown,
        status.applications,
        status.ambient_total,
        # Whether any pod has a sidecar, if new pods get none. The number itself changes too often.
        status.sidecars and status.sidecars.pods > 0 if status.absent or status.ambient else None,
        [(each.configuration, each.revision, each.state, each.why) for each in status.injectors],
        [(each.by, each.pods, each.requests, each.fix) for each in status.holders],
        [(pod.namespace, pod.name, pod.reason) for pod in status.unmeshed_pods],
    )


def page(
    pods: Sequence[Found],
    *,
    after: str = "",
    limit: int = answers.PAGE,
    leader: bool = False,
    holders: Iterable[answers.Holder] = (),
) -> answers.PodPage:
    """Return a page of at most ``limit`` pods after the pod ``after`` (NAMESPACE/NAME).

    ``pods`` are all pods, sorted by `place`. ``holders`` keep the pods whose state is in `HELD`.
    """
    namespace, _, name = after.partition("/")
    begin = bisect_right(pods, (namespace, name), key=place)
    shown = [
        msgspec.structs.replace(
            pod,
            reason=shortened(pod.reason, answers.TEXT - 1),
            owner=shortened(pod.owner, answers.TEXT - 1),
            fix=shortened(pod.fix, answers.TEXT - 1),
        )
        for pod in pods[begin : begin + limit]
    ]
    return answers.PodPage(
        len(pods),
        shown,
        "/".join(place(shown[-1])) if begin + limit < len(pods) else "",
        leader,
        list(holders),
    )


def place(pod: Found) -> tuple[str, str]:
    """Return the key by which pods are sorted in the pages: namespace and name."""
    return pod.namespace, pod.name


class Kept(Generic[T]):
    """Caches the result of ``work``; the slower the work, the longer."""

    def __init__(self, work: Callable[[], Cooperative[T]]) -> None:
        self._work, self._until, self._turn = work, 0.0, asyncio.Lock()
        self._result: T | None = None

    async def __call__(self) -> T:
        """Return the cached result, or do the work now if that has expired."""
        async with self._turn:
            if self._result is None or now() >= self._until:
                began = now()
                self._result = await run_cooperatively(self._work())
                self._until = now() + min(max(KEPT, RARELY * (now() - began)), LONGEST)
            return self._result


def application(
    readiness: Callable[[], tuple[bool, list[str]]],
    status: Callable[[], Cooperative[answers.ProcessStatus]],
    metrics: Callable[[], Cooperative[bytes]],
    pods: Callable[[], Cooperative[tuple[list[Found], bool]]],
) -> web.Application:
    """Make the web application of the status port from methods of `Wiring`."""

    def list_pods() -> Cooperative[
        tuple[dict[tuple[str, ...], list[Found]], bool, list[answers.Holder]]
    ]:
        every, leader = yield from pods()
        return {SERVED: every}, leader, (yield from status()).holders

    def written() -> Cooperative[bytes]:
        return printable_json(msgspec.json.encode((yield from status())))

    listed, kept_metrics, kept_status = Kept(list_pods), Kept(metrics), Kept(written)

    async def livez(_request: web.Request) -> web.Response:
        # An answer shows that the event loop runs.
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        ready, missing = readiness()
        text = ("ok\n" if ready else "") + "".join(f"{line}\n" for line in missing)
        return web.Response(status=200 if ready else 503, text=text)

    async def show_status(_request: web.Request) -> web.Response:
        return web.Response(body=await kept_status(), content_type="application/json")

    async def show_pods(request: web.Request) -> web.Response:
        query = request.query
        states = tuple(state for state in SERVED if state in query.getall("state", [])) or SERVED
        limit = query.get("limit", str(answers.PAGE))
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= answers.PAGE):
            raise web.HTTPBadRequest(text=f"limit: expected 1 to {answers.PAGE}\n")
        by_states, leader, holders = await listed()
        if states not in by_states:
            by_states[states] = [pod for pod in by_states[SERVED] if pod.state in states]
        shown = page(
            by_states[states],
            after=query.get("after", ""),
            limit=int(limit),
            leader=leader,
            holders=holders if HELD & {*states} else (),
        )
        return web.Response(
            body=printable_json(msgspec.json.encode(shown)),
            content_type="application/json",
        )

    async def show_metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=await kept_metrics(),
            headers={
                "Content-Type": "text/plain; version=1.0.0; charset=utf-8; escaping=underscores"
            },
        )

    async def last(_request: web.Request, response: web.StreamResponse) -> None:
        response.force_close()  # Probes and scrapes need one request a connection.
        response.headers["Connection"] = "close"  # aiohttp has made the other headers already.

    application = web.Application()
    application.on_response_prepare.append(last)
    application.add_routes(
        [
            web.get("/livez", livez),
            web.get("/readyz", readyz),
            web.get("/status", show_status),
            web.get("/pods", show_pods),
            web.get("/metrics", show_metrics),
        ]
    )
    return application


async def send_notices(
    socket: Path,
    status: Callable[[], Awaitable[answers.ProcessStatus]],
    *,
    poll: float = 0.5,
    gap: float = GAP,
) -> None:
    """Notify the Pebble on ``socket`` now, and whenever the status that the charm shows changes.

    The status is read every ``poll`` seconds; notices are at least ``gap`` seconds apart.
    """
    connector = aiohttp.UnixConnector(str(socket), force_close=True)
    timeout = aiohttp.ClientTimeout(total=DEADLINE)
    backoff = Backoff(0.2, 5.0)
    notified, allowed, trouble = None, 0.0, ""
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while True:
            shown, pause = shown_by_charm(await status()), poll
            if shown != notified and now() >= allowed:
                before, trouble = trouble, await _notify(session)
                if not trouble:
                    notified, allowed = shown, now() + gap
                    backoff.reset()
                else:
                    pause = backoff.next()
                    if trouble != before:  # Pebble may be away for long.
                        _log.warning(
                            "%s: notice not added: %s",
                            socket,
                            trouble,
                            extra={"event": "notice"},
                        )
            await asyncio.sleep(pause)


async def _notify(session: aiohttp.ClientSession) -> str:
    """Add the notice (pebble internals/daemon/api_notices.go); return why it was not, if so."""
    try:
        async with session.post(
            "http://pebble/v1/notices",
            json={"action": "add", "type": "custom", "key": KEY},
        ) as answer:
            return "" if answer.ok else f"{answer.status} {(await answer.text())[:200]}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return str(error) or f"no answer in {DEADLINE:g} s"
