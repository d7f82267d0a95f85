"""What pods request: CPUs, memory and GPUs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache

import msgspec

from istio_aux.model.annotations import Annotation
from istio_aux.model.pod import Pod, Struct
from istio_aux.model.text import UNDECODABLE

CPU = "cpu"
MEMORY = "memory"

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
_BINARY = "KMGTPE"
_FACTORS = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate("num", start=-3)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("", *"kMGTPE"))},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate(_BINARY, start=1)},
}

_UNIT = 10**9  # Parts of one unit; the API server stores no smaller ones (apimachinery Quantity).


class Requests(Struct, frozen=True):
    """What pods request, rounded up as the scheduler does: thousandths of a CPU, bytes, devices."""

    millicpu: int = 0
    memory: int = 0
    gpus: int = 0

    @property
    def amounts(self) -> dict[str, float]:
        """Devices, cores and bytes, by the value of a metric's label ``resource``."""
        return {"gpu": self.gpus, "cpu": self.millicpu / 1000, "memory": self.memory}

    def __add__(self, other: Requests) -> Requests:
        """The sum of both."""
        return Requests(
            millicpu=self.millicpu + other.millicpu,
            memory=self.memory + other.memory,
            gpus=self.gpus + other.gpus,
        )

    def __str__(self) -> str:
        """``24 GPUs, 48 CPUs, 192Gi of memory``; empty for nothing."""
        cpus = f"{self.millicpu / 1000:.15g}"
        return ", ".join(
            filter(
                None,
                (
                    f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}" if self.gpus else "",
                    f"{cpus} CPU{'' if cpus == '1' else 's'}" if self.millicpu else "",
                    f"{_bytes(self.memory)} of memory" if self.memory else "",
                ),
            )
        )


_Quantities = dict[str, str | int | float] | None


class _Resources(Struct, frozen=True):
    requests: _Quantities = None
    limits: _Quantities = None


_resources = msgspec.json.Decoder(_Resources | None)

# Amounts in parts, by the name in a ResourceQuota, such as `limits.memory`.
Amounts = Mapping[str, int]

# The resources of a proxy that a ResourceQuota or a LimitRange may count.
COUNTED = (CPU, MEMORY, "ephemeral-storage")


def amounts(resources: msgspec.Raw) -> Counter[str]:
    """Requests and limits of what is `COUNTED`; `UNDECODABLE`: they cannot be read."""
    decoded = (_resources.decode(resources) if resources else None) or _Resources()
    return Counter(
        {
            f"{kind}.{name}": quantity(str(given[name])[: _LONGEST + 1])
            for kind, given in (("requests", decoded.requests), ("limits", decoded.limits))
            for name in COUNTED
            if given and name in given
        }
    )


def requests(pod: Pod) -> Requests | None:
    """Return what the pod requests; None: that cannot be read. Never raises.

    It is what the scheduler counts (k8s.io/component-helpers@0.36 resource.PodRequests): the sum of
    the containers and the native sidecars, or what an init container needs beside the native
    sidecars before it, if that is more. The pod's own requests of CPU and memory replace that
    (KEP-2837), and the overhead of its RuntimeClass is added. A resize that is in progress and the
    devices of ResourceClaims are left out.
    """
    try:
        together, start = _containers(pod, _read)
        amounts = together | start
        own = _read(pod.spec.resources)
        for name in {CPU, MEMORY} & own.keys():
            amounts[name] = own[name]
        if pod.spec.overhead:
            amounts += _amounts(msgspec.json.decode(pod.spec.overhead, type=_Quantities))
        held = _rounded(amounts)
    except UNDECODABLE:  # A pod from a file has a quantity that the API server would refuse.
        return None
    return held if max(held.millicpu, held.memory, held.gpus) < 2**63 else None


def held(pod: Pod) -> Requests | None:
    """Return the pod's requests, which are nothing before it has a node; None: see `requests`."""
    waits = pod.status.phase == "Pending" and not pod.spec.node_name
    return Requests() if waits else requests(pod)


def totals(pod: Pod, proxy: Amounts, *, native: bool) -> Amounts:
    """What the containers need together with a proxy of this size, ``native`` or classic.

    A native one runs beside each init container, too (k8s.io/component-helpers
    resource.PodRequests, PodLimits). `UNDECODABLE`: they cannot be read.
    """
    together, start = _containers(pod, lambda each: _with_requests(amounts(each)))
    if native and start:
        start += Counter(proxy)
    return (together + Counter(proxy)) | start


def size_of_proxy(pod: Pod, usual: Amounts | None) -> tuple[Amounts, bool]:
    """What the pod's proxy needs, and whether that is known: else it is Istio's default.

    ``usual``: what proxies of its injector need, if that is known. Any size annotation of the pod
    replaces all of that (istio injection-template.yaml resources).
    """
    own = {name: each for name, key in _SIZE.items() if (each := key.get(pod.metadata))}
    found = own or usual
    return (ISTIOS, False) if found is None else (_with_requests(Counter(found)), True)


