"""Reads status ports of workloads: of this unit, and of the unit that holds the Lease.

Functions raise a `ReconcileError` if there is no answer; `ask` returns that instead.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import httpx2
import msgspec
from istio_aux.model.answers import PodPage, ProcessStatus
from istio_aux.model.names import STATUS_PORT
from lightkube import Client
from lightkube.resources.core_v1 import Pod

import cluster
from cluster import ReconcileError

STATUS_URL: Final = f"http://localhost:{STATUS_PORT}"
# Seconds. The workload answers from memory.
_TIMEOUT: Final = 2.0
T = TypeVar("T")
Transport = httpx2.BaseTransport | None  # Where requests go, None for the network; for tests.


@dataclass(frozen=True)
class Answer:
    """What this unit's workload says of itself."""

    missing: str  # Why it is not ready, in one line; empty if it is.
    status: ProcessStatus | None = None  # None: no answer, or another revision's.
    speaks: bool = True  # It answers.


def ask(transport: Transport) -> Answer:
    """Return what the workload of this unit says."""
    try:
        status = _get(STATUS_URL, "status", ProcessStatus, transport)
    except ReconcileError as error:
        speaks = isinstance(error.__cause__, ValueError)
        what = "answers as another revision does" if speaks else "does not answer"
        return Answer(f"{what}: {error.__cause__}", speaks=speaks)
    missing = "" if status.ready else "; ".join(status.missing) or "not ready"
    return Answer(missing, status)


def page(
    url: str,
    states: Sequence[str],
    after: str,
    limit: int,
    transport: Transport,
) -> PodPage:
    """Return at most `limit` pods in `states` that come after the pod `after`."""
    return _get(
        url,
        "pods",
        PodPage,
        transport,
        state=list(states),
        after=after,
        limit=limit,
    )


def url_of_pod(client: Client, pod: str, model: str) -> str:
    """Return the URL of the status port of a pod, which has to have an address."""
    with cluster.attempt(f"Pod {pod}"):
        status = client.get(Pod, pod, namespace=model).status
    if not (status and status.podIP):
        raise ReconcileError(f"Pod {pod} has no address yet")
    host = f"[{status.podIP}]" if ":" in status.podIP else status.podIP
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
    # Status ports are in the cluster, so the model's HTTP proxy is not used. They speak plain HTTP:
    # loading the system's CA certificates would take longer than the request.
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.Client(
        timeout=_TIMEOUT,
        transport=transport,
        trust_env=False,
        verify=without,
    )
