"""One pod as the scripted kubelet has it: its containers, and what the test told it to do."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator

from lab.kubelet import agent, rules
from lab.kubelet.api import Object
from lab.kubelet.behaviour import Behaviour, Via
from lab.kubelet.containers import Container, now

PROXY = "istio-proxy"


@dataclasses.dataclass(frozen=True)
class Listener:
    """A container that ends with this code after a POST to the path."""

    container: str
    path: str
    exit_code: int = 0


@dataclasses.dataclass
class Record:
    """One pod: the state of its containers, and what the test told the kubelet to do.

    ``stopped``: every container is about to start again (``RestartAllContainers``).
    ``listeners``: containers other than the proxy that listen, by port.
    ``obeys``: container and command: such a container exits with 0 when it is executed.
    ``misbehaves_via``: the way to the proxy that ``misbehaviours`` apply to; None: both.
    """

    pod: Object
    ip: str
    containers: dict[str, Container] = dataclasses.field(default_factory=dict)
    phase: str = "Pending"
    started_at: str = dataclasses.field(default_factory=now)
    transitions: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    lingers: bool = False
    stopped: bool = False
    misbehaviours: Iterator[Behaviour] = dataclasses.field(default_factory=lambda: iter(()))
    misbehaves_via: Via | None = None
    listeners: dict[int, Listener] = dataclasses.field(default_factory=dict[int, Listener])
    obeys: set[tuple[str, ...]] = dataclasses.field(default_factory=set[tuple[str, ...]])
    lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)

    @property
    def spec(self) -> Object:
        """The pod's spec."""
        return self.pod["spec"]

    @property
    def init_containers(self) -> list[Object]:
        """The pod's init containers, native sidecars among them."""
        return self.spec.get("initContainers", [])

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
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
        return agent.status_port(annotations, self._proxy_config)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The payload containers that run or may run again: while there is one, no quit is due."""
        states = rules.unfinished(self.spec, self.containers)
        return tuple(name for name in states if name != PROXY)

    @property
    def _proxy_config(self) -> str:
        """The ProxyConfig that the injector left in the proxy's environment, as JSON."""
        for container in [*self.spec["containers"], *self.init_containers]:
            for variable in container.get("env", []) if container["name"] == PROXY else []:
                if variable["name"] == "PROXY_CONFIG":
                    return variable.get("value", "")
        return ""
