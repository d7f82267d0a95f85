"""The difference of two JSON documents as a JSON Patch, by index like Istio's. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def diff(old: Any, new: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """The operations that turn `old` into `new`.

    A list is compared place by place, so an element put in front shows as changes of all that
    follow: with hold, a new container at the end and replacements in the one at the front.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield {"op": "remove", "path": _join(path, key)}
        for key, value in new.items():
            if key in old:
                yield from diff(old[key], value, _join(path, key))
            else:
                yield {"op": "add", "path": _join(path, key), "value": value}
    elif isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        for index, value in enumerate(new[len(old) :], len(old)):
            yield {"op": "add", "path": _join(path, index), "value": value}
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from diff(before, after, _join(path, index))
    elif old != new:
        yield {"op": "replace", "path": path, "value": new}


def _join(path: str, key: str | int) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"
