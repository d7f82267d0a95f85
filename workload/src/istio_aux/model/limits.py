"""What ResourceQuotas and LimitRanges allow the pods of a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import msgspec

from istio_aux.model.pod import Key, Resource, Struct
from istio_aux.model.resources import COUNTED, Amounts, quantity

MOST = 100  # Objects of a namespace that are read; with more, its limits are not known.

_KINDS = ("requests", "limits")


class _QuotaSpec(Struct, frozen=True):
    scopes: tuple[str, ...] | None = None


class _QuotaStatus(Struct, frozen=True):
    hard: dict[str, str | int | float] | None = None
    used: dict[str, str | int | float] | None = None


class ResourceQuota(Resource, frozen=True):
    """How much all pods of a namespace may request and use, and how much they do."""

    spec: _QuotaSpec = _QuotaSpec()
    status: _QuotaStatus = _QuotaStatus()


class _LimitItem(Struct, frozen=True):
    type: str = ""
    max: dict[str, str | int | float] | None = None
    max_limit_request_ratio: dict[str, str | int | float] | None = None


class _LimitSpec(Struct, frozen=True):
    limits: tuple[_LimitItem, ...] | None = None


class LimitRange(Resource, frozen=True):
    """How much each pod, or container, of a namespace may request and use."""

    spec: _LimitSpec = _LimitSpec()


# Both kinds, by their resource names.
LIMITED: Mapping[str, type[ResourceQuota | LimitRange]] = {
    "limitranges": LimitRange,
    "resourcequotas": ResourceQuota,
}


class Limit(Struct, frozen=True):
    """What is stored of a quota or LimitRange: a few numbers for each of `COUNTED`."""

    name: str
    most: Amounts = msgspec.field(default_factory=dict[str, int])  # What a pod may add, or have.
    # The highest ratio of limit to request, in parts, by resource.
    ratio: Amounts = msgspec.field(default_factory=dict[str, int])
    deadline: bool | None = None  # It counts only pods with activeDeadlineSeconds, or without.

    def refuses(self, needs: Amounts) -> str:
        """Say which of a pod's ``needs`` is too much; empty if none is."""
        for name, most in self.most.items():
            if needs.get(name, 0) > most:
                return f"{name}, by {self.name}"
        for name, most in self.ratio.items():
            requests, limits = (needs.get(f"{kind}.{name}", 0) for kind in _KINDS)
            if requests and Fraction(limits, requests) * quantity("1") > most:
                return f"the ratio of limits.{name}, by {self.name}"
        return ""


def of_quota(found: ResourceQuota) -> Limit:
    """Return what is left of a quota (k8s@1.36 resourcequota/controller.go checkRequest).

    Only scopes about a deadline are read; a quota with another scope counts every pod.
    `ValueError`: an amount cannot be read.
    """
    used = _read(found.status.used)
    remaining = dict[str, int]()
    for name, most in _read(found.status.hard).items():
        # ``cpu`` is short for ``requests.cpu`` (core/evaluator pods.go podComputeUsageHelper).
        full = f"requests.{name}" if name in COUNTED else name
        remaining[full] = min(remaining.get(full, most), max(0, most - used.get(name, 0)))
    scopes = {*(found.spec.scopes or ())}
    return Limit(
        name=f"ResourceQuota {found.metadata.name}",
        most=remaining,
        deadline=True if "Terminating" in scopes else False if "NotTerminating" in scopes else None,
    )


def of_range(found: LimitRange) -> Limit:
    """Return what a LimitRange allows a pod as a whole (k8s@1.36 limitranger/admission.go).

    `ValueError`: an amount cannot be read.
    """
    most = dict[str, int]()
    ratio = dict[str, int]()
    for item in (each for each in found.spec.limits or () if each.type == "Pod"):
        for name, amount in _read(item.max).items():
            for full in (f"{kind}.{name}" for kind in _KINDS):
                most[full] = min(most.get(full, amount), amount)
        for name, amount in _read(item.max_limit_request_ratio).items():
            ratio[name] = min(ratio.get(name, amount), amount)
    return Limit(name=f"LimitRange {found.metadata.name}", most=most, ratio=ratio)


_NAMES = frozenset({*COUNTED, *(f"{kind}.{name}" for kind in _KINDS for name in COUNTED)})


def _read(given: dict[str, str | int | float] | None) -> dict[str, int]:
    given = given or {}
    return {name: quantity(str(given[name])) for name in sorted(_NAMES & given.keys())}


class Limits:
    """The limits of each namespace; handles the watches of both kinds."""

    def __init__(self) -> None:
        self._limits = dict[str, dict[Key, Limit | None]]()

    def apply(self, resource: ResourceQuota | LimitRange) -> None:
        """A quota or LimitRange exists and looks like this."""
        key = resource.metadata.key
        try:
            limit = (
                of_quota(resource) if isinstance(resource, ResourceQuota) else of_range(resource)
            )
        except ValueError:
            limit = None
        self._limits.setdefault(key.namespace, {})[key] = limit

    def delete(self, key: Key, _last: object = None) -> None:
        """A quota or LimitRange is gone."""
        there = self._limits.get(key.namespace, {})
        there.pop(key, None)
        if not there:
            self._limits.pop(key.namespace, None)

    def of(self, namespace: str) -> tuple[Limit, ...] | None:
        """The limits of a namespace; None: one cannot be read, or they are too many."""
        found = tuple(self._limits.get(namespace, {}).values())
        known = tuple(each for each in found if each)
        return known if len(known) == len(found) <= MOST else None
