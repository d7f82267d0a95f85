"""The pods of the scripted kubelet: their containers' states, and their status in the API server.

A `Record` is one pod as the kubelet has it: its containers, and what the test told it to do. All
of `Pods` runs on the kubelet's own event loop, so nothing here is locked against threads. A lock
per pod keeps the writes of one transition together.

How istio-proxy answers is pure, ``pilot-agent request`` in its container, and HTTP on its status
port: a command or a request goes in, an answer comes out that also says whether the proxy then
exits. It follows what Istio 1.28 and 1.30 were observed to do: 404 counts as success, only four
debug ports are allowed, the status port wants POST, and there is no shell in the image.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from lab.kubelet.api import STRATEGIC, Api, Object, RefusedError

DEBUG_PORTS = (15000, 15004, 15020, 15021)
STATUS_PORT = 15020
PORT_ANNOTATION = "status.sidecar.istio.io/port"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the exec'd process prints and returns; ``quits``: the proxy exits with 0 afterwards.

    ``exit_code`` is None when no process could be started at all.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = 0
    quits: bool = False


def execute(command: Sequence[str], status_port: int) -> Answer:
    """The answer to ``command``, executed in istio-proxy of a pod with that status port."""
    match list(command):
        case ["pilot-agent", "request", *arguments]:
            return _request(arguments, status_port)
        case [executable, *_]:
            return Answer(stderr=f'exec: "{executable}": executable file not found', exit_code=None)
        case _:
            return Answer(stderr="no command", exit_code=None)


def _request(arguments: list[str], status_port: int) -> Answer:
    match re.fullmatch(r"(?:--debug-port[= ](\d+) )?(\S+) /?(\S+)", " ".join(arguments)):
        case None:
            return Answer(stderr="Error: requires at least 2 arg(s)\n", exit_code=255)
        case found:
            port, method, path = int(found[1] or 15000), found[2], found[3]
    if port not in DEBUG_PORTS:
        return Answer(
            stderr=f"Error: debug port {port} is not in allowed list {DEBUG_PORTS}\n", exit_code=255
        )
    if port == STATUS_PORT != status_port:
        return Answer(stderr="Error: dial tcp: connect: connection refused\n", exit_code=255)
    if path != "quitquitquit" or port not in (15000, STATUS_PORT):
        return Answer(stdout="\n")  # a 404, which pilot-agent counts as success
    if method != "POST":
        return Answer(stderr="Error: received unsuccessful status code 405\n", exit_code=255)
    return Answer(stdout="OK", quits=True)


def respond(request: bytes, port: int, status_port: int) -> tuple[bytes, bool] | None:
    """The response to a request on this port, None: no listener; and whether the proxy exits."""
    if port != status_port or not port:
        return None
    method, path = [*request.split(b" ", 2), b"", b""][:2]
    if path != b"/quitquitquit":
        return NOT_FOUND, False
    if method != b"POST":
        return _http(b"405 Method Not Allowed", b"Method Not Allowed\n"), False
    return OK, True


def _http(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nContent-Type: text/plain\r\n\r\n"
    return head % (status, len(body)) + body


OK = _http(b"200 OK", b"OK")
NOT_FOUND = _http(b"404 Not Found", b"404 page not found\n")


PROXY = "istio-proxy"

Via = Literal["exec", "port-forward"]
Misbehaviour = Literal[
    "hang",
    "refuse",
    "exit-137",
    "close-without-status",
    "reset",
    "not-found",
    "unavailable",
    "babble",
]
"""How a quit can go wrong."""


@dataclasses.dataclass(frozen=True)
class Container:
    """One container: its state, how its previous run ended, how often it was started again.

    Both states are as Kubernetes writes them: ``{"running": {"startedAt": ...}}``.
    """

    state: Object
    last: Object = dataclasses.field(default_factory=dict)
    restarts: int = 0

    @property
    def runs(self) -> bool:
        return "running" in self.state

    @property
    def exit_code(self) -> int | None:
        """The code with which its process ended; None: it waits or runs."""
        return self.state.get("terminated", {}).get("exitCode")

    def ended(self, exit_code: int, reason: str | None = None) -> Container:
        """This container, its process gone. Raises ValueError unless it runs."""
        if not self.runs:
            raise ValueError(f"cannot end a container that is {self.state}")
        reason = reason or ("Completed" if exit_code == 0 else "Error")
        times = {**self.state["running"], "finishedAt": now()}
        return dataclasses.replace(
            self, state={"terminated": {"exitCode": exit_code, "reason": reason, **times}}
        )

    def again(self) -> Container:
        """This container in its next run; one that never ran is started, not started again."""
        last = self.state if "terminated" in self.state else self.last
        return Container(running(), last, self.restarts + bool(last))


def running() -> Object:
    """The state of a container that starts now."""
    return {"running": {"startedAt": now()}}


def now() -> str:
    """The present in RFC 3339, with the resolution of a status's times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def native(container: Object) -> bool:
    """Whether an init container is a sidecar (``restartPolicy: Always``)."""
    return container.get("restartPolicy") == "Always"


