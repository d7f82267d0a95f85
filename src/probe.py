"""What the workload says about itself over its status port, which the charm's container shares."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import httpx2

# The workload answers from memory; what takes longer than this is not well.
_TIMEOUT: Final = 2.0


@dataclass(frozen=True)
class Injector:
    """One of Istio's webhook configurations, or that there is none.

    Attributes:
        configuration: its name, or nothing.
        live: it has proven that it injects.
        why: what makes it so, one line.
        since: when it was first seen so, in UTC.
    """

    configuration: str
    live: bool
    why: str
    since: datetime


@dataclass(frozen=True)
class Unmeshed:
    """A pod that should have a sidecar and has none; `owner` as in `StatefulSet/web`."""

    namespace: str
    name: str
    owner: str
    reason: str
    since: datetime


@dataclass(frozen=True)
class Application:
    """The mesh of an application that asks for sidecars by name; None is what is not known."""

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
    """One answer of the workload.

    Attributes:
        ready: it serves the webhook and has seen every pod and every namespace once.
        missing: why it is not ready, in one line, or nothing.
        selected_namespaces: how many namespaces the selector matches, None when unknown.
        stuck_pods: `namespace/name` of the pods whose proxy it could not end.
        lost_pods: how many pods lost their proxy before their payload ended.
        blocked_pods: how many pods are kept by another container than the one that is finished.
        called_before_us: names of Istio's webhook configurations that the API server calls first.
        injectors: of Istio; none while they are not known.
        live: at least one of them injects; None while that is not known.
        capability: what cluster and Istio can do for the start of pods; None while that is not
            known yet, or nobody injects, or nobody looks.
        capability_why: what makes it so, one line.
        watches_injectors: the workload looks for injectors, as images older than the charm do not.
        race: what becomes of pods that should have a sidecar and have none, or nothing.
        unmeshed: those pods, the oldest first, at most 500.
        unmeshed_total: how many of them there are.
        unmeshed_unknown: how many pods have none of which that is not known.
        suspended_jobs: `namespace/name` of Jobs that are suspended until their pods are gone.
        applications: those that ask for sidecars by name.
        version: of the workload, or nothing.
    """

    ready: bool
    missing: str = ""
    selected_namespaces: int | None = None
    stuck_pods: tuple[str, ...] = ()
    lost_pods: int = 0
    blocked_pods: int = 0
    called_before_us: tuple[str, ...] = ()
    injectors: tuple[Injector, ...] = ()
    live: bool | None = None
    capability: Literal["native", "classic", "unknown"] | None = None
    capability_why: str = ""
    watches_injectors: bool = False
    race: str = ""
    unmeshed: tuple[Unmeshed, ...] = ()
    unmeshed_total: int = 0
    unmeshed_unknown: int = 0
    suspended_jobs: tuple[str, ...] = ()
    applications: tuple[Application, ...] = ()
    version: str = ""

    def ignorance(self) -> str:
        """Return why nothing is said of injectors and sidecars, the empty text if it is."""
        if not self.ready:
            return f"workload: {self.missing}"
        if not self.watches_injectors:
            return "the workload's image is older than the charm and knows nothing of injectors"
        return ""


def connect(transport: httpx2.BaseTransport | None = None) -> httpx2.Client:
    """Return a client for the status ports of workloads; `transport` is for tests."""
    # A proxy of the model is for what is far away. Status ports speak plain HTTP: no authority is
    # trusted, for reading the system's, as is the default, takes longer than the question.
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.Client(timeout=_TIMEOUT, transport=transport, trust_env=False, verify=nobody)


def ask(url: str, transport: httpx2.BaseTransport | None = None) -> Probe:
    """Ask `url`/status; never raises, for no answer is an answer too."""
    try:
        with connect(transport) as client:
            return _decode(client.get(f"{url}/status").raise_for_status().content)
    except httpx2.HTTPError as error:
        return Probe(ready=False, missing=f"no answer at {url}: {error}")
    except (KeyError, TypeError, ValueError) as error:
        return Probe(ready=False, missing=f"{url}/status: not understood: {error!r}")


def _decode(body: bytes) -> Probe:
    status: dict[str, Any] = json.loads(body)
    return Probe(
        ready=status["ready"] is True,
        missing="; ".join(status["missing"]),
        selected_namespaces=len(status["selected-namespaces"]),
        stuck_pods=tuple(f"{p['namespace']}/{p['name']}" for p in status["stuck-pods"]),
        # An image that is older than the charm does not say these.
        lost_pods=len(status.get("lost-pods", ())),
        blocked_pods=len(status.get("blocked-pods", ())),
        called_before_us=tuple(status.get("called-before-us") or ()),
        injectors=tuple(
            Injector(i["configuration"], i["state"] == "live", i["why"], _time(i["since"]))
            for i in status.get("injectors", ())
        ),
        live=status.get("injector-live"),
        # It gives no reason for what it does not know yet.
        capability=status["capability"] if status.get("capability-why") else None,
        capability_why=status.get("capability-why", ""),
        watches_injectors="injectors" in status,
        race=status.get("race", ""),
        unmeshed=tuple(
            Unmeshed(p["namespace"], p["name"], p["owner"], p["reason"], _time(p["since"]))
            for p in status.get("unmeshed-pods", ())
        ),
        unmeshed_total=status.get("unmeshed-total", 0),
        unmeshed_unknown=status.get("unmeshed-unknown", 0),
        suspended_jobs=tuple(
            f"{job['namespace']}/{job['name']}" for job in status.get("suspended-jobs", ())
        ),
        applications=tuple(map(_application, status.get("applications", ()))),
        version=status["version"],
    )


def _application(said: dict[str, Any]) -> Application:
    return Application(
        model=said["namespace"],
        name=said["name"],
        live=said["live"],
        live_reason=said["live-reason"],
        revision=said["revision"],
        root_namespace=said["root-namespace"],
        meshed=said["meshed"],
        meshed_reason=said["meshed-reason"],
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
