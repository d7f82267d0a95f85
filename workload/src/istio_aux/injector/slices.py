"""Follow the EndpointSlices of one Service.

Only that may live here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from istio_aux.core.webhooks import SERVICE, Address, EndpointSlice, Service
from istio_aux.kube import actions
from istio_aux.kube.backoff import Backoff
from istio_aux.kube.client import Client
from istio_aux.kube.resources import Key, key_of
from istio_aux.kube.watch import Watch


class Slices:
    """The slices of a Service. Their watch is their own: a cluster may have thousands of others."""

    def __init__(
        self,
        client: Client,
        service: Service,
        changed: Callable[[], None],
        restarted: Callable[[str], None],
    ) -> None:
        """Prepare; ``changed`` is called at each change, ``restarted`` as by `Watch`."""
        self._found: dict[Key, EndpointSlice] = {}
        self._changed = changed
        self._watch = Watch(
            client,
            actions.collection("discovery.k8s.io/v1", "endpointslices", service.namespace),
            EndpointSlice,
            self,
            selection={"labelSelector": f"{SERVICE}={actions.object_name(service.name)}"},
            restarted=restarted,
            backoff=Backoff(first=0.25, longest=5.0),
        )

    @property
    def listed(self) -> asyncio.Event:
        """Set once all of them have been told."""
        return self._watch.synced

    @property
    def unreadable(self) -> bool:
        """Whether they have never been told, and trying to read them failed."""
        return not self.listed.is_set() and self._watch.trouble is not None

    @property
    def found(self) -> tuple[EndpointSlice, ...]:
        """All there are."""
        return tuple(self._found.values())

    def addresses(self, port: str) -> tuple[Address, ...]:
        """Where the Service's ready endpoints are, sorted (`EndpointSlice.addresses`)."""
        return tuple(sorted({each for found in self.found for each in found.addresses(port)}))

    async def run(self) -> None:
        """Follow them until cancelled."""
        await self._watch.run()

    def apply(self, resource: EndpointSlice) -> None:
        """A slice exists and looks like this."""
        self._found[key_of(resource)] = resource
        self._changed()

    def delete(self, key: Key, _last: EndpointSlice | None) -> None:
        """A slice is gone."""
        self._found.pop(key, None)
        self._changed()
