#!/usr/bin/env python3
"""The istio-aux charm: its events, and the order in which it acts.

What the charm reads: `config`, `relations`, `inputs`. What it owns in the cluster: `manifests` and
`rules` render the objects, `objects` applies and deletes them through `cluster`, `injectionlabels`
and `suspended` change objects of others, `permissions` checks its rights. What it runs: `workload`
with `certificates`. What it says: `status` and `actions`, from the workload's answer in `probe`.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
from typing import Final

import httpx2
import ops
from lightkube import Client

import actions
import certificates
import cluster
import injectionlabels
import manifests
import objects
import permissions
import probe
import status
import suspended
import workload
from cluster import Problem
from inputs import CONTAINER, Inputs, observe
from relations import cos, istio, sidecar

logger = logging.getLogger(__name__)
# Each log line calls juju-log. These two would write 161 of the 163 lines of an event.
for _chatty in ("httpcore2", "httpx2"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)

# The charm notifies itself: see `_look` and `Problem.wake`.
_NOTICE: Final = "istio-aux.io/not-ready-yet"


class IstioAuxCharm(ops.CharmBase):
    """Runs the workload in every unit and, on the leader, owns its objects in the cluster."""

    # Where HTTP goes, None for the network; for tests.
    kubernetes_transport: httpx2.BaseTransport | None = None
    workload_transport: httpx2.BaseTransport | None = None
    patience = suspended.Patience()

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._container = self.unit.get_container(CONTAINER)
        # What this event observed, for the status.
        self._inputs: Inputs | None = None
        self._problem: Problem | None = None
        self._answer: probe.Probe | None = None
        self._serves = False
        self._starting = False
        self._labels: tuple[str, ...] = ()
        self._unapplied = ""
        endpoints = (*istio.ENDPOINTS, sidecar.ENDPOINT, *cos.ENDPOINTS)
        related = [self.on[each] for each in endpoints]
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
        self._actions = actions.Actions(self, self.workload_transport, self.kubernetes_transport)
        framework.observe(self.on.secret_remove, self._on_secret_remove)
        framework.observe(self.on.stop, self._on_remove)
        framework.observe(self.on.remove, self._on_remove)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _reconcile(self, _: ops.EventBase) -> None:
        self._inputs = observed = observe(self)
        self.unit.set_ports(manifests.WEBHOOK_PORT)
        cos.publish(self)
        cos.forward_logs(self, self._container)
        if observed.leader:
            istio.publish_versions(self.model)
        needed = permissions.needed(observed.model, leader=observed.leader)
        with cluster.connect(self.kubernetes_transport) as client:
            self._problem = permissions.missing(client, needed)
            if self._problem:
                self._look()
            else:
                self._problem = self._act(client, observed)
        sidecar.answer(self, self._inputs.asked, None if self._starting else self._answer)
        if self._problem:
            logger.warning("%s", self._problem.reason)
            if self._problem.wake:
                self._wake()

    def _act(self, client: Client, observed: Inputs) -> Problem | None:
        resolved = objects.resolve(client, observed, self.workload_transport)
        if isinstance(resolved, Problem):
            problem, inputs = resolved, observed
        else:
            self._inputs = inputs = resolved.renewed()
            # The order matters. Rights and policies exist before the settings that need them, or
            # the first quits would be refused. The API server trusts a new authority before a unit
            # serves what it signed. It sends reviews when a unit answers them. (Other units cannot
            # wait for the leader; they retry their quits.)
            problem = objects.ensure(client, inputs)
        if problem:
            inputs = dataclasses.replace(inputs, authority=observed.authority)
        elif inputs.leader and inputs.authority:
            certificates.keep_authority(self.model, observed.authority, inputs.authority)
        failure = workload.ensure(client, self._container, inputs, granted=not problem)
        self._look()
        problem = problem or failure
        if self._serves and not problem:
            problem = objects.complete(client, inputs, self.workload_transport)
        # Somebody else's webhook may refuse these, so they come last and block nothing.
        self._unapplied = objects.admit_api_server(client, inputs, self.kubernetes_transport)
        live = bool(self._answer and self._answer.live)
        labels = injectionlabels.ensure(client, inputs, live=live)
        if isinstance(labels, Problem):
            return problem or labels
        self._labels = labels
        return problem

    def _look(self) -> None:
        """Ask the workload for its state; wake the charm again until the workload is ready."""
        try:
            if not self._container.can_connect() or not workload.is_planned(self._container):
                return
            check_is_up = workload.check_is_up(self._container)
        except ops.pebble.ConnectionError:
            return
        self._answer = probe.ask(probe.STATUS_URL, self.workload_transport)
        self._serves = self._answer.ready and check_is_up
        self._starting = check_is_up and not self._answer.ready
        if self._answer.version:
            self.unit.set_workload_version(self._answer.version)
        # Pebble emits no event when a check succeeds for the first time. Without a notice the charm
        # would notice a workload that becomes ready now at the next update-status.
        if self._starting:
            self._wake()

    def _wake(self) -> None:
        self._container.pebble.notify(ops.pebble.NoticeType.CUSTOM, _NOTICE)

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        # Every unit uses a newer revision of the authority.
        event.remove_revision()
        self._reconcile(event)

    def _on_remove(self, _: ops.EventBase) -> None:
        self._problem = Problem("the unit is being removed")
        # Only the last unit deletes what all units share. Leadership is not reliable here.
        if self.app.planned_units() > 0:
            return
        app, model = self.app.name, cluster.namespace()
        with cluster.connect(self.kubernetes_transport) as client:
            objects.withdraw(client, app, model)
            workload.stop(self._container)
            objects.remove(client, app, model, self.patience)

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        # Actions and some other events observe nothing; the status stays.
        if self._inputs or self._problem:
            inputs = self._inputs or observe(self)
            notes = (self._labels, self._unapplied)
            event.add_status(status.of_unit(inputs, self._problem, self._answer, *notes))


if __name__ == "__main__":
    # Imported objects live until the process ends, so the garbage collector can skip them.
    gc.freeze()
    ops.main(IstioAuxCharm)
