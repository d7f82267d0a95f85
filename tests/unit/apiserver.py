"""A small API server for unit tests: it stores, versions, selects, lists, watches and execs.

A fake with behaviour, in this process, over real sockets and real TLS. It keeps the API server's
promises that the workload's client leans on (semantics: list and watch), and can be told to break
them: see `ApiServer.faults`. It authorises nobody, validates nothing and knows two resources.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from copy import deepcopy
from pathlib import Path
from typing import Self

from aiohttp import web
from istio_aux.kube.access import Access
from unit import podverbs
from unit.selection import Object, event, line, selected
from unit.tls import certificate

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
Exec = Callable[[web.WebSocketResponse, str, str], Awaitable[None]]

HISTORY = 1000
"""Events that a watch may still begin at; the real one keeps at least 75 s of them."""


def status(code: int, reason: str, message: str, **extra: object) -> Object:
    """A meta/v1 Status of a failure."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code, **extra,
    }  # fmt: skip


def refusal(
    code: int, reason: str = "", message: str = "", *, headers: dict[str, str] | None = None
) -> web.Response:
    """An error as the API server answers it."""
    return web.json_response(status(code, reason, message), status=code, headers=headers)


def _no_such_pod(name: str) -> web.Response:
    return refusal(404, "NotFound", f'pods "{name}" not found')


