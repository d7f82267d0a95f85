"""What a process still holds of pods that are gone: found by walking through its objects."""

from __future__ import annotations

import asyncio
import gc
import re
from collections import deque
from collections.abc import Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from simulation.unit import Unit

_UID = re.compile(r"uid-[0-9]+")
_HOLDERS = (dict, list, set, frozenset, tuple, deque, MethodType)
# A controller without pods is remembered for a while: it may have been scaled down.
_REMEMBERED = frozenset({"PodOwner", "Recalled", "Rollout"})
_TASKS = ("quit ", "restart ")


def left(unit: Unit) -> list[str]:
    """What should not be there once no pod is: tasks about pods, and places with their UIDs."""
    process = unit.process
    if process is None:
        return []
    server = unit.cluster.server
    there = {found.uid for objects in server.objects.values() for found in objects.values()}
    names = sorted(task.get_name() for task in asyncio.all_tasks(process.loop))
    found = [f"task {name}" for name in names if name.startswith(_TASKS)]
    return found + sorted(set(_places(process.wiring, there)))


def _places(root: object, there: set[str]) -> Iterator[str]:
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque([("wiring", root)])
    while todo:
        path, value = todo.popleft()
        if isinstance(value, str):
            if _UID.fullmatch(value) and value not in there:
                yield f"{path}: {value}"
        elif id(value) not in seen and (isinstance(value, _HOLDERS) or _is_ours(type(value))):
            seen.add(id(value))
            within = f"{path}, {type(value).__name__}"
            # Some structs of the product are none that the collector knows.
            is_struct = isinstance(value, msgspec.Struct)
            held = msgspec.structs.astuple(value) if is_struct else gc.get_referents(value)
            todo += ((within, each) for each in held)


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("istio_aux") and kind.__name__ not in _REMEMBERED
