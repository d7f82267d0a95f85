"""What each watched pod costs, in sizes of objects: a short relative of `tox -e bench -- scale`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.model.applications import PodOptions
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RepairPolicy
from istio_aux.model.selectors import parse_namespaces
from istio_aux.quit.attempt import QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import Sidecar
from istio_aux.telemetry import Telemetry
from istio_aux.watches import Watches
from unit.apiserver import ApiServer
from unit.asynchronous import background, until
from unit.leading import Led
from unit.repairing import mesh

from benchmarks import pods

NODE, OURS = "node", {"team": "a"}
SHARES = {"job": 400, "unmeshed": 80, "refusing": 760, "other": 760}
"""Of 2,000 pods, in the proportions of the benchmark."""
STATUS = {"job": "running"}
USUAL = 905
"""Bytes that are kept of each of them, as measured on Python 3.11."""

NEVER = (
    ModuleType, type, FunctionType, MethodType, Client, Events, Telemetry,
    asyncio.AbstractEventLoop, asyncio.Future, asyncio.Event,
)  # fmt: skip
"""What is not a pod's: the walk ends there."""


def cluster(count: float) -> Iterator[dict[str, Any]]:
    """The benchmark's pods, in namespaces of fifty, each with a controller of its own."""
    bodies = {**pods.bodies(NODE), **pods.crowd(NODE)}
    for kind, share in SHARES.items():
        for number in range(int(share * count)):
            place = f"{'plain' if kind == 'other' else 'mesh'}-{number // 50}"
            text = bodies[kind].replace(pods.NAME, f"{kind}-{number}")
            text = text.replace(pods.NAMESPACE, place).replace(pods.OWNER, f"of-{kind}-{number}")
            status = bodies[STATUS.get(kind, "alone")].replace(pods.NOW, "2026-11-21T08:16:26Z")
            yield json.loads(text) | json.loads(status)


async def kept(count: float) -> int:
    """Bytes of all that watch and controllers keep of these pods."""
    telemetry = Telemetry()
    names = {f"{kind}-{number}" for kind in ("mesh", "plain") for number in range(16)}
    labels = {
        name: {**OURS, "istio-injection": "enabled"} if "mesh" in name else {} for name in names
    }
    async with ApiServer() as api, Client(api.access()) as client:
        for pod in cluster(count):
            api.put("pods", pod)
        events = Events(client, "test")
        options = PodOptions(namespaces=parse_namespaces("team=a"))
        quit_ = QuitController(
            client, labels, telemetry, events, QuitScope(options=options), leadership=Led()
        )
        repair = RepairController(
            client, labels, telemetry, events, policy=RepairPolicy(), options=options,
            leadership=Led(),
        )  # fmt: skip
        repair.store.set_injectors(mesh())
        for name in labels:
            quit_.relabelled(name)
        watches = Watches(client, telemetry)
        watch = watches.add(
            "pods", actions.PODS, Pod, quit_, repair.store, selection=actions.NOT_TERMINAL,
        )  # fmt: skip
        async with background(watch.run()), background(repair.run(watch.synced)):
            unmeshed = int(SHARES["unmeshed"] * count)
            await until(
                lambda: watch.synced.is_set() and repair.store.count(Sidecar.MISSING) == unmeshed,
                "all is judged",
            )
            assert len(quit_.known) == int(SHARES["job"] * count)
            return deep(watch, quit_, repair)


def deep(*roots: object) -> int:
    """Bytes of the objects, and of all that only they lead to."""
    seen, todo, size = set[int](), list[Any](roots), 0
    while todo:
        this = todo.pop()
        if id(this) in seen or isinstance(this, NEVER):
            continue
        seen.add(id(this))
        size += len(bytes(this)) if isinstance(this, msgspec.Raw) else sys.getsizeof(this)
        if isinstance(this, msgspec.Struct):  # The collector knows nothing of most of them.
            todo += [getattr(this, field) for field in this.__struct_fields__]
        todo += gc.get_referents(this)
    return size


async def test_what_is_kept_of_each_of_two_thousand_pods_grows_by_less_than_a_tenth() -> None:
    few, many = await kept(0), await kept(1)
    assert USUAL / 2 < (many - few) / sum(SHARES.values()) < USUAL * 1.1
