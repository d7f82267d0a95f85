"""One pod as the scripted kubelet has it: its containers, and what the test told it to do."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Literal

from lab.kubelet import agent
from lab.kubelet.agent import Answer
from lab.kubelet.api import Object

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
        ended = {"exitCode": exit_code, "reason": reason, **times}
        return dataclasses.replace(self, state={"terminated": ended})

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
    "not-found": Behaviour(answer=Answer(stdout="\n"), response=agent.NOT_FOUND),
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
        annotations = self.pod["metadata"].get("annotations", {})
        return int(annotations.get(agent.ANNOTATION, agent.STATUS_PORT))

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
