"""What a process still holds of pods that are gone: found by walking through its objects."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.unit import Unit

_UID = re.compile(r"uid-[0-9]+")
_CONTAINERS = (dict, list, set, frozenset, tuple, deque)
# A controller without pods is remembered for a while: it may have been scaled down.
_REMEMBERED = frozenset({"PodOwner", "Recalled", "Rollout"})
_OTHERS = frozenset({"__dict__", "__weakref__", "_client"})
_ATOMS = frozenset({int, float, bool, bytes})
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
            if value.startswith("uid-") and value not in there and _UID.fullmatch(value):
                yield f"{path}: {value}"
            continue
        if value is None or type(value) in _ATOMS or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, MethodType):
            todo.append((path, value.__self__))
        elif isinstance(value, dict):
            for key, item in value.items():
                todo += ((path, key), (path, item))
        elif isinstance(value, _CONTAINERS):
            todo += ((path, item) for item in value)
        elif _is_ours(type(value)):
            todo += ((f"{path}.{name}", item) for name, item in _fields(value))


@cache
def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith("istio_aux") and kind.__name__ not in _REMEMBERED


@cache
def _slots(kind: type) -> tuple[str, ...]:
    names = list[str](getattr(kind, "__struct_fields__", ()))
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return tuple(dict.fromkeys(names))


def _fields(value: object) -> Iterator[tuple[str, Any]]:
    names = dict.fromkeys((*getattr(value, "__dict__", ()), *_slots(type(value))))
    return ((name, getattr(value, name, None)) for name in names if name not in _OTHERS)
