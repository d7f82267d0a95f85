"""Pods as a cluster might have them, and as none should: each is made of a seed and its number."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

Document = dict[str, Any]

_PROXY = "istio-proxy"
_NAMES = (
    *("main", "tensorflow", "pytorch", "wait", "logger", "vault-agent", "upload", "0"),
    "x" * 63,
)
_ODD_NAMES = ("istio-proxy-2", "istio", "not-there")
_SIDECARS = ("cloud-sql-proxy", "istio-validation", "fetch", "warm-up")
_CODES = (*[0] * 8, 1, 1, 2, 42, 137, 143, 255, -1, 2**31 - 1)
_REASONS = (
    *("Completed", "Error", "Error", "OOMKilled", "StartError", "", ""),
    *("ContainerStatusUnknown", "RestartingAllContainers"),
)
_WAITING = (
    *("CrashLoopBackOff", "ImagePullBackOff", "ContainerCreating", "PodInitializing", ""),
    "RestartingAllContainers",
)
_RESTARTS = (*["Never"] * 9, *["OnFailure"] * 9, "Always", None)
_PHASES = (*["Running"] * 24, "Pending", "Succeeded", "Failed", "Unknown", None, "Paused")
_TIME = "2026-11-21T08:16:29Z"


def pod(seed: int, number: int) -> Document:
    """The pod of this number: the same on every machine and in every run of the seed."""
    return _Maker(Random(f"{seed}/{number}")).pod(number)


class _Maker:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._rules = self._chance(0.25)  # Whether restart rules of single containers occur.

    def pod(self, number: int) -> Document:
        names: list[str] = self._random.sample(_NAMES, self._random.choice((1, 1, 1, 2, 2, 3)))
        native = self._chance(0.1)
        if not native and self._chance(0.93):
            names.insert(self._random.randrange(len(names) + 1), _PROXY)
        first = [*([_PROXY] if native else ()), *(each for each in _SIDECARS if self._chance(0.2))]
        containers = [self._container(name) for name in names]
        inits = [
            self._container(name, init=True, native=name == _PROXY or self._chance(0.4))
            for name in first
        ]
        if self._chance(0.005):  # No API server stores it.
            containers.append(self._container(names[0]))
        phase = self._random.choice(_PHASES)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self._metadata(number, names),
            "spec": _without_none(
                {
                    "restartPolicy": self._random.choice(_RESTARTS),
                    "containers": containers,
                    "initContainers": inits,
                }
            ),
            "status": _without_none(
                {
                    "phase": phase,
                    "conditions": self._conditions(),
                    "containerStatuses": self._statuses(names),
                    "initContainerStatuses": self._init_statuses(inits),
                }
            ),
        }

    def _metadata(self, number: int, names: list[str]) -> Document:
        metadata: Document = {"name": f"pod-{number}", "namespace": "team", "uid": f"u-{number}"}
        if self._chance(0.04):
            metadata |= {"deletionTimestamp": _TIME, "deletionGracePeriodSeconds": 30}
        annotations: dict[str, str] = {}
        named = (*names, *_ODD_NAMES)
        if self._chance(0.12):
            annotations["istio-aux.io/sidecars"] = self._sidecars(named)
        if self._chance(0.08):
            annotations["istio-aux.io/quit-after"] = self._listed(names if self._half else named)
        if self._chance(0.03):
            annotations["istio-aux.io/quit"] = self._random.choice(("true", "false", "no", ""))
        if self._chance(0.03):
            annotations["istio-aux.io/quit-grace"] = self._random.choice(("5", "1m", "soon", ""))
        return metadata | ({"annotations": annotations} if annotations else {})

    def _container(self, name: str, *, init: bool = False, native: bool = False) -> Document:
        container: Document = {"name": name, "image": "app"}
        if native:
            container["restartPolicy"] = "Always"
        elif self._rules and self._chance(0.6):
            container["restartPolicy"] = self._random.choice(
                ("Never", "OnFailure") if init else ("Never", "OnFailure", "Always", "Never")
            )
        elif self._chance(0.003):
            container["restartPolicy"] = "Sometimes"
        has_policy = "restartPolicy" in container
        if self._rules and self._chance(0.4 if has_policy else 0.01):
            container["restartPolicyRules"] = [self._rule() for _ in range(self._small())]
        return container

    def _rule(self) -> Document:
        codes = [self._random.choice(_CODES) for _ in range(self._small())]
        odd = self._chance(0.01)
        rule: Document = {
            "action": "Pray" if odd else self._random.choice(("Restart", "RestartAllContainers")),
            "exitCodes": {"operator": self._random.choice(("In", "In", "NotIn")), "values": codes},
        }
        if self._chance(0.01):
            rule["exitCodes"]["operator"] = "Near"
        if self._chance(0.01):
            del rule["exitCodes"]
        return rule

    def _statuses(self, names: list[str]) -> list[Document] | None:
        """Often the moment that counts, when only the proxy runs; else anything."""
        moment = self._random.choice((*["ended"] * 6, "lost", "any", "any"))
        odd = self._chance(0.2)  # Whether one of them may be anything all the same.
        statuses = []
        for name in names:
            if moment == "any" or (odd and self._chance(0.4)):
                state = self._state()
            else:
                runs = (name == _PROXY) is (moment == "ended")
                state = {"state": _running() if runs else self._terminated()}
            if state is not None:
                statuses.append(self._status(name, state))
        return self._spoilt(statuses)

    def _init_statuses(self, inits: list[Document]) -> list[Document] | None:
        statuses = []
        for init in inits:
            native = init.get("restartPolicy") == "Always"
            state: Document | None = {"state": _running() if native else self._terminated(0)}
            if self._chance(0.15):
                state = self._state()
            if state is not None:
                statuses.append(self._status(init["name"], state))
        return self._spoilt(statuses)

    def _spoilt(self, statuses: list[Document]) -> list[Document] | None:
        """In any order, seldom with one too many, or with none."""
        self._random.shuffle(statuses)
        if statuses and self._chance(0.02):  # Of the same name, the same or another state.
            name = self._random.choice(statuses)["name"]
            again = self._status(name, self._state() or {})
            statuses.append(again if self._half else dict(statuses[0]))
        if self._chance(0.01):
            statuses.append(self._status("not-there", {"state": self._terminated()}))
        if self._chance(0.01):
            return None if self._half else []
        return statuses

    def _status(self, name: str, state: Document) -> Document:
        return {
            "name": name,
            "ready": self._half,
            "restartCount": self._random.choice((0, 0, 1, 3, 2000)),
            "image": "app",
            "imageID": "",
            **({"started": True} if self._chance(0.9) else {}),
            **state,
        }

    def _state(self) -> Document | None:
        """State and last state; None: there is no status at all."""
        waiting = {"waiting": {"reason": self._random.choice(_WAITING)}}
        state = self._random.choice(
            (
                *[_running()] * 5,
                *[self._terminated()] * 6,
                *[waiting] * 5,
                {},
                {**_running(), **self._terminated()},  # Only one of them should be set.
                "none",
                None,
            )
        )
        if state is None:
            return None
        last = {"lastState": self._terminated()} if self._half else {}
        return last if state == "none" else {"state": state, **last}

    def _terminated(self, code: int | None = None) -> Document:
        ended = {
            "exitCode": self._random.choice(_CODES) if code is None else code,
            "reason": self._random.choice(_REASONS) if self._chance(0.2) else "Completed",
            "finishedAt": _TIME,
        }
        return {"terminated": ended}

    def _conditions(self) -> list[Document]:
        conditions = [{"type": "Ready", "status": "False"}]
        if self._chance(0.03):
            status = self._random.choice(("True", "False", "Unknown"))
            conditions.append({"type": "AllContainersRestarting", "status": status})
        return conditions

    def _listed(self, names: Sequence[str]) -> str:
        """Names, separated in the ways that people separate them."""
        count = min(self._small(), len(names))
        return self._random.choice((",", ", ", ",,")).join(self._random.sample(names, count))

    def _sidecars(self, names: Sequence[str]) -> str:
        """Names with what is to be done about them, of which an author may not say `quit`."""
        hows = (*["ignore"] * 10, "native", "quit")
        return self._listed([f"{name}={self._random.choice(hows)}" for name in names])

    def _small(self) -> int:
        return self._random.choice((1, 1, 2, 3))

    def _chance(self, chance: float) -> bool:
        return self._random.random() < chance

    @property
    def _half(self) -> bool:
        return self._chance(0.5)


def _running() -> Document:
    return {"running": {"startedAt": _TIME}}


def _without_none(document: Document) -> Document:
    return {key: value for key, value in document.items() if value is not None}
