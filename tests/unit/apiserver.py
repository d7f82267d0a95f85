"""A small API server for unit tests: the simulation's store over HTTP, with exec and port-forward.

A fake with behaviour, in this process, over real sockets and real TLS. It keeps the API server's
promises that the workload's client leans on, and can be told to break them: see `ApiServer.faults`.
Below it is a watch of pods, for tests of either.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import re
import ssl
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import WSMsgType, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, Backoff
from istio_aux.kube.objects import Key
from istio_aux.kube.watch import Watch
from istio_aux.model.pod import Pod
from lab.control_plane import begun, general_name, named
from simulation.store import Json as Object, Store, Stored, Stream, parse
from unit.process import background

# Certificates for tests: self-signed, and valid for an hour unless told otherwise.


def certificate(
    folder: Path,
    name: str = "127.0.0.1",
    stem: str = "tls",
    *,
    hours: float = 1,
    password: str = "",
) -> tuple[Path, Path]:
    """Write a self-signed certificate for an address or a name and its key; returns the paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = named("unit test")
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    built = (
        begun(subject, subject, key.public_key(), begin, datetime.timedelta(days=1, hours=hours))
        .add_extension(x509.SubjectAlternativeName([general_name(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / f"{stem}.crt", folder / f"{stem}.key"
    paths[0].write_bytes(built.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption(),
        )
    )
    return paths


Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
Exec = Callable[[web.WebSocketResponse, str, str], Awaitable[None]]
DryRun = Callable[[Object], web.Response | Awaitable[web.Response]]
"""Answers an exec, or a forwarded request, in a pod of a namespace."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nOK"
"""What the real agent answers, as recorded."""


def sending(*frames: bytes) -> Exec:
    """Answer an exec or a forwarded request with these frames."""

    async def send(socket: web.WebSocketResponse, _namespace: str, _pod: str) -> None:
        for frame in frames:
            await socket.send_bytes(frame)

    return send


proxy_quits = sending(b"\x01", b"\x01OK", b'\x03{"metadata":{},"status":"Success"}')
"""What the kubelet answers an exec when the command succeeds; it begins with an empty frame."""
agent_quits = sending(b"\x00" + OK)
"""What the agent answers a forwarded request when it is told to quit."""


_NESTED = re.compile(rb'"nested (\d+) levels deep"')


def managed(levels: int) -> list[Object]:
    """``metadata.managedFields`` nested so deeply, which json cannot encode, but `text` can."""
    return [{"manager": "tenant", "operation": "Apply", "fieldsV1": f"nested {levels} levels deep"}]


def text(body: Object) -> bytes:
    """An object as JSON."""

    def deep(found: re.Match[bytes]) -> bytes:
        return b'{"f:a":' * int(found[1]) + b"{}" + b"}" * int(found[1])

    return _NESTED.sub(deep, json.dumps(body, separators=(",", ":")).encode())


def line(kind: str, body: Object) -> bytes:
    """A line of a watch."""
    return text({"type": kind, "object": body}) + b"\n"


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


def kubeconfig(
    folder: Path, *, cluster: Object | None = None, user: Object | None = None,
    context: Object | None = None, **top: Any,
) -> Path:  # fmt: skip
    """Write a kubeconfig of which a test says only what matters to it."""
    config: Object = {
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config | top))
    return path


def discovery(*types: tuple[str, str, str, str]) -> Object:
    """An APIGroupDiscoveryList of types: apiVersion, plural, kind and short name."""
    groups = dict[str, list[Object]]()
    for api, plural, kind, short in types:
        group, _, version = api.rpartition("/")
        resource = {
            "resource": plural, "responseKind": {"kind": kind}, "singularResource": kind.lower(),
            "scope": "Cluster" if kind in {"Namespace", "Node"} else "Namespaced",
            "shortNames": [short] if short else [],
        }  # fmt: skip
        groups.setdefault(group, []).append({"version": version, "resources": [resource]})
    items = [{"metadata": {"name": group}, "versions": each} for group, each in groups.items()]
    return {"kind": "APIGroupDiscoveryList", "items": items}


TYPES = discovery(
    ("apps/v1", "replicasets", "ReplicaSet", "rs"),
    ("batch/v1", "jobs", "Job", ""),
    ("batch/v1", "cronjobs", "CronJob", "cj"),
    ("kubeflow.org/v1", "tfjobs", "TFJob", ""),
    ("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", ""),
    ("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob", ""),
    ("batch.volcano.sh/v1alpha1", "jobs", "Job", "vcjob"),
)
CORE = discovery(
    ("v1", "pods", "Pod", "po"), ("v1", "secrets", "Secret", ""), ("v1", "nodes", "Node", "no")
)


class ApiServer(Store):
    """The server, for as long as the ``async with`` lasts.

    Attributes:
        faults: each is asked before a request is served; the first that answers is removed.
        requests: ``METHOD path`` of all requests, in order.
        queries: the query of each request, in the same order.
        watches: requests whose watch streams are open.
        execs: ``(namespace, pod, container, command)`` of all execs that were upgraded.
        on_exec: answers an exec.
        forwards: ``(namespace, pod, port, head)`` of all HTTP requests that were forwarded.
        on_forward: answers a forwarded request.
        dry_runs: the pods of all dry runs.
        dry_run: answers a dry run of a pod's creation.
        allows: whether every account has every right that it asks for.
        tokens: the bearer tokens that came, in order.
        sent: the bodies of the requests, in the same order as those.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.watches: list[web.Request] = []
        self.execs: list[tuple[str, str, str, tuple[str, ...]]] = []
        self.on_exec: Exec = proxy_quits
        self.forwards: list[tuple[str, str, int, str]] = []
        self.on_forward: Exec = agent_quits
        self.dry_runs: list[Object] = []
        self.dry_run: DryRun = web.json_response
        self.allows = True
        self.tokens: list[str] = []
        self.sent: list[bytes] = []
        self._stack = AsyncExitStack()
        self._port = 0
        self._clients: Path | None = None
        self._entered = 0

    async def __aenter__(self) -> Self:
        """Listen; who enters it while it listens changes nothing."""
        self._entered += 1
        if self._entered == 1:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
            self._pair = certificate(self._folder)
            await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
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
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        return kubeconfig(folder, cluster=cluster, user=user or {"token": "secret"})

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        self.sent.append(await request.read())
        for fault in self.faults:
            answer = await fault(request)
            if answer is not None:
                if fault in self.faults:
                    self.faults.remove(fault)
                return answer
        if request.path.endswith("/selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": self.allows}}, status=201)
        if request.path in {"/api", "/apis"}:
            return web.json_response(CORE if request.path == "/api" else TYPES)
        return await self._route(request)

    def bodies_of(self, method: str) -> list[Object]:
        """What was sent with all requests of that method."""
        sent = zip(self.requests, self.sent, strict=True)
        return [json.loads(body) for request, body in sent if request.startswith(method)]

    @property
    def events(self) -> list[Object]:
        """The Events that were posted, in order."""
        return [event.object for event in self.objects["events"].values()]

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        found = self.find(resource, namespace, name)
        return found and found.object

    def put(self, resource: str, found: Object) -> Stored:
        return super().put(resource, copy.deepcopy(found))

    def encode(self, found: Object) -> bytes:
        return text(found)

    def forget_history(self) -> None:
        """From now on a watch from any version before this one is answered with 410."""
        self.version += 1
        self.forget()

    def go_back(self, version: int) -> None:
        """Store nothing, at an older version, as after a restore of etcd: watches say nothing."""
        self.version = version
        self.objects.clear()
        self._history.clear()

    def always(self, fault: Fault) -> None:
        """Break each request for which ``fault`` has an answer, until `faults` is cleared."""

        async def again(request: web.Request) -> web.StreamResponse | None:
            if (answer := await fault(request)) is not None:
                self.faults.append(again)
            return answer

        self.faults.append(again)

    def refuse(
        self, ending: str, code: int, reason: str = "", text: str = "", *,
        times: int | None = None, after: int | None = None,
    ) -> list[float]:  # fmt: skip
        """Refuse requests whose ``METHOD path`` ends so, for so many ``times`` or for good.

        Returns the times at which they came, also those that are not refused any more. With
        ``after`` the answer asks the client to come again after so many seconds.
        """
        came = list[float]()
        headers = None if after is None else {"Retry-After": str(after)}

        async def fault(request: web.Request) -> web.Response | None:
            if not f"{request.method} {request.path}".endswith(ending):
                return None
            came.append(asyncio.get_running_loop().time())
            refused = times is None or len(came) <= times
            return refusal(code, reason, text, headers=headers) if refused else None

        self.always(fault)
        return came

    def before(self, ending: str, act: Callable[[], Awaitable[object]]) -> None:
        """Do this before requests are served whose ``METHOD path`` ends so."""

        async def fault(request: web.Request) -> None:
            if f"{request.method} {request.path}".endswith(ending):
                await act()

        self.faults.append(fault)

    def hang(self, ending: str) -> None:
        """Never answer requests whose ``METHOD path`` ends so."""
        self.before(ending, asyncio.Event().wait)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        to, body = parse(request.path), await request.read()
        if "dryRun" in request.query and to.part != "eviction":
            self.dry_runs.append(json.loads(body))
            answer = self.dry_run(self.dry_runs[-1])
            return await answer if isinstance(answer, Awaitable) else answer
        if "watch" in request.query:
            return await self._watch(request)
        try:
            if act := {"exec": self._exec, "portforward": self._forward}.get(to.part):
                return await act(request, self.checked(to, {}))
            found = self.answer(request.method, request.path, request.query, body)
        except ApiError as error:
            return refusal(error.code, error.reason, str(error).partition(": ")[2])
        code = 201 if request.method == "POST" else 200
        return web.Response(body=found, status=code, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        lines = asyncio.Queue[bytes]()
        stream = Stream(
            lambda line, _version: lines.put_nowait(line), lambda _error: lines.put_nowait(b"")
        )
        self.watch(request.path, request.query, stream)
        self.watches.append(request)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                while line := await lines.get():
                    await response.write(line)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            stream.closed = True
            self.watches.remove(request)
        return response

    async def _exec(self, request: web.Request, found: Stored) -> web.StreamResponse:
        namespace, pod = found.name
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        query = request.query
        self.execs.append((namespace, pod, query["container"], tuple(query.getall("command"))))
        await self.on_exec(socket, namespace, pod)
        await socket.close()
        return socket

    async def _forward(self, request: web.Request, found: Stored) -> web.StreamResponse:
        """Forward one HTTP request as the kubelet does."""
        namespace, pod = found.name
        (ports,) = request.query.getall("ports")
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (b"\x00", b"\x01"):
            await socket.send_bytes(channel + int(ports).to_bytes(2, "little"))
        head = b""
        while b"\r\n\r\n" not in head:
            message = await socket.receive()
            if message.type is not WSMsgType.BINARY or message.data[:1] != b"\x00":
                return socket
            head += message.data[1:]
        self.forwards.append((namespace, pod, int(ports), head.decode()))
        await self.on_forward(socket, namespace, pod)
        await socket.close()
        return socket


# A watch of pods, and faults that it meets.


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
