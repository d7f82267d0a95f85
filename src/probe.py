"""What the workload reports on its status port, which the charm reaches on localhost."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import httpx2
from istio_aux.model.names import STATUS_PORT

STATUS_URL: Final = f"http://localhost:{STATUS_PORT}"
PAGE: Final = 500  # Pods that the workload lists in one answer, at most.
# Seconds. The workload answers from memory.
_TIMEOUT: Final = 2.0


@dataclass(frozen=True)
class Injector:
    """One of Istio's webhook configurations; the name is empty if there is none."""

    configuration: str
    live: bool  # It has injected the workload's probe.
    why: str
    since: datetime


@dataclass(frozen=True)
class ListedPod:
    """A pod that needs a look; `owner` as in `StatefulSet/web`, empty unless it is unmeshed."""

    namespace: str
    name: str
    state: str
    reason: str
    since: datetime | None = None
    owner: str = ""
    attempts: int | None = None


@dataclass(frozen=True)
class Page:
    """Some of the workload's pods in certain states, sorted by namespace and name."""

    total: int  # Of all pages.
    pods: tuple[ListedPod, ...]
    next: str  # The last of `pods`, as NAMESPACE/NAME, if there are more; else empty.
    leader: bool  # Whether the workload that answers leads. Only that one knows stuck pods.
    holders: tuple[str, ...] = ()  # What holds stuck and blocked pods, a line each.


@dataclass(frozen=True)
class Application:
    """An application that asks for sidecars by name; None where the state is unknown."""

    model: str
    name: str
    live: bool | None
    live_reason: str
    revision: str
    root_namespace: str
    meshed: bool | None
    meshed_reason: str


@dataclass(frozen=True)
class Probe:
    """One answer of the workload. `workload/README.md` explains the keys of `/status`."""

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
    # None while it is unknown, no injector is live, or the image does not check it.
    capability: Literal["native", "classic", "unknown"] | None = None
    capability_why: str = ""
    watches_injectors: bool = False  # Older images do not.
    race: str = ""
    unmeshed_total: int = 0
    unmeshed_unknown: int = 0
    suspended_jobs: tuple[str, ...] = ()
    applications: tuple[Application, ...] = ()
    lease_holder: str = ""  # A name for people; empty if nobody leads.
    certificate: str = ""  # SHA-256 of the certificate that it serves.
    version: str = ""

    def reason_unknown(self) -> str:
        """Return why the workload does not report injectors and sidecars, or the empty text."""
        if not self.ready:
            return f"workload: {self.missing}"
        if not self.watches_injectors:
            return "the workload's image is older than the charm and does not watch injectors"
        return ""


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
    except (KeyError, TypeError, ValueError) as error:
        return Probe(ready=False, missing=f"{url}/status: unexpected answer: {error!r}")


def page(
    url: str,
    states: Sequence[str],
    *,
    after: str = "",
    limit: int = PAGE,
    transport: httpx2.BaseTransport | None = None,
) -> Page | str:
    """Return the pods in `states` that come after the pod `after`, or why there is no answer."""
    query = {"state": list(states), "after": after, "limit": limit}
    try:
        with connect(transport) as client:
            answer = client.get(f"{url}/pods", params=query)
        if answer.status_code == 404:
            return "the workload's image is older than the charm and does not list pods"
        return _page(answer.raise_for_status().content)
    except httpx2.HTTPError as error:
        return f"no answer at {url}: {error}"
    except (KeyError, TypeError, ValueError) as error:
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
    status: dict[str, Any] = json.loads(body)
    return Probe(
        ready=status["ready"] is True,
        missing="; ".join(status["missing"]),
        selected_namespaces=len(status["selected-namespaces"]),
        stuck_pods=tuple(f"{p['namespace']}/{p['name']}" for p in status["stuck-pods"]),
        # An image that is older than the charm does not report these.
        lost_pods=_lasting(status.get("lost-pods", ())),
        blocked_pods=_lasting(status.get("blocked-pods", ())),
        holders=_lines(status),
        called_before_us=tuple(status.get("called-before-us") or ()),
        injectors=tuple(
            Injector(i["configuration"], i["state"] == "live", i["why"], _time(i["since"]))
            for i in status.get("injectors", ())
        ),
        live=status.get("injector-live"),
        # It has no reason while it does not know.
        capability=status["capability"] if status.get("capability-why") else None,
        capability_why=status.get("capability-why", ""),
        watches_injectors="injectors" in status,
        race=status.get("race", ""),
        unmeshed_total=status.get("unmeshed-total", 0),
        unmeshed_unknown=status.get("unmeshed-unknown", 0),
        suspended_jobs=tuple(
            f"{job['namespace']}/{job['name']}" for job in status.get("suspended-jobs", ())
        ),
        applications=tuple(map(_application, status.get("applications", ()))),
        lease_holder=status.get("lease-holder", ""),
        certificate=status.get("certificate", ""),
        version=status["version"],
    )


def _page(body: bytes) -> Page:
    found: dict[str, Any] = json.loads(body)
    return Page(
        total=found["total"],
        pods=tuple(
            ListedPod(
                namespace=pod["namespace"],
                name=pod["name"],
                state=pod["state"],
                reason=pod["reason"],
                since=_time(pod["since"]) if pod.get("since") else None,
                owner=pod.get("owner", ""),
                attempts=pod.get("attempts"),
            )
            for pod in found["pods"]
        ),
        next=found["next"],
        leader=found["leader"] is True,
        holders=_lines(found),
    )


def _lasting(pods: Iterable[dict[str, Any]]) -> int:
    """Count the pods that will not be well in a moment; older images do not say."""
    return sum(pod.get("lasting", True) for pod in pods)


def _lines(answer: dict[str, Any]) -> tuple[str, ...]:
    """Return what the answer says of each holder of pods; older images do not."""
    return tuple(holder["text"] for holder in answer.get("holders", ()))


def _application(one: dict[str, Any]) -> Application:
    return Application(
        model=one["namespace"],
        name=one["name"],
        live=one["live"],
        live_reason=one["live-reason"],
        revision=one["revision"],
        root_namespace=one["root-namespace"],
        meshed=one["meshed"],
        meshed_reason=one["meshed-reason"],
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
