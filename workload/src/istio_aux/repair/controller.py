"""Find pods that should have a sidecar and have none, say so, and have them made anew if allowed.

Only the events may live here: a pod, a namespace, the injectors, the applications that ask, or who
leads is different. `ledger` keeps what is right for each pod, `restarts` acts on it. Nothing is
stored but `Repair.failed`; a new process finds the same pods in the cluster.

Every process watches and decides; only who leads restarts pods, tells their owners and shows them
in metrics.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from istio_aux.core.applications import Applications
from istio_aux.core.mesh import Mesh
from istio_aux.core.pacing import Hold, Pace, Stop
from istio_aux.core.pod import Pod
from istio_aux.core.policy import RacePolicy
from istio_aux.core.policy import RepairPolicy as Policy
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.kube.resources import Key
from istio_aux.repair.applications import applications
from istio_aux.repair.findings import ApplicationMesh, Suspended, Unmeshed
from istio_aux.repair.ledger import Ledger
from istio_aux.repair.narrator import Narrator
from istio_aux.repair.record import Record
from istio_aux.repair.restarts import Restarts
from istio_aux.repair.suspension import Suspensions
from istio_aux.telemetry import Telemetry

TRIPPED = 1.0
"""Seconds until work goes on after an error that nobody foresaw; what it was about is left out."""


class Repair:
    """A handler of the pod watch; see the module for what it does.

    Attributes:
        listed: whether all pods are known; whoever makes the watch replaces it by the watch's.
    """

    def __init__(
        self,
        client: Client,
        namespaces: Mapping[str, Mapping[str, str]],
        telemetry: Telemetry,
        events: Events,
        *,
        policy: Policy,
        suspensions: Suspensions | None = None,
        pace: Pace | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Prepare: not leading, and nothing known of injectors and applications.

        Args:
            client: an open client.
            namespaces: the labels of each namespace; see `relabelled`.
            telemetry: where to count.
            events: where to tell the owners of pods.
            policy: what the cluster admin set.
            suspensions: how Jobs of Kubeflow are restarted.
            pace: how fast pods are restarted.
            clock: tells the present time, with a zone.
        """
        narrator = self._narrator = Narrator(telemetry, events)
        self._ledger = Ledger(namespaces, policy, narrator, clock)
        self._suspensions = suspensions or Suspensions(
            client, telemetry, events,
            allowed=policy.race is RacePolicy.RESTART and policy.restart_jobs,
        )  # fmt: skip
        self._restarts = Restarts(
            client, self._ledger, narrator, self._suspensions, pace=pace or Pace(), clock=clock
        )
        self._off, self._running = policy.race is RacePolicy.OFF, False
        self.listed = asyncio.Event()
        restarts, unmeshed = self._restarts, self._ledger.unmeshed
        telemetry.unmeshed_pods.set_function(lambda: len(unmeshed) if restarts.leading else 0)

    def apply(self, resource: Pod) -> None:
        """A pod looks like this now."""
        self._ledger.take(resource)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """A pod is gone, or over."""
        self._ledger.drop(key)

    def look(self, mesh: Mesh) -> None:
        """This is known of Istio's injectors now."""
        before, self._ledger.mesh = self._ledger.mesh, mesh
        if _decisive(before) != _decisive(mesh):
            self._doubt()

    def relabelled(self, namespace: str) -> None:
        """A namespace came, has other labels, or is gone."""
        self._doubt(namespace)

    def ask(self, applications: Applications) -> None:
        """These applications ask for sidecars now."""
        if applications != self._ledger.applications:
            self._ledger.applications = applications
            self._doubt()

    def lead(self, leading: bool) -> None:
        """Become the one that restarts pods and tells of them, or be so no longer.

        Pods are followed all the time, so that whoever takes over finds all of them at once.
        """
        if leading == self._restarts.leading:
            return
        self._narrator.quiet = not leading
        self._restarts.lead(leading)
        if self._running:
            self._suspensions.lead(leading)
        self._ledger.doubt()
        self._restarts.woken.set()

    @property
    def failed(self) -> Mapping[str, datetime]:
        """What the next leader must know, and must be told before it leads: `Restarts.failed`."""
        return self._restarts.failed

    @failed.setter
    def failed(self, failed: Mapping[str, datetime]) -> None:
        self._restarts.failed = failed

    @property
    def watched(self) -> int:
        """How many pods are known."""
        return len(self._ledger)

    @property
    def unmeshed_total(self) -> int:
        """How many pods should have a sidecar and have none."""
        return len(self._ledger.unmeshed)

    @property
    def unknown(self) -> int:
        """Of how many pods it is not known whether they should have one."""
        return len(self._ledger.unknown)

    def unmeshed(self, limit: int | None = None) -> list[Unmeshed]:
        """Pods that should have a sidecar and have none, the oldest first."""
        found = self._ledger.unmeshed.values()
        # A third of the time of a sort, for each look at /status.
        oldest = heapq.nsmallest(len(found) if limit is None else limit, found, key=_age)
        return [pod for pod in map(_unmeshed, oldest) if pod]

    def applications(self) -> list[ApplicationMesh]:
        """What is to be said of each application that asks for sidecars by name."""
        unknown = ""
        if self._off:
            unknown = "race-policy: off"
        elif not self.listed.is_set():
            unknown = "pods are not listed yet"
        return applications(self._ledger, unknown)

    def suspended(self) -> list[Suspended]:
        """Jobs that wait for their pods to go; only who leads knows any."""
        return self._suspensions.under_way()

    async def run(self) -> None:
        """Decide on what is stale and restart what is due, until cancelled."""
        self._running = True
        # Jobs that are suspended are resumed even where no pod is looked at any more.
        self._suspensions.lead(self._restarts.leading)
        # Before, a pod that nobody has told of yet would count as the replacement of another.
        await self.listed.wait()
        while True:
            self._restarts.woken.clear()
            try:
                await self._ledger.catch_up()
                await self._restarts.settle()
            except Exception:  # What trips us must not end the process, which serves admission too.
                self._narrator.tripped("repair")
                await asyncio.sleep(TRIPPED)
            else:
                await self._restarts.woken.wait()

    async def stop(self, patience: float) -> None:
        """Begin nothing more; give what runs ``patience`` seconds to end, then drop it."""
        await asyncio.gather(self._restarts.stop(patience), self._suspensions.stop(patience))

    def _doubt(self, namespace: str | None = None) -> None:
        """Decide again on the pods of a namespace, or on all."""
        self._ledger.doubt(namespace)
        self._restarts.woken.set()


def _decisive(mesh: Mesh) -> object:
    """What decisions depend on: not why an injector is as it is."""
    live = {injector.configuration for injector in mesh.injectors if injector.live}
    return mesh.known, mesh.hooks, mesh.policies, live


def _age(record: Record) -> tuple[float, Key]:
    since = record.case.since if record.case else None
    return (since.timestamp() if since else 0.0), record.key


def _unmeshed(record: Record) -> Unmeshed | None:
    case, owner = record.case, record.owner
    if case is None or case.since is None:
        return None
    reason = case.action.reason
    if owner and isinstance(owner.step, Hold | Stop) and record.member.restart:
        reason = f"{reason}; {owner.step.reason}"
    name = str(owner) if owner else ""
    return Unmeshed(record.key.namespace, record.key.name, name, reason, case.since)
