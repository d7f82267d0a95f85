"""Which events follow from what, purely. The rules are Juju's, the order among units is ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .dispatch import Event
from .store import State

# Who sees an event, and which.
Addressed = tuple[str, Event]


def relation(
    relation: dict[str, Any], app: str, kind: str, *, remote_unit: str = "", departing: str = ""
) -> Event:
    """Return the event of a relation as the units of `app` see it."""
    endpoint = relation["endpoints"][app]
    others = [name for name in relation["endpoints"] if name != app]
    environment = {
        "JUJU_RELATION": endpoint,
        "JUJU_RELATION_ID": f"{endpoint}:{relation['id']}",
        # Juju does not know it once nothing can be read (operator#1306).
        "JUJU_REMOTE_APP": "" if relation["gone"] else others[0] if others else app,
        "JUJU_REMOTE_UNIT": remote_unit,
    }
    if departing:
        environment["JUJU_DEPARTING_UNIT"] = departing
    return Event(f"{endpoint}-relation-{kind}", environment, {"relation": relation["id"]})


def joining(relation_: dict[str, Any], app: str, remote_units: list[str]) -> list[Event]:
    """Return what a unit sees of a relation it enters: created, then each remote unit."""
    seen = [relation(relation_, app, "created")]
    for unit in remote_units:
        seen.append(relation(relation_, app, "joined", remote_unit=unit))
        seen.append(relation(relation_, app, "changed", remote_unit=unit))
    return seen


def consequences(before: State, after: State, by: str) -> Iterator[Addressed]:
    """Yield what its peers see of the databags that a hook of unit `by` has changed."""
    app = by.partition("/")[0]
    for number, record in after["relations"].items():
        old = before["relations"].get(number, {}).get("data", {})
        changed = [entity for entity, data in record["data"].items() if data != old.get(entity, {})]
        for entity in changed if [*record["endpoints"]] == [app] else []:
            remote = entity if "/" in entity else ""
            for unit in after["units"]:
                if unit != by and after["units"][unit]["application"] == app:
                    yield unit, relation(record, app, "changed", remote_unit=remote)
