"""What must hold whatever goes wrong. The judge knows the truth, and sees each request of a unit.

A request is judged when it is sent, by what its process could know; or when it arrives, by what is
true then.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from simulation.apiserver import Change, Json, Name, Stored
from simulation.kubelet import Sandbox
from simulation.workloads import (
    Job,
    Owner,
    ReplicaSet,
    StatefulSet,
    has_sidecar,
    is_deleting,
    is_ready,
    phase,
)

if TYPE_CHECKING:
    from simulation.client import Request
    from simulation.cluster import Cluster
    from simulation.unit import Process

LEASE = 15.0  # Seconds for which a renewed Lease holds.
FRESH = 1.0
"""Seconds from the reading of a pod to what is done to it by its name: a request to a port has no
UID, so what happens on its way cannot be excluded."""
PATIENCE = 600.0  # Seconds for which a restart counts as under way.
BOUND = 450.0
"""Seconds after the last fault within which everything is done. The longest pause between attempts
is 300 s, a dead watch is noticed after 70 s."""
GIVEN_UP = "a pod without a sidecar is given up"
GIVEN_UP_BOUND = 9000.0
"""The same for restarts. Where no new pod comes, a controller may have been scaled down: another of
its pods is restarted after two hours (`RolloutLimits.unreplaced`)."""


@dataclass
class Restart:
    """A pod of a controller was evicted by us, and is not replaced yet."""

    pod: str
    at: float
    known: frozenset[str]


class Judge:
    """Sees everything, and says what does not hold."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._world = cluster, cluster.world
        self.under_way: dict[str, Restart] = {}  # By the UID of the controller.
        self.hopeless: dict[str, float] = {}  # Since when a restart is known not to help.
        self.ours: set[str] = set()  # UIDs of pods that ended because of us.
        self.suspended: dict[str, float] = {}  # Jobs that we suspended, until their new pods.
        self.held: dict[str, float] = {}  # When each process last sent a renewal that was accepted.
        self.writes = 0
        self._removed: dict[Name, int] = {}  # In which version a pod of this name was removed.
        self._deleting: dict[str, int] = {}  # Version in which a pod began to end, by UID.

    # Requests of a unit.

    def sent(self, request: Request) -> None:
        """A process sends a request."""
        process, to = request.process, request.to
        acts = to.resource == "pods" and to.name and request.writes
        acts = acts or (request.method == "PATCH" and to.resource not in {"leases", "events"})
        if process.ended or not acts:
            return
        since = self._world.now - self.held.get(process.name, -1e9)
        self._world.tell("{} asks for {}", process.unit, _what(request))
        if since > LEASE:
            text = (
                f"{process.unit}: {_what(request)}, {since:.1f} s after it last renewed its Lease"
            )
            self._world.violate("acts without the Lease", text)
        if to.part == "eviction":
            self._beside(request)

    def _beside(self, request: Request) -> None:
        """A pod is about to be evicted: does another one end, as far as the process knows?"""
        # What is on its way cannot be called back.
        to, seen = request.to, request.seen
        pod = self._cluster.server.get("pods", to.namespace, to.name)
        owner = self._cluster.owner(pod) if pod else None
        if pod is None or not isinstance(owner, ReplicaSet | StatefulSet):
            return
        if not is_ready(pod):  # It serves nobody, and may be why another one is not back.
            return
        # A pod that ends and is replaced already is missed by nobody.
        left = sum(is_ready(other) for other in owner.pods if other.uid != pod.uid)
        for other in owner.pods if left < owner.replicas - 1 else ():
            if other.uid != pod.uid and self._deleting.get(other.uid, 1 << 60) <= seen:
                text = f"{to.name} is evicted while {other.name[1]} ends"
                self._world.violate("restart beside a pod that ends", text)
                return
        # A process that never saw the last pod of a StatefulSet does not miss it.
        found, first = {each.name for each in owner.pods}, request.process.first or 0
        for number in range(owner.replicas) if isinstance(owner, StatefulSet) else ():
            name = owner.namespace, f"{owner.name}-{number}"
            if name not in found and first < self._removed.get(name, 1 << 60) <= seen:
                text = f"{to.name} is evicted while {name[1]} is not back"
                self._world.violate("restart beside a gap", text)
                return

    def arrived(self, request: Request, body: Json) -> None:
        """A request arrives at the API server."""
        to, wanted = request.to, {}
        if request.method == "GET" or not to.name:
            return
        if to.part == "eviction":
            wanted = (body.get("deleteOptions") or {}).get("preconditions") or {}
        elif request.method == "DELETE":
            wanted = body.get("preconditions") or {}
        elif request.method in {"PATCH", "PUT"}:
            wanted = body.get("metadata") or {}
        self.writes += 1
        fields = ("resourceVersion",) if to.resource == "leases" else ("uid", "resourceVersion")
        if not all(wanted.get(field) for field in fields):
            self._world.violate("write without preconditions", _what(request))

    def performed(self, request: Request, body: Json, before: Stored | None) -> None:
        """The API server did what was asked for."""
        to, process = request.to, request.process
        if request.method == "GET":
            if to.resource == "pods" and before:
                process.read[before.name] = (request.sent, before.uid)
        elif to.resource == "leases":
            if body["spec"].get("holderIdentity") == process.name:
                self.held[process.name] = request.sent
                if process.leads_since is None:
                    process.leads_since = self._world.now
                    self._world.tell("{} holds the Lease", process.unit)
            else:
                self.held.pop(process.name, None)
        elif to.part == "eviction" and request.writes and before:
            self._world.tell("{} is evicted by {}", before.name[1], process.unit)
            self._evicted(before)
        elif request.method == "DELETE" and before:
            self.ours.add(before.uid)
        elif request.method == "PATCH" and before:
            self._patched(request, body, before)

    def _evicted(self, pod: Stored) -> None:
        owner = self._cluster.owner(pod)
        self.ours.add(pod.uid)
        if owner is None:
            return
        before = self.under_way.get(owner.uid)
        if before and before.pod != pod.uid and self._world.now < before.at + PATIENCE:
            text = (
                f"{pod.name[1]} of {owner} is evicted {self._world.now - before.at:.1f} s after"
                f" another one ({before.pod}), which is not replaced"
            )
            self._world.violate("two restarts at once", text)
        self._repeated(owner, pod.name[1])
        known = frozenset(each.uid for each in owner.pods)
        self.under_way[owner.uid] = Restart(pod.uid, self._world.now, known)

    def _repeated(self, owner: Owner, what: str) -> None:
        if (since := self.hopeless.get(owner.uid)) is not None:
            text = (
                f"{owner} is restarted ({what}) {self._world.now - since:.1f} s after a new pod of"
                " it got no sidecar either"
            )
            self._world.violate("restart that did not help is repeated", text)

    def _patched(self, request: Request, body: Json, before: Stored) -> None:
        owner = self._cluster.owners.get(before.uid)
        if not isinstance(owner, Job):
            return
        spec = body.get("spec") or {}
        policy = spec.get("runPolicy", spec)
        if policy.get("suspend") is True:
            self._world.tell("{} is suspended by {}", owner, request.process.unit)
            self._repeated(owner, "suspended")
            self.suspended[owner.uid] = self._world.now
            self.ours.update(pod.uid for pod in owner.pods)
        elif policy.get("suspend") is False:
            self._world.tell("{} is resumed by {}", owner, request.process.unit)

    # The cluster.

    def told(self, request: Request, pod: Stored, box: Sandbox) -> None:
        """A request to exit arrives at a proxy."""
        sent, uid = request.process.read.get(pod.name, (-1e9, ""))
        if uid != pod.uid:
            age = request.sent - sent
            if age <= FRESH:
                return
            text = f"{pod.name[1]} ({pod.uid}) is told to exit, {uid} was read {age:.1f} s before"
            self._world.violate("another pod is told to exit", text)
        elif not box.payload_done:
            text = f"{pod.name[1]} ({pod.uid}): " + ", ".join(
                f"{each.name} {each.state} {each.code}" for each in box.payload
            )
            self._world.violate("a proxy is told to exit while its payload runs", text)

    def pod_changed(self, change: Change) -> None:
        """A pod was created, changed or removed."""
        after, before = change.after, change.before
        if after is None:
            if before:
                self._removed[before.name] = change.version
                self._deleting.pop(before.uid, None)
            return
        if is_deleting(after):
            self._deleting.setdefault(after.uid, change.version)
        owner = self._cluster.owner(after)
        if owner is None:
            return
        sidecar = has_sidecar(after)
        began = self.hopeless.get(owner.uid)
        if before is None and sidecar and began is not None:
            del self.hopeless[owner.uid]
        restart = self.under_way.get(owner.uid)
        if restart and after.uid not in restart.known:
            if not sidecar:
                self._no_help(owner)
            elif is_ready(after) or phase(after) == "Succeeded" or isinstance(owner, Job):
                del self.under_way[owner.uid]
        resumed = isinstance(owner, Job) and not owner.suspended
        if before is None and resumed and self.suspended.pop(owner.uid, None) and not sidecar:
            self._no_help(owner)

    def _no_help(self, owner: Owner) -> None:
        self.under_way.pop(owner.uid, None)
        self.hopeless.setdefault(owner.uid, self._world.now)

    def scaled(self, owner: Owner) -> None:
        """A controller got another number of pods: nobody knows which pod replaces which."""
        self.under_way.pop(owner.uid, None)

    def job_failed(self, job: Job, because: str) -> None:
        """A Job has failed because of the pod with this UID."""
        if because in self.ours:
            self._world.violate("a Job failed because of us", f"{job} ({because})")

    def crashed(self, process: Process, error: BaseException) -> None:
        """An exception that nobody has handled."""
        text = "".join(traceback.format_exception(error))
        self._world.violate("unhandled exception", f"{process.unit}: {text}")

    # The end.

    def unfinished(self) -> list[tuple[str, str]]:
        """What is still to be done: the property that it breaks in the end, and what it is."""
        found: list[tuple[str, str]] = []
        for box in self._cluster.nodes.sandboxes.values():
            proxy = box.proxy
            held = proxy and proxy.state == "running" and not box.stopping
            if held and box.payload_done and box.payload and box.payload[0].policy != "Always":
                text = f"{box.name[1]} ({box.uid}), finished at {box.finished or 0:.1f} s"
                found.append(("a finished pod is not freed", text))
        for owner in self._cluster.owners.values():
            if isinstance(owner, Job) and owner.suspended:
                found.append(("a suspended Job is not resumed", str(owner)))
            if isinstance(owner, ReplicaSet | StatefulSet) and self._restartable(owner):
                names = [p.name[1] for p in owner.pods if not has_sidecar(p)]
                found.append((GIVEN_UP, ", ".join(names)))
        return found

    def _restartable(self, owner: Owner) -> bool:
        """Whether pods of a controller are without a sidecar for no reason."""
        if owner.uid in self.hopeless or owner.stubborn:
            return False
        return any(not has_sidecar(pod) and not is_deleting(pod) for pod in owner.pods)

    def errors(self) -> None:
        """Unhandled exceptions are counted; the log has told about them."""
        for unit in self._cluster.units:
            wiring = unit.process and unit.process.wiring
            number: Any = wiring.telemetry.internal_errors if wiring else None
            if wiring and number._value.get():
                text = f"{unit}: {'; '.join(self._cluster.logged[-2:])}"
                self._world.violate("unhandled exception", text)


def _what(request: Request) -> str:
    to = request.to
    part = f"/{to.part}" if to.part else ""
    text = f"{request.method} {to.resource}/{to.name}{part}"
    if request.method == "PATCH":
        text += f" {msgspec.json.decode(request.body).get('spec')}"
    return text
