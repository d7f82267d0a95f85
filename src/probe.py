"""What workloads say on their status ports: that of this unit, and those behind the Service.

A pod is ready when its own workload answers Pebble. The leader asks each of them as well, over the
network. Functions raise a `ReconcileError` for what does not answer, unless they return it.
"""

from __future__ import annotations

import ssl
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import httpx2
import msgspec
import ops
from istio_aux.model.answers import PodPage, ProcessStatus
from istio_aux.model.names import STATUS_PORT, WEBHOOK_PORT
from lightkube import Client
from lightkube.resources.core_v1 import Pod
from lightkube.resources.discovery_v1 import EndpointSlice

import cluster
from cluster import ReconcileError

STATUS_URL: Final = f"http://localhost:{STATUS_PORT}"
# Seconds. The workload answers from memory.
_TIMEOUT: Final = 2.0
_START: Final = 10.0  # Of a program that only says its version, on a busy node.
# How long the webhook configuration waits for a pod that is ready and does not answer the leader.
# Something stands between the two units then, such as a NetworkPolicy for port 8080 or STRICT mTLS.
# Neither concerns the API server, which talks to port 8443: to wait for longer would leave every
# pod of the cluster unchanged for the sake of a port that admission does not need.
PATIENCE: Final = timedelta(minutes=1)

T = TypeVar("T")
Transport = httpx2.BaseTransport | None  # Where requests go, None for the network; for tests.


@dataclass(frozen=True)
class Answer:
    """What this unit's workload says of itself."""

    missing: str  # Why it is not ready, in one line; empty if it is.
    status: ProcessStatus | None = None  # None if it does not answer, or as another revision does.
    speaks: bool = True  # It answers.
    revision: str = ""  # Which revision the image is of; empty if it does not say.


@dataclass(frozen=True)
class Endpoints:
    """What the leader learned of the units."""

    waits: str  # Why the API server cannot be told to send reviews yet, or the empty text.
    silent: tuple[str, ...] = ()  # Units that do not answer as ready: address and reason.


def ask(transport: Transport, container: ops.Container | None = None) -> Answer:
    """Return what the workload of this unit says; if it does not answer, what its image is."""
    try:
        status = _get(STATUS_URL, "status", ProcessStatus, transport)
    except ReconcileError as error:
        speaks = isinstance(error.__cause__, ValueError)
        what = "answers as another revision does" if speaks else "does not answer"
        missing = f"{what}: {error.__cause__}"
        return Answer(missing, speaks=speaks, revision=_revision(container))
    missing = "" if status.ready else "; ".join(status.missing) or "not ready"
    return Answer(missing, status, revision=status.revision or status.version)


def _revision(container: ops.Container | None) -> str:
    try:
        argv = ["istio-aux", "--version"]
        said = container.exec(argv, timeout=_START).wait_output()[0] if container else ""
    except ops.pebble.Error:
        return ""  # The image is another program, or the container has just ended.
    return said.rpartition("revision ")[2].strip()


def page(url: str, states: Sequence[str], after: str, limit: int, transport: Transport) -> PodPage:
    """Return at most `limit` pods in `states` that come after the pod `after`."""
    return _get(url, "pods", PodPage, transport, state=list(states), after=after, limit=limit)


def url_of_pod(client: Client, pod: str, model: str) -> str:
    """Return the URL of the status port of a pod, which has to have an address."""
    with cluster.attempt(f"Pod {pod}"):
        status = client.get(Pod, pod, namespace=model).status
    if not (status and status.podIP):
        raise ReconcileError(f"Pod {pod} has no address yet")
    return _url(status.podIP)


def look(
    client: Client, app: str, model: str, now: datetime, transport: Transport = None
) -> Endpoints:
    """Ask the workload of each ready endpoint of the application's Service."""
    with cluster.attempt(f"EndpointSlices of Service {app}"):
        # lightkube's label operators are untyped.
        listing = client.list(  # pyright: ignore[reportUnknownMemberType]
            EndpointSlice, namespace=model, labels={"kubernetes.io/service-name": app}
        )
        slices = [*listing]
    pods = defaultdict[str, list[str]](list)
    for endpoint in (end for part in slices for end in part.endpoints or ()):
        # None means True (discovery/v1 EndpointConditions).
        if endpoint.conditions is None or endpoint.conditions.ready is not False:
            pod = endpoint.targetRef.name if endpoint.targetRef else None
            pods[pod or endpoint.addresses[0]].append(endpoint.addresses[0])
    waits = "" if pods else f"waiting for a ready endpoint of Service {app}"
    # Juju opens the port after the hook that asks for it. Until then the Service has another one,
    # and the API server would not find ours.
    if WEBHOOK_PORT not in {port.port for part in slices for port in part.ports or ()}:
        waits = waits or f"waiting for port {WEBHOOK_PORT} of Service {app}"
    silent: list[str] = []
    with connect(transport) as asking:
        for pod, addresses in sorted(pods.items()):
            refusals = [_unready(asking, address) for address in addresses]
            # In a dual-stack cluster one address is enough.
            if all(refusals):
                silent.append(f"unit {'/'.join(pod.rsplit('-', 1))}: {refusals[0]}")
                if not waits and not _ready_for_long(client, pod, model, now):
                    waits = f"waiting for {silent[-1]}"
    return Endpoints(waits, tuple(silent))


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


def _unready(client: httpx2.Client, address: str) -> str:
    """Return why the workload at `address` is not ready, or the empty text."""
    url = f"{_url(address)}/readyz"
    try:
        answer = client.get(url)
    except httpx2.HTTPError as error:
        return f"no answer at {url}: {error}"
    if answer.is_success:
        return ""
    return "; ".join(answer.text.split("\n")[:3]).strip("; ") or f"{url}: {answer.status_code}"


def _url(address: str) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{STATUS_PORT}"


def _get(url: str, path: str, kind: type[T], transport: Transport, **query: Any) -> T:
    try:
        with connect(transport) as client:
            answer = client.get(f"{url}/{path}", params=query).raise_for_status()
        return msgspec.json.decode(answer.content, type=kind)
    except (httpx2.HTTPError, ValueError) as error:
        raise ReconcileError(f"no answer at {url}: {error}") from error


def connect(transport: Transport = None) -> httpx2.Client:
    """Return a client for status ports."""
    # No proxy of the model: status ports are in the cluster. They speak plain HTTP, so the system's
    # authorities are not loaded, which takes longer than the request.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.Client(timeout=_TIMEOUT, transport=transport, trust_env=False, verify=nobody)
