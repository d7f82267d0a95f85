"""Everything the charm knows from Juju and from its container, read once into a frozen `Inputs`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import ops

import authority
import config
import controlplane
import manifests
import workload
from applications import Applications, union
from certificates import Authority
from config import Config
from controlplane import ControlPlane
from manifests import Values
from relations import istio_metadata, istio_pilot, sidecar


@dataclass(frozen=True)
class Inputs:
    """What decisions are made from.

    Attributes:
        app: name of the application.
        model: name of the model, which is also its namespace.
        leader: this unit is the leader.
        now: when this was read.
        config: the options, None when one of them is not valid.
        invalid: which options are not valid and why, or nothing.
        container_ready: Pebble answers in the workload's container.
        authority: what signs the webhook's certificates, None while there is none.
        admission: who changes new pods; the leader asks the cluster before it goes by it.
        capability: what cluster and Istio can do for their start; the leader asks its workload.
        control_planes: what each relation with Istio tells, one entry for each that there is.
        asked: what charms ask for over the relation `sidecar`.
        revisions: of Istio; the leader asks the cluster before it goes by it.
        jobs_suspended: a Job is suspended although `restart-jobs` is off; the leader asks.
    """

    app: str
    model: str
    leader: bool
    now: datetime
    config: Config | None
    invalid: str
    container_ready: bool
    authority: Authority | None = field(repr=False)
    admission: Literal["webhook", "policy"] = "webhook"
    capability: Literal["native", "classic", "unknown"] = "unknown"
    control_planes: tuple[ControlPlane, ...] = ()
    asked: tuple[sidecar.Asked, ...] = ()
    revisions: tuple[str, ...] = ()
    jobs_suspended: bool = False

    def renewed(self) -> Inputs:
        """Return the same with the authority from now on; only the leader makes a new one."""
        if not self.leader:
            return self
        # Without valid options the webhook cannot be told of a new authority: the old one has half
        # of its life left for them to be mended.
        renew_at = self.now if self.config else None
        chosen = authority.choose(self.authority, self.app, self.model, renew_at=renew_at)
        return dataclasses.replace(self, authority=chosen)

    def applications(self) -> tuple[Applications, ...]:
        """Return whose pods are to get a sidecar: those of the option and of the relations."""
        named = self.config.inject_applications if self.config else ()
        return union([*named, *(one.application for one in self.asked if one.application)])

    def names(self) -> workload.Names:
        """Return by which names the workload finds things."""
        return workload.Names(
            lease=f"{self.model}/{manifests.lease(self.app)}",
            webhook_configuration=manifests.webhook_configuration(self.app, self.model),
            application=f"{self.model}/{self.app}",
            root_namespace=controlplane.root_namespace(self.control_planes),
        )

    def values(self) -> Values | None:
        """Return what the owned objects depend on; None when not the leader's or not known."""
        if not self.leader or self.config is None or self.authority is None:
            return None
        return Values(
            app=self.app,
            model=self.model,
            namespace_selector=self.config.namespace_label_selector,
            failure_policy=self.config.failure_policy,
            ca_bundle=self.authority.bundle(self.now),
            acts=self.config.quit == "on",
            deletes=self.config.dead_proxy == "delete",
            start_mode=self.config.start_mode,
            admission=self.admission,
            capability=self.capability,
            inject=self.applications(),
            inject_namespaces=self.config.inject_namespaces,
            repairs=self.config.race_policy == "restart",
            # Whatever the options are now, Jobs that were suspended before have to be resumed.
            repairs_jobs=self.config.restart_jobs or self.jobs_suspended,
            revisions=self.revisions,
        )


def observe(charm: ops.CharmBase) -> Inputs:
    """Read the inputs; changes nothing."""
    options: Config | None = None
    invalid = ""
    try:
        options = config.load(charm.config, charm.model.name)
    except config.InvalidOptionError as error:
        invalid = str(error)
    leader = charm.unit.is_leader()
    return Inputs(
        app=charm.app.name,
        model=charm.model.name,
        leader=leader,
        now=datetime.now(UTC),
        config=options,
        invalid=invalid,
        container_ready=charm.unit.get_container(workload.CONTAINER).can_connect(),
        authority=authority.read(charm.model, leader=leader),
        control_planes=_control_planes(charm.model),
        asked=sidecar.asked(charm),
    )


def _control_planes(model: ops.Model) -> tuple[ControlPlane, ...]:
    # Without its id, a relation that is going is not found any more (ops RelationMapping).
    return tuple(
        endpoint.parse(relation.data[relation.app])
        for endpoint in (istio_pilot, istio_metadata)
        if (relation := model.get_relation(endpoint.ENDPOINT))
    )
