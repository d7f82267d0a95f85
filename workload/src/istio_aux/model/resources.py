"""Which resources pods hold, and which containers keep pods from completing.

A pod is held when its payload, or a part of it, is finished and something else keeps it: its proxy,
another container, an annotation or an option. Pods with the same holder are grouped.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Protocol

import msgspec

from istio_aux.model.pod import PROXY, Pod, Struct
from istio_aux.model.text import listed

CPU, MEMORY = "cpu", "memory"

# A share or a slice of a GPU counts as one, as the device plugin offers it. Not every device of a
# vendor is a GPU (nvidia.com/hostdev is a network card, amd.com/xilinx_… an FPGA), and of Intel's
# names some count thousandths or bytes.
_GPUS = re.compile(
    r".+/gpu|nvidia\.com/(gpu[.-]|mig-).+|amd\.com/[a-z]px_nps[0-9]|gpu\.intel\.com/(i915|xe)"
)

# apimachinery resource.Quantity; a request has no sign.
_QUANTITY = re.compile(
    r"\+?([0-9]++\.?+[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE]?)"
)
_LONGEST = 40  # Characters of a quantity: 2^63 has 19 digits.
_MOST = 2**63 - 1
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"

_Amounts = dict[str, Fraction]


class Requests(Struct, frozen=True):
    """What pods request, rounded up as the scheduler does: thousandths of a CPU, bytes, devices."""

    millicpu: int = 0
    memory: int = 0
    gpus: int = 0

    def __add__(self, other: Requests) -> Requests:
        """What both hold."""
        return Requests(
            millicpu=self.millicpu + other.millicpu,
            memory=self.memory + other.memory,
            gpus=self.gpus + other.gpus,
        )

    def __str__(self) -> str:
        """``24 GPUs, 48 CPUs, 192Gi of memory``; empty for nothing."""
        cpus = f"{self.millicpu / 1000:.15g}"
        parts = (
            f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "",
            f"{cpus} CPU{'' if cpus == '1' else 's'}" if self.millicpu else "",
            f"{_bytes(self.memory)} of memory" if self.memory else "",
        )
        return ", ".join(filter(None, parts))


class _Resources(Struct, frozen=True):
    requests: dict[str, str | int | float] | None = None


_resources = msgspec.json.Decoder(_Resources | None)
_quantities = msgspec.json.Decoder(dict[str, str | int | float] | None)


def requests(pod: Pod) -> Requests | None:
    """Return what the pod requests; None: that cannot be read. Never raises.

    It is what the scheduler counts (k8s.io/component-helpers@0.36 resource.PodRequests):

    * the sum of the containers and the native sidecars, or what an init container needs beside the
      native sidecars before it, if that is more;
    * instead, the pod's own requests of CPU and memory (KEP-2837);
    * and the overhead of its RuntimeClass.

    A resize that is in progress and the devices of ResourceClaims are left out.
    """
    try:
        amounts = _containers(pod)
        own = _read(pod.spec.resources)
        amounts |= {name: own[name] for name in (CPU, MEMORY) if name in own}
        if pod.spec.overhead:
            _add(amounts, _amounts(_quantities.decode(pod.spec.overhead)))
        found = Requests(
            millicpu=math.ceil(amounts.pop(CPU, Fraction()) * 1000),
            memory=math.ceil(amounts.pop(MEMORY, Fraction())),
            gpus=math.ceil(sum(amounts.values())),
        )
    except (ValueError, RecursionError):  # Somebody's pod has what no API server stores.
        return None
    return found if max(found.millicpu, found.memory, found.gpus) <= _MOST else None


def total(requests: Iterable[Requests]) -> Requests:
    """What all of them hold."""
    return sum(requests, Requests())


def quantity(text: str) -> Fraction:
    """Read a quantity exactly.

    Raises:
        ValueError: it is no quantity of Kubernetes, is negative, or has over 40 characters.
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError(f'"{text[:_LONGEST]}": expected a quantity, such as 500m or 16Gi')
    number, unit = Fraction(match[1]), match[2]
    if unit.endswith("i"):
        return number * 1024 ** (_BINARY.index(unit[0]) + 1)
    return number * Fraction(10) ** (_POWERS[unit] if unit in _POWERS else int(unit[1:]))


def _containers(pod: Pod) -> _Amounts:
    """What the containers need at once, at most (KEP-753)."""
    total, before, start = _Amounts(), _Amounts(), _Amounts()
    for container in pod.containers:
        _add(total, _read(container.resources))
    for container in pod.init_containers:
        own = _read(container.resources)
        if container.restart_policy == "Always":
            _add(total, own)
            _add(before, own)
        else:
            _add(own, before)
            _raise(start, own)
    _raise(total, start)
    return total


def _read(resources: msgspec.Raw) -> _Amounts:
    """The requests among ``resources`` of a container or a pod."""
    found = _resources.decode(resources) if resources else None
    return _amounts(found.requests if found else None)


def _amounts(requests: Mapping[str, str | int | float] | None) -> _Amounts:
    """Those that count, by name."""
    return {
        name: quantity(str(value))
        for name, value in (requests or {}).items()
        if name in {CPU, MEMORY} or _GPUS.fullmatch(name)
    }


def _add(amounts: _Amounts, more: _Amounts) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, Fraction()) + amount


def _raise(amounts: _Amounts, least: _Amounts) -> None:
    for name, amount in least.items():
        amounts[name] = max(amounts.get(name, Fraction()), amount)


def _bytes(number: int) -> str:
    """``192Gi``, ``1.5Ti``: in the largest unit of which there is at least one."""
    power = max(0, min((number.bit_length() - 1) // 10, len(_BINARY)))
    unit = _BINARY[power - 1] + "i" if power else ""
    return f"{number / 1024**power:.1f}".removesuffix(".0") + unit


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
    """The containers that keep some pods running, and what these pods request together.

    Attributes:
        by: the names of the containers.
        since: when the first pod began to be held; None: unknown.
        unreadable: the number of pods whose requests cannot be read.
        text: the holder in one line for people.
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
    text = f"{pods} pod{' is' if pods == 1 else 's are'} held by {listed(by, most=_NAMES)}"
    if since is not None:
        text += f" since {since.astimezone(UTC):%Y-%m-%d %H:%M}Z"
    if requests:
        text += f": {requests}"
    return text + (f"; the requests of {unreadable} cannot be read" if unreadable else "")
