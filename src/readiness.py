"""Whether the workload of every unit answers that is behind our Service.

A webhook that exists and does not answer slows every pod, or stops it; and that a pod is ready says
only that no check of it has failed yet.
"""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
from lightkube import Client
from lightkube.models.discovery_v1 import Endpoint
from lightkube.resources.discovery_v1 import EndpointSlice

import cluster
import probe
from cluster import Problem
from workload import STATUS_PORT


def missing(
    client: Client, app: str, model: str, transport: httpx2.BaseTransport | None = None
) -> Problem | None:
    """Return which unit is waited for, None when all that are ready answer that they are.

    Args:
        client: of the API server.
        app: name of the application, and so of its Service.
        model: its namespace.
        transport: where the questions to units go, None for the network.
    """

    def look() -> dict[str, list[str]]:
        # lightkube does not say what its label operators are operators of.
        slices = client.list(  # pyright: ignore[reportUnknownMemberType]
            EndpointSlice, namespace=model, labels={"kubernetes.io/service-name": app}
        )
        return _addresses(end for found in slices for end in found.endpoints or ())

    units = cluster.attempt(f"EndpointSlices of Service {app}", look)
    if isinstance(units, Problem):
        return units
    if not units:
        return Problem(f"waiting for a ready endpoint of Service {app}", wake=True)
    with probe.connect(transport) as asking:
        for unit, addresses in sorted(units.items()):
            refusals = [_ask(asking, address) for address in addresses]
            # In a cluster of two families, one address is enough.
            if all(refusals):
                return Problem(f"waiting for {unit}: {refusals[0]}", wake=True)
    return None


def _addresses(endpoints: Iterable[Endpoint]) -> dict[str, list[str]]:
    """Return the addresses of ready endpoints by who has them."""
    units: dict[str, list[str]] = {}
    for endpoint in endpoints:
        # None is to be read as True (discovery/v1 EndpointConditions).
        if endpoint.conditions is None or endpoint.conditions.ready is not False:
            pod = endpoint.targetRef.name if endpoint.targetRef else None
            unit = "unit " + "/".join(pod.rsplit("-", 1)) if pod else endpoint.addresses[0]
            units.setdefault(unit, []).append(endpoint.addresses[0])
    return units


def _ask(asking: httpx2.Client, address: str) -> str:
    """Return why the workload at `address` is not ready, or nothing."""
    host = f"[{address}]" if ":" in address else address
    url = f"http://{host}:{STATUS_PORT}/readyz"
    try:
        answer = asking.get(url)
    except httpx2.HTTPError as error:
        return f"no answer at {url}: {error}"
    if answer.is_success:
        return ""
    return "; ".join(answer.text.split("\n")[:3]).strip("; ") or f"{url}: {answer.status_code}"
