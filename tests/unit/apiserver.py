"""A small API server for unit tests: it stores, versions, selects, lists, watches and execs.

A fake with behaviour, in this process, over real sockets and real TLS. It keeps the API server's
promises that the workload's client leans on (semantics: list and watch), and can be told to break
them: see `ApiServer.faults`. It authorises nobody, validates nothing and knows four resources.
"""

from __future__ import annotations

import json
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from aiohttp import web
from istio_aux.kube.access import Access
from unit import podverbs
from unit.store import Object, Store, refusal, text
from unit.tls import certificate

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
Exec = Callable[[web.WebSocketResponse, str, str], Awaitable[None]]


def _no_such_pod(name: str) -> web.Response:
    return refusal(404, "NotFound", f'pods "{name}" not found')


async def proxy_quits(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
    """Answer an exec as the kubelet does when the command succeeds."""
    await socket.send_bytes(b"\x01")  # The kubelet begins with an empty frame.
    await socket.send_bytes(b"\x01OK")
    await socket.send_bytes(b'\x03{"metadata":{},"status":"Success"}')


class ApiServer(Store):
    """The server, for as long as the ``async with`` lasts.

    Attributes:
        faults: each is asked before a request is served; the first that answers is removed.
        requests: ``METHOD path`` of all requests, in order.
        queries: the query of each request, in the same order.
        events: bodies of the Events that were posted.
        execs: ``(namespace, pod, container, command)`` of all execs that were upgraded.
        on_exec: answers an exec.
        exec_requests: the request of the last exec in each pod, by the pod's name.
        forwards: ``(namespace, pod, port, head)`` of all HTTP requests that were forwarded.
        on_forward: answers a forwarded request.
        tokens: the bearer tokens that came, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.events: list[Object] = []
        self.execs: list[tuple[str, str, str, tuple[str, ...]]] = []
        self.on_exec: Exec = proxy_quits
        self.exec_requests: dict[str, web.Request] = {}
        self.forwards: list[tuple[str, str, int, str]] = []
        self.on_forward: podverbs.Forward = podverbs.agent_quits
        self.tokens: list[str] = []
        self._stack = AsyncExitStack()
        self._port = 0
        self._clients: Path | None = None

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
        if self._clients:
            context.load_verify_locations(self._clients)
            context.verify_mode = ssl.CERT_REQUIRED
        site = web.TCPSite(
            self._runner, "127.0.0.1", self._port, ssl_context=context, reuse_address=True
        )
        await site.start()
        self._port = self._runner.addresses[0][1]

    def demand(self, authority: Path) -> None:
        """Serve only clients with a certificate from this authority, from the next start on."""
        self._clients = authority

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

    def _event(self, event: Object) -> web.Response:
        name = event["metadata"]["name"]
        if name in [known["metadata"]["name"] for known in self.events]:
            return refusal(409, "AlreadyExists", f'events "{name}" already exists')
        self.events.append(event)
        return web.json_response({}, status=201)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["apis", "events.k8s.io", "v1", *_]:
                return self._event(await request.json())
            case ["api", "v1", "namespaces", namespace, kind, *name]:
                return await self._namespaced(request, namespace, kind, *name)
            case ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", *name]:
                return await self._lease(request, namespace, *name)
            case [
                "apis", "admissionregistration.k8s.io", "v1",
                "mutatingwebhookconfigurations" as resource,
            ] | ["api", "v1", "pods" | "namespaces" as resource]:  # fmt: skip
                return await self.collection(request, resource, "")
        return refusal(404, "NotFound", "the server could not find the requested resource")

    async def _namespaced(
        self, request: web.Request, namespace: str, kind: str, name: str = "", *subresource: str
    ) -> web.StreamResponse:
        match kind, subresource:
            case "pods", _ if name:
                return await self._pod(request, namespace, name, *subresource)
            case "pods", _:
                return await self.collection(request, kind, namespace)
        return refusal(404, "NotFound", "the server could not find the requested resource")

    async def _lease(
        self, request: web.Request, namespace: str, name: str = ""
    ) -> web.StreamResponse:
        if not name:
            return await self.collection(request, "leases", namespace)
        if request.method == "PUT":
            return await self.replace(request, "leases", namespace, name)
        found = self.get("leases", namespace, name)
        if not found:
            return refusal(404, "NotFound", name)
        return web.json_response(found, dumps=text)

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
        return web.json_response(found, dumps=text)

    async def _exec(self, request: web.Request, namespace: str, pod: str) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        query = request.query
        self.execs.append((namespace, pod, query["container"], tuple(query.getall("command"))))
        self.exec_requests[pod] = request
        await self.on_exec(socket, namespace, pod)
        await socket.close()
        return socket
