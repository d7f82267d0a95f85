"""The API server of the simulation: a `Store` in virtual time, whose pods are ended by kubelets.

What happens to a request on its way is the client's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import msgspec
from istio_aux.kube.errors import ApiError

from simulation.store import Json, Name, Path, Store, Stored, Stream, parse
from simulation.world import World

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
