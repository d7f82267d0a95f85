"""A relation whose other side the caller plays: what it writes, the application sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import events
from .store import application, new_relation

if TYPE_CHECKING:
    from .app import App


@dataclasses.dataclass(frozen=True)
class Relation:
    """A relation of an application to a remote one with a single scripted unit."""

    app: App
    remote: str
    number: int

    @classmethod
    def create(cls, app: App, endpoint: str, remote: str, data: Mapping[str, str]) -> Relation:
        """Relate, and queue created, joined and changed for every unit."""
        agent = app.model.agent
        with agent.edit() as state:
            state["applications"].setdefault(remote, application(remote, leader=f"{remote}/0"))
            record = new_relation(state, {app.name: endpoint, remote: endpoint})
            record["units"] = {
                app.name: [unit.name for unit in app.units],
                remote: [f"{remote}/0"],
            }
            record["data"][remote] = dict(data)
            for unit in app.units:
                unit.queue.extend(events.joining(record, app.name, [f"{remote}/0"]))
        return cls(app, remote, record["id"])

    def update(self, data: Mapping[str, str]) -> None:
        """Change keys of the remote application's databag; an empty value deletes one."""
        with self.app.model.agent.edit() as state:
            record = state["relations"][str(self.number)]
            databag = {**record["data"].get(self.remote, {}), **data}
            record["data"][self.remote] = {key: value for key, value in databag.items() if value}
            for unit in self.app.units:
                unit.queue.append(events.relation(record, self.app.name, "changed"))

    def data(self) -> Mapping[str, str]:
        """Return what our application has published to the remote one."""
        return self._record()["data"].get(self.app.name, {})

    def remove(self) -> None:
        """Unrelate: every unit sees the remote unit depart, then the relation broken."""
        agent = self.app.model.agent
        with agent.lock:
            for unit in self.app.units:
                record = self._record()
                with agent.edit() as state:
                    state["relations"][str(self.number)]["units"][self.remote] = []
                away = f"{self.remote}/0"
                departed = events.relation(
                    record, self.app.name, "departed", remote_unit=away, departing=away
                )
                agent.run(unit, departed)
                agent.run(unit, events.relation(record, self.app.name, "broken"))
            with agent.edit() as state:
                del state["relations"][str(self.number)]

    def _record(self) -> dict[str, Any]:
        return self.app.model.store.read()["relations"][str(self.number)]