def statuses(declared: Sequence[Object], states: Mapping[str, Container], uid: str) -> list[Object]:
    """Container statuses of the ``declared`` ones that have a state, by name like the kubelet."""
    shown = [c for c in declared if c["name"] in states]
    return [_status(c, states[c["name"]], uid) for c in sorted(shown, key=lambda c: c["name"])]


def _status(container: Object, has: Container, uid: str) -> Object:
    identity = f"containerd://{uid}-{container['name']}-{has.restarts}"

    def shown(state: Object) -> Object:
        if "terminated" not in state:
            return state
        return {"terminated": {**state["terminated"], "containerID": identity}}

    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"sha256:{container['name']}",
        "containerID": identity,
        "ready": has.runs,
        "started": has.runs,
        "restartCount": has.restarts,
        "state": shown(has.state),
        "lastState": shown(has.last),
    }


@dataclasses.dataclass(frozen=True)
class Behaviour:
    """How the stream of an exec or a port-forward goes on, and how the proxy ends, if it does.

    ``stream``: ``answer`` completes it; ``hang`` opens it and says nothing; ``cut`` closes it
    without a status; ``reset`` drops the connection; ``refuse`` answers 503 before the upgrade;
    ``babble`` sends single bytes, as fast as they are taken, until the connection is closed.
    ``answer``: the answer to an exec; None: that of pilot-agent.
    ``response``: the same for a forwarded port, as HTTP; empty: nothing listens there.
    ``ends``: whether istio-proxy exits with 0.
    """

    stream: Literal["answer", "hang", "cut", "reset", "refuse", "babble"] = "answer"
    answer: Answer | None = None
    response: bytes | None = None
    ends: bool = False


MISBEHAVIOURS: dict[Misbehaviour, Behaviour] = {
    "hang": Behaviour(stream="hang"),
    "refuse": Behaviour(
        answer=Answer(
            stderr="Error: dial tcp 127.0.0.1:15020: connection refused\n", exit_code=255
        ),
        response=b"",
    ),
    "exit-137": Behaviour(answer=Answer(exit_code=137), ends=True),
    "close-without-status": Behaviour(stream="cut", ends=True),
    "reset": Behaviour(stream="reset", ends=True),
    "not-found": Behaviour(answer=Answer(stdout="\n"), response=NOT_FOUND),
    "unavailable": Behaviour(stream="refuse"),
    "babble": Behaviour(stream="babble"),
}


@dataclasses.dataclass(frozen=True)
class Listener:
    """A container that ends with this code after a POST to the path; or the pod's network."""

    container: str
    path: str
    exit_code: int = 0


