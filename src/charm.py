#!/usr/bin/env python3
"""The istio-aux charm: which events there are, and the order in which effects happen."""

from __future__ import annotations

import logging
from typing import Final

import httpx2
import ops
from lightkube import Client

import authority
import cluster
import credentials
import manifests
import probe
import status
import workload
from certificates import Authority
from cluster import Problem
from inputs import Inputs, observe
from relations import istio_pilot, peers

logger = logging.getLogger(__name__)
# Every line of a log is a call of juju-log, and of the 163 in an event these two write 161.
for _chatty in ("httpcore2", "httpx2"):
    logging.getLogger(_chatty).setLevel(logging.WARNING)

# Recorded by the charm for itself: see `_wake_until_checked`.
_NOTICE: Final = "istio-aux.io/not-ready-yet"


class IstioAuxCharm(ops.CharmBase):
    """Runs the workload in every unit and, on the leader, owns its objects in the cluster."""

    # Where HTTP goes, None for the network; tests put servers of their own here.
    kubernetes_transport: httpx2.BaseTransport | None = None
    workload_transport: httpx2.BaseTransport | None = None

    def __init__(self, framework: ops.Framework) -> None:
        super().__init__(framework)
        self._container = self.unit.get_container(workload.CONTAINER)
        # What stood in the way of the last reconcile in this dispatch, for the status.
        self._problem: Problem | None = None
        for event in (
            self.on.install,
            self.on.start,
            self.on.upgrade_charm,
            self.on.config_changed,
            self.on.update_status,
            self.on.leader_elected,
            self.on.secret_changed,
            self.on[workload.CONTAINER].pebble_ready,
            self.on[workload.CONTAINER].pebble_check_failed,
            self.on[workload.CONTAINER].pebble_check_recovered,
            self.on[workload.CONTAINER].pebble_custom_notice,
            self.on[peers.ENDPOINT].relation_created,
            self.on[peers.ENDPOINT].relation_changed,
            self.on[istio_pilot.ENDPOINT].relation_created,
            self.on[istio_pilot.ENDPOINT].relation_changed,
        ):
            framework.observe(event, self._reconcile)
        framework.observe(self.on.secret_remove, self._on_secret_remove)
        framework.observe(self.on.stop, self._on_remove)
        framework.observe(self.on.remove, self._on_remove)
        framework.observe(self.on.collect_unit_status, self._on_collect_unit_status)

    def _reconcile(self, _: ops.EventBase) -> None:
        inputs = observe(self)
        self.unit.set_ports(manifests.WEBHOOK_PORT)
        signer = inputs.authority
        if inputs.leader:
            istio_pilot.publish_versions(self.model)
            signer = authority.ensure(self.model, signer, inputs.now)
        needed = cluster.needed(inputs.model, leader=inputs.leader)
        with cluster.connect(self.kubernetes_transport) as client:
            # In this order: the workload's token needs its account, and the API server may send
            # reviews only once somebody answers them.
            self._problem = (
                cluster.missing_permission(client, needed)
                or self._ensure_access(client, inputs)
                or self._ensure_workload(client, inputs, signer)
                or self._ensure_webhook(client, inputs, signer)
            )
        if self._problem:
            logger.warning("%s", self._problem.reason)

    def _ensure_access(self, client: Client, inputs: Inputs) -> Problem | None:
        if not inputs.leader:
            return None
        access = manifests.render_access(inputs.app, inputs.model)
        return cluster.apply(client, access, manager=inputs.app)

    def _ensure_workload(
        self, client: Client, inputs: Inputs, signer: Authority | None
    ) -> Problem | None:
        if not inputs.container_ready or signer is None:
            return None
        try:
            access = credentials.access(client, self._container, inputs)
            if isinstance(access, Problem):
                return access
            leaf = credentials.leaf(self._container, inputs, signer)
            workload.configure(self._container, workload.files(inputs.config, access, leaf))
            if inputs.config:
                workload.run(self._container, workload.layer(inputs.config))
            self._wake_until_checked()
        except ops.pebble.ConnectionError as error:
            # The container went away under our hands; pebble-ready comes when it is back.
            return Problem(f"container {workload.CONTAINER}: {error}")
        return None

    def _wake_until_checked(self) -> None:
        """Make another event follow while the workload starts and its check has not said so.

        Pebble tells of a check that recovers after it failed, not of one that succeeds at first.
        A workload that gets ready between now and the first check would go unnoticed until
        update-status; so the charm wakes itself until either is known.
        """
        answer = self._ask()
        if answer and not answer.ready and workload.check_is_up(self._container):
            self._container.pebble.notify(ops.pebble.NoticeType.CUSTOM, _NOTICE)

    def _ensure_webhook(
        self, client: Client, inputs: Inputs, signer: Authority | None
    ) -> Problem | None:
        if not inputs.leader or inputs.config is None or signer is None:
            return None
        values = manifests.Values(
            app=inputs.app,
            model=inputs.model,
            namespace_selector=inputs.config.namespace_label_selector,
            failure_policy=inputs.config.failure_policy,
            ca_bundle=signer.bundle(inputs.now),
        )
        # With `Fail`, a configuration without a workload behind it stops every pod of the selected
        # namespaces; with `Ignore`, pods slip through for as long. So it is written only when this
        # unit serves. One that is there already stays: other units may serve.
        answer = self._ask()
        if answer is None or not answer.ready or not workload.check_is_up(self._container):
            return None
        owned = manifests.render(values)
        labels = manifests.labels(inputs.app, inputs.model)
        return cluster.apply(
            client, manifests.render_webhook(values), manager=inputs.app
        ) or cluster.prune(client, labels, inputs.model, keep=owned)

    def _ask(self) -> probe.Probe | None:
        """Return what the workload says about itself, None while it is not set up."""
        if not workload.is_planned(self._container):
            return None
        return probe.ask(workload.STATUS_URL, self.workload_transport)

    def _on_secret_remove(self, event: ops.SecretRemoveEvent) -> None:
        # Every unit has moved on from this revision of the authority.
        event.remove_revision()
        self._reconcile(event)

    def _on_remove(self, _: ops.EventBase) -> None:
        self._problem = Problem("the unit is being removed")
        # Leadership says nothing here: only the last unit may take down what all units share.
        if self.app.planned_units() > 0:
            return
        with cluster.connect(self.kubernetes_transport) as client:
            cluster.delete_owned(
                client, manifests.labels(self.app.name, self.model.name), self.model.name
            )

    def _on_collect_unit_status(self, event: ops.CollectStatusEvent) -> None:
        event.add_status(status.of_unit(observe(self), self._problem, self._ask()))


if __name__ == "__main__":
    ops.main(IstioAuxCharm)
