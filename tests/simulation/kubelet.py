"""Nodes: what really runs in pods, what kubelets report of it, and how agents answer.

The truth about a pod is its `Sandbox`. The status of the pod follows it, late. An exec or a request
to a port has no UID: it reaches the pod that has the name at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from istio_aux.kube.errors import ApiError
from istio_aux.model.pod import PROXY

from simulation.store import GRACE, ApiServer, Change, Json, Name, Stored
from simulation.world import World

if TYPE_CHECKING:
    from simulation.client import Request

FOREVER = math.inf
PORT = 15020
NEW, OLD = "v1.36.3", "v1.33.13"
"""Versions of kubelets. An old one ignores a container's own restart policy (KEP-5307)."""


class Run(NamedTuple):
    """One start of a container: how long it runs, and its exit code."""

    seconds: float
    code: int = 0


class Frame(NamedTuple):
    """A frame that a kubelet sends ``after`` the one before; without data the connection ends."""

    after: float
    data: bytes = b""


class Agent(NamedTuple):
    """How an agent answers one request to exit, and after how long its proxy does; None: never."""

    frames: tuple[Frame, ...]
    exits: float | None
    status: int = 200


def _verdict(code: int) -> bytes:
    if code == 0:
        return b'\x03{"status":"Success"}'
    return (
        b'\x03{"status":"Failure","reason":"NonZeroExitCode","message":"exit code %d",'
        b'"details":{"causes":[{"reason":"ExitCode","message":"%d"}]}}' % (code, code)
    )


_NOT_FOUND = Frame(0.02, b"\x01404 page not found")
AGENTS = {
    "answers": Agent((Frame(0.05, _verdict(0)),), 0.3),
    "drains first": Agent((Frame(0.05, _verdict(0)),), 5.0),
    "resets": Agent((Frame(0.05),), 0.3),
    "exits with 137": Agent((Frame(0.3, _verdict(137)),), 0.3),
    "answers 404": Agent((_NOT_FOUND, Frame(0.02, _verdict(0))), None, 404),
    "hangs": Agent((), None, 0),
    "hangs and exits": Agent((), 2.0, 0),
    "ignores it": Agent((Frame(0.05, _verdict(0)),), None),
    "refuses": Agent((Frame(0.05, _verdict(1)),), None, 503),
}
MISBEHAVING = tuple(name for name in AGENTS if name != "answers")


@dataclass
class Plan:
    """What a new pod will do: runs of each payload container, and when it is Ready."""

    runs: dict[str, list[Run]]
    ready: float | None = 1.0  # Seconds after the start; None: never.
    agent: list[str] = field(default_factory=list)  # How the agent answers first.
    proxy_dies: float | None = None  # When the proxy ends by itself.
    policy: str = ""  # The payload containers' own restart policy, which old kubelets ignore.
    native: float | None = None  # How long another sidecar, a native one, outlives the others.


@dataclass
class Container:
    """One container as it is."""

    name: str
    role: Literal["payload", "proxy", "native"]
    policy: str
    runs: list[Run]
    state: Literal["waiting", "running", "terminated"] = "waiting"
    code: int = 0
    ended: str = ""
    starts: int = 0

    @property
    def done(self) -> bool:
        return self.state == "terminated" and not self.again

    @property
    def again(self) -> bool:
        return self.policy == "Always" or (self.policy == "OnFailure" and self.code != 0)


@dataclass
class Sandbox:
    """What really runs of a pod."""

    uid: str
    name: Name
    node: Node
    plan: Plan
    policy: str
    containers: list[Container]
    grace: float
    ready: bool = False
    stopping: bool = False
    reporting: bool = False
    asked: int = 0  # How often the agent was told to exit.
    gone: bool = False
    finished: float | None = None  # Since when the payload is.
    network: float | None = None  # When its network was made.

    @property
    def payload(self) -> list[Container]:
        return [each for each in self.containers if each.role == "payload"]

    @property
    def proxy(self) -> Container | None:
        return next((each for each in self.containers if each.role == "proxy"), None)

    @property
    def payload_done(self) -> bool:
        """Whether no payload container runs, or will run again."""
        return all(container.done for container in self.payload)

    def obey(self) -> None:
        """Its kubelet is new, or has another version now."""
        own = self.plan.policy if self.node.version == NEW else ""
        for container in self.payload:
            container.policy = own or self.policy
            if container.starts and container.state == "waiting" and not container.again:
                container.state = "terminated"

    @property
    def phase(self) -> str:
        if any(container.starts == 0 for container in self.containers):
            return "Pending"
        if not all(container.done for container in self.containers):
            return "Running"
        return "Failed" if any(container.code for container in self.containers) else "Succeeded"


