"""What a watch tells of a proxy's exit: as much as the API server sends, and where that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.kube import access, actions
from istio_aux.kube.client import Client
from istio_aux.kube.watch import Watch
from istio_aux.model.pod import PROXY, Key, Pod
from lab import meshed
from lab.scene import Scene
from lightkube.resources.core_v1 import Pod as ServerPod

AT = "2026-11-21T08:16:30Z"


class Seen:
    """A handler that keeps what a watch tells of one pod, in order."""

    def __init__(self, name: str) -> None:
        self.told: list[tuple[str, str | None, int | None]] = []
        self._name, self._more = name, asyncio.Event()

    def apply(self, resource: Pod) -> None:
        if resource.metadata.name == self._name:
            self._note("apply", resource)

    def delete(self, key: Key, last: Pod | None) -> None:
        if key.name == self._name:
            assert last is not None
            self._note("delete", last)

    def _note(self, verb: str, pod: Pod) -> None:
        exited = pod.exits.get(PROXY)
        self.told.append((verb, pod.status.phase, exited.exit_code if exited else None))
        self._more.set()

    async def until(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.told) < number:
                self._more.clear()
                await self._more.wait()


def status(phase: str, *, exited: bool) -> dict[str, Any]:
    """The status of a pod whose payload is finished."""
    ended = {"terminated": {"exitCode": 0, "finishedAt": AT, "startedAt": AT, "containerID": "x"}}
    states = {"main": ended, PROXY: ended if exited else {"running": {"startedAt": AT}}}
    return {
        "phase": phase,
        "containerStatuses": [
            {
                "name": name, "state": state, "image": "app", "imageID": "app",
                "ready": False, "restartCount": 0,
            }
            for name, state in states.items()
        ],
    }  # fmt: skip


@pytest.mark.parametrize("selection", [actions.RUNNING_JOBS, actions.NOT_TERMINAL])
def test_a_pod_that_leaves_a_selection_comes_as_it_was_before(
    scene: Scene, cluster: lab.Cluster, client: lightkube.Client, selection: Mapping[str, str]
):
    """So its last state shows an exit only where a change before has shown it already.

    The kubelet reports the exit first, and the phase once it has stopped the pod: that quit needs
    no second read. Where both come in one change, only a read tells the exit code.
    """

    def patch(name: str, phase: str, *, exited: bool) -> None:
        body = {"status": status(phase, exited=exited)}
        client.patch(ServerPod.Status, name, body, namespace=scene.namespace)

    async def watched(name: str, *changes: tuple[str, bool]) -> list[Any]:
        seen = Seen(name)
        client.create(meshed.pod(scene.namespace, name))
        await asyncio.to_thread(patch, name, "Running", exited=False)
        async with Client(access.load(cluster.kubeconfig)) as api:
            watch = asyncio.create_task(
                Watch(api, actions.PODS, Pod, seen, selection=selection).run()
            )
            await seen.until(1)
            for number, (phase, exited) in enumerate(changes, 2):
                await asyncio.to_thread(patch, name, phase, exited=exited)
                await seen.until(number)
        # Only now: the client aborts connections that are in use, and waits until they are closed.
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        return seen.told

    assert asyncio.run(watched("twice", ("Running", True), ("Succeeded", True))) == [
        ("apply", "Running", None), ("apply", "Running", 0), ("delete", "Running", 0),
    ]  # fmt: skip
    assert asyncio.run(watched("once", ("Succeeded", True))) == [
        ("apply", "Running", None), ("delete", "Running", None),
    ]  # fmt: skip
