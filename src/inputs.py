"""What the charm reads from Juju and from its container, once an event, into a frozen `Inputs`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal

import ops

import certificates
import cluster
import config
from certificates import Authority
from config import Applications, Config, union
from manifests import Values
from relations import istio, sidecar

CONTAINER: Final = "istio-aux"


@dataclass(frozen=True)
class Inputs:
    """The facts on which the charm decides. The leader adds the last five from the cluster."""

    app: str
    model: str  # Its namespace: its name, but `controller-<controller>` for a controller's model.
    leader: bool
    now: datetime
    config: Config | None  # None when an option is invalid.
    invalid: str  # Which options are invalid and why.
    container_ready: bool  # Pebble answers in the workload's container.
    authority: Authority | None = field(repr=False)
    control_planes: tuple[istio.ControlPlane, ...] = ()
    asked: tuple[sidecar.Asked, ...] = ()
    ambient: bool = False  # An ambient mesh is related.
    admission: Literal["webhook", "policy"] = "webhook"
    capability: Literal["native", "classic", "unknown"] = "unknown"
    revisions: tuple[str, ...] = ()
    owner: str = ""  # UID of the model's Namespace.
    jobs_suspended: bool = False  # A Job is suspended although `restart-jobs` is off.

    def renewed(self) -> Inputs:
        """Return the leader's inputs with the authority that is in use from now on."""
        if not self.leader:
            return self
        authority = self.authority
        if authority is None:
            authority = certificates.make_authority(self.app, self.model)
        # Without valid options nobody updates the webhook's caBundle. The old authority has half of
        # its life left.
        elif self.config and certificates.is_due(authority.certificate, self.now):
            authority = certificates.make_authority(self.app, self.model, replaces=authority)
        return dataclasses.replace(self, authority=authority)

    def applications(self) -> tuple[Applications, ...]:
        """Return the applications whose pods get a sidecar, by the option or by a relation."""
        named = self.config.inject_applications if self.config else ()
        return union([*named, *(one.application for one in self.asked if one.application)])

    def values(self) -> Values | None:
        """Return what the owned objects depend on; None on other units and while it is unknown."""
        if not self.leader or self.config is None or self.authority is None:
            return None
        return Values(
            app=self.app,
            model=self.model,
            namespace_selector=config.parse_selector(self.config.namespace_selector),
            failure_policy=self.config.failure_policy,
            ca_bundle=self.authority.bundle(self.now),
            acts=self.config.quit == "on",
            quit_via=self.config.quit_via,
            deletes=self.config.dead_proxy == "delete",
            start_mode=self.config.start_mode,
            admission=self.admission,
            capability=self.capability,
            inject=self.applications(),
            inject_namespaces=self.config.inject_namespaces,
            repairs=self.config.race_policy == "restart",
            # The workload must be able to resume what it suspended under earlier options.
            repairs_jobs=self.config.restart_jobs or self.jobs_suspended,
            revisions=self.revisions,
            owner=self.owner,
            ambient=self.ambient,
        )


def observe(charm: ops.CharmBase) -> Inputs:
    """Read the inputs. This changes nothing."""
    options: Config | None = None
    invalid, namespace = "", cluster.namespace()
    try:
        options = config.load(charm.config, namespace)
    except config.InvalidOptionError as error:
        invalid = str(error)
    leader = charm.unit.is_leader()
    return Inputs(
        app=charm.app.name,
        model=namespace,
        leader=leader,
        now=datetime.now(UTC),
        config=options,
        invalid=invalid,
        container_ready=charm.unit.get_container(CONTAINER).can_connect(),
        authority=certificates.read_authority(charm.model, leader=leader),
        control_planes=istio.control_planes(charm.model),
        asked=sidecar.asked(charm, namespace),
        ambient=istio.beside_ambient_mesh(charm.model),
    )