@dataclass
class Node:
    """A node: a hung one answers no exec, a dead one does nothing and reports nothing."""

    name: str
    version: str = NEW
    hung: bool = False
    dead: bool = False
    well_since: float = 0.0  # When it last began to answer again.
    upgraded: float = 0.0  # When its kubelet got another version.

    def recover(self, now: float) -> None:
        if self.hung or self.dead:
            self.hung, self.dead, self.well_since = False, False, now


class Nodes:
    """All nodes and their kubelets."""

    def __init__(self, world: World, server: ApiServer, count: int) -> None:
        self._world, self._server = world, server
        old = OLD if world.faults & {"old kubelets", "kubelet upgrades"} else NEW
        self.nodes = [Node(f"node-{n}", old if n else NEW) for n in range(count)]
        self.sandboxes: dict[str, Sandbox] = {}
        self.told: Callable[[Request, Stored, Sandbox], None] = lambda _request, _pod, _box: None
        self._dice = world.dice("kubelets")
        server.watchers.append(self._changed)

    def start(self, pod: Stored, plan: Plan) -> None:
        """A new pod is bound to its node; its kubelet starts it a moment later."""
        spec = pod.object["spec"]
        node = next(node for node in self.nodes if node.name == spec["nodeName"])
        policy = spec["restartPolicy"]
        names = [each["name"] for each in spec["containers"]]
        containers = [
            Container(name, "proxy", policy, [Run(FOREVER)])
            if name == PROXY
            else Container(name, "payload", policy, list(plan.runs[name]))
            for name in names
        ]
        if plan.native is not None:
            containers.append(Container("native", "native", "Always", [Run(FOREVER)]))
        grace = spec.get("terminationGracePeriodSeconds", GRACE)
        box = Sandbox(pod.uid, pod.name, node, plan, policy, containers, grace)
        box.obey()
        self.sandboxes[pod.uid] = box
        self._world.after(0.3 + self._dice.random(), self._begin, box)

    def _begin(self, box: Sandbox) -> None:
        if box.gone or box.stopping:
            return
        if box.node.dead:
            self._world.after(2.0, self._begin, box)
            return
        box.network = self._world.now
        for container in box.containers:
            self._start(box, container)
        self._world.after(box.plan.ready or 0.0, self._get_ready, box)
        if box.plan.proxy_dies is not None and box.proxy:
            self._end(box, box.proxy, box.plan.proxy_dies, 0)

    def _start(self, box: Sandbox, container: Container) -> None:
        if box.gone or box.stopping:
            return
        run = container.runs[min(container.starts, len(container.runs) - 1)]
        container.starts += 1
        container.state = "running"
        if run.seconds != FOREVER:
            self._end(box, container, run.seconds, run.code)
        self._settle(box)

    def _get_ready(self, box: Sandbox) -> None:
        if not (box.gone or box.stopping or box.plan.ready is None):
            box.ready = True
            self._report(box)

    def _end(self, box: Sandbox, container: Container, seconds: float, code: int) -> None:
        """This start of a container ends in so many seconds."""
        self._world.after(seconds, self.exit, box, container, code, container.starts)

    def exit(self, box: Sandbox, container: Container, code: int, start: int) -> None:
        """A start of a container ends, unless it has ended."""
        if container.state != "running" or container.starts != start or box.gone:
            return
        container.state, container.code, container.ended = "terminated", code, self._world.time()
        self._world.tell("{} of {} exits with {}", container.name, box.name[1], code)
        if container.again and not box.stopping:
            self._world.after(1.0, self._wait, box, container, start)
            self._world.after(min(10.0 * 2 ** (start - 1), 60.0), self._again, box, container)
        others = [each for each in box.containers if each.role != "native"]
        for native in box.containers[len(others) :] if all(each.done for each in others) else ():
            native.policy = "Never"
            self._end(box, native, box.plan.native or 0.0, 0)
        self._settle(box)

    def _wait(self, box: Sandbox, container: Container, start: int) -> None:
        """A container waits for its next start, and that is reported, not how it ended."""
        if container.state == "terminated" and container.starts == start and container.again:
            container.state = "waiting"
            self._report(box)

    def _again(self, box: Sandbox, container: Container) -> None:
        if box.node.dead:
            self._world.after(2.0, self._again, box, container)
        elif container.starts and container.state != "running" and container.again:
            self._start(box, container)

    def _settle(self, box: Sandbox) -> None:
        """Containers have begun or ended: since when is the payload finished?"""
        box.finished = (box.finished or self._world.now) if box.payload_done else None
        self._report(box)

    # What befalls nodes and proxies.

    def on(self, node: Node) -> list[Sandbox]:
        """The pods of a node that need not end."""
        return [box for box in self.sandboxes.values() if box.node is node and not box.stopping]

    def reboot(self, node: Node, seconds: float) -> None:
        """All that runs on a node is killed; what may run again does after so many seconds."""
        node.dead = True
        for box in self.on(node):
            box.ready = False
            for container in box.containers:
                self.exit(box, container, 255, container.starts)
                self._world.after(seconds + 4 * self._dice.random(), self._again, box, container)
            self._world.after(seconds + 5.0, self._get_ready, box)

    def renew(self, uid: str) -> bool:
        """Give a pod that has a network another one; returns whether it has."""
        box = self.sandboxes.get(uid)
        if box is None or box.network is None or box.stopping:
            return False
        box.network = self._world.now
        self._report(box)
        return True

    def restart(self, node: Node, version: str) -> None:
        """A kubelet starts again, maybe in another version: nothing is Ready until it looks."""
        if node.version != version:
            node.version, node.upgraded = version, self._world.now
        info = {"nodeInfo": {"kubeletVersion": version}}
        self._server.update("nodes", ("", node.name), lambda found: found.update(status=info))
        for box in self.on(node):
            box.ready = False
            box.obey()
            for container in box.containers:
                self._world.after(1.0, self._again, box, container)
            self._settle(box)
            self._world.after(3.0, self._get_ready, box)

    def restored(self) -> None:
        """Kubelets end the pods that the API server lost, and report on all others again."""
        for uid, box in list(self.sandboxes.items()):
            pod = self._server.find("pods", *box.name)
            if pod and pod.uid == uid:
                self._report(box)
            else:
                box.gone = True
                del self.sandboxes[uid]
        for pod in list(self._server.list("pods")):
            if pod.uid not in self.sandboxes:
                self._server.remove("pods", *pod.name)
        for node in self.nodes:
            self.restart(node, node.version)

    # What is reported.

    def _report(self, box: Sandbox) -> None:
        if not box.reporting:
            box.reporting = True
            lag = 0.1 + 0.9 * self._dice.random()
            if self._world.happens("late status", 0.2):
                lag += self._world.dice("late status").uniform(1, 10)
            self._world.after(lag, self._write, box)

    def _write(self, box: Sandbox) -> None:
        if box.gone:
            return
        if box.node.dead:
            self._world.after(2.0, self._write, box)
            return
        box.reporting = False

        def status(found: Json) -> None:
            ready = box.ready and all(each.state == "running" for each in box.containers)
            condition = {"type": "Ready", "status": "True" if ready else "False"}
            found["status"] = {"phase": box.phase, "conditions": [condition]}
            if box.network is not None:
                since = self._world.time(box.network - self._world.now)
                made = {"type": "PodReadyToStartContainers", "lastTransitionTime": since}
                found["status"] |= {"podIP": "10.0.0.1", "conditions": [condition, made]}
                found["status"]["startTime"] = found["metadata"]["creationTimestamp"]
            for kind, native in (("containerStatuses", False), ("initContainerStatuses", True)):
                found["status"][kind] = [
                    {"name": each.name, "state": _state(each)}
                    for each in box.containers
                    if (each.role == "native") is native
                ]

        pod = self._server.find("pods", *box.name)
        if pod and pod.uid == box.uid:
            self._server.update("pods", box.name, status)

    # How pods end.

    def _changed(self, resource: str, change: Change) -> None:
        if resource != "pods":
            return
        if change.after is None and change.before:
            if box := self.sandboxes.pop(change.before.uid, None):
                box.gone = True
        elif change.after and "deletionTimestamp" in change.after.meta:
            box = self.sandboxes.get(change.after.uid)
            if box and not box.stopping:
                box.stopping = True
                self._world.after(0.2 + self._dice.random(), self._stop, box)

    def _stop(self, box: Sandbox) -> None:
        """Send SIGTERM to all containers; each takes its time, at most the grace period."""
        if box.node.dead:
            self._world.after(2.0, self._stop, box)
            return
        box.ready = False
        longest = 0.0
        for container in box.containers:
            if container.state == "running":
                quick = self._dice.random() < 0.7
                seconds = self._dice.uniform(0.1, 2.0) if quick else box.grace
                longest = max(longest, seconds)
                self._end(box, container, seconds, self._dice.choice((0, 143)) if quick else 137)
        self._report(box)
        self._world.after(longest + 0.5 + self._dice.random(), self._remove, box)

    def _remove(self, box: Sandbox) -> None:
        if box.gone:
            return
        if box.node.dead:
            self._world.after(2.0, self._remove, box)
            return
        for container in box.containers:
            if container.state != "terminated":
                container.state, container.code = "terminated", 137
                container.ended = self._world.time()
        self._write(box)
        self._world.tell("{} is gone", box.name[1])
        self._server.end_pod(box.name)

    # How agents answer.

    def find(self, request: Request) -> tuple[Stored, Sandbox] | None:
        """The pod that has a name now; None if its node answers nothing, `ApiError` if none has."""
        to = request.to
        pod = self._server.find("pods", to.namespace, to.name)
        if pod is None:
            raise ApiError(404, f'pods "{to.name}" not found', reason="NotFound")
        box = self.sandboxes.get(pod.uid)
        return None if box is None or box.node.dead or box.node.hung else (pod, box)

    def connect(self, request: Request, pod: Stored, box: Sandbox) -> Sequence[Frame]:
        """Start a command, or connect with a port; returns what the client receives."""
        if request.to.part == "exec":
            return self._ask(request, pod, box).frames
        port = PORT.to_bytes(2, "little")
        return (Frame(0.01, b"\0" + port), Frame(0.0, b"\1" + port))

    def forward(self, request: Request, pod: Stored, box: Sandbox) -> Sequence[Frame]:
        """A request for a port of the pod that was connected has arrived."""
        if box.gone:
            return (Frame(0.01),)
        if box.node.dead or box.node.hung:
            return ()
        try:
            agent = self._ask(request, pod, box)
        except ApiError as error:
            return (Frame(0.05, b"\1" + str(error).encode()),)
        if not agent.status:
            return ()
        answer = b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % agent.status
        return (Frame(0.05, b"\0" + answer),)

    def _ask(self, request: Request, pod: Stored, box: Sandbox) -> Agent:
        proxy = box.proxy
        if proxy is None or proxy.state != "running":
            raise ApiError(500, f'container not found ("{PROXY}")', reason="InternalError")
        self.told(request, pod, box)
        modes = () if self._world.calm else box.plan.agent
        mode = modes[box.asked] if box.asked < len(modes) else "answers"
        box.asked += 1
        agent = AGENTS[mode]
        self._world.tell("the agent of {} is told to exit, and {}", box.name[1], mode)
        if agent.exits is not None:
            self._end(box, proxy, agent.exits, 0)
        return agent


def _state(container: Container) -> dict[str, Any]:
    if container.state == "running":
        return {"running": {}}
    if container.state == "terminated":
        return {"terminated": {"exitCode": container.code, "finishedAt": container.ended}}
    return {"waiting": {"reason": "CrashLoopBackOff" if container.starts else "ContainerCreating"}}
