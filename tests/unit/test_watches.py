"""What is followed, and what becomes of an object that somebody cannot cope with."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiohttp import web
from istio_aux import watches as following
from istio_aux.core.webhooks import Namespace
from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key
from istio_aux.telemetry import Telemetry
from istio_aux.watches import Watches
from unit.apiserver import ApiServer
from unit.asynchronous import background, driven, until
from unit.store import refusal


class Seen:
    """Remembers whom it was told of; one name trips it."""

    def __init__(self, trips: str = "") -> None:
        self.names: set[str] = set()
        self._trips = trips

    def apply(self, resource: Namespace) -> None:
        self._note(resource.metadata.name)
        self.names.add(resource.metadata.name)

    def delete(self, key: Key, _last: Namespace | None) -> None:
        self._note(key.name)
        self.names.discard(key.name)

    def _note(self, name: str) -> None:
        if name == self._trips:
            raise RuntimeError(name)


@driven
async def test_an_object_that_trips_one_who_is_told_stops_nobody() -> None:
    telemetry = Telemetry()
    async with ApiServer() as api, Client(api.access()) as client:
        for name in ("bad", "good"):
            await api.put("namespaces", {"metadata": {"name": name}})
        first, second = Seen(trips="bad"), Seen()
        watches = Watches(client, telemetry)
        watches.add("namespaces", "/api/v1/namespaces", Namespace, first, second)
        (work,) = watches.work().values()
        async with background(work()):
            await until(lambda: watches.ready, "all is seen")
            assert (first.names, second.names) == ({"good"}, {"bad", "good"})
            await api.remove("namespaces", "", "bad")
            await until(lambda: second.names == {"good"}, "it is gone")
    assert b"\nistio_aux_internal_errors_total 2.0\n" in telemetry.render()


@driven
async def test_what_comes_after_another_collection_is_listed_once_that_is_known() -> None:
    asked = asyncio.Event()
    known: list[bool] = []

    async def look(request: web.Request) -> None:
        """Namespaces are listed late: whoever does not wait for them comes first."""
        if request.path.endswith("pods"):
            known.append(first.synced.is_set())
            asked.set()
        elif not first.synced.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), 0.2)

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(look)
        watches = Watches(client, Telemetry())
        first = watches.add("namespaces", "/api/v1/namespaces", Namespace, Seen())
        watches.add("pods", "/api/v1/pods", Namespace, Seen(), after=first)
        one, two = (work() for work in watches.work().values())
        async with background(one), background(two):
            await until(lambda: watches.ready, "all is seen")
    assert set(known) == {True}


@driven
async def test_a_collection_does_not_wait_for_ever_for_one_that_nobody_may_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following, "HEAD_START", 0.05)

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("namespaces"):
            return None
        api.faults.append(refuse)
        return refusal(403, "Forbidden", "not for you")

    async with ApiServer() as api, Client(api.access()) as client:
        api.faults.append(refuse)
        watches = Watches(client, Telemetry())
        first = watches.add("namespaces", "/api/v1/namespaces", Namespace, Seen())
        second = watches.add("pods", "/api/v1/pods", Namespace, Seen(), after=first)
        one, two = (work() for work in watches.work().values())
        async with background(one), background(two):
            await until(second.synced.is_set, "pods are seen")


@driven
async def test_a_watch_that_is_dead_for_long_makes_unready_and_unfit_until_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That it was alive once is no reason to go by what it told then."""
    monkeypatch.setattr(following, "LEADING", 1.0)
    monkeypatch.setattr(following, "READY", 2.0)
    async with ApiServer() as api, Client(api.access()) as client:
        watches = Watches(client, Telemetry())
        watches.add("pods", "/api/v1/pods", Namespace, Seen())
        (work,) = watches.work().values()
        async with background(work()):
            await until(lambda: watches.ready, "all is seen")
            assert (watches.dead("pods"), watches.missing()) == ("", {})
            await api.stop()
            why = await until(lambda: watches.dead("pods"), "it is dead")
            assert why.startswith("watch pods: nothing heard for 0 min")
            assert watches.ready, "for some time, an API server may be away"
            await until(lambda: not watches.ready, "it is dead for long")
            assert "Cannot connect" in watches.missing()["pods"]
            await api.start()
            await until(lambda: watches.ready and not watches.dead("pods"), "it lives")
