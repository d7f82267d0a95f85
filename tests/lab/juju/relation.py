"""A relation of two applications, deployed ones or one whose side the caller plays."""

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
    """A relation of an application to a remote one; a remote one that is played has one unit."""

    app: App
    remote: str
    number: int

    @classmethod
    def create(
        cls, app: App, remote: str, ends: Mapping[str, str], data: Mapping[str, str]
    ) -> Relation:
        """Relate endpoints by application; queue created, joined and changed for every unit."""
        agent, apps = app.model.agent, app.model.apps
        with agent.edit() as state:
            if remote not in apps:
                state["applications"].setdefault(remote, application(remote, leader=f"{remote}/0"))
            record = new_relation(state, ends)
            record["units"] = {
                name: [unit.name for unit in apps[name].units] if name in apps else [f"{name}/0"]
                for name in ends
            }
            record["data"][remote] = dict(data)
            for end, other in ((app.name, remote), (remote, app.name)):
                for unit in apps[end].units if end in apps else []:
                    unit.queue.extend(events.joining(record, end, record["units"][other]))
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

    def remove(self) -> None:
        """Unrelate: every unit sees the other side's units depart, then the relation broken."""
        agent, apps = self.app.model.agent, self.app.model.apps
        record, ends = self._record(), (self.app.name, self.remote)
        with agent.edit() as state:
            state["relations"][str(self.number)]["units"] = {name: [] for name in ends}
        for end, other in (ends, ends[::-1]):
            for unit in apps[end].units if end in apps else []:
                for away in record["units"][other]:
                    departed = events.relation(
                        record, end, "departed", remote_unit=away, departing=away
                    )
                    agent.run(unit, departed)
                agent.run(unit, events.relation(record, end, "broken"))
        with agent.edit() as state:
            del state["relations"][str(self.number)]

    def _record(self) -> dict[str, Any]:
        return self.app.model.store.read()["relations"][str(self.number)]
