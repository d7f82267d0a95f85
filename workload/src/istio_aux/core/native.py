"""Whether pods that ask for a native sidecar get one that works: by versions, and by a dry run.

Pure. A kubelet runs an init container that restarts always from Kubernetes 1.29 on (KEP-753), and
is at most three minor versions older than its API server (kubernetes.io, version skew policy).
Whether Istio makes such a sidecar, and whether the webhooks after Istio's leave it as it is, only a
dry run through the API server shows.
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
"""From this version of the API server on, no kubelet is older than `OLDEST`."""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?!\d)")

_LONGEST = 300
"""Characters of a reason: others' words may be long."""


class NativeCheck(msgspec.Struct, frozen=True):
    """What pods that ask for a native sidecar get.

    Attributes:
        capability: native where they get one that works; unknown where that cannot be found out.
        why: what makes it so; one line, for people.
    """

    capability: Capability
    why: str


NOT_CHECKED = NativeCheck(Capability.UNKNOWN, "")
"""Nothing has been found out yet, which is why there is no reason."""

_SUREST = (Capability.CLASSIC, Capability.UNKNOWN, Capability.NATIVE)


def least(checks: Iterable[NativeCheck]) -> NativeCheck:
    """What several checks come to: a no is surer than silence, and all have to say yes."""
    return min(
        checks,
        key=lambda check: (_SUREST.index(check.capability), bool(check.why)),
        default=NOT_CHECKED,
    )


def of_server(version: str) -> NativeCheck | None:
    """Judge by the version of the API server; None: it does not rule native sidecars out."""
    found = _minor(version)
    if found is None:
        return unknown(f'the API server calls its version "{version}"')
    if found < OLDEST:
        return _classic(f"Kubernetes {version} has no native sidecars: 1.29 has")
    return None


def assured(version: str) -> bool:
    """Whether every kubelet of an API server of this version runs native sidecars."""
    found = _minor(version)
    return found is not None and found >= ASSURED


def of_kubelets(versions: Mapping[str, str]) -> NativeCheck | None:
    """Judge by the versions of kubelets, by their nodes; None: all of them run native sidecars."""
    for node in sorted(versions):
        found = _minor(versions[node])
        if found is None or found < OLDEST:
            return _classic(
                f'node {node}: kubelet "{versions[node]}" runs no native sidecars: 1.29 does'
            )
    return None if versions else unknown("there is no node whose kubelet could be asked")


def of_dry_run(body: bytes) -> NativeCheck:
    """Judge by the pod that the API server would have made of one that asks."""
    try:
        pod = pods.decode(body)
    except (ValueError, RecursionError) as error:
        return unknown(f"the dry run answered no pod: {error}")
    for container in pod.init_containers:
        if container.name == PROXY:
            if container.restart_policy == "Always":
                return NativeCheck(Capability.NATIVE, "sidecars are native on request")
            return _classic("a webhook after Istio's drops restartPolicy of a native sidecar")
    if any(container.name == PROXY for container in pod.containers):
        return _classic("Istio makes no native sidecars, not even on request")
    return unknown("a dry run shows no sidecar")


def never() -> NativeCheck:
    """What it means that the injector itself makes a classic sidecar for a pod that asks."""
    return _classic("Istio makes no native sidecars, not even on request")


def refused(why: str) -> NativeCheck:
    """What it means that a pod that asks is refused, and one that does not is not."""
    return _classic(f"pods with a native sidecar are refused: {why}")


def unknown(why: str) -> NativeCheck:
    """What it means that there was no answer."""
    line = _line(f"not known whether sidecars can be native: {why}")
    return NativeCheck(Capability.UNKNOWN, line)


def _classic(why: str) -> NativeCheck:
    return NativeCheck(Capability.CLASSIC, _line(why))


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]


def _minor(version: str) -> tuple[int, int] | None:
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else None