@dataclasses.dataclass
class Record:
    """One pod: the state of its containers, and what the test told the kubelet to do.

    ``listeners``: containers other than the proxy that listen, by port.
    ``misbehaves_via``: the way to the proxy that ``misbehaviour`` is about; None: both.
    """

    pod: Object
    ip: str
    containers: dict[str, Container] = dataclasses.field(default_factory=dict)
    phase: str = "Pending"
    started_at: str = dataclasses.field(default_factory=now)
    transitions: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    misbehaviour: Behaviour | None = None
    misbehaves_via: Via | None = None
    listeners: dict[int, Listener] = dataclasses.field(default_factory=dict[int, Listener])
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def spec(self) -> Object:
        return self.pod["spec"]

    @property
    def init_containers(self) -> list[Object]:
        return self.spec.get("initContainers", [])

    @property
    def key(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    @property
    def path(self) -> str:
        """Where the API server has the pod."""
        return "/api/v1/namespaces/{}/pods/{}".format(*self.key)

    @property
    def uid(self) -> str:
        """The pod's UID: what tells it from an earlier pod of the same name."""
        return self.pod["metadata"]["uid"]

    @property
    def status_port(self) -> int:
        """The port on which this pod's pilot-agent has its status server; 0: it has none."""
        return int(self.pod["metadata"].get("annotations", {}).get(PORT_ANNOTATION, STATUS_PORT))

    @property
    def regular(self) -> list[Container]:
        """The containers that are no init containers, once the pod is started."""
        return [self.containers[c["name"]] for c in self.spec["containers"]]

    @property
    def over(self) -> bool:
        """Whether each of these has ended, and the pod's restart policy starts none again."""
        policy = self.spec.get("restartPolicy", "Always")
        final = {"Never": lambda code: code is not None, "OnFailure": lambda code: code == 0}
        return policy in final and all(final[policy](c.exit_code) for c in self.regular)

    def status(self) -> Object:
        """The pod's status as the kubelet would write it now."""
        done = self.phase in ("Succeeded", "Failed")
        started = bool(self.containers)
        ready = started and not done and all(c.runs for c in self.regular)
        facts = {
            "PodReadyToStartContainers": not done,
            "Initialized": started,
            "ContainersReady": ready,
            "Ready": ready,
            "PodScheduled": True,
        }
        return {
            "phase": self.phase,
            "conditions": [self._condition(kind, true=true) for kind, true in facts.items()],
            "containerStatuses": statuses(self.spec["containers"], self.containers, self.uid),
            "initContainerStatuses": statuses(self.init_containers, self.containers, self.uid),
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "startTime": self.started_at,
        }

    def _condition(self, kind: str, *, true: bool) -> Object:
        value = "True" if true else "False"
        known, since = self.transitions.get(kind, ("", ""))
        if known != value:
            since = now()
            self.transitions[kind] = (value, since)
        return {"type": kind, "status": value, "lastTransitionTime": since}


AT_ONCE = "kubelet.lab.test/at-once"
"""The label of a pod that runs as soon as it is there, without being told to."""


class Pods:
    """The pods that run on ``node``."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._records: dict[str, Record] = {}
        self._changed = asyncio.Condition()
        self._addresses = itertools.count(2)

    def find(self, namespace: str, name: str) -> Record | None:
        found = [r for r in self._records.values() if r.key == (namespace, name)]
        return found[-1] if found else None

    def get(self, uid: str) -> Record:
        """The pod with that UID. Raises KeyError when it never came here or is gone."""
        return self._records[uid]

    async def run(self, uid: str, waiting: Collection[str]) -> None:
        """Start the pod with that UID: Running, or Pending while a container is ``waiting``."""
        async with self._changed:
            await self._changed.wait_for(lambda: uid in self._records)
        record = self._records[uid]
        async with record.lock:
            started = Container(running())
            for container in record.init_containers:
                sidecar = native(container)
                record.containers[container["name"]] = started if sidecar else started.ended(0)
            later = Container({"waiting": {"reason": "PodInitializing"}})
            record.containers |= {
                c["name"]: later if c["name"] in waiting else started
                for c in record.spec["containers"]
            }
            await self._settle(record)

    async def end(self, record: Record, name: str, exit_code: int, reason: str | None) -> None:
        """End a container's process, and report what follows from that, phase included."""
        async with record.lock:
            record.containers[name] = record.containers[name].ended(exit_code, reason)
            await self._settle(record)

    async def quit(self, record: Record, name: str, exit_code: int) -> None:
        """A process that was told to exit does so, unless it has ended already."""
        async with record.lock:
            container = record.containers[name]
            if container.runs:
                record.containers[name] = container.ended(exit_code)
                await self._settle(record)

    async def again(self, record: Record, name: str) -> None:
        """The next run of a container that ended, or its first one."""
        async with record.lock:
            record.containers[name] = record.containers[name].again()
            await self._settle(record)

    async def follow(self) -> None:
        """Run the pods bound here, and finalise those being deleted, forever."""
        async for event, pod in self._api.objects(
            "/api/v1/pods", {"fieldSelector": f"spec.nodeName={self._node}"}
        ):
            uid = pod["metadata"]["uid"]
            if event == "DELETED":
                self._records.pop(uid, None)
                continue
            record = self._records.get(uid) or await self._take_in(pod)
            if "deletionTimestamp" in pod["metadata"]:
                await self._finalise(record)
            elif AT_ONCE in pod["metadata"].get("labels", {}) and not record.containers:
                await self.run(uid, ())

    async def _take_in(self, pod: Object) -> Record:
        third, fourth = divmod(next(self._addresses), 250)
        record = Record(pod, ip=f"10.244.{third}.{fourth + 1}")
        async with self._changed:
            self._records[record.uid] = record
            self._changed.notify_all()
        return record

    async def _finalise(self, record: Record) -> None:
        """Stop what still runs, report it, and remove the pod with grace period 0."""
        async with record.lock:
            for name, container in record.containers.items():
                if container.runs:
                    record.containers[name] = container.ended(0)
            if record.containers:
                await self._write(record)
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": record.uid}}
            await self._unless_gone(record, "DELETE", record.path, options)

    async def _settle(self, record: Record) -> None:
        """Report the new states, then what a kubelet concludes from them, in its order.

        A final phase is written after the terminated containers, not with them: between the two a
        real pod was seen twice with nothing running and the phase still Running.
        """
        if not record.over:
            waits = any("waiting" in container.state for container in record.regular)
            record.phase = "Pending" if waits else "Running"
        await self._write(record)
        if not record.over:
            return
        for name in (init["name"] for init in record.init_containers):
            if record.containers[name].runs:
                record.containers[name] = record.containers[name].ended(0)
        await self._write(record)
        failed = any(container.exit_code for container in record.regular)
        record.phase = "Failed" if failed else "Succeeded"
        await self._write(record)

    async def _write(self, record: Record) -> None:
        # The UID makes the API server refuse the status for a later pod of the same name.
        patch = {"metadata": {"uid": record.uid}, "status": record.status()}
        await self._unless_gone(record, "PATCH", f"{record.path}/status", patch, STRATEGIC)

    async def _unless_gone(self, record: Record, method: str, *request: Any) -> None:
        try:
            await self._api.request(method, *request)
        except RefusedError as error:
            # The name now belongs to a later pod. NodeRestriction refuses (403) if that one has no
            # node yet, the comparison of UIDs (409) if it has, and validation (422: the UID is
            # immutable) if it came between the two.
            if error.code not in (403, 404, 409, 422):
                raise
            if error.code in (403, 422) and await self._exists(record):
                raise

    async def _exists(self, record: Record) -> bool:
        try:
            pod = await self._api.request("GET", record.path)
        except RefusedError as error:
            if error.code in (403, 404):
                return False
            raise
        return pod["metadata"]["uid"] == record.uid
