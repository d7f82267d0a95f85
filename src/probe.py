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
    """

    ready: bool
    missing: str = ""
    selected_namespaces: int | None = None
    stuck_pods: tuple[str, ...] = ()


def ask(url: str, transport: httpx2.BaseTransport | None = None) -> Probe:
    """Ask `url`/readyz, then `url`/status; never raises, for no answer is an answer too."""
    try:
        with httpx2.Client(
            base_url=url, timeout=_TIMEOUT, transport=transport, trust_env=False
        ) as client:
            readiness = client.get("/readyz")
            if readiness.status_code != 200:
                return Probe(ready=False, missing=" ".join(readiness.text.split()) or "not ready")
            return _decode(client.get("/status").raise_for_status().content)
    except httpx2.HTTPError as error:
        return Probe(ready=False, missing=f"no answer at {url}: {error}")


def _decode(body: bytes) -> Probe:
    status: dict[str, Any] = json.loads(body)
    return Probe(
        ready=True,
        selected_namespaces=len(status["selected_namespaces"]),
        stuck_pods=tuple(f"{p['namespace']}/{p['name']}" for p in status["stuck_pods"]),
    )
