"""What the workload reports on its status port, which the charm reaches on localhost."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import httpx2
import msgspec
from istio_aux.model.answers import PAGE, ApplicationMesh, Injector, PodPage, ProcessStatus
from istio_aux.model.names import STATUS_PORT
from istio_aux.model.policy import Capability

STATUS_URL: Final = f"http://localhost:{STATUS_PORT}"
# Seconds. The workload answers from memory.
_TIMEOUT: Final = 2.0


@dataclass(frozen=True)
class Probe:
    """One answer of the workload."""

    ready: bool
    missing: str = ""  # Why it is not ready, in one line.
    selected_namespaces: int | None = None
    stuck_pods: tuple[str, ...] = ()
    lost_pods: int = 0
    blocked_pods: int = 0
    holders: tuple[str, ...] = ()  # What holds the stuck and the blocked ones, a line each.
    called_before_us: tuple[str, ...] = ()
    injectors: tuple[Injector, ...] = ()
    live: bool | None = None  # At least one of them injects; None while that is unknown.
    # None while it is unknown, or no injector is live.
    capability: Capability | None = None
    capability_why: str = ""
    race: str = ""
    unmeshed_total: int = 0
    unmeshed_unknown: int = 0
    suspended_jobs: tuple[str, ...] = ()
    applications: tuple[ApplicationMesh, ...] = ()
    lease_holder: str = ""  # A name for people; empty if nobody leads.
    certificate: str = ""  # SHA-256 of the certificate that it serves.
    version: str = ""

    def reason_unknown(self) -> str:
        """Return why the workload does not report injectors and sidecars, or the empty text."""
        return "" if self.ready else f"workload: {self.missing}"


def connect(transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    """Return a client for the status ports of workloads; `transport` is for tests."""
    # No proxy of the model: status ports are in the cluster. They speak plain HTTP, so the system's
    # authorities are not loaded, which takes longer than the request.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.Client(timeout=_TIMEOUT, transport=transport, trust_env=False, verify=nobody)


def ask(url: str, transport: httpx2.BaseTransport | None = None) -> Probe:
    """Return what `url`/status says; without an answer, a `Probe` that is not ready."""
    try:
        with connect(transport) as client:
            return _decode(client.get(f"{url}/status").raise_for_status().content)
    except httpx2.HTTPError as error:
        return Probe(ready=False, missing=f"no answer at {url}: {error}")
    except ValueError as error:
        return Probe(ready=False, missing=f"{url}/status: unexpected answer: {error!r}")


def page(
    url: str,
    states: Sequence[str],
    *,
    after: str = "",
    limit: int = PAGE,
    transport: httpx2.BaseTransport | None = None,
) -> PodPage | str:
    """Return the pods in `states` that come after the pod `after`, or why there is no answer."""
    query = {"state": list(states), "after": after, "limit": limit}
    try:
        with connect(transport) as client:
            answer = client.get(f"{url}/pods", params=query)
        return msgspec.json.decode(answer.raise_for_status().content, type=PodPage)
    except httpx2.HTTPError as error:
        return f"no answer at {url}: {error}"
    except ValueError as error:
        return f"{url}/pods: unexpected answer: {error!r}"


def url_of(address: str) -> str:
    """Return the URL of the status port at `address`."""
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{STATUS_PORT}"


def unready(client: httpx2.Client, address: str) -> str:
    """Return why the workload at `address` is not ready, or the empty text."""
    url = f"{url_of(address)}/readyz"
    try:
        answer = client.get(url)
    except httpx2.HTTPError as error:
        return f"no answer at {url}: {error}"
    if answer.is_success:
        return ""
    return "; ".join(answer.text.split("\n")[:3]).strip("; ") or f"{url}: {answer.status_code}"


def _decode(body: bytes) -> Probe:
    status = msgspec.json.decode(body, type=ProcessStatus)
    return Probe(
        ready=status.ready,
        missing="; ".join(status.missing),
        selected_namespaces=len(status.selected_namespaces),
        stuck_pods=tuple(f"{pod.namespace}/{pod.name}" for pod in status.stuck_pods),
        # The others may be well in a moment.
        lost_pods=sum(pod.lasting for pod in status.lost_pods),
        blocked_pods=sum(pod.lasting for pod in status.blocked_pods),
        holders=tuple(holder.text for holder in status.holders),
        called_before_us=status.called_before_us or (),
        injectors=tuple(status.injectors),
        live=status.injector_live,
        # It has no reason while it does not know.
        capability=status.capability if status.capability_why else None,
        capability_why=status.capability_why,
        race=status.race,
        unmeshed_total=status.unmeshed_total,
        unmeshed_unknown=status.unmeshed_unknown,
        suspended_jobs=tuple(f"{job.namespace}/{job.name}" for job in status.suspended_jobs),
        applications=tuple(status.applications),
        lease_holder=status.lease_holder,
        certificate=status.certificate,
        version=status.version,
    )