async def proxy_quits(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
    """Answer an exec as the kubelet does when the command succeeds."""
    await socket.send_bytes(b"\x01")  # The kubelet begins with an empty frame.
    await socket.send_bytes(b"\x01OK")
    await socket.send_bytes(b'\x03{"metadata":{},"status":"Success"}')


class ApiServer:
    """The server, for as long as the ``async with`` lasts.

    Attributes:
        faults: each is asked before a request is served; the first that answers is removed.
        requests: ``METHOD path`` of all requests, in order.
        queries: the query of each request, in the same order.
        watches: requests whose watch streams are open.
        events: bodies of the Events that were posted.
        execs: ``(namespace, pod, container, command)`` of all execs that were upgraded.
        on_exec: answers an exec.
        exec_requests: the request of the last exec in each pod, by the pod's name.
        forwards: ``(namespace, pod, port, head)`` of all HTTP requests that were forwarded.
        on_forward: answers a forwarded request.
        tokens: the bearer tokens that came, in order.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.watches: list[web.Request] = []
        self.events: list[Object] = []
        self.execs: list[tuple[str, str, str, tuple[str, ...]]] = []
        self.on_exec: Exec = proxy_quits
        self.exec_requests: dict[str, web.Request] = {}
        self.forwards: list[tuple[str, str, int, str]] = []
        self.on_forward: podverbs.Forward = podverbs.agent_quits
        self.tokens: list[str] = []
        self.oldest = 0
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._history: list[tuple[int, str, Object | None, Object]] = []
        self._version = 1
        self._changed = asyncio.Condition()
        self._stack = AsyncExitStack()
        self._port = 0

    async def __aenter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._pair = certificate(self._folder)
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._stack.aclose()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self._pair)
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=context, reuse_address=True
        )
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Drop every connection and stop listening; what is stored stays."""
        await self.cut()
        await self._runner.cleanup()

    async def cut(self) -> None:
        """Reset every watch's connection."""
        for request in self.watches:
            if request.transport is not None:
                request.transport.abort()

    def abort_exec(self, pod: str) -> None:
        """Reset the connection of the last exec in a pod."""
        if (transport := self.exec_requests[pod].transport) is not None:
            transport.abort()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca(self) -> Path:
        return self._pair[0]

    def access(self) -> Access:
        context = ssl.create_default_context(cafile=str(self.ca))
        return Access(server=self.url, tls=context, token=lambda: "secret")

    def kubeconfig(self, folder: Path, user: Object | None = None) -> Path:
        """Write a kubeconfig that leads here."""
        path = folder / "kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "users": [{"name": "me", "user": user or {"token": "secret"}}],
        }
        path.write_text(json.dumps(config))
        return path

    async def put(self, resource: str, body: Object) -> Object:
        """Create or replace an object; returns it as stored."""
        stored = deepcopy(body)
        meta = stored.setdefault("metadata", {})
        key = (resource, meta.get("namespace", ""), meta["name"])
        old = self._objects.get(key)
        if old and old["metadata"]["uid"] != meta.setdefault("uid", old["metadata"]["uid"]):
            await self.remove(*key)
            old = None
        self._version += 1
        meta.setdefault("uid", f"uid-{self._version}")
        meta["resourceVersion"] = str(self._version)
        self._objects[key] = stored
        await self._record(resource, old, stored)
        return stored

    async def remove(self, resource: str, namespace: str, name: str) -> None:
        old = self._objects.pop((resource, namespace, name))
        self._version += 1
        gone = deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, resource, gone, {}))
        async with self._changed:
            self._changed.notify_all()

    async def forget_history(self) -> None:
        """From now on a watch from any version before this one is answered with 410."""
        self._version += 1
        self.oldest = self._version

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((resource, namespace, name))

    async def _record(self, resource: str, old: Object | None, new: Object) -> None:
        self._history.append((self._version, resource, old, new))
        del self._history[:-HISTORY]
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        for fault in self.faults:
            answer = await fault(request)
            if answer is not None:
                if fault in self.faults:
                    self.faults.remove(fault)
                return answer
        return await self._route(request)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["apis", "events.k8s.io", "v1", *_]:
                self.events.append(await request.json())
                return web.json_response({}, status=201)
            case ["api", "v1", "namespaces", namespace, "pods", pod, *subresource]:
                return await self._pod(request, namespace, pod, *subresource)
            case ["api", "v1", "namespaces", namespace, "pods"]:
                return await self._collection(request, "pods", namespace)
            case ["api", "v1", "pods" | "namespaces" as resource]:
                return await self._collection(request, resource, "")
        return refusal(404, "NotFound", "the server could not find the requested resource")

    async def _pod(
        self, request: web.Request, namespace: str, pod: str, subresource: str = ""
    ) -> web.StreamResponse:
        if (found := self.get("pods", namespace, pod)) is None:
            return _no_such_pod(pod)
        if subresource == "exec":
            return await self._exec(request, namespace, pod)
        if subresource == "portforward":
            note, answer = self.forwards.append, self.on_forward
            return await podverbs.forward(request, namespace, pod, note, answer)
        if request.method == "DELETE":
            if unmet := podverbs.conflict(await request.json(), found):
                return refusal(409, "Conflict", unmet)
            await self.remove("pods", namespace, pod)
        return web.json_response(found)

    async def _collection(
        self, request: web.Request, resource: str, namespace: str
    ) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watch(request, resource, namespace)
        keys = sorted(key for key in self._objects if key[0] == resource)
        found = [self._objects[key] for key in keys if namespace in ("", key[1])]
        found = [item for item in found if selected(request, item)]
        start = int(request.query.get("continue", "0"))
        limit = int(request.query.get("limit", "0")) or len(found)
        meta = {"resourceVersion": str(self._version)}
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        return web.json_response({"metadata": meta, "items": found[start : start + limit]})

    async def _watch(
        self, request: web.Request, resource: str, namespace: str
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        if seen < self.oldest:
            gone = status(410, "Expired", f"too old resource version: {seen} ({self.oldest})")
            await response.write(line("ERROR", gone))
            return response
        self.watches.append(request)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                while True:
                    for version, kind, old, new in list(self._history):
                        if version <= seen or kind != resource:
                            continue
                        if told := event(request, namespace, old, new, version):
                            await response.write(told)
                    seen = max(seen, self._version)
                    async with self._changed:
                        while self._version <= seen:
                            await self._changed.wait()
        except (TimeoutError, ConnectionError):
            return response
        finally:
            self.watches.remove(request)

    async def _exec(self, request: web.Request, namespace: str, pod: str) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        query = request.query
        self.execs.append((namespace, pod, query["container"], tuple(query.getall("command"))))
        self.exec_requests[pod] = request
        await self.on_exec(socket, namespace, pod)
        await socket.close()
        return socket
