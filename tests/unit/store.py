"""The fake API server's store, which keeps the promises of the real one (list and watch)."""

from __future__ import annotations

import asyncio
import json
import re
from copy import deepcopy
from typing import Any

from aiohttp import web
from istio_aux.model import selectors

HISTORY = 1000
"""Events that a watch may still begin at; the real one keeps at least 75 s of them."""

Object = dict[str, Any]

_NESTED = re.compile(r'"nested (\d+) levels deep"')


def nested(levels: int) -> str:
    """A marker that `text` replaces by nested objects, which json cannot encode."""
    return f"nested {levels} levels deep"


def managed(levels: int) -> list[Object]:
    """``metadata.managedFields`` nested so deeply; the API server stores them."""
    return [{"manager": "tenant", "operation": "Apply", "fieldsV1": nested(levels)}]


def text(body: Object) -> str:
    """An object as JSON."""

    def deep(found: re.Match[str]) -> str:
        return '{"f:a":' * int(found[1]) + "{}" + "}" * int(found[1])

    return _NESTED.sub(deep, json.dumps(body, separators=(",", ":")))


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
        "involvedObject.uid": item.get("involvedObject", {}).get("uid", ""),
        **{field: item[field] for field in ("type", "reason") if field in item},  # Of an Event.
    }
    # A field selector is written like a label selector of equalities.
    return selectors.parse(fields).matches(facts)


def status(code: int, reason: str, message: str, **extra: object) -> Object:
    """A meta/v1 Status of a failure."""
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code, **extra,
    }  # fmt: skip


def refusal(
    code: int, reason: str = "", message: str = "", *, headers: dict[str, str] | None = None
) -> web.Response:
    """An error as the API server answers it."""
    return web.json_response(status(code, reason, message), status=code, headers=headers)


def conflict(options: Object, stored: Object) -> str | None:
    """Say which precondition of DeleteOptions an object does not meet, or None."""
    for field, wanted in options.get("preconditions", {}).items():
        if stored["metadata"][field] != wanted:
            return f"Precondition failed: {field} in precondition: {wanted}"
    return None


