"""The pods of a controller, right before one of them is restarted, beside those that are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.errors import LateError
from istio_aux.kube.objects import key_of
from istio_aux.model.owners import controller
from istio_aux.model.pod import Pod
from istio_aux.repair import siblings
from istio_aux.repair.rollout import Replica, Sidecar
from istio_aux.repair.store import PodOwner, StoredPod
from unit.apiserver import ApiServer
from unit.asynchronous import driven
from unit.rules.unmeshed import STATEFUL, raw, unmeshed


class World(NamedTuple):
    """An API server, and a StatefulSet as it is stored."""

    api: ApiServer
    client: Client
    owner: PodOwner
    pod: Pod
    saved: list[str]

    async def put(self, name: str, **fields: Any) -> None:
        body = raw(name=name, **{"uid": f"old-{name}", "owner": STATEFUL, **fields})
        del body["metadata"]["resourceVersion"]
        await self.api.put("pods", body)

    async def changed(self) -> str:
        async def save() -> None:
            self.saved.append(self.pod.metadata.name)

        return await siblings.changed(self.client, self.owner, self.pod, save)


@asynccontextmanager
async def two_pods() -> AsyncGenerator[World]:
    """Both of web-0 and web-1 are stored, and are as they were."""
    async with ApiServer() as api, Client(api.access()) as client:
        pods = [unmeshed(name=n, uid=f"old-{n}", owner=STATEFUL) for n in ("web-0", "web-1")]
        reference = controller(pods[0])
        assert reference
        owner = PodOwner("shop", reference)
        for pod in pods:
            replica = Replica(pod.metadata.name, pod.metadata.uid, Sidecar.MISSING)
            owner.pods.append(StoredPod(key_of(pod), replica))
        world = World(api, client, owner, pods[0], [])
        for pod in pods:
            await world.put(pod.metadata.name)
        yield world


@driven
async def test_pods_that_are_as_they_are_stored_hold_no_restart() -> None:
    async with two_pods() as world:
        await world.put("another", owner_uid="another")
        assert await world.changed() == ""
        assert world.saved == ["web-0"]


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("web-1", {"deleting": True}, "web-1 of its controller is being deleted"),
        ("web-2", {}, "its controller has made web-2"),
        ("web-1", {"uid": "new"}, "its controller has made web-1"),
        ("web-1", {"labels": {"another": "label"}}, ""),
    ],
)
@driven
async def test_what_the_watch_has_not_shown_yet_holds_a_restart(
    name: str, fields: dict[str, Any], why: str
) -> None:
    async with two_pods() as world:
        await world.put(name, **fields)
        assert await world.changed() == why


@driven
async def test_a_pod_that_is_gone_holds_a_restart() -> None:
    async with two_pods() as world:
        await world.api.remove("pods", "shop", "web-1")
        assert await world.changed() == "web-1 of its controller is gone"
        assert world.saved == [], "the next leader would take a new pod for its replacement"


@driven
async def test_no_restart_rests_on_an_answer_that_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(siblings, "FRESH", 0.05)

    async def late(_request: web.Request) -> web.StreamResponse | None:
        await asyncio.sleep(0.1)
        return None

    async with two_pods() as world:
        world.api.faults.append(late)
        with pytest.raises(LateError):
            await world.changed()
