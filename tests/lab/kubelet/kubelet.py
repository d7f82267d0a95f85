"""The scripted kubelet as tests use it: calls return once the API server has the result.

Its Node object, and the Lease that keeps it Ready, are here, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime
import ssl
from collections.abc import Collection, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Pod

import lab
from lab import processes, tools
from lab.kubelet import server
from lab.kubelet.api import MERGE, Api, Object, RefusedError
from lab.kubelet.pods import (
    MISBEHAVIOURS,
    PROXY,
    Behaviour,
    Listener,
    Misbehaviour,
    Pods,
    Record,
    Via,
    now,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# The kubelet renews every 10 s and the node controller gives up after 50 s; half of the former
# leaves room for an API server that is restarted in a test.
RENEWAL = 5.0
# Makes an API server of 1.36 pass WebSockets through instead of translating v5 into SPDY
# (kubernetes pkg/registry/core/pod/rest/subresources.go, checkNodeSupportsWebsockets).
FEATURES = ["ExtendWebSocketsToKubelet"]


async def register(api: Api, name: str, port: int) -> None:
    """Create the Node, or take over the one that is there, reachable at 127.0.0.1 and ``port``."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
    await _create(api, "/api/v1/nodes", node)
    await api.request(
        "PATCH", f"/api/v1/nodes/{name}/status", {"status": _status(name, port)}, MERGE
    )
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40},
    }
    await _create(api, LEASES, lease)
    await _renew(api, name)


async def keep_ready(api: Api, name: str) -> None:
    while True:
        await asyncio.sleep(RENEWAL)
        await _renew(api, name)


async def _create(api: Api, path: str, body: Object) -> None:
    try:
        await api.request("POST", path, body)
    except RefusedError as error:
        if error.code != 409:
            raise


async def _renew(api: Api, name: str) -> None:
    micros = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    await api.request("PATCH", f"{LEASES}/{name}", {"spec": {"renewTime": micros}}, MERGE)


def _status(name: str, port: int) -> Object:
    resources = {"cpu": "64", "memory": "256Gi", "pods": "10000"}
    healthy = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    scripted = ("bootID", "kernelVersion", "machineID", "osImage", "systemUUID")
    return {
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": "Scripted",
                "lastHeartbeatTime": now(),
                "lastTransitionTime": now(),
            }
            for kind, status in {**healthy, "Ready": "True"}.items()
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        **({} if tools.before(36) else {"declaredFeatures": FEATURES}),
        "nodeInfo": {
            **dict.fromkeys(scripted, "scripted"),
            "architecture": "amd64",
            "containerRuntimeVersion": "scripted://1",
            "kubeProxyVersion": "",
            "kubeletVersion": tools.VERSION,
            "operatingSystem": "linux",
        },
    }


NAME = "scripted"
EXIT = 0.3  # seconds from a quit to the proxy's end in the API; a real kubelet takes 0.8 to 1.1
PATIENCE = 60.0  # seconds for one call; an API server that is being restarted answers within a few

# Generic: the API server answers a Binding with a Status, which lightkube's own type would refuse.
BINDING = create_namespaced_resource("", "v1", "Binding", "bindings")

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Exec:
    """One request to execute or to forward; ``command`` is method and path for the latter."""

    uid: str
    container: str
    command: tuple[str, ...]


