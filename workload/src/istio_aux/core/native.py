"""Decides whether pods that ask for a native sidecar get one that works.

A kubelet restarts an init container that restarts always from Kubernetes 1.29 on (KEP-753), and is
at most three minor versions older than its API server (kubernetes.io, version skew policy). Only a
dry run through the API server shows whether Istio makes such a sidecar, and whether later webhooks
keep it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from istio_aux.core import pod as pods
from istio_aux.core.pod import PROXY
from istio_aux.core.policy import Capability

OLDEST = (1, 29)
"""The first version whose kubelet runs native sidecars by default."""

ASSURED = (1, 32)
"""From this API server version on, no kubelet is older than `OLDEST`."""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?!\d)")

_LONGEST = 300
"""Characters of a reason; other programs' messages may be long."""


class NativeCheck(msgspec.Struct, frozen=True):
    """The sidecar of pods that ask for a native one.

    Attributes:
        capability: unknown if that cannot be found out.
        why: the reason, one line for people.
    """

    capability: Capability
    why: str


NOT_CHECKED = NativeCheck(Capability.UNKNOWN, "")
"""There was no check yet, so there is no reason."""

_SUREST = (Capability.CLASSIC, Capability.UNKNOWN, Capability.NATIVE)


def least(checks: Iterable[NativeCheck]) -> NativeCheck:
    """Combine checks: one classic sidecar decides, and all must be native."""
    return min(
        checks,
        key=lambda check: (_SUREST.index(check.capability), bool(check.why)),
        default=NOT_CHECKED,
    )


def of_server(version: str) -> NativeCheck | None:
    """Judge by the API server's version; None if native sidecars are possible."""
    found = _minor(version)
    if found is None:
        return unknown(f'the version of the API server is "{version}"')
    if found < OLDEST:
        return _classic(f"Kubernetes {version} has no native sidecars; they need 1.29")
    return None


def assured(version: str) -> bool:
    """Whether every kubelet of an API server with this version runs native sidecars."""
    found = _minor(version)
    return found is not None and found >= ASSURED


def of_kubelets(versions: Mapping[str, str]) -> NativeCheck | None:
    """Judge by kubelet versions by node; None if all of them run native sidecars."""
    for node in sorted(versions):
        found = _minor(versions[node])
        if found is None or found < OLDEST:
            return _classic(
                f'node {node}: kubelet "{versions[node]}" runs no native sidecars; they need 1.29'
            )
    return None if versions else unknown("there is no node")


def of_dry_run(body: bytes) -> NativeCheck:
    """Judge by the answer to a dry run of a pod that asks for a native sidecar."""
    try:
        pod = pods.decode(body)
    except (ValueError, RecursionError) as error:
        return unknown(f"the answer to a dry run is not a pod: {error}")
    for container in pod.init_containers:
        if container.name == PROXY:
            if container.restart_policy == "Always":
                return NativeCheck(Capability.NATIVE, "sidecars are native on request")
            return _classic("a webhook after Istio's removes restartPolicy from a native sidecar")
    if any(container.name == PROXY for container in pod.containers):
        return never()
    return unknown("a dry run shows no sidecar")


def never() -> NativeCheck:
    """Return the result for an injector that makes a classic sidecar for a pod that asks."""
    return _classic("Istio makes no native sidecars, not even on request")


def refused(why: str) -> NativeCheck:
    """Return the result if a pod is refused only when it asks for a native sidecar."""
    return _classic(f"pods with a native sidecar are refused: {why}")


def unknown(why: str) -> NativeCheck:
    """Return the result if there was no answer."""
    line = _line(f"not known whether sidecars can be native: {why}")
    return NativeCheck(Capability.UNKNOWN, line)


def _classic(why: str) -> NativeCheck:
    return NativeCheck(Capability.CLASSIC, _line(why))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]


def _minor(version: str) -> tuple[int, int] | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else None
