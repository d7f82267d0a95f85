"""A watch of pods at an API server that can be told to fail, for tests of either."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.errors import Backoff
from istio_aux.kube.objects import Key
from istio_aux.kube.watch import Watch
from istio_aux.model.pod import Pod
from unit.apiserver import ApiServer, Fault
from unit.asynchronous import background


class Seen:
    """A handler that remembers what it was told; one name trips it."""

    def __init__(self, trips: str = "") -> None:
        self.there: dict[Key, Any] = {}
        self._trips = trips
        self.told: list[str] = []
        self.restarts: list[str] = []

    def apply(self, resource: Any) -> None:
        key = resource.metadata.key
        self._tell("+", key)
        self.there[key] = resource

    def delete(self, key: Key, _last: Any) -> None:
        self._tell("-", key)
        del self.there[key]

    def _tell(self, what: str, key: Key) -> None:
        if key.name == self._trips:
            raise RuntimeError(key.name)
        self.told.append(f"{what}{key.name}")

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.there}

    @property
    def phases(self) -> dict[str, str | None]:
        return {key.name: pod.status.phase for key, pod in self.there.items()}


def fails(_key: Key, error: Exception) -> None:
    """No handler of a test's watch may raise."""
    raise error


def pod(name: str, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "training", **metadata}
    return {"metadata": meta, "spec": {"containers": []}, "status": {"phase": phase}}


@asynccontextmanager
async def watching(api: ApiServer, **options: Any) -> AsyncGenerator[tuple[Seen, Watch[Pod]]]:
    """Watch pods in the background, without the long waits of real life."""
    seen, options = Seen(), {"backoff": Backoff(0.02, 0.1), **options}
    async with Client(api.access()) as client:
        watch = Watch(
            client,
            "/api/v1/pods",
            Pod,
            seen,
            failed=fails,
            restarted=seen.restarts.append,
            **options,
        )
        async with background(watch.run()):
            yield seen, watch


@asynccontextmanager
async def faulty(*faults: Fault) -> AsyncGenerator[ApiServer]:
    """An API server with these faults."""
    async with ApiServer() as api:
        api.faults += faults
        yield api


def lists(api: ApiServer) -> int:
    """How often the whole collection was asked for in pages."""
    return sum("watch" not in query for query in api.queries)


def follows(api: ApiServer) -> list[dict[str, str]]:
    """The queries of watches that were asked to begin at a version."""
    return [query for query in api.queries if "watch" in query and "resourceVersion" in query]


def on_watch(answer: Any) -> Fault:
    """A fault that meets the next watch request from a version."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        begins = "watch" in request.query and "resourceVersion" in request.query
        return await answer(request) if begins else None

    return fault


def on_list(answer: Any) -> Fault:
    """A fault that meets the next list request only."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return None if "watch" in request.query else await answer(request)

    return fault


def on_page(answer: Any) -> Fault:
    """A fault that meets the next request for a further page of a list only."""

    async def fault(request: web.Request) -> web.StreamResponse | None:
        return await answer(request) if "continue" in request.query else None

    return fault


async def stream(request: web.Request, *events: bytes) -> web.StreamResponse:
    """A watch stream that begins with these bytes; the server's part is then up to the caller."""
    response = web.StreamResponse()
    await response.prepare(request)
    for event in events:
        await response.write(event)
    return response


async def answered(response: web.Response) -> web.Response:
    return response
