"""The charm's relations, also that of the units with each other (`noted`, `note`).

A relation that was removed by force may be listed for as long as its application lives, while Juju
refuses each access to it (juju#23246). ops reads it as empty, and raises an error for each write.
So read only relations from `active`, and write with `write`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import ops

PEERS: Final = "peers"

logger = logging.getLogger(__name__)


def active(model: ops.Model, endpoint: str) -> list[ops.Relation]:
    """Return an endpoint's relations that are not being removed and have an application."""
    return [each for each in model.relations[endpoint] if each.active and each.app]


def write(
    relation: ops.Relation,
    entity: ops.Application | ops.Unit,
    values: Mapping[str, str],
) -> None:
    """Change keys of one of our databags; an empty value deletes its key.

    If Juju refuses, that is logged, and the next event tries again.
    """
    try:
        relation.data[entity].update(values)
    except ops.ModelError as error:
        logger.warning(
            "%s:%d: not written: %s",
            relation.name,
            relation.id,
            str(error).strip() or type(error).__name__,
        )


def noted(model: ops.Model, entity: ops.Application | ops.Unit) -> Mapping[str, str]:
    """Return what a unit, or the leader for all of them, has noted for the others."""
    relation = model.get_relation(PEERS)
    return relation.data[entity] if relation else {}


def note(
    model: ops.Model,
    entity: ops.Application | ops.Unit,
    values: Mapping[str, str],
) -> None:
    """Note something for the other units; the leader does it for the application, too."""
    if relation := model.get_relation(PEERS):
        write(relation, entity, values)


def peers(model: ops.Model) -> list[ops.Unit]:
    """Return the other units that the application has, as far as Juju says.

    Juju 4 lists a unit that was removed for good (juju#23326). On Kubernetes, units have the
    numbers from 0 on, and a smaller scale removes the last ones (juju CAASUnitTerminating).
    """
    relation = model.get_relation(PEERS)
    units = list(relation.units) if relation else []
    try:
        planned = model.app.planned_units() if units else 0
    except ops.ModelError as error:
        logger.warning("peers: all that are listed count: %s", error)
        return units
    return [unit for unit in units if int(unit.name.rpartition("/")[2]) < planned]
