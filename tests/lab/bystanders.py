"""Pods that are created beside an attack, as dry runs: each has to be admitted and changed."""

from __future__ import annotations

import dataclasses
from typing import Self

import lightkube
from istio_aux.start.proxy_config import HOLD
from lightkube.resources.coordination_v1 import Lease

import lab
from lab import creation, meshed
from lab.creation import Creation, Stream
from lab.scene import Scene
from lab.workload import Workload

# Creations a second, and further ones at once. For each of these the API server opens a
# connection, and it keeps 25.
RATE, BURST, AT_ONCE = 25, 240, 100
HELD = HOLD.encode()


@dataclasses.dataclass(frozen=True)
class Leadership:
    """Who leads, how often that has changed, and since when it has been so."""

    holder: str | None
    transitions: int | None
    since: object


def leadership(client: lightkube.Client, lease: str) -> Leadership:
    """The Lease of that name in the namespace of that name."""
    spec = client.get(Lease, lease, namespace=lease).spec
    assert spec
    return Leadership(spec.holderIdentity, spec.leaseTransitions, spec.acquireTime)


class Bystanders:
    """Creates pods while it is open, and judges them and the workload at its end.

    Raises:
        AssertionError: a pod was refused or is unchanged, or another process leads.
    """

    def __init__(self, cluster: lab.Cluster, workload: Workload, scene: Scene) -> None:
        """`workload` leads and changes the pods of `scene`."""
        self._cluster, self._workload, self._scene = cluster, workload, scene
        self._pod = meshed.nameless(scene.namespace, sidecar=None)
        self._made: list[Creation] = []

    def burst(self) -> None:
        """Create more at once than the API server has connections."""
        pods = [self._pod] * BURST
        self._made += creation.create(self._cluster, *pods, dry_run=True, at_once=AT_ONCE)

    def __enter__(self) -> Self:
        self._before = leadership(self._scene.client, self._workload.name)
        stream = Stream(self._cluster, self._pod, rate=RATE, dry_run=True)
        self._stream = stream.__enter__()
        self._stream.await_more(RATE)
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        try:
            if not failed:
                self._stream.await_more(RATE)
        finally:
            self._stream.__exit__()
        if failed:
            return
        made = self._made + self._stream.creations
        assert [each.body for each in made if each.status != 201] == []
        unchanged = sum(HELD not in each.body for each in made)
        assert unchanged == 0, f"{unchanged} of {len(made)} are unchanged"
        self._workload.process.check()
        assert leadership(self._scene.client, self._workload.name) == self._before
        assert self._workload.status()["leader"]