class ScriptedKubelet:
    """A node of the cluster whose containers do what the test says, while the context is open.

    Methods take the pod as the API server returned it, UID included. They raise KeyError for a pod
    that this kubelet does not have, and any error of the kubelet's own thread.
    """

    def __init__(self, cluster: lab.Cluster) -> None:
        self._cluster = cluster
        self._pair = cluster.issue(
            f"kubelet-{NAME}",
            f"system:node:{NAME}",
            organizations=["system:nodes"],
            hosts=["127.0.0.1"],
        )
        # API servers before 1.36 need it. It is built before the clock of `__enter__` runs.
        self._front = tools.path("kubelet-spdy") if tools.before(36) else None
        self._execs: list[Exec] = []
        self._executor = concurrent.futures.ThreadPoolExecutor(1, f"kubelet-{NAME}")
        self._started = concurrent.futures.Future[None]()
        self._life: concurrent.futures.Future[None]
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._pods: Pods
        self._tasks: asyncio.TaskGroup

    def __enter__(self) -> Self:
        self._life = self._executor.submit(asyncio.run, self._serve())
        concurrent.futures.wait(
            [self._started, self._life], PATIENCE, concurrent.futures.FIRST_COMPLETED
        )
        if self._life.done():
            self._life.result()
        self._started.result(0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._life.done():
            self._life.result()  # It failed while it was needed.
        with lab.ending(f"scripted kubelet {NAME}"):
            self._loop.call_soon_threadsafe(self._stop.set)
            self._life.result(PATIENCE)
            self._executor.shutdown()

    def execs_of(self, pod: Pod) -> list[Exec]:
        return [e for e in self._execs if e.uid == _uid(pod)]

    def finish(
        self, pod: Pod, container: str, exit_code: int = 0, *, reason: str | None = None
    ) -> None:
        """End a container. ``restart`` makes the restart that is then due."""
        self._call(self._pods.end(self._pods.get(_uid(pod)), container, exit_code, reason))

    def listen(self, pod: Pod, container: str, port: int, path: str, exit_code: int = 0) -> None:
        """From now on a container other than the proxy ends after a POST to this port and path."""
        self._pods.get(_uid(pod)).listeners[port] = Listener(container, path, exit_code)

    def misbehave(self, pod: Pod, behaviour: Misbehaviour, *, via: Via | None = None) -> None:
        """From now on requests for this pod's proxy go wrong, with ``via`` those of this way."""
        record = self._pods.get(_uid(pod))
        record.misbehaviour, record.misbehaves_via = MISBEHAVIOURS[behaviour], via

    def restart(self, pod: Pod, container: str) -> None:
        """Start the next run of a container, or its first one if it waits."""
        self._call(self._pods.again(self._pods.get(_uid(pod)), container))

    def run(self, pod: Pod, *, waiting: Collection[str] = ()) -> None:
        """Bind the pod to this node and start it; `restart` starts those ``waiting``."""
        uid = _uid(pod)
        assert pod.metadata is not None
        if pod.spec is None or pod.spec.nodeName is None:
            binding = BINDING(
                metadata=ObjectMeta(name=pod.metadata.name, namespace=pod.metadata.namespace),
                target={"kind": "Node", "name": NAME},
            )
            with self._cluster.client() as client:
                client.create(binding)
        self._call(self._pods.run(uid, waiting))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    # What the streaming endpoint asks.

    def find(self, namespace: str, name: str) -> Record | None:
        return self._pods.find(namespace, name)

    def note(self, record: Record, container: str, command: tuple[str, ...]) -> None:
        self._execs.append(Exec(record.uid, container, command))

    def behave(self, record: Record, via: Via) -> Behaviour | None:
        """The misbehaviour that is due for a request that comes this way; None: behave."""
        return record.misbehaviour if record.misbehaves_via in (None, via) else None

    def exits(self, record: Record, exit_code: int, container: str = PROXY) -> None:
        """The proxy of the pod, or another container, ends with this code, shortly."""
        self._tasks.create_task(self._exit(record, exit_code, container))

    async def _exit(self, record: Record, exit_code: int, container: str) -> None:
        await asyncio.sleep(EXIT)
        await self._pods.quit(record, container, exit_code)

    # The kubelet's thread.

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Api(self._cluster.server, self._tls(ssl.Purpose.SERVER_AUTH)) as api:
            self._pods = Pods(api, NAME)
            runner, port = await server.serve(
                server.application(self), self._tls(ssl.Purpose.CLIENT_AUTH)
            )
            try:
                if self._front:
                    port = await asyncio.to_thread(self._speak_spdy, self._front, port)
                await register(api, NAME, port)
                await self._live(api)
            finally:
                await server.stop(runner)

    def _speak_spdy(self, program: Path, behind: int) -> int:
        port, host = processes.reserve_port(), "127.0.0.1"
        front = self._cluster.spawn(
            f"kubelet-{NAME}-spdy",
            [
                program,
                *("-listen", f"{host}:{port}"),
                *("-kubelet", f"{host}:{behind}"),
                *("-ca", self._cluster.ca),
                *("-certificate", self._pair.certificate),
                *("-key", self._pair.key),
            ],
        )
        processes.await_listener(front, host, port, timeout=PATIENCE)
        return port

    def _tls(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """The node's certificate, for its server as for its client, and trust in the cluster's."""
        context = ssl.create_default_context(purpose, cafile=str(self._cluster.ca))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self._pair.certificate, self._pair.key)
        return context

    async def _live(self, api: Api) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._pods.follow())
                self._tasks.create_task(keep_ready(api, NAME))
                self._tasks.create_task(self._until_stopped())
                self._started.set_result(None)
        except* _StopError:
            pass

    async def _until_stopped(self) -> None:
        """Raise when stopped, which cancels tasks that wait for the API server, too."""
        await self._stop.wait()
        raise _StopError


class _StopError(Exception):
    """The test is over."""


def _uid(pod: Pod) -> str:
    assert pod.metadata is not None
    assert pod.metadata.uid is not None, "the pod must be as the API server returned it"
    return pod.metadata.uid
