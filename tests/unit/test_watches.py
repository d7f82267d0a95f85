"""What is followed, and what becomes of an object that somebody cannot cope with."""

from __future__ import annotations

from istio_aux.core.namespace import Namespace
from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key
from istio_aux.telemetry import Telemetry
from istio_aux.watches import Watches
from unit.apiserver import ApiServer
from unit.asynchronous import background, driven, until


class Seen:
    """Remembers whom it was told of; one name trips it."""

    def __init__(self, trips: str = "") -> None:
        self.names: set[str] = set()
        self._trips = trips

    def apply(self, resource: Namespace) -> None:
        self._note(resource.metadata.name)
        self.names.add(resource.metadata.name)

    def delete(self, key: Key) -> None:
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
        (work,) = watches.work()
        async with background(work):
            await until(lambda: watches.ready, "all is seen")
            assert (first.names, second.names) == ({"good"}, {"bad", "good"})
            await api.remove("namespaces", "", "bad")
            await until(lambda: second.names == {"good"}, "it is gone")
    assert b"\nistio_aux_internal_errors_total 2.0\n" in telemetry.render()
