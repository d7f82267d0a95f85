"""An istiod, which answers as the lab's stand-in or worse, and an API server with what it needs."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import jsonpatch
from aiohttp import web
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.watcher import Namespaces, Watcher
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import Backoff
from istio_aux.kube.watch import Watch
from istio_aux.model.webhooks import ClientConfig, Configuration, Namespace, ServiceReference
from istio_aux.telemetry import Telemetry
from lab.certificates import Authority
from lab.istio import decision, sidecar
from unit.apiserver import ApiServer
from unit.asynchronous import background, until

HOST = "istiod.istio-system.svc"
TEMPLATE = sidecar.Template("istio-system", "docker.io/istio/proxyv2:1.28.10")
ENABLED = {"istio-injection": "enabled"}
QUICK = Rhythm(live=30.0, other=0.05)

Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A response with a Content-Length, unless `headers` say how long it is."""
    length = () if headers else (f"Content-Length: {len(body)}",)
    return "\r\n".join((f"HTTP/1.1 {status}", *length, *headers, "", "")).encode() + body


def sidecar_for(review: bytes, *, native: sidecar.World = "never") -> bytes:
    """What istiod answers."""
    return json.dumps(_answer(json.loads(review), native)).encode()


def _answer(review: dict[str, Any], native: sidecar.World) -> dict[str, Any]:
    template = dataclasses.replace(TEMPLATE, native=native)
    answer, _ = decision.answer(review, template, native=native == "default")
    return answer


def chain(
    native: sidecar.World, *later: Callable[[dict[str, Any]], web.Response | None]
) -> Callable[[dict[str, Any]], web.Response]:
    """What a dry run answers: istiod, and webhooks after it that change the pod or refuse it."""

    def create(pod: dict[str, Any]) -> web.Response:
        request = {"uid": "1", "namespace": pod["metadata"]["namespace"], "object": pod}
        answer = _answer({"request": request}, native)["response"]
        made = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(answer["patch"])))
        refusals = (refused for webhook in later if (refused := webhook(made)))
        return next(refusals, None) or web.json_response(made, status=201)

    return create


class Istiod:
    """The server, for as long as the ``async with`` lasts.

    Attributes:
        native: when it makes native sidecars.
        talk: answers a request's body, if not with a sidecar.
        heads: of all requests that came.
        connections: those that are open.
    """

    def __init__(
        self, folder: Path, host: str = HOST, *, authority: Authority | None = None
    ) -> None:
        self.authority = authority or Authority(folder)
        pair = self.authority.issue("istiod", "istiod", hosts=[host])
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pair.certificate, pair.key)
        self.native: sidecar.World = "never"
        self.talk: Talk = self._inject
        self.heads: list[str] = []
        self.connections: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End as a process does."""
        self._server.close()
        for writer in list(self.connections):
            writer.transport.abort()
        await until(lambda: not self.connections, "its connections are gone")

    @property
    def bundle(self) -> str:
        """Its caBundle."""
        return encoded(self.authority.pair.certificate.read_bytes())

    def present(self, certificate: Path, key: Path) -> None:
        """Serve this certificate from now on."""
        self._tls.load_cert_chain(certificate, key)

    @property
    def target(self) -> ClientConfig:
        """What its webhooks say of it."""
        service = ServiceReference(namespace="istio-system", name="istiod", path="/inject")
        return ClientConfig(service=service, ca_bundle=self.bundle)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                [length] = [line for line in head.splitlines() if line.startswith("Content-Length")]
                await self.talk(await reader.readexactly(int(length.split()[1])), writer)
                await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            self.connections.discard(writer)
            writer.transport.abort()

    async def _inject(self, review: bytes, writer: asyncio.StreamWriter) -> None:
        """Answer in chunks, as Go does."""
        body = sidecar_for(review, native=self.native)
        half = len(body) // 2
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (body[:half], body[half:], b""))
        writer.write(http(chunks, "200 OK", "Transfer-Encoding: chunked"))


def encoded(*parts: bytes) -> str:
    """A caBundle."""
    return base64.b64encode(b"\n".join(parts)).decode()


def saying(answer: bytes) -> Talk:
    """Say that, whatever was asked."""

    async def talk(_review: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    return talk


async def silence(_review: bytes, _writer: asyncio.StreamWriter) -> None:
    """Take the question and say nothing."""


class Cluster(ApiServer):
    """An API server with versions of its own and of its kubelets, and with what istiod writes."""

    def __init__(self) -> None:
        super().__init__()
        self.version = "v1.36.3"
        self.kubelets: list[str] = []

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["version"]:
                return web.json_response({"gitVersion": self.version})
            case ["api", "v1", "nodes"]:
                return web.json_response({"metadata": {}, "items": self._nodes()})
        return await super()._route(request)

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": f"node-{n}"}, "status": {"nodeInfo": {"kubeletVersion": version}}}
            for n, version in enumerate(self.kubelets)
        ]

    async def configure(
        self,
        name: str = "istio-sidecar-injector",
        *,
        bundle: str | None,
        revision: str = "default",
        service: str = "istiod",
        **webhook: Any,
    ) -> None:
        """Create or replace one of Istio's configurations, for namespaces that are enabled."""
        where = {"namespace": "istio-system", "name": service, "path": "/inject", "port": 443}
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
        hook = {
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {"service": where, "caBundle": bundle},
            "namespaceSelector": {"matchLabels": ENABLED},
            "rules": [{**rule, "resources": ["pods"]}],
            **webhook,
        }
        metadata = {"name": name, "labels": {"istio.io/rev": revision}}
        body = {"metadata": metadata, "webhooks": [hook]}
        await self.put("mutatingwebhookconfigurations", body)

    async def put_policy(self, text: str | None) -> None:
        """Write istiod's ConfigMap."""
        metadata = {"name": "istio-sidecar-injector", "namespace": "istio-system"}
        await self.put("configmaps", {"metadata": metadata, "data": text and {"config": text}})

    async def publish(
        self, *ports: int, ready: bool = True, service: str = "istiod", name: str = "https-webhook"
    ) -> None:
        """Make processes on loopback the endpoints of istiod's Service, each in a slice."""
        for number, port in enumerate(ports):
            labels = {"kubernetes.io/service-name": service}
            where = {"name": f"{service}-{number}", "namespace": "istio-system", "labels": labels}
            endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}
            body = {"metadata": where, "endpoints": [endpoint]}
            body["ports"] = [{"name": "http", "port": 1}, {"name": name, "port": port}]
            await self.put("endpointslices", body)

    async def lead_to(self, istiod: Istiod, *, ready: bool = True, **webhook: Any) -> None:
        """Make this istiod the one that is called for pods."""
        await self.publish(istiod.port, ready=ready)
        await self.configure(bundle=istiod.bundle, **webhook)


@asynccontextmanager
async def watching(
    api: Cluster,
    telemetry: Telemetry | None = None,
    **options: Any,
) -> AsyncGenerator[Watcher]:
    """A watcher of this cluster, quick to ask again."""
    async with Client(api.access()) as client:
        namespaces = Namespaces(lambda _name: None)
        options = {"rhythm": QUICK, "changed": lambda _mesh: None, **options}
        watcher = Watcher(client, namespaces, telemetry or Telemetry(), **options)
        quick = Backoff(0.02, 0.1)
        configurations = Watch(
            client, actions.CONFIGURATIONS, Configuration, watcher.configurations, backoff=quick
        )
        others = Watch(client, actions.NAMESPACES, Namespace, namespaces, backoff=quick)
        async with (
            background(others.run()),
            background(configurations.run()),
            background(watcher.run(configurations.synced)),
        ):
            yield watcher
