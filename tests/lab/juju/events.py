"""Which events follow from what: pure functions over the model's state.

The rules are Juju's, the order among units is ours.
"""

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
        "JUJU_REMOTE_APP": others[0] if others else app,
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
    """Yield what other units, and owners of secrets, see after a hook of unit `by`."""
    yield from _databags(before, after, by)
    yield from _secrets(before, after, by)


def _databags(before: State, after: State, by: str) -> Iterator[Addressed]:
    for number, record in after["relations"].items():
        old = before["relations"].get(number, {}).get("data", {})
        for entity, databag in record["data"].items():
            if databag == old.get(entity, {}):
                continue
            for unit in after["units"]:
                app = unit.partition("/")[0]
                peers = len(record["endpoints"]) == 1
                sees = app in record["endpoints"] and (peers or app != entity.partition("/")[0])
                if sees and unit != by:
                    remote = entity if "/" in entity else ""
                    yield unit, relation(record, app, "changed", remote_unit=remote)


def _secrets(before: State, after: State, by: str) -> Iterator[Addressed]:
    for name, secret in after["secrets"].items():
        old = before["secrets"].get(name)
        if old is None:
            continue
        if secret["latest"] != old["latest"]:
            for unit, tracked in secret["tracked"].items():
                if unit != by and tracked != secret["latest"]:
                    label = secret["consumer-labels"].get(unit, "") or _own_label(secret, unit)
                    yield unit, _secret(name, "changed", label)
        for revision in sorted(_orphans(secret) - _orphans(old)):
            owner = secret["owner"]
            unit = owner if "/" in owner else after["applications"][owner]["leader"]
            extra = {"JUJU_SECRET_REVISION": revision}
            yield unit, _secret(name, "remove", secret["label"], extra)


def _secret(name: str, kind: str, label: str, extra: dict[str, str] | None = None) -> Event:
    environment = {"JUJU_SECRET_ID": f"secret:{name}", "JUJU_SECRET_LABEL": label}
    return Event(f"secret-{kind}", {**environment, **(extra or {})})


def _orphans(secret: dict[str, Any]) -> set[str]:
    """Return the older revisions that nobody tracks any more."""
    tracked = {str(revision) for revision in secret["tracked"].values()}
    return set(secret["revisions"]) - tracked - {str(secret["latest"])}


def _own_label(secret: dict[str, Any], unit: str) -> str:
    return secret["label"] if secret["owner"] in (unit, unit.partition("/")[0]) else ""
