"""Which containers keep pods from completing, and which resources these pods hold meanwhile.

A pod is held when its payload, or a part of it, is finished and something else keeps it: its proxy,
another container, an annotation or an option. Pods with the same holder are grouped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from istio_aux.core.pod import PROXY
from istio_aux.core.resources import Requests, total

MOST = 20  # Holders that are listed: tenants name their containers.
_NAMES = 3  # Containers that the text of a holder names.


class HeldPod(Protocol):
    """The fields of a stuck or blocked pod that `group` reads."""

    @property
    def by(self) -> tuple[str, ...]:
        """The containers that hold it, or an annotation or an option; empty: its proxy."""
        ...

    @property
    def since(self) -> datetime | None:
        """When the last of the finished payload containers ended; None: unknown."""
        ...

    @property
    def requests(self) -> Requests | None:
        """What it holds; None: its requests cannot be read."""
        ...

    @property
    def fix(self) -> str:
        """The setting that ends it, if one is known."""
        ...


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pods that are held by the same, and what they hold in all.

    Attributes:
        since: since when the first of them is held; None: unknown.
        unreadable: of how many of them the requests cannot be read.
        text: all of this in one line for people.
    """

    by: tuple[str, ...]
    pods: int
    since: datetime | None
    requests: Requests
    unreadable: int = 0
    fix: str = ""
    text: str


def group(pods: Iterable[HeldPod]) -> list[Holder]:
    """Group pods by their holder: those that hold most GPUs first, then most pods, then by name."""
    groups = defaultdict[tuple[tuple[str, ...], str], list[HeldPod]](list)
    for pod in pods:
        groups[tuple(sorted(pod.by)) or (PROXY,), pod.fix].append(pod)
    found = [_holder(by, fix, held) for (by, fix), held in groups.items()]
    return sorted(found, key=lambda one: (-one.requests.gpus, -one.pods, one.by, one.fix))


def _holder(by: tuple[str, ...], fix: str, pods: list[HeldPod]) -> Holder:
    since = min((pod.since for pod in pods if pod.since), default=None)
    requests = total(pod.requests for pod in pods if pod.requests is not None)
    unreadable = sum(pod.requests is None for pod in pods)
    return Holder(
        by=by,
        pods=len(pods),
        since=since,
        requests=requests,
        unreadable=unreadable,
        fix=fix,
        text=_text(by, len(pods), since, str(requests), unreadable) + (fix and f"; {fix}"),
    )


def _text(
    by: tuple[str, ...], pods: int, since: datetime | None, requests: str, unreadable: int
) -> str:
    """``12 pods are held by vault-agent since 2026-11-20 07:12Z: 24 GPUs, 48 CPUs``."""
    more = f" and {len(by) - _NAMES} more" if len(by) > _NAMES else ""
    text = f"{pods} pod{' is' if pods == 1 else 's are'} held by {', '.join(by[:_NAMES])}{more}"
    if since is not None:
        text += f" since {since.astimezone(UTC):%Y-%m-%d %H:%M}Z"
    if requests:
        text += f": {requests}"
    return text + (f"; the requests of {unreadable} cannot be read" if unreadable else "")
