"""A namespace with pods whose story a test tells: start them, look at them, await their end."""

from __future__ import annotations

import secrets
from typing import Any

import lightkube
from lightkube.resources.core_v1 import Event, Pod

from lab import meshed, until
from lab.kubelet import ScriptedKubelet


class Scene:
    """The pods of a namespace, run by a scripted kubelet; a workload serves ``control``."""

    def __init__(
        self, client: lightkube.Client, kubelet: ScriptedKubelet, namespace: str, control: str
    ) -> None:
        self.client = client
        self.kubelet = kubelet
        self.namespace = namespace
        self._control = control

    def start(self, name: str, **what: Any) -> Pod:
        pod = self.client.create(meshed.pod(self.namespace, name, **what))
        self.kubelet.run(pod)
        return pod

    def look(self, pod: Pod) -> Pod:
        namespace, name = _name(pod).split("/")
        return self.client.get(Pod, name, namespace=namespace)

    def phase(self, pod: Pod) -> str | None:
        status = self.look(pod).status
        return status.phase if status else None

    def proxy_exit_code(self, pod: Pod) -> int | None:
        return meshed.proxy_exit_code(self.look(pod))

    def await_phase(self, pod: Pod, phase: str) -> None:
        until(lambda: self.phase(pod) == phase, what=f"pod {_name(pod)} to be {phase}")

    def notes(self, pod: Pod, reason: str = "") -> list[str]:
        """The notes of the Events on the pod, of this reason if there is one."""
        found = self.client.list(Event, namespace=self.namespace)
        mine = [event for event in found if event.involvedObject.uid == meshed.meta(pod).uid]
        return [event.message or "" for event in mine if reason in ("", event.reason)]

    def await_event(self, pod: Pod, reason: str) -> None:
        until(lambda: self.notes(pod, reason), what=f"Event {reason} on pod {_name(pod)}")

    def await_control(self) -> None:
        """Run a pod that must be freed, from its start to its end.

        Watch events come in order, and a pod that needs a quit gets it at once. So when this
        returns, an earlier change has had its effect: what the kubelet was not asked by then, it
        will not be asked.
        """
        name = f"control-{secrets.token_hex(4)}"
        control = self.client.create(meshed.pod(self._control, name))
        self.kubelet.run(control)
        self.kubelet.finish(control, "main")
        self.await_phase(control, "Succeeded")


def _name(pod: Pod) -> str:
    return f"{meshed.meta(pod).namespace}/{meshed.meta(pod).name}"
