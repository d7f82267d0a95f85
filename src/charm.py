#!/usr/bin/env python3
"""The istio-aux charm: its events, and the order in which it acts.

It reads `config`, `relations` and `inputs`. It owns objects in the cluster: `manifests`
renders them, `objects` orders them, `cluster` sends the requests. It runs `workload` with
`certificates`. `status` and `actions` report what `probe` reads from the workloads.
A step that fails raises a `ReconcileError`, and the next step follows.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import httpx2
import ops
from istio_aux.model.names import WEBHOOK_PORT
from lightkube import Client

import actions
import certificates
import cluster
import objects
import probe
import status
import workload
from cluster import ReconcileError
from container import CONTAINER, PEBBLE_FAILS, trouble
from inputs import Inputs, observe, remember
from relations import cos, istio, sidecar

logger = logging.getLogger(__name__)
# Each log line calls juju-log. These two would write 161 of the 163 lines of an event.
for _chatty in ("httpcore2", "httpx2"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)


class IstioAuxCharm(ops.CharmBase):
    """Runs the workload in every unit and, on the leader, owns its objects in the cluster."""

    # HTTP transports, which tests replace; None: the network.
    kubernetes_transport: httpx2.BaseTransport | None = None
    workload_transport: httpx2.BaseTransport | None = None
    _stored = ops.StoredState()

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._container = self.unit.get_container(CONTAINER)
        self._stored.set_default(removed=False)  # A hook of the removal has deleted everything.
        self._inputs: Inputs | None = None  # What this event observed, for the status.
        self._problem: ReconcileError | None = None  # The first one.
        self._left: list[str] | None = None  # Kinds that a removal left; None: no removal.
        self._serves = False
        self._pending = False  # Work is left for a next event, and Juju sends none.
        self._notes = status.Notes()
        self._pki = certificates.Requirer(self)
        names = (*istio.ENDPOINTS, sidecar.ENDPOINT, certificates.ENDPOINT, *cos.ENDPOINTS)
        related = [self.on[name] for name in names]
        for event in (
            self.on.install,
            self.on.start,
            self.on.upgrade_charm,
            self.on.config_changed,
            self.on.update_status,
            self.on.leader_elected,
            self.on.secret_changed,
            self.on[CONTAINER].pebble_ready,
            self.on[CONTAINER].pebble_check_failed,
            self.on[CONTAINER].pebble_check_recovered,
            self.on[CONTAINER].pebble_custom_notice,
            self.on[certificates.PEERS].relation_created,
            self.on[certificates.PEERS].relation_changed,
            *(endpoint.relation_created for endpoint in related),
            *(endpoint.relation_changed for endpoint in related),
            *(endpoint.relation_broken for endpoint in related),
            self.on[cos.LOGGING].relation_departed,
        ):
            framework.observe(event, self._reconcile)
        self._tracing = cos.trace(self)
        self._actions = actions.Actions(self, self.workload_transport, self.kubernetes_transport)
        framework.observe(self.on.secret_remove, self._on_secret_remove)
        framework.observe(self.on.stop, self._on_remove)
        framework.observe(self.on.remove, self._on_remove)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _reconcile(self, event: ops.EventBase) -> None:
        self._stored.removed = False
        self._pki.sync()
        own = certificates.OwnAuthority(self.model)
        self._inputs = observed = observe(
            self,
            self.workload_transport,
            own,
            self._pki,
        )
        self.unit.set_ports(WEBHOOK_PORT)
        cos.publish(self)
        cos.forward_logs(self, self._container)
        if observed.leader:
            istio.publish_versions(self.model)
            remember(self.model, observed)
            self._pending = own.keep(observed.now)
        with cluster.connect(self.kubernetes_transport) as client:
            self._act(client, observed)
        starts = self._notes.starting
        sidecar.answer(self, self._inputs.requesters, None if starts else observed.answer)
        # Juju sends no event when a problem passes, or when a check first succeeds.
        workload.wake(self._container, event, wanted=bool(self._problem) or starts or self._pending)

    @contextlib.contextmanager
    def _step(self) -> Generator[None]:
        """Catch why a step fails: the status shows the first problem, and the next step follows."""
        try:
            yield
        except (ReconcileError, *PEBBLE_FAILS) as error:
            problem = error if isinstance(error, ReconcileError) else trouble(error)
            logger.warning("%s", problem)
            self._problem = self._problem or problem

    def _act(self, client: Client, inputs: Inputs) -> None:
        with self._step():
            self._inputs = inputs = objects.resolve(client, inputs)
            # The order matters. Rights and policies exist before settings that need them. The API
            # server trusts an issuer before a unit serves its certificate. The webhook comes last.
            objects.ensure(client, inputs)
        granted = self._problem is None
        # If `resolve` got no answer, each further request would wait as long. What another
        # installation has is left alone.
        problem = self._problem
        stops = problem and (problem.taken or (problem.silent and not inputs.namespaces))
        applied = granted and inputs.values() is not None
        if applied:
            certificates.note_trusted(self.model, inputs.issuers)
        leaf = inputs.issuers.choose(applied=applied)
        with self._step():
            if not stops:
                workload.ensure(client, self._container, inputs, leaf, granted=granted)
        self._read_checks(inputs.answer)
        process = inputs.answer and inputs.answer.status
        certificates.publish(self.model, inputs.issuers, leaf, process)
        self._pending |= leaf.issuer != inputs.issuers.wants.issuer
        if self._serves and inputs.leader and not self._problem:
            with self._step():
                objects.complete(client, inputs)
        # Another operator's webhook may refuse these, so they come last and block nothing.
        if not stops:
            self._notes.unapplied = objects.admit_api_server(inputs, self.kubernetes_transport)
        live = bool(process and process.injector_live)
        with self._step():
            self._notes.labels = objects.label_namespaces(client, inputs, live=live)

    def _read_checks(self, answer: probe.Answer | None) -> None:
        """Note whether the workload that gave this answer serves or starts."""
        if answer is None:
            return
        if answer.status:
            self.unit.set_workload_version(answer.status.version)
        with self._step():
            is_ready = not answer.missing
            self._notes.runs, is_up = workload.check(self._container, ready=is_ready)
            self._serves = is_up and is_ready
            self._notes.starting = is_up and not is_ready

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        certificates.remove_revision(self.model, event)
        self._reconcile(event)

    def _on_remove(self, event: ops.EventBase) -> None:
        self._left = []
        workload.wake(self._container, event, wanted=False)
        # Only the last unit deletes what all units share. Leadership is not reliable here.
        if self.app.planned_units() > 0:
            return
        with cluster.connect(self.kubernetes_transport) as client:
            left = objects.remove(client, self.app.name)
        # If an earlier hook deleted everything, a refusal only means that Juju took the rights.
        self._stored.removed = bool(self._stored.removed or not left)
        self._left = [] if self._stored.removed else left

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        if self._left is not None:
            # Juju may have taken away what the inputs are read from.
            event.add_status(status.of_leaving(self._left))
        # Actions and some other events observe nothing; the status stays.
        elif self._inputs:
            event.add_status(status.of_unit(self._inputs, self._problem, self._notes))


if __name__ == "__main__":
    ops.main(IstioAuxCharm)
