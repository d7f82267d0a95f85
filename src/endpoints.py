"""The ready endpoints of the application's Service, and which units behind them answer the leader.

A pod is ready when its own workload answers Pebble. The leader asks each of them as well: over the
network, and also those of an image whose Pebble has no check of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import httpx2
from istio_aux.model.names import WEBHOOK_PORT
from lightkube import Client
from lightkube.resources.core_v1 import Pod
from lightkube.resources.discovery_v1 import EndpointSlice

import cluster
import probe
from cluster import ReconcileError

# How long the webhook configuration waits for a pod that is ready and does not answer the leader.
# Something stands between the two units then, such as a NetworkPolicy for port 8080 or STRICT mTLS.
# Neither concerns the API server, which talks to port 8443: to wait for longer would leave every
# pod of the cluster unchanged for the sake of a port that admission does not need.
PATIENCE: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class Endpoints:
    """What the leader learned of the units.

    Attributes:
        waits: why the API server cannot be told to send reviews yet, or the empty text.
        silent: units that do not answer as ready, each with its address and the reason.
    """

    waits: str
    silent: tuple[str, ...] = ()


def look(
    client: Client,
    app: str,
    model: str,
    now: datetime,
    transport: httpx2.BaseTransport | None = None,
) -> Endpoints:
    """Ask the workload of each ready endpoint; `transport` is for tests."""
    slices = _slices(client, app, model)
    pods = _addresses(slices)
    if not pods:
        return Endpoints(f"waiting for a ready endpoint of Service {app}")
    # Juju opens the port after the hook that asks for it. Until then the Service has another one,
    # and the API server would not find ours.
    ports = {port.port for part in slices for port in part.ports or ()}
    waits = ""
    if WEBHOOK_PORT not in ports:
        waits = f"waiting for port {WEBHOOK_PORT} of Service {app}"
    silent: list[str] = []
    with probe.connect(transport) as asking:
        for pod, addresses in sorted(pods.items()):
            refusals = [probe.unready(asking, address) for address in addresses]
            # In a dual-stack cluster one address is enough.
            if not all(refusals):
                continue
            silent.append(f"{unit_of(pod)}: {refusals[0]}")
            if not waits and not _ready_for_long(client, pod, model, now):
                waits = f"waiting for {silent[-1]}"
    return Endpoints(waits, tuple(silent))


def ready_pods(client: Client, app: str, model: str) -> dict[str, list[str]]:
    """Return the addresses of each ready pod behind the Service, by the pod's name."""
    return _addresses(_slices(client, app, model))


def unit_of(pod: str) -> str:
    """Return what Juju calls the pod: `unit istio-aux/1` for `istio-aux-1`."""
    return f"unit {'/'.join(pod.rsplit('-', 1))}"


def _slices(client: Client, app: str, model: str) -> list[EndpointSlice]:
    with cluster.attempt(f"EndpointSlices of Service {app}"):
        # lightkube's label operators are untyped.
        listing = client.list(  # pyright: ignore[reportUnknownMemberType]
            EndpointSlice, namespace=model, labels={"kubernetes.io/service-name": app}
        )
        return [*listing]


def _ready_for_long(client: Client, pod: str, model: str, now: datetime) -> bool:
    """Tell whether the pod is ready for `PATIENCE`."""
    try:
        with cluster.attempt(f"Pod {pod}"):
            status = client.get(Pod, pod, namespace=model).status
    except ReconcileError:
        return False
    conditions = status.conditions or [] if status else []
    since = next((c.lastTransitionTime for c in conditions if c.type == "Ready"), None)
    return since is not None and now - since >= PATIENCE


def _addresses(slices: Iterable[EndpointSlice]) -> dict[str, list[str]]:
    """Return the addresses of ready endpoints by pod."""
    pods: dict[str, list[str]] = {}
    for endpoint in (end for part in slices for end in part.endpoints or ()):
        # None means True (discovery/v1 EndpointConditions).
        if endpoint.conditions is None or endpoint.conditions.ready is not False:
            pod = endpoint.targetRef.name if endpoint.targetRef else None
            pods.setdefault(pod or endpoint.addresses[0], []).append(endpoint.addresses[0])
    return pods
