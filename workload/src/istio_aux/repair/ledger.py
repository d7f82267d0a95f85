"""All pods that are known, whose they are, and what is right for each of those without a sidecar.

Only the keeping may live here, no effect: `core.injection.expected` says which pods should have a
sidecar, and `core.repair.decide` what may be done about one that has none. A pod's event decides on
that pod alone. What concerns many pods makes them stale, and they are decided on in batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import islice

from istio_aux.core import ownership, pacing, repair
from istio_aux.core.applications import Applications
from istio_aux.core.injection import Expectation, expected
from istio_aux.core.mesh import Mesh
from istio_aux.core.pod import NewPod, Pod
from istio_aux.core.policy import RepairPolicy
from istio_aux.kube.resources import Key, key_of
from istio_aux.repair.narrator import Narrator
from istio_aux.repair.record import Case, Owner, Record, application_of, owner_key, reduced

BATCH = 50
"""Pods that are decided on at a stretch, so that reviews need not wait for all of them."""

_NOT_KNOWN = Expectation(expected=None, reason="Istio's injectors are not known yet")


class Ledger:
    """One record a pod, and one for each controller of pods.

    Attributes:
        changed: is called when pacing sees another pod of a controller than before, or none.
        mesh: what is known of Istio's injectors.
        applications: those that ask for sidecars.
        unmeshed: records of unmeshed pods.
        unknown: keys of pods of which it is not known whether they should have a sidecar.
    """

    def __init__(
        self,
        namespaces: Mapping[str, Mapping[str, str]],
        policy: RepairPolicy,
        narrator: Narrator,
        clock: Callable[[], datetime],
    ) -> None:
        """Begin empty, with nothing known of injectors and applications."""
        self._namespaces, self._policy = namespaces, policy
        self._narrator, self._clock = narrator, clock
        self._records: dict[Key, Record] = {}
        self._owners: dict[str, Owner] = {}
        self._cases: dict[Key, Record] = {}
        self._doubted: set[str | None] = set()
        self._stale: dict[Key, None] = {}
        self.changed: Callable[[Owner, Record], None] = lambda _owner, _record: None
        self.mesh, self.applications = Mesh(), Applications()
        self.unmeshed: dict[Key, Record] = {}
        self.unknown: set[Key] = set()

    def __len__(self) -> int:
        return len(self._records)

    def all(self) -> Iterable[Record]:
        """Every record."""
        return self._records.values()

    def knows(self, record: Record) -> bool:
        """Whether the pod is still there."""
        return self._records.get(record.key) is record

    def take(self, pod: Pod) -> None:
        """A pod looks like this now."""
        record = self._open(pod)
        before = record.member
        record.application = application_of(pod)
        record.running = pod.status.phase == "Running"
        # As if nothing were known: what is ignored even so only a change of the pod can bring back.
        action = repair.decide(pod, _NOT_KNOWN, self._policy, live=None)
        if isinstance(action, repair.Ignore):
            record.member, record.case = pacing.member(pod, action), None
            self._close(record.key)
        else:
            case = record.case = record.case or Case(pod, action)
            case.pod = reduced(pod)
            self._cases[record.key] = record
            self.judge(record, case)
        if record.owner and record.member != before:
            self.changed(record.owner, record)

    def drop(self, key: Key) -> None:
        """A pod is gone, or over."""
        record = self._records.pop(key, None)
        if record is not None:
            self._close(key)
            self._part(record)

    def judge(self, record: Record, case: Case) -> repair.Action:
        """Decide on a pod by all that is known now, and remember that."""
        self._stale.pop(record.key, None)
        case.action = action = self._decide(case.pod, record.owner)
        record.member = pacing.member(case.pod, action)
        if case.unmeshed:
            # A sidecar comes at the creation of a pod, or never.
            case.since = case.since or case.pod.metadata.creation_timestamp or self._clock()
            self.unmeshed[record.key] = record
        else:
            case.since = None
            self.unmeshed.pop(record.key, None)
        if isinstance(action, repair.Report) and not action.unmeshed:
            self.unknown.add(record.key)
        else:
            self.unknown.discard(record.key)
        self._narrator.decided(record, case)
        return action

    def doubt(self, namespace: str | None = None) -> None:
        """What was decided on the pods of a namespace, or on all, has to be decided again."""
        self._doubted.add(namespace)

    async def catch_up(self) -> None:
        """Decide again on all pods that are in doubt; others may work between two batches."""
        while self._doubted or self._stale:
            if self._doubted:
                doubted, self._doubted = self._doubted, set[str | None]()
                keys = (key for key in self._cases if None in doubted or key.namespace in doubted)
                self._stale |= dict.fromkeys(keys)
            for key in list(islice(self._stale, BATCH)):
                record = self._cases[key]
                assert record.case
                before = record.member
                self.judge(record, record.case)
                if record.owner and record.member != before:
                    self.changed(record.owner, record)
            await asyncio.sleep(0)

    def expect(self, pod: NewPod) -> Expectation:
        """Whether the pod, as it would come from admission, would get a sidecar now."""
        if not self.mesh.known:
            return _NOT_KNOWN
        labels = self._namespaces.get(pod.metadata.namespace)
        return expected(pod, labels, self.mesh.hooks, self.mesh.policies)

    def asks(self, case: Case) -> bool:
        """Whether the pod should have a sidecar because of our own admission."""
        return self.applications.judged(case.pod) is not case.pod

    def forget(self, owner: Owner) -> None:
        """Nothing has to be remembered of a controller without pods."""
        if not owner.records:
            self._owners.pop(owner.key, None)

    def _decide(self, pod: Pod, owner: Owner | None) -> repair.Action:
        """Decide on a pod.

        A Job counts as one that still works until it is asked, which is right before its pod's
        turn: a thousand Jobs need not be asked for what a few of them do.
        """
        expectation = self.expect(self.applications.judged(pod))
        live = self.mesh.live(expectation.configuration) if expectation.expected else None
        return repair.decide(
            pod, expectation, self._policy, live=live,
            owner_finished=owner is not None and owner.finished,
            job=owner.job if owner else None, meshed=owner is not None and owner.meshed,
        )  # fmt: skip

    def _open(self, pod: Pod) -> Record:
        """The record of a pod, a new one when the pod is not known, with its owner of now."""
        key, reference = key_of(pod), ownership.controller(pod)
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = Record(key)
        owned = owner_key(key.namespace, reference) if reference and reference.uid else ""
        if owned != (record.owner.key if record.owner else ""):
            self._part(record)
            if reference is not None and owned:
                if (owner := self._owners.get(owned)) is None:
                    owner = self._owners[owned] = Owner(key.namespace, reference)
                owner.records.append(record)
                record.owner = owner
        return record

    def _part(self, record: Record) -> None:
        """The pod is not its controller's any more."""
        if owner := record.owner:
            record.owner = None
            owner.records.remove(record)
            if owner.idle:
                self.forget(owner)
            self.changed(owner, record)

    def _close(self, key: Key) -> None:
        """There is no case any more."""
        self._cases.pop(key, None)
        self._stale.pop(key, None)
        self.unmeshed.pop(key, None)
        self.unknown.discard(key)
