"""EndpointSlices as they come over the wire, reduced to the fields we read.

Only structs and plain accessors may live here; no decision does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from istio_aux.core.pod import Metadata, Struct

SERVICE = "kubernetes.io/service-name"
"""Label of a slice: the Service, in the slice's namespace, whose endpoints it lists."""


class Service(NamedTuple):
    """Which Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Address(NamedTuple):
    """Where a process takes connections; the host may be a name."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Conditions(Struct, frozen=True):
    """``conditions`` of an endpoint."""

    ready: bool | None = None


class Endpoint(Struct, frozen=True):
    """One backend of a Service."""

    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None

    @property
    def ready(self) -> bool:
        """Whether it takes connections; unknown counts as ready (discovery/v1 types.go)."""
        told = self.conditions.ready if self.conditions else None
        return bool(self.addresses) and told is not False


class Port(Struct, frozen=True):
    """A port of all endpoints of a slice, by the name that it has in the Service."""

    name: str | None = None
    port: int | None = None


class EndpointSlice(Struct, frozen=True):
    """An EndpointSlice (discovery.k8s.io/v1); a Service may have several."""

    metadata: Metadata = Metadata()
    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Port, ...] | None = None

    @property
    def service(self) -> Service | None:
        """The Service that it belongs to, or None when it does not say."""
        name = (self.metadata.labels or {}).get(SERVICE)
        return Service(self.metadata.namespace, name) if name else None

    @property
    def ready(self) -> bool:
        """Whether it lists an endpoint that takes connections; without ports none does."""
        return bool(self.ports) and any(endpoint.ready for endpoint in self.endpoints or ())

    def addresses(self, port: str) -> Iterator[Address]:
        """Where its ready endpoints take connections, on the port of this name or their only one.

        Nothing where neither exists: which of several the Service means only the Service knows.
        """
        ports = self.ports or ()
        named = [found for found in ports if found.name == port] or (
            ports if len(ports) == 1 else ()
        )
        numbers = [found.port for found in named if found.port]
        for endpoint in self.endpoints or ():
            if endpoint.ready and numbers:
                # All addresses of an endpoint are the same process (discovery/v1 types.go).
                yield Address((endpoint.addresses or ("",))[0], numbers[0])