def merged(target: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        result[key] = merged(result.get(key), value)
    return {key: value for key, value in result.items() if value is not None}


class Store:
    """Objects by resource, namespace and name.

    Attributes:
        watches: requests whose watch streams are open.
        oldest: a watch from a version before this one is answered with 410.
    """

    def __init__(self) -> None:
        self.watches: list[web.Request] = []
        self.oldest = 0
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._history: list[tuple[int, str, Object | None, Object]] = []
        self._version = 1
        self._changed = asyncio.Condition()

    async def put(self, resource: str, body: Object) -> Object:
        """Create or replace an object; returns it as stored."""
        stored = deepcopy(body)
        meta = stored.setdefault("metadata", {})
        key = (resource, meta.get("namespace", ""), meta["name"])
        old = self._objects.get(key)
        if old and old["metadata"]["uid"] != meta.setdefault("uid", old["metadata"]["uid"]):
            await self.remove(*key)
            old = None
        self._version += 1
        meta.setdefault("uid", f"uid-{self._version}")
        meta["resourceVersion"] = str(self._version)
        first = ("name", "generateName", "namespace", "uid", "resourceVersion")
        stored["metadata"] = {key: meta[key] for key in first if key in meta} | meta
        self._objects[key] = stored
        await self._record(resource, old, stored)
        return stored

    async def remove(self, resource: str, namespace: str, name: str) -> None:
        old = self._objects.pop((resource, namespace, name))
        self._version += 1
        gone = deepcopy(old)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, resource, gone, {}))
        async with self._changed:
            self._changed.notify_all()

    async def forget_history(self) -> None:
        """From now on a watch from any version before this one is answered with 410."""
        self._version += 1
        self.oldest = self._version

    def go_back(self, version: int) -> None:
        """Store nothing, at an older version, as after a restore of etcd: watches say nothing."""
        self._version = version
        self._objects.clear()
        self._history.clear()

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((resource, namespace, name))

    async def _record(self, resource: str, old: Object | None, new: Object) -> None:
        self._history.append((self._version, resource, old, new))
        del self._history[:-HISTORY]
        async with self._changed:
            self._changed.notify_all()

    async def collection(
        self, request: web.Request, resource: str, namespace: str
    ) -> web.StreamResponse:
        """Answer a list, a watch or a creation."""
        if request.method == "POST":
            return await self._create(request, resource, namespace)
        if request.query.get("watch") == "true":
            return await self._watch(request, resource, namespace)
        found = self._there(request, resource, namespace)
        start = int(request.query.get("continue", "0"))
        limit = int(request.query.get("limit", "0")) or len(found)
        meta = {"resourceVersion": str(self._version)}
        if start + limit < len(found):
            meta["continue"] = str(start + limit)
        page = {"metadata": meta, "items": found[start : start + limit]}
        return web.json_response(page, dumps=text)

    async def replace(
        self, request: web.Request, resource: str, found: Object
    ) -> web.StreamResponse:
        """Answer a PUT; its resourceVersion, if it has one, must be the newest."""
        body = await request.json()
        version = body["metadata"].get("resourceVersion")
        if version not in (None, found["metadata"]["resourceVersion"]):
            return refusal(409, "Conflict", "the object has been modified")
        return web.json_response(await self.put(resource, body), dumps=text)

    async def patch(self, request: web.Request, resource: str, found: Object) -> web.StreamResponse:
        """Answer a merge patch, whose UID and resourceVersion are preconditions."""
        assert request.content_type == "application/merge-patch+json"
        assert request.query["fieldValidation"] == "Strict"
        body = await request.json()
        wanted = {field: body["metadata"][field] for field in ("uid", "resourceVersion")}
        if unmet := conflict({"preconditions": wanted}, found):
            return refusal(409, "Conflict", unmet)
        return web.json_response(await self.put(resource, merged(found, body)))

    async def delete(
        self, request: web.Request, resource: str, found: Object
    ) -> web.StreamResponse:
        """Answer a DELETE."""
        if unmet := conflict(await request.json(), found):
            return refusal(409, "Conflict", unmet)
        await self.remove(resource, found["metadata"]["namespace"], found["metadata"]["name"])
        return web.json_response(found, dumps=text)

    async def _create(
        self, request: web.Request, resource: str, namespace: str
    ) -> web.StreamResponse:
        body = await request.json()
        name = body["metadata"]["name"]
        if body["metadata"].get("resourceVersion"):
            why = "resourceVersion should not be set on objects to be created"
            # apiserver storage.ErrResourceVersionSetOnCreate
            return refusal(500, "InternalError", why)
        if self.get(resource, namespace, name):
            return refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        return web.json_response(await self.put(resource, body), status=201, dumps=text)

    def _there(self, request: web.Request, resource: str, namespace: str) -> list[Object]:
        keys = sorted(key for key in self._objects if key[0] == resource)
        found = [self._objects[key] for key in keys if namespace in ("", key[1])]
        return [item for item in found if selected(request, item)]

    async def _watch(
        self, request: web.Request, resource: str, namespace: str
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        if seen < self.oldest:
            gone = status(410, "Expired", f"too old resource version: {seen} ({self.oldest})")
            await response.write(line("ERROR", gone))
            return response
        self.watches.append(request)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                while True:
                    for version, kind, old, new in list(self._history):
                        if version <= seen or kind != resource:
                            continue
                        if told := event(request, namespace, old, new, version):
                            await response.write(told)
                    seen = max(seen, self._version)
                    async with self._changed:
                        while self._version <= seen:
                            await self._changed.wait()
        except (TimeoutError, ConnectionError):
            return response
        finally:
            self.watches.remove(request)
