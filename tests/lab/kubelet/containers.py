"""The states a container can be in, and how a container status shows them: data, no I/O."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from lab.kubelet.api import Object


@dataclasses.dataclass(frozen=True)
class Waiting:
    """Not started yet, for a reason such as ``PodInitializing``."""

    reason: str


@dataclasses.dataclass(frozen=True)
class Running:
    """Running since ``started_at`` (RFC 3339, seconds)."""

    started_at: str


@dataclasses.dataclass(frozen=True)
class Terminated:
    """Ended with ``exit_code``; ``reason`` in the runtime's words: Completed, Error, OOMKilled."""

    exit_code: int
    reason: str
    started_at: str
    finished_at: str

    def final(self, policy: str) -> bool:
        """Whether the kubelet does not start the container again, by the pod's restart policy."""
        return policy == "Never" or (policy == "OnFailure" and self.exit_code == 0)


@dataclasses.dataclass(frozen=True)
class Container:
    """One container: its state, how its previous run ended, how often it was started again."""

    state: Waiting | Running | Terminated
    last: Terminated | None = None
    restarts: int = 0

    def ended(self, exit_code: int, reason: str | None = None) -> Container:
        """This container, its process gone with ``exit_code``. Raises ValueError unless it runs."""
        match self.state:
            case Running(started_at):
                reason = reason or ("Completed" if exit_code == 0 else "Error")
                return dataclasses.replace(
                    self, state=Terminated(exit_code, reason, started_at, finished_at=now())
                )
            case other:
                raise ValueError(f"cannot end a container that is {other}")

    def again(self) -> Container:
        """This container in its next run; one that never ran is started, not started again."""
        last = self.state if isinstance(self.state, Terminated) else self.last
        return Container(Running(now()), last, self.restarts + bool(last))


def now() -> str:
    """The present second in RFC 3339, the resolution of a status's times."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def native(container: Object) -> bool:
    """Whether an init container is a sidecar (``restartPolicy: Always``)."""
    return container.get("restartPolicy") == "Always"


def statuses(declared: Sequence[Object], states: Mapping[str, Container], uid: str) -> list[Object]:
    """Container statuses of those ``declared`` containers that have a state, sorted by name.

    The kubelet sorts by name, so ``istio-proxy`` comes before ``main`` whatever the spec says.
    """
    shown = [c for c in declared if c["name"] in states]
    return [_status(c, states[c["name"]], uid) for c in sorted(shown, key=lambda c: c["name"])]


def _status(container: Object, state: Container, uid: str) -> Object:
    identity = f"containerd://{uid}-{container['name']}-{state.restarts}"
    runs = isinstance(state.state, Running)
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"sha256:{container['name']}",
        "containerID": identity,
        "ready": runs,
        "started": runs,
        "restartCount": state.restarts,
        "state": _state(state.state, identity),
        "lastState": _state(state.last, identity) if state.last else {},
    }


def _state(state: Waiting | Running | Terminated, identity: str) -> Object:
    match state:
        case Waiting(reason):
            return {"waiting": {"reason": reason}}
        case Running(started_at):
            return {"running": {"startedAt": started_at}}
        case Terminated():
            return {
                "terminated": {
                    "containerID": identity,
                    "exitCode": state.exit_code,
                    "reason": state.reason,
                    "startedAt": state.started_at,
                    "finishedAt": state.finished_at,
                }
            }
