"""A relation of an application to one that the caller plays, or to one of another model.

The consumer sees the offered application under its own name, the offering one sees `remote-` and
32 digits, as Juju names them. Databags of applications are mirrored; units are not, each side sees
one. There is no offer to make first, nor anything to accept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import events
from .store import application, new_relation

if TYPE_CHECKING:
    from .app import App


@dataclasses.dataclass(frozen=True)
class Relation:
    """A relation of an application to a remote one, which has one unit."""

    app: App
    remote: str
    number: int

    @classmethod
    def create(cls, app: App, remote: str, endpoint: str, data: Mapping[str, str]) -> Relation:
        """Relate the endpoint; queue created, joined and changed for every unit."""
        unit = f"{remote}/0"
        with app.model.agent.edit() as state:
            state["applications"].setdefault(remote, application(leader=unit))
            record = new_relation(state, {app.name: endpoint, remote: endpoint})
            record["units"] = {app.name: [unit.name for unit in app.units], remote: [unit]}
            record["data"][remote] = dict(data)
            for own in app.units:
                own.queue.extend(events.joining(record, app.name, [unit]))
        return cls(app, remote, record["id"])

    def update(self, data: Mapping[str, str]) -> None:
        """Change keys of the played application's databag; an empty value deletes one."""
        with self.app.model.agent.edit() as state:
            record = state["relations"][str(self.number)]
            databag = {**record["data"].get(self.remote, {}), **data}
            record["data"][self.remote] = {key: value for key, value in databag.items() if value}
            for unit in self.app.units:
                unit.queue.append(events.relation(record, self.app.name, "changed"))

    def data(self, app: str | None = None) -> Mapping[str, str]:
        """Return what an application, by default our own, has published."""
        return self._record()["data"].get(app or self.app.name, {})

    def remove(self, *, bare: bool = False) -> None:
        """Unrelate: every unit sees the other depart, then the relation broken.

        `bare`: it cannot be read then (operator#1306).
        """
        agent, app, record = self.app.model.agent, self.app, self._record()
        away = f"{self.remote}/0"
        with agent.edit() as state:
            state["relations"][str(self.number)]["gone"] = record["gone"] = bare
            state["relations"][str(self.number)]["units"] = {app.name: [], self.remote: []}
        for unit in app.units:
            for kind, who in (("departed", away), ("broken", "")):
                told = events.relation(record, app.name, kind, remote_unit=who, departing=who)
                agent.run(unit, told)
        with agent.edit() as state:
            del state["relations"][str(self.number)]

    def _record(self) -> dict[str, Any]:
        return self.app.model.store.read()["relations"][str(self.number)]


def consume(consumer: App, endpoint: str, offering: App, offered: str) -> tuple[Relation, Relation]:
    """Relate to an endpoint that another model offers; the consumer's end first."""
    with consumer.model.agent.lock, offering.model.agent.lock:
        here = consumer.integrate(endpoint, offering.name)
        there = offering.integrate(offered, f"remote-{uuid.uuid4().hex}")
        for near, far in ((here, there), (there, here)):
            with near.app.model.agent.edit() as state:
                model = far.app.model.store.read()["model"]["uuid"]
                state["relations"][str(near.number)]["remote-model"] = model
            near.app.model.agent.after_hooks.append(functools.partial(_mirror, near, far))
    return here, there


def _mirror(near: Relation, far: Relation) -> None:
    """Show the other model what our application has written."""
    # Each model has a thread of its own: either end may be removed at any moment, and is gone then.
    with contextlib.suppress(KeyError):
        shown, written = far.data(far.remote), near.data()
        if shown != written:
            far.update({**dict.fromkeys(shown, ""), **written})
