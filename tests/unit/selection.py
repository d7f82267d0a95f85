"""What a list or a watch with selectors sees, as the API server decides it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

from aiohttp import web
from istio_aux.core import selectors

Object = dict[str, Any]

_NESTED = re.compile(r'"nested (\d+) levels deep"')


def nested(levels: int) -> str:
    """A value that goes over the wire as objects within objects; json cannot encode them."""
    return f"nested {levels} levels deep"


def managed(levels: int) -> list[Object]:
    """``metadata.managedFields`` as deep as that, which the API server stores."""
    return [{"manager": "tenant", "operation": "Apply", "fieldsV1": nested(levels)}]


def text(body: Object) -> str:
    """An object as JSON."""

    def deep(found: re.Match[str]) -> str:
        return '{"f:a":' * int(found[1]) + "{}" + "}" * int(found[1])

    return _NESTED.sub(deep, json.dumps(body))


def line(kind: str, body: Object) -> bytes:
    return text({"type": kind, "object": body}).encode() + b"\n"


def event(
    request: web.Request, namespace: str, old: Object | None, new: Object, version: int
) -> bytes | None:
    """The event that a watch with a selection sees of a change (apiserver cacher)."""
    was = bool(old) and selected(request, old or {}, namespace)
    now = bool(new) and selected(request, new, namespace)
    if now:
        return line("MODIFIED" if was else "ADDED", new)
    if was:
        left = deepcopy(old or {})
        left["metadata"]["resourceVersion"] = str(version)
        return line("DELETED", left)
    return None


def selected(request: web.Request, item: Object, namespace: str = "") -> bool:
    if namespace and item["metadata"].get("namespace") != namespace:
        return False
    labels = item["metadata"].get("labels") or {}
    if not selectors.parse(request.query.get("labelSelector", "")).matches(labels):
        return False
    fields = request.query.get("fieldSelector", "")
    facts = {
        "status.phase": item.get("status", {}).get("phase", ""),
        "spec.restartPolicy": item.get("spec", {}).get("restartPolicy", ""),
    }
    # A field selector is written like a label selector of equalities.
    return selectors.parse(fields).matches(facts)
