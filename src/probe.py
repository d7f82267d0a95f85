"""What the workload says about itself over its status port, which the charm's container shares."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import httpx2

# The workload answers from memory; what takes longer than this is not well.
_TIMEOUT: Final = 2.0


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
        version: of the workload, or nothing.
    """

    ready: bool
    missing: str = ""
    selected_namespaces: int | None = None
    stuck_pods: tuple[str, ...] = ()
    lost_pods: int = 0
    blocked_pods: int = 0
    called_before_us: tuple[str, ...] = ()
    version: str = ""


def ask(url: str, transport: httpx2.BaseTransport | None = None) -> Probe:
    """Ask `url`/status; never raises, for no answer is an answer too."""
    try:
        # A proxy of the model is for what is far away, not for localhost.
        with httpx2.Client(timeout=_TIMEOUT, transport=transport, trust_env=False) as client:
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
        version=status["version"],
    )
