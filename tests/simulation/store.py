"""The objects of an API server: versions, lists in pages, watches, and what it checks of a write.

The simulation asks it in virtual time, by an `ApiServer` whose pods are ended by kubelets, and the
tests of the workload over HTTP. It answers at the moment that a request arrives; what happens to a
request on its way is the client's. Objects are JSON; versions are one counter, as in etcd. It
authorises nobody, validates nothing and knows every resource.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
from istio_aux.kube.errors import ApiError
from istio_aux.model import selectors

from simulation.world import World

Json = dict[str, Any]
Name = tuple[str, str]
"""Namespace and name."""

SUCCESS: Json = {"kind": "Status", "status": "Success"}
_FIRST = ("name", "generateName", "namespace", "uid", "resourceVersion")  # Fields of metadata.
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


Selects = Callable[[Json], bool]


@lru_cache(256)
def selection(labels: str, fields: str = "", namespace: str = "") -> Selects:
    """What selectors select; one of fields is written like one of labels."""
    by_label, by_field = selectors.parse(labels), selectors.parse(fields)
    places = {each.key: each.key.split(".") for each in by_field.requirements}

    def field(found: Json, key: str) -> str:
        at: Any = found
        for step in places[key]:
            at = at.get(step) or {}
        return at or ""

    def selects(found: Json) -> bool:
        meta = found["metadata"]
        return (
            (not namespace or meta.get("namespace") == namespace)
            and (not labels or by_label.matches(meta.get("labels") or {}))
            and (not fields or by_field.matches({key: field(found, key) for key in places}))
        )

    return selects


class Stream:
    """An open watch: `put` is called with each line, `cut` with the error that ends it, or None.

    The version of a line is that up to which the watch has told everything; 0 within a list.
    """

    def __init__(
        self, put: Callable[[bytes, int], None], cut: Callable[[ApiError | None], None]
    ) -> None:
        self.put, self.cut = put, cut
        self.selects: Selects = lambda _found: True
        self.closed = False
        self.since = 0  # It brings nothing up to this version.
        self.sure = True  # Whether it brings all changes since: versions have not begun again.


class Store:
    """All objects by resource, and what may be done with them.

    Attributes:
        version: that of the last change.
        page: objects in a page, at most.
        watchers: called with the resource and each change.
    """

    STEP = 1
    """From one version to the next."""

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.objects = defaultdict[str, dict[Name, Stored]](dict)
        self.watchers: list[Callable[[str, Change], None]] = []
        self.page = 500
        self._history = defaultdict[str, list[Change]](list)
        self._oldest = 0  # Changes up to this version are forgotten.
        self._streams = defaultdict[str, list[Stream]](list)
        self._snapshots: dict[str, tuple[int, list[Stored]]] = {}
        self._uids = 0

    # What happens in the cluster.

    def find(self, resource: str, namespace: str, name: str) -> Stored | None:
        return self.objects[resource].get((namespace, name))

    def list(self, resource: str) -> Iterator[Stored]:
        found = self.objects[resource]
        return (found[name] for name in sorted(found))

    def create(self, resource: str, found: Json) -> Stored:
        """Create an object; `ApiError` 409 if there is one of its name."""
        name = found["metadata"]["name"]
        if self.find(resource, found["metadata"].get("namespace", ""), name):
            raise ApiError(409, f'{resource} "{name}" already exists', reason="AlreadyExists")
        return self.put(resource, found)

    def put(self, resource: str, found: Json) -> Stored:
        """Create or replace an object; with another UID it is another one."""
        meta = found["metadata"]
        before = self.find(resource, meta.get("namespace", ""), meta["name"])
        if before and meta.setdefault("uid", before.uid) != before.uid:
            self.remove(resource, *before.name)
            before = None
        if "uid" not in meta:
            self._uids += 1
            meta["uid"] = f"uid-{self._uids}"
        return self._store(resource, found, before)

    def update(self, resource: str, name: Name, change: Callable[[Json], None]) -> Stored | None:
        """Change an object; None if there is none."""
        before = self.objects[resource].get(name)
        if before is None:
            return None
        found = msgspec.json.decode(before.body)
        change(found)
        return self._store(resource, found, before)

    def remove(self, resource: str, namespace: str, name: str) -> None:
        if before := self.objects[resource].pop((namespace, name), None):
            self.version += self.STEP
            self._changed(resource, Change(self.version, before, None))

    def forget(self) -> None:
        """Compact: no watch can begin at a version before the present one."""
        self._oldest = self.version
        for changes in self._history.values():
            changes.clear()
        self._snapshots.clear()

    def encode(self, found: Json) -> bytes:
        return msgspec.json.encode(found)

    def _store(self, resource: str, found: Json, before: Stored | None = None) -> Stored:
        self.version += self.STEP
        meta = {**found["metadata"], "resourceVersion": str(self.version)}
        found["metadata"] = {key: meta[key] for key in _FIRST if key in meta} | meta
        after = Stored(found, self.encode(found), self.version)
        self.objects[resource][after.name] = after
        self._changed(resource, Change(self.version, before, after))
        return after

    def _changed(self, resource: str, change: Change) -> None:
        self._history[resource].append(change)
        for stream in self._streams[resource]:
            # A version that is not newer is not sent (k8s@1.36 cache_watcher.go process).
            if change.version > stream.since and (line := self._line(change, stream.selects)):
                stream.put(line, change.version)
        for watcher in self.watchers:
            watcher(resource, change)

    def _line(self, change: Change, selects: Selects) -> bytes:
        """The line of a watch about a change; empty if it does not concern the watch.

        What leaves a selection is deleted with its content from before and its new version
        (k8s@1.36 cache_watcher.go convertToWatchEvent).
        """
        before = change.before is not None and selects(change.before.object)
        if change.after is not None and selects(change.after.object):
            kind = b"MODIFIED" if before else b"ADDED"
            return b'{"type":"%b","object":%b}\n' % (kind, change.after.body)
        if not before or change.before is None:
            return b""
        meta = {**change.before.meta, "resourceVersion": str(change.version)}
        last = self.encode({**change.before.object, "metadata": meta})
        return b'{"type":"DELETED","object":%b}\n' % last

    # What a client asks for.

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> bytes:
        """Answer a request that is no watch; raises `ApiError`."""
        to, found = parse(path), msgspec.json.decode(body) if body else {}
        match method:
            case _ if not to.resource:
                raise ApiError(404, "the server could not find the requested resource")
            case "GET":
                return self._read(to, params)
            case "POST" if to.part == "eviction":
                self.evict(to, found)
                return msgspec.json.encode(SUCCESS)
            case "POST":
                return self.post(to, found)
            case "DELETE":
                self.delete(to, self.checked(to, found.get("preconditions") or {}))
                return msgspec.json.encode(SUCCESS)
        assert method == "PUT"
        before = self.checked(to, found["metadata"])
        kept = {key: before.meta[key] for key in ("uid", "creationTimestamp") if key in before.meta}
        found["metadata"] = {**found["metadata"], **kept}
        return self._store(to.resource, found, before).body

    def post(self, to: Path, found: Json) -> bytes:
        if found["metadata"].get("resourceVersion"):
            why = "resourceVersion should not be set on objects to be created"
            # apiserver storage.ErrResourceVersionSetOnCreate
            raise ApiError(500, why, reason="InternalError")
        return self.create(to.resource, found).body

    def delete(self, to: Path, found: Stored) -> None:
        """Delete an object that is as it is wanted to be."""
        self.remove(to.resource, *found.name)

    def evict(self, to: Path, eviction: Json) -> Stored:
        """Evict a pod, if it may be; here it stays. Returns the pod."""
        return self.checked(to, (eviction.get("deleteOptions") or {}).get("preconditions") or {})

    def checked(self, to: Path, wanted: Mapping[str, Any]) -> Stored:
        """The object, which has that UID and that resourceVersion; `ApiError` 404, 409."""
        found = self.find(to.resource, to.namespace, to.name)
        if found is None:
            raise ApiError(404, f'{to.resource} "{to.name}" not found', reason="NotFound")
        for field in ("uid", "resourceVersion"):
            if (value := wanted.get(field)) and value != found.meta[field]:
                raise ApiError(409, f"the {field} in the precondition ({value}) does not match",
                               reason="Conflict")  # fmt: skip
        return found

    def _read(self, to: Path, params: Mapping[str, str]) -> bytes:
        if to.name:
            return self.checked(to, {}).body
        token = params.get("continue", "")
        if token:
            if token not in self._snapshots:
                raise ApiError(410, "the provided continue parameter is too old", reason="Expired")
            version, rest = self._snapshots.pop(token)
        else:
            selects = _selection(to, params)
            version, rest = self.version, [o for o in self.list(to.resource) if selects(o.object)]
        limit = min(int(params["limit"]), self.page) if "limit" in params else len(rest)
        page, rest = rest[:limit], rest[limit:]
        more = f"{to.resource}-{version}-{len(rest)}" if rest else ""
        if rest:
            self._snapshots[more] = version, rest
        head = msgspec.json.encode({"resourceVersion": str(version), "continue": more})
        return b'{"metadata":%b,"items":[%b]}' % (head, b",".join(each.body for each in page))

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
            if change.version > since and (line := self._line(change, stream.selects)):
                stream.put(line, change.version)
        streams = self._streams[to.resource] = [
            each for each in self._streams[to.resource] if not each.closed
        ]
        streams.append(stream)


def _selection(to: Path, params: Mapping[str, str]) -> Selects:
    return selection(params.get("labelSelector", ""), params.get("fieldSelector", ""), to.namespace)


KINDS = {
    "pods": ("v1", "Pod"),
    "namespaces": ("v1", "Namespace"),
    "configmaps": ("v1", "ConfigMap"),
    "limitranges": ("v1", "LimitRange"),
    "resourcequotas": ("v1", "ResourceQuota"),
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
    "statefulsets": ("apps/v1", "StatefulSet"),
    "replicasets": ("apps/v1", "ReplicaSet"),
}
GRACE = 30  # Seconds that a pod has to end, unless it says otherwise.


class ApiServer(Store):
    """All objects, and what may be done with them."""

    STEP = 10  # Only changes since a restoration have its last digit.

    def __init__(self, world: World) -> None:
        super().__init__(1000)
        self._world = world
        self.budget: Callable[[Stored], str] = lambda _pod: ""  # Why a pod may not be disrupted.
        # Istio's injector, of a pod and its namespace; raises ApiError.
        self.admit: Callable[[Json, str], Json] = lambda pod, _namespace: pod
        self.broken: set[str] = set()  # Collections that cannot be listed, or read.
        self._saved = self.version, {kind: dict(found) for kind, found in self.objects.items()}
        self._restored = 0

    def create(self, resource: str, found: Json) -> Stored:
        api, kind = KINDS[resource]
        meta = {**found["metadata"], "creationTimestamp": self._world.time()}
        return super().create(
            resource, {"apiVersion": api, "kind": kind, **found, "metadata": meta}
        )

    def save(self) -> None:
        """Keep what there is, to `restore` it."""
        self._saved = self.version, {kind: dict(found) for kind, found in self.objects.items()}

    def restore(self) -> None:
        """Let etcd begin again from what was saved, and the API servers with it."""
        self._restored += 1
        self.version, saved = self._saved
        # The same version of an object with another content would be a rare chance.
        self.version += self.STEP - self.version % self.STEP + self._restored
        self.objects = defaultdict(dict, {kind: dict(found) for kind, found in saved.items()})
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
        self._mark(name, 0)
        self.remove("pods", *name)

    def delete_pod(self, name: Name) -> None:
        """Ask the kubelet to end a pod; one that is finished is gone at once."""
        pod = self.find("pods", *name)
        if pod is None or "deletionTimestamp" in pod.meta:
            return
        if pod.object.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            self.remove("pods", *name)
        else:
            self._mark(name, pod.object["spec"].get("terminationGracePeriodSeconds", GRACE))

    def _mark(self, name: Name, grace: float) -> None:
        def mark(found: Json) -> None:
            found["metadata"]["deletionTimestamp"] = self._world.time(grace)
            found["metadata"]["deletionGracePeriodSeconds"] = grace

        self.update("pods", name, mark)

    # What a client asks for.

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> bytes:
        to = parse(path)
        if method == "GET" and to.resource in self.broken:
            raise ApiError(500, "conversion webhook failed", reason="InternalError")
        return super().answer(method, path, params, body)

    def post(self, to: Path, found: Json) -> bytes:
        if to.resource == "pods":  # Only dry runs.
            return msgspec.json.encode(self.admit(found, to.namespace))
        return super().post(to, found)

    def delete(self, to: Path, found: Stored) -> None:
        assert to.resource == "pods"
        self.delete_pod(found.name)

    def evict(self, to: Path, eviction: Json) -> Stored:
        pod = super().evict(to, eviction)
        phase = pod.object.get("status", {}).get("phase")
        if phase not in {"Succeeded", "Failed", "Pending"} and (why := self.budget(pod)):
            raise ApiError(429, why, reason="TooManyRequests", retry_after=None)
        self.delete_pod(pod.name)
        return pod

    def bookmark(self, stream: Stream) -> None:
        """Send the present version to a stream, unless it is further."""
        if self.version < stream.since:
            return
        bookmark = {
            "type": "BOOKMARK",
            "object": {"metadata": {"resourceVersion": str(self.version)}},
        }
        stream.put(msgspec.json.encode(bookmark) + b"\n", self.version)
