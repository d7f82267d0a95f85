"""Everything the charm knows from Juju and from its container, read once into a frozen `Inputs`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import ops

import authority
import config
import workload
from certificates import Authority
from config import Config
from manifests import Values


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
        )


def observe(charm: ops.CharmBase) -> Inputs:
    """Read the inputs; changes nothing."""
    options: Config | None = None
    invalid = ""
    try:
        options = config.load(charm.config)
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
    )