def too_small(pod: Pod, *, native: bool, proxy: Amounts | None = None) -> str:
    """Say what a pod's own ``resources`` need so that it is not refused with its sidecar.

    Empty: they are enough, there are none, or they cannot be read. The API server compares the sum
    of all requests, and each limit alone, without init containers (k8s@1.36
    validatePodResourceConsistency). An absent request defaults to what the containers request
    before injection, or to the limit (defaultPodRequests). ``proxy`` as in `size_of_proxy`.
    """
    if pod.names_proxy or not pod.spec.resources:
        return ""
    size, known = size_of_proxy(pod, proxy)
    try:
        own = amounts(pod.spec.resources)
        before = totals(pod, {}, native=False)
        after = totals(pod, size, native=native)
    except UNDECODABLE:
        return ""
    limited = any(name.startswith("limits.") for name in own)
    short = Counter[str]()
    low = Counter[str]()
    for name in (CPU, MEMORY):
        request = f"requests.{name}"
        limit = f"limits.{name}"
        given = own[request] or (before.get(request) if limited else 0) or own[limit]
        if 0 < given < after.get(request, 0):
            short[name] = after[request]
        least = max(short[name], 0 if native else size.get(limit, 0))
        if 0 < own[limit] < least:
            low[name] = least
    needs = [
        f"{kind} of {_rounded(it)}" for kind, it in (("requests", short), ("limits", low)) if it
    ]
    if not needs:
        return ""
    text = f"refused with a sidecar unless spec.resources has {' and '.join(needs)} or more"
    text += "" if known else ", if Istio's proxy has its default size"
    return text + ("; limits of a native one do not count" if low and not native else "")


def total(requests: Iterable[Requests]) -> Requests:
    """The sum of all."""
    return sum(requests, Requests())


@lru_cache(maxsize=1024)  # Thousands of pods request the same amounts.
def quantity(text: str) -> int:
    """Read a quantity of Kubernetes, in parts; ValueError if it is none, negative, or too long."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise ValueError("expected a quantity, such as 500m or 16Gi")
    unit = match[2]
    factor = _FACTORS[unit] if unit in _FACTORS else Fraction(10) ** int(unit[1:])
    return math.ceil(Fraction(match[1]) * factor * _UNIT)


# What Istio's proxy needs, unless its mesh says otherwise (istio-control/istio-discovery values).
ISTIOS: Amounts = {
    "requests.cpu": quantity("100m"),
    "requests.memory": quantity("128Mi"),
    "limits.cpu": quantity("2"),
    "limits.memory": quantity("1Gi"),
}


def _containers(
    pod: Pod, read: Callable[[msgspec.Raw], Counter[str]]
) -> tuple[Counter[str], Counter[str]]:
    """What the containers need together, and what init containers need at most (KEP-753)."""
    together = sum((read(container.resources) for container in pod.containers), Counter[str]())
    before = Counter[str]()
    start = Counter[str]()
    for container in pod.init_containers:
        own = read(container.resources)
        if container.restart_policy == "Always":
            together += own
            before += own
        else:
            start |= own + before
    return together, start


def _read(resources: msgspec.Raw) -> Counter[str]:
    """The requests among ``resources`` of a container or a pod."""
    decoded = _resources.decode(resources) if resources else None
    return _amounts(decoded.requests if decoded else None)


def _with_requests(found: Counter[str]) -> Counter[str]:
    """Set each absent request to its limit, as the API server does (k8s@1.36 SetDefaults_Pod)."""
    return Counter(
        {
            **{name.replace("limits.", "requests."): found[name] for name in found},
            **found,
        }
    )


def _rounded(amounts: Counter[str]) -> Requests:
    return Requests(
        millicpu=-(-amounts[CPU] * 1000 // _UNIT),
        memory=-(-amounts[MEMORY] // _UNIT),
        gpus=-(-(amounts.total() - amounts[CPU] - amounts[MEMORY]) // _UNIT),
    )


def _amounts(requests: _Quantities) -> Counter[str]:
    """The amounts that count, by name."""
    return Counter(
        {
            name: quantity(str(value)[: _LONGEST + 1])
            for name, value in (requests or {}).items()
            if name in {CPU, MEMORY} or _GPUS.fullmatch(name)
        }
    )


def _bytes(number: int) -> str:
    """Write bytes in the largest unit of which there is at least one: ``192Gi``, ``1.5Ti``."""
    power = max(0, min((number.bit_length() - 1) // 10, len(_BINARY)))
    unit = _BINARY[power - 1] + "i" if power else ""
    return f"{number / 1024**power:.1f}".removesuffix(".0") + unit


_SIZE = {
    name: Annotation(f"sidecar.istio.io/{key}", quantity, "a quantity", longest=_LONGEST)
    for name, key in (
        ("requests.cpu", "proxyCPU"),
        ("requests.memory", "proxyMemory"),
        ("limits.cpu", "proxyCPULimit"),
        ("limits.memory", "proxyMemoryLimit"),
    )
}
