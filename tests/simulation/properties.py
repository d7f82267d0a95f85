"""What must hold whatever goes wrong. The judge knows the truth, and sees each request of a unit.

A request is judged when it is sent, by what its process could know; or when it arrives, by what is
true then.
"""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from istio_aux.kube.clock import TIMING
from istio_aux.kube.events import BURST
from istio_aux.model.policy import QuitMode, RacePolicy

from simulation.kubelet import Sandbox
from simulation.store import Change, Json, Name, Stored
from simulation.unit import LEASE, Process, Unit
from simulation.workloads import (
    Job,
    Owner,
    ReplicaSet,
    StatefulSet,
    has_sidecar,
    is_deleting,
    is_ready,
)

if TYPE_CHECKING:
    from simulation.client import Request
    from simulation.cluster import Cluster

FRESH = 1.0
"""Seconds from the reading of a pod to what is done to it by its name: a request to a port has no
UID, so what happens on its way cannot be excluded."""
PATIENCE = 600.0  # Seconds for which a restart counts as under way.
BOUND = 450.0
"""Seconds after the last fault within which everything is done. The longest pause between attempts
is 300 s, a dead watch is noticed after 70 s."""
NOT_FREED = "a finished pod is not freed"
LAPSED = "a leader that could renew its Lease lets it lapse"
RELISTS = 1500.0
"""The same where a read may have seen what no watch showed: two full lists."""
OF_JOB = "a pod of a Job is evicted"
GIVEN_UP = "a pod without a sidecar is given up"
GIVEN_UP_BOUND = 9000.0
"""The same for restarts. Where no new pod comes, a controller may have been scaled down: another of
its pods is restarted after two hours (`RolloutLimits.unreplaced`)."""
ANY, OF_POD, SAME = 150, 10, 30
"""Requests of a process in ten seconds, at most: any, more for each pod, and of one path."""
NOTICED = 20.0
"""Seconds within which every process reads in the Lease what a leader has seen."""
CROWDED = 25.0
"""Seconds within which a pod is freed while nothing but nodes and agents is out of order: one
attempt on another pod takes 10 s at most."""


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
        self.hopeless: dict[str, float] = {}  # When a restart began that did not help.
        self.ours: set[str] = set()  # UIDs of pods that ended because of us.
        self.held: dict[str, float] = {}  # When each process last sent a renewal that was accepted.
        self.writes = 0
        self.tells = 0
        self.tolerated = 0
        self.tampered: list[float] = []  # When the Lease was deleted, or others wrote it.
        self._known = math.inf  # What was seen since then is written again.
        self.excused: set[str] = set()  # Controllers with pods that should have no sidecar.
        self._pods = 0, 0.0  # The most pods of the last 30 s, and when: Events wait for answers.
        self._removed: dict[Name, int] = {}  # In which version a pod of this name was removed.
        self._ready = set[str]()  # UIDs of pods that have been Ready.
        self._deleting: dict[str, int] = {}  # Version in which a pod began to end, by UID.

    # Requests of a unit.

    def count(self, process: Process, request: str) -> None:
        """A process sends any request."""
        now, pods = self._world.now, len(self._cluster.nodes.sandboxes)
        if pods < self._pods[0] and now <= self._pods[1] + 30.0:
            pods = self._pods[0]
        else:
            self._pods = pods, now
        same = SAME + pods
        if "/events.k8s.io/" in request:  # They come later than what they tell, at their own rate.
            same = max(same, BURST + round(10 / TIMING.event))
        for what, most in (("", ANY + OF_POD * pods), (request, same)):
            requests = process.requests[what]
            requests.append(now)
            while requests[0] < now - 10.0:
                requests.popleft()
            if len(requests) > most:
                text = f"{process.unit} sends {len(requests)} requests within ten seconds {what}"
                self._world.violate("too many requests", text)
                requests.clear()

    def sent(self, request: Request) -> None:
        """A process sends a request."""
        process, to = request.process, request.to
        acts = to.resource == "pods" and to.name and request.writes
        if process.ended or not acts:
            return
        since = self._world.now - self.held.get(process.name, -1e9)
        self._world.tell("{} asks for {}", process.unit, _what(request))
        if since > LEASE:
            text = (
                f"{process.unit}: {_what(request)}, {since:.1f} s after it last renewed its Lease"
            )
            self._world.violate("acts without the Lease", text)
        if why := _against_settings(request):
            text = f"{process.unit}: {_what(request)} although {why}"
            self._world.violate("acts against its settings", text)
        if to.part == "eviction":
            self._beside(request)

    def _beside(self, request: Request) -> None:
        """A pod is about to be evicted: does another one end, as far as the process knows?"""
        # What is on its way cannot be called back.
        to, seen = request.to, request.seen
        pod = self._cluster.server.find("pods", to.namespace, to.name)
        owner = self._cluster.owner(pod) if pod else None
        if pod is None or not isinstance(owner, ReplicaSet | StatefulSet) or owner.deleted:
            return
        if not is_ready(pod):  # It serves nobody, and may be why another one is not back.
            return
        # A pod that ends and is replaced already is missed by nobody.
        others = [other for other in owner.pods if other.uid != pod.uid]
        for other in others if sum(map(is_ready, others)) < owner.replicas - 1 else ():
            if self._deleting.get(other.uid, 1 << 60) <= seen:
                text = f"{to.name} is evicted while {other.name[1]} ends"
                self._world.violate("restart beside a pod that ends", text)
                return
            if has_sidecar(other) and other.uid not in self._ready and other.version <= seen:
                text = f"{to.name} is evicted while {other.name[1]} is not Ready yet"
                self._world.violate("restart beside a pod that is not Ready yet", text)
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
        elif request.method == "PUT":
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
            if self._cluster.ambient:
                self._cluster.ambient.evicted(before)
            self._evicted(before, request)
        elif request.method == "DELETE" and before and "proxy crashes" not in self._world.faults:
            self.ours.add(before.uid)

    def lapsed(self, unit: Unit, why: str) -> None:
        """The process of a unit leads no more."""
        process = unit.process
        if process is None or process.stopping or "nothing heard" in why:
            return
        if self._world.now > max(process.troubled, *self.tampered, 0.0) + LEASE:
            self._world.violate(LAPSED, why)

    def tamper(self) -> None:
        """The Lease was deleted, or others wrote it: who knows what it said writes it again."""
        self.tampered.append(self._world.now)
        self._known = math.inf
        self._world.after(NOTICED, self._written, self._world.now)

    def _written(self, lost: float) -> None:
        there = self._cluster.server.objects["leases"]
        if lost == self.tampered[-1] and there:  # One that was deleted is left to its holder.
            processes = (unit.process for unit in self._cluster.units)
            began = (p.began for p in processes if p and p.troubled < lost)
            self._known = min(began, default=math.inf)

    def _forgotten(self, since: float, process: Process) -> bool:
        """Whether a process may not know what was seen then: the Lease does not say it."""
        if not (lost := [at for at in self.tampered if at >= since - NOTICED]):
            return False
        return min(lost) <= since + NOTICED or (process.began > since and self._known > since)

    def _evicted(self, pod: Stored, request: Request) -> None:
        owner, process = self._cluster.owner(pod), request.process
        self.ours.add(pod.uid)
        if owner is None:
            return
        before = self.under_way.get(owner.uid)
        late = before is None or self._world.now >= before.at + PATIENCE
        if before and before.pod != pod.uid and not (late or self._forgotten(before.at, process)):
            text = (
                f"{pod.name[1]} of {owner} is evicted {self._world.now - before.at:.1f} s after"
                f" another one ({before.pod}), which is not replaced"
            )
            self._world.violate("two restarts at once", text)
        if isinstance(owner, Job):
            text = f"{process.unit} evicts {pod.name[1]} of {owner}"
            self._world.violate(OF_JOB, text)
        self._repeated(owner, pod.name[1], process)
        known = frozenset(each.uid for each in owner.pods)
        self.under_way[owner.uid] = Restart(pod.uid, self._world.now, known)

    def _repeated(self, owner: Owner, what: str, process: Process) -> None:
        since = self.hopeless.get(owner.uid)
        if since is not None and not self._forgotten(since, process):
            text = (
                f"{owner} is restarted ({what}) {self._world.now - since:.1f} s after a restart"
                " after which a new pod of it got no sidecar either"
            )
            self._world.violate("restart that did not help is repeated", text)

    # The cluster.

    def told(self, request: Request, pod: Stored, box: Sandbox) -> None:
        """A request to exit arrives at a proxy."""
        self.tells += 1
        sent, uid = request.read  # What it reads while the request is on its way does not count.
        if uid != pod.uid:
            age = request.sent - sent
            if age <= FRESH:
                self.tolerated += 1
                return
            text = f"{pod.name[1]} ({pod.uid}) is told to exit, {uid} was read {age:.1f} s before"
            self._world.violate("another pod is told to exit", text)
        elif not box.payload_done and sent >= box.node.upgraded:
            text = f"{pod.name[1]} ({pod.uid}): " + ", ".join(
                f"{each.name} {each.state} {each.code}" for each in box.payload
            )
            self._world.violate("a proxy is told to exit while its payload runs", text)
        labels = self._cluster.server.objects["namespaces"]["", pod.name[0]].version
        seen, since = request.process.labels
        known = labels <= seen and since + 2.0 < request.sent
        if known and not self._cluster.selects(pod.name[0]):
            self._world.violate(
                "a proxy of a namespace that is not selected is told to exit", pod.name[1]
            )

    def restored(self) -> None:
        for known in (self.under_way, self.hopeless, self._removed, self._deleting):
            known.clear()
        self.ours.clear()
        for pod in self._cluster.server.list("pods"):
            if is_deleting(pod):
                self._deleting[pod.uid] = pod.version
        for unit in self._cluster.units:
            if unit.process:
                unit.process.forget()
        self.tamper()

    def pod_changed(self, change: Change) -> None:
        after, before = change.after, change.before
        if after is None:
            if before:
                self._removed[before.name] = change.version
                self._deleting.pop(before.uid, None)
            return
        if is_ready(after):
            self._ready.add(after.uid)
        if is_deleting(after):
            self._deleting.setdefault(after.uid, change.version)
        if owner := self._cluster.owner(after):
            self._replaced(owner, before, after)

    def _replaced(self, owner: Owner, before: Stored | None, after: Stored) -> None:
        """A pod of a controller is new, or has changed: does a restart end with it?"""
        sidecar = has_sidecar(after)
        if not sidecar and not self._cluster.injects(owner.namespace):
            self.excused.add(owner.uid)
            self.hopeless.pop(owner.uid, None)
            self.under_way.pop(owner.uid, None)
            return
        began = self.hopeless.get(owner.uid)
        if before is None and sidecar and began is not None:
            del self.hopeless[owner.uid]
        restart = self.under_way.get(owner.uid)
        if restart and after.uid not in restart.known:
            if not sidecar:
                del self.under_way[owner.uid]
                self.hopeless.setdefault(owner.uid, restart.at)
            elif is_ready(after):
                del self.under_way[owner.uid]

    def scaled(self, owner: Owner) -> None:
        """A controller got another number of pods: nobody knows which pod replaces which."""
        self.under_way.pop(owner.uid, None)

    def relabelled(self, namespace: str) -> None:
        """Where Istio injects no more, the next leader sees no pod that a restart did not help."""
        for uid, owner in self._cluster.owners.items():
            if owner.namespace == namespace and not self._cluster.injects(namespace):
                self.hopeless.pop(uid, None)

    def job_failed(self, job: Job, because: str) -> None:
        if because in self.ours:
            self._world.violate("a Job failed because of us", f"{job} ({because})")

    def crashed(self, process: Process, error: BaseException) -> None:
        """An exception that nobody has handled."""
        text = "".join(traceback.format_exception(error))
        if "defects" not in self._world.faults:
            self._world.violate("unhandled exception", f"{process.unit}: {text}")

    # The end.

    def unfinished(self) -> list[tuple[str, str]]:
        """What is still to be done: the property that it breaks in the end, and what it is."""
        found: list[tuple[str, str]] = []
        settings = self._cluster.settings
        for box in self._cluster.nodes.sandboxes.values():
            proxy = box.proxy
            held = proxy and proxy.state == "running" and not box.stopping
            held = held and settings.quit is QuitMode.ENABLED and self._cluster.selects(box.name[0])
            if held and box.payload_done and box.payload and box.payload[0].policy != "Always":
                found.append(
                    (NOT_FREED, f"{box.name[1]} ({box.uid}), finished at {box.finished or 0:.1f} s")
                )
        for owner in self._cluster.owners.values():
            if isinstance(owner, ReplicaSet | StatefulSet) and self._restartable(owner):
                names = [p.name[1] for p in owner.pods if not has_sidecar(p)]
                found.append((GIVEN_UP, ", ".join(names)))
        return found

    def _restartable(self, owner: Owner) -> bool:
        """Whether pods of a controller are without a sidecar for no reason."""
        cluster, unknown = self._cluster, "configmaps" in self._cluster.server.broken
        if unknown and not all(unit.process and unit.process.policy for unit in cluster.units):
            return False
        race = cluster.settings.repair_policy.race
        if race is not RacePolicy.RESTART or not cluster.injects(owner.namespace):
            return False
        hopeless = owner.stubborn or owner.uid in self.hopeless or owner.uid in self.excused
        if owner.deleted or hopeless or not owner.plan().ready:
            return False
        return any(not has_sidecar(pod) and not is_deleting(pod) for pod in owner.pods)

    def errors(self) -> None:
        """Unhandled exceptions are counted; the log has told about them."""
        for unit in self._cluster.units:
            wiring = unit.process and unit.process.wiring
            number: Any = wiring.telemetry.internal_errors if wiring else None
            if wiring and number._value.get():
                self._world.violate(
                    "unhandled exception", f"{unit}: {'; '.join(self._cluster.logged[-2:])}"
                )


def _against_settings(request: Request) -> str:
    """Which setting of its process forbids a request; empty if none does."""
    to, settings = request.to, request.process.settings
    race = settings.repair_policy.race
    if to.part == "eviction":
        return "" if race is RacePolicy.RESTART else f"race-policy is {race}"
    quits = to.resource == "pods" and settings.quit is not QuitMode.ENABLED
    return f"quit is {settings.quit}" if quits else ""


def _what(request: Request) -> str:
    to = request.to
    part = f"/{to.part}" if to.part else ""
    return f"{request.method} {to.resource}/{to.name}{part}"
