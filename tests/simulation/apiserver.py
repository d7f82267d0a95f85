"""The API server: objects with versions, lists in pages, watches, and what it checks of a write.

It answers at the moment that a request arrives; what happens on the way is the client's. Objects
are JSON, as the product's decoders read them. Versions are one counter, as in etcd.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from istio_aux.kube.errors import ApiError

from simulation.world import World

Json = dict[str, Any]
Name = tuple[str, str]
"""Namespace and name."""

KINDS = {
    "pods": ("v1", "Pod"),
    "namespaces": ("v1", "Namespace"),
    "configmaps": ("v1", "ConfigMap"),
    "nodes": ("v1", "Node"),
    "events": ("events.k8s.io/v1", "Event"),
    "leases": ("coordination.k8s.io/v1", "Lease"),
    "mutatingwebhookconfigurations": (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
    ),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "jobs": ("batch/v1", "Job"),
    "tfjobs": ("kubeflow.org/v1", "TFJob"),
    "pytorchjobs": ("kubeflow.org/v1", "PyTorchJob"),
    "mpijobs": ("kubeflow.org/v1", "MPIJob"),
    "paddlejobs": ("kubeflow.org/v1", "PaddleJob"),
    "xgboostjobs": ("kubeflow.org/v1", "XGBoostJob"),
    "jaxjobs": ("kubeflow.org/v1", "JAXJob"),
    "statefulsets": ("apps/v1", "StatefulSet"),
    "replicasets": ("apps/v1", "ReplicaSet"),
}
APIS = {api for api, _ in KINDS.values()}
STEP = 10  # From one version to the next: only changes since a restoration have its last digit.
GRACE = 30  # Seconds that a pod has to end, unless it says otherwise.

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<api>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"(?:/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?)?"
)


class Path(NamedTuple):
    api: str
    namespace: str
    resource: str
    name: str
    part: str


@lru_cache(4096)
def parse(path: str) -> Path:
    found = _PATH.fullmatch(path)
    if found is None:
        return Path("", "", path, "", "")
    part = {key: unquote(value or "") for key, value in found.groupdict().items()}
    return Path(
        part["core"] or part["api"], part["namespace"], part["resource"], part["name"],
        part["part"],
    )  # fmt: skip


class Stored(NamedTuple):
    """One version of an object; nobody changes it."""

    object: Json
    body: bytes
    version: int

    @property
    def meta(self) -> Json:
        return self.object["metadata"]

    @property
    def name(self) -> Name:
        return self.meta.get("namespace", ""), self.meta["name"]

    @property
    def uid(self) -> str:
        return self.meta["uid"]


class Change(NamedTuple):
    """What became of an object: created without ``before``, deleted without ``after``."""

    version: int
    before: Stored | None
    after: Stored | None


Selects = Callable[[Stored], bool]


@lru_cache(256)
def selection(labels: str, fields: str, namespace: str) -> Selects:
    """What a selector selects, as far as this model knows selectors."""
    tests: list[tuple[tuple[str, ...], str, bool]] = []
    for text, root in ((labels, ("metadata", "labels")), (fields, ())):
        for term in filter(None, text.split(",")):
            key, wanted, value = re.fullmatch(r"([^!=]+)(!?=?)=?(.*)", term).groups()  # type: ignore[union-attr]
            place = (*root, key) if root else tuple(key.split("."))
            tests.append((place, value if wanted else "", wanted != "!="))

    def selects(found: Stored) -> bool:
        if namespace and found.meta.get("namespace") != namespace:
            return False
        for place, value, same in tests:
            at: Any = found.object
            for step in place:
                at = at.get(step) or {}
            if not value:
                if at == {}:
                    return False
            elif (at == value) is not same:
                return False
        return True

    return selects


class Stream:
    """An open watch: `put` is called with each line, `cut` with the error that ends it, or None.

    The version of a line is that up to which the watch has told everything; 0 within a list.
    """

    def __init__(
        self,
        selects: Selects,
        put: Callable[[bytes, int], None],
        cut: Callable[[ApiError | None], None],
    ) -> None:
        self.selects, self.put, self.cut = selects, put, cut
        self.closed = False
        self.since = 0  # It brings nothing up to this version.
        self.sure = True  # Whether it brings all changes since: versions have not begun again.


class ApiServer:
    """All objects, and what may be done with them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.version = 1000
        self.objects: dict[str, dict[Name, Stored]] = {resource: {} for resource in KINDS}
        self.watchers: list[Callable[[str, Change], None]] = []
        self.budget: Callable[[Stored], str] = lambda _pod: ""  # Why a pod may not be disrupted.
        # Istio's injector, of a pod and its namespace; raises ApiError.
        self.admit: Callable[[Json, str], Json] = lambda pod, _namespace: pod
        self.page = 500  # Objects in a page, at most.
        self.broken: set[str] = set()  # Collections that cannot be listed, or read.
        self._history: dict[str, list[Change]] = {resource: [] for resource in KINDS}
        self._oldest = 0  # Changes up to this version are forgotten.
        self._streams: dict[str, list[Stream]] = {resource: [] for resource in KINDS}
        self._snapshots: dict[str, tuple[int, list[Stored]]] = {}
        self._saved = self.version, self.objects
        self._restored = 0
        self._uids = 0

    # What the model does.

    def get(self, resource: str, namespace: str, name: str) -> Stored | None:
        return self.objects[resource].get((namespace, name))

    def list(self, resource: str) -> Iterator[Stored]:
        found = self.objects[resource]
        return (found[name] for name in sorted(found))

    def create(self, resource: str, found: Json) -> Stored:
        """Create an object; `ApiError` 409 if there is one of its name."""
        meta = found["metadata"]
        name = meta.get("namespace", ""), meta["name"]
        if name in self.objects[resource]:
            raise ApiError(409, f'{resource} "{name[1]}" already exists', reason="AlreadyExists")
        self._uids += 1
        api, kind = KINDS[resource]
        meta = {**meta, "uid": f"uid-{self._uids}", "creationTimestamp": self._world.time()}
        return self._store(resource, {"apiVersion": api, "kind": kind, **found, "metadata": meta})

    def update(self, resource: str, name: Name, change: Callable[[Json], None]) -> Stored | None:
        """Change an object; None if there is none."""
        before = self.objects[resource].get(name)
        if before is None:
            return None
        found = msgspec.json.decode(before.body)
        change(found)
        return self._store(resource, found, before)

    def remove(self, resource: str, name: Name) -> None:
        if before := self.objects[resource].pop(name, None):
            self.version += STEP
            self._changed(resource, Change(self.version, before, None))

    def forget(self) -> None:
        """Compact: no watch can begin at a version before the present one."""
        self._oldest = self.version
        for changes in self._history.values():
            changes.clear()
        self._snapshots.clear()

    def save(self) -> None:
        """Keep what there is, to `restore` it."""
        self._saved = self.version, {kind: dict(found) for kind, found in self.objects.items()}

    def restore(self) -> None:
        """Let etcd begin again from what was saved, and the API servers with it."""
        self._restored += 1
        self.version, saved = self._saved
        # The same version of an object with another content would be a rare chance.
        self.version += STEP - self.version % STEP + self._restored
        self.objects = {kind: dict(found) for kind, found in saved.items()}
        for streams in self._streams.values():
            for stream in streams:
                stream.sure = False
        self.restart()

    def restart(self) -> None:
        """Forget old versions, and end all watches."""
        self.forget()
        for streams in self._streams.values():
            for stream in streams:
                stream.cut(None)
            streams.clear()

    def end_pod(self, name: Name) -> None:
        """Delete a pod whose containers have ended, with grace period 0.

        A watch shows its deletionTimestamp move to the present first (apiserver BeforeDelete).
        """

        def mark(found: Json) -> None:
            found["metadata"]["deletionTimestamp"] = self._world.time()
            found["metadata"]["deletionGracePeriodSeconds"] = 0

        self.update("pods", name, mark)
        self.remove("pods", name)

    def delete_pod(self, name: Name) -> None:
        """Ask the kubelet to end a pod; one that is finished is gone at once."""
        pod = self.objects["pods"].get(name)
        if pod is None or "deletionTimestamp" in pod.meta:
            return
        if pod.object.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            self.remove("pods", name)
            return
        grace = pod.object["spec"].get("terminationGracePeriodSeconds", GRACE)

        def mark(found: Json) -> None:
            found["metadata"]["deletionTimestamp"] = self._world.time(grace)
            found["metadata"]["deletionGracePeriodSeconds"] = grace

        self.update("pods", name, mark)

    def _store(self, resource: str, found: Json, before: Stored | None = None) -> Stored:
        self.version += STEP
        found["metadata"]["resourceVersion"] = str(self.version)
        after = Stored(found, msgspec.json.encode(found), self.version)
        self.objects[resource][after.name] = after
        self._changed(resource, Change(self.version, before, after))
        return after

    def _changed(self, resource: str, change: Change) -> None:
        self._history[resource].append(change)
        for stream in self._streams[resource]:
            # A version that is not newer is not sent (k8s@1.36 cache_watcher.go process).
            if change.version > stream.since and (line := _line(change, stream.selects)):
                stream.put(line, change.version)
        for watcher in self.watchers:
            watcher(resource, change)

    # What a client asks for.

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> bytes:
        """Answer a request that is no watch; raises `ApiError`."""
        to, dry = parse(path), "dryRun" in params
        if path == "/version":
            return b'{"gitVersion":"v1.36.3"}'
        if not to.resource:
            return self._resources(to.api)
        if (to.api, to.resource) not in {(KINDS[name][0], name) for name in KINDS}:
            raise ApiError(404, "the server could not find the requested resource")
        if method == "GET":
            return self._read(to, params)
        return self._write(method, to, msgspec.json.decode(body) if body else {}, dry=dry)

    def _write(self, method: str, to: Path, found: Json, *, dry: bool) -> bytes:
        if method == "POST" and to.part == "eviction":
            return self._evict(to, found, dry=dry)
        if method == "POST" and to.resource == "pods":
            return msgspec.json.encode(self.admit(found, to.namespace))
        if method == "POST":
            return self.create(to.resource, found).body
        if method == "DELETE":
            self._checked(to, found.get("preconditions") or {})
            self.delete_pod((to.namespace, to.name))
            return b'{"kind":"Status","status":"Success"}'
        before = self._checked(to, found["metadata"])
        if method == "PUT":
            kept = {key: before.meta[key] for key in ("uid", "creationTimestamp")}
            found["metadata"] = {**found["metadata"], **kept}
            return self._store(to.resource, found, before).body
        merged = _merged(before.object, found)
        return self._store(to.resource, merged, before).body

    def _resources(self, api: str) -> bytes:
        if api not in APIS:
            raise ApiError(404, "the server could not find the requested resource")
        served = [{"name": name, "kind": kind} for name, (of, kind) in KINDS.items() if of == api]
        return msgspec.json.encode({"resources": served})

    def _read(self, to: Path, params: Mapping[str, str]) -> bytes:
        if to.resource in self.broken:
            raise ApiError(500, "conversion webhook failed", reason="InternalError")
        if to.name:
            if found := self.get(to.resource, to.namespace, to.name):
                return found.body
            raise ApiError(404, f'{to.resource} "{to.name}" not found', reason="NotFound")
        token = params.get("continue", "")
        if token:
            if token not in self._snapshots:
                raise ApiError(410, "the provided continue parameter is too old", reason="Expired")
            version, rest = self._snapshots.pop(token)
        else:
            selects = _selection(to, params)
            version, rest = self.version, [o for o in self.list(to.resource) if selects(o)]
        limit = min(int(params.get("limit", "500")), self.page) if "limit" in params else len(rest)
        page, rest = rest[:limit], rest[limit:]
        more = f"{to.resource}-{version}-{len(rest)}" if rest else ""
        if rest:
            self._snapshots[more] = version, rest
        head = msgspec.json.encode({"resourceVersion": str(version), "continue": more})
        return b'{"metadata":%b,"items":[%b]}' % (head, b",".join(each.body for each in page))

    def _checked(self, to: Path, wanted: Mapping[str, Any]) -> Stored:
        found = self.get(to.resource, to.namespace, to.name)
        if found is None:
            raise ApiError(404, f'{to.resource} "{to.name}" not found', reason="NotFound")
        for field in ("uid", "resourceVersion"):
            if (value := wanted.get(field)) and value != found.meta[field]:
                raise ApiError(409, f"the {field} in the precondition ({value}) does not match",
                               reason="Conflict")  # fmt: skip
        return found

    def _evict(self, to: Path, eviction: Json, *, dry: bool) -> bytes:
        wanted = (eviction.get("deleteOptions") or {}).get("preconditions") or {}
        pod = self._checked(to, wanted)
        phase = pod.object.get("status", {}).get("phase")
        if phase not in {"Succeeded", "Failed", "Pending"} and (why := self.budget(pod)):
            raise ApiError(429, why, reason="TooManyRequests", retry_after=None)
        if not dry:
            self.delete_pod(pod.name)
        return b'{"kind":"Status","status":"Success"}'

    def watch(self, path: str, params: Mapping[str, str], stream: Stream) -> None:
        """Open a watch; raises `ApiError`. The first lines come at once."""
        to = parse(path)
        stream.selects = _selection(to, params)
        since = stream.since = int(params["resourceVersion"])
        stream.sure = since <= self.version
        if since < self._oldest:
            why = f"too old resource version: {since} ({self._oldest})"
            error = {"status": "Failure", "reason": "Expired", "code": 410, "message": why}
            stream.put(msgspec.json.encode({"type": "ERROR", "object": error}) + b"\n", 0)
            stream.cut(None)
            return
        for change in self._history[to.resource]:
            if change.version > since and (line := _line(change, stream.selects)):
                stream.put(line, change.version)
        streams = self._streams[to.resource] = [
            each for each in self._streams[to.resource] if not each.closed
        ]
        streams.append(stream)

    def bookmark(self, stream: Stream) -> None:
        """Send the present version to a stream, unless it is further."""
        if self.version < stream.since:
            return
        bookmark = {
            "type": "BOOKMARK",
            "object": {"metadata": {"resourceVersion": str(self.version)}},
        }
        stream.put(msgspec.json.encode(bookmark) + b"\n", self.version)


def _selection(to: Path, params: Mapping[str, str]) -> Selects:
    return selection(params.get("labelSelector", ""), params.get("fieldSelector", ""), to.namespace)


def _line(change: Change, selects: Selects) -> bytes:
    """The line of a watch about a change; empty if it does not concern the watch.

    What leaves a selection is deleted with its content from before and its new version (k8s@1.36
    cache_watcher.go convertToWatchEvent).
    """
    before = change.before is not None and selects(change.before)
    if change.after is not None and selects(change.after):
        kind = b"MODIFIED" if before else b"ADDED"
        return b'{"type":"%b","object":%b}\n' % (kind, change.after.body)
    if not before or change.before is None:
        return b""
    meta = {**change.before.meta, "resourceVersion": str(change.version)}
    last = msgspec.json.encode({**change.before.object, "metadata": meta})
    return b'{"type":"DELETED","object":%b}\n' % last


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found
