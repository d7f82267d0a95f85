"""An application: its units, configuration, trust and relations, with the events they bring.

A relation is one to an application that the caller plays, or to one of another model. The consumer
sees the offered application under its own name, the offering one sees `remote-` and 32 digits, as
Juju names them. Databags of applications are mirrored; units are not, each side sees one. There is
no offer to make first, nor anything to accept.

Which events follow from what is pure. The rules are Juju's, the order among units is ours.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import shutil
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import until

from . import store
from .container import Image
from .kubernetes import PLACEHOLDER, Objects
from .store import State, application, new_relation
from .unit import Event, Metadata, Outcome, Unit

if TYPE_CHECKING:
    from .model import Model

# Worst first: an application without a status of its own shows its worst unit's (Juju's
# status.DeriveStatus).
_SEVERITY = ("error", "blocked", "maintenance", "waiting", "active", "unknown")


class App:
    """A deployed application; made by `Model.deploy`."""

    def __init__(
        self,
        model: Model,
        name: str,
        charm: Path,
        metadata: Metadata,
        *,
        objects: Objects,
        images: Mapping[str, Image],
    ) -> None:
        self.name, self.model = name, model
        self._charm, self._metadata, self._objects, self._images = charm, metadata, objects, images

    @property
    def units(self) -> list[Unit]:
        """The units, by number."""
        # A copy: the probe's thread looks while units come and go.
        units = list(self.model.agent.units.values())
        own = [unit for unit in units if unit.name.partition("/")[0] == self.name]
        return sorted(own, key=lambda unit: int(unit.name.partition("/")[2]))

    @property
    def leader(self) -> Unit:
        return self.model.agent.units[self._record()["leader"]]

    def add_unit(self) -> None:
        """Start another unit, of the lowest number that is free; its first events are queued."""
        model, agent = self.model, self.model.agent
        taken = {unit.name for unit in self.units}
        names = (f"{self.name}/{number}" for number in itertools.count())
        name = next(name for name in names if name not in taken)
        folder = model.folder / name.replace("/", "-")
        # That of a unit of the same name that was removed.
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        new = Unit(model.cluster, name, folder, model.environment())
        self._start(new)
        with agent.edit() as state:
            state["units"][name] = store.unit(self.name, new.address)
            self._enter(state, new)
            agent.units[name] = new

    def scale(self, number: int, *, forgotten: bool = False) -> None:
        """Have so many units, as `juju scale-application` does: the highest numbers leave first.

        `forgotten`: the other units do not see them depart, and the peer relation lists them for
        good, as Juju 4 does (juju#23326).
        """
        while len(self.units) < number:
            self.add_unit()
        self._leave(self.units[number:], forgotten=forgotten)

    def replace_pod(
        self, number: int, *, killed: bool = False, told: bool = True, boot: bool = True
    ) -> Unit:
        """Replace a unit's pod: new address, empty containers, the charm's state lost.

        The stop hook runs, unless it is `killed`. Without `told`, no hook says that the pod is
        another one (postgresql-k8s-operator#680). Without `boot`, the caller starts the containers.
        """
        unit = self._unit(number)
        if killed:
            # The hook that runs fails, and is tried again in the new pod.
            unit.kill()
        self._replace(unit, killed=killed, told=told, boot=boot)
        return unit

    def boot(self, unit: Unit) -> None:
        """Start the containers of a pod that was replaced without."""
        unit.boot(self._images)

    def elect(self, number: int, *, deposed: bool = True) -> None:
        """Have another unit lead; the old leader does not know unless it is `deposed`."""
        with self.model.agent.edit() as state:
            leader, application = self._unit(number), state["applications"][self.name]
            application["deposed"] = None if deposed else application["leader"]
            application["leader"] = leader.name
            leader.queue.append(Event("leader-elected"))

    def lose_secrets(self) -> None:
        """Lose the content of every secret; the records stay (juju#20710, juju#22310)."""
        with self.model.agent.edit() as state:
            for secret in state["secrets"].values():
                if secret["owner"].partition("/")[0] == self.name:
                    secret["content"] = None

    def _enter(self, state: State, new: Unit) -> None:
        """Queue a new unit's first events, in Juju's order, and what its peers see of it."""
        application = state["applications"][self.name]
        first = application["leader"] is None
        new.queue.append(Event("install"))
        for relation, remote in self._relations(state):
            members: list[str] = relation["units"][remote]
            new.queue.extend(joining(relation, self.name, members))
            for queue in self._queues(members):
                for kind in ("joined", "changed"):
                    queue.append(related(relation, remote, kind, remote_unit=new.name))
            if new.name not in relation["units"][self.name]:
                relation["units"][self.name].append(new.name)
        if first:
            application["leader"] = new.name
            new.queue.append(Event("leader-elected"))
        new.queue.extend([Event("config-changed"), Event("start")])

    def configure(self, **options: Any) -> None:
        """Set options as `juju config` does; underscores stand for hyphens."""
        named = {name.replace("_", "-"): value for name, value in options.items()}
        given = {**self._record()["config"], **named}
        with self.model.agent.edit() as state:
            state["applications"][self.name]["config"] = self._metadata.config(given)
            self._tell_all(Event("config-changed"))

    def trust(self, *, granted: bool = True, late: bool = False) -> None:
        """Grant or withdraw `juju trust`; `late`: the hook comes before the rights (juju#12883)."""
        told = Event("config-changed")
        if late:
            for unit in self.units:
                self.model.agent.run(unit, told)
        self._objects.grant(trust=granted)
        if not late:
            self._tell_all(told)

    def refresh(self, charm: Path) -> None:
        """Replace the charm as `juju refresh` does: by a StatefulSet's rollout.

        From the highest number down each unit gets a new pod, once the one before is ready. The
        value of an option that the new revision does not have is dropped; any other one stays, even
        one that it does not allow (juju charm.Config.FilterSettings). Raises TimeoutError.
        """
        self._charm, self._metadata = charm, Metadata.read(charm)
        with self.model.agent.edit() as state:
            given = state["applications"][self.name]["config"]
            state["applications"][self.name]["config"] = self._metadata.config(
                {name: value for name, value in given.items() if name in self._metadata.options}
            )
        for unit in reversed(self.units):
            self._replace(unit)
            until(unit.ready, what=f"{unit.name} to be ready")

    def run(self, event: str, *, lost: bool = False) -> Outcome:
        """Dispatch an event to the leader; `lost`: its changes are (juju#15224)."""
        return self.model.agent.run(self.leader, Event(event, context={"lost": lost}))

    def action(self, name: str, **parameters: Any) -> Outcome:
        """Run an action on the leader; the outcome's `results` tell how it went."""
        values = self._metadata.parameters(
            name, {key.replace("_", "-"): value for key, value in parameters.items()}
        )
        about = {"NAME": name, "UUID": "1", "TAG": "action-1"}
        environment = {f"JUJU_ACTION_{key}": value for key, value in about.items()}
        return self.model.agent.run(
            self.leader, Event(f"actions/{name}", environment, {"action": values})
        )

    def settle(self, *, failing: bool = False, waiting: bool = False) -> None:
        self.model.settle(failing=failing, waiting=waiting)

    def status(self) -> tuple[str, str]:
        """Status and message as `juju status` shows them; a failed hook hides the charm's."""
        state = self.model.store.read()
        shown = state["applications"][self.name]["status"]
        if shown["status"] == "unknown":
            units = [unit for unit in state["units"].values() if unit["application"] == self.name]
            failed = [unit["agent"] for unit in units if unit["agent"]["status"] == "error"]
            every = [*failed, *(unit["status"] for unit in units), shown]
            shown = min(every, key=lambda status: _SEVERITY.index(status["status"]))
        return shown["status"], shown["message"]

    def integrate(
        self, endpoint: str, remote: str, *, data: Mapping[str, str] | None = None
    ) -> Relation:
        """Relate an endpoint to an application that the caller plays, whose databag is `data`."""
        return Relation.create(self, remote, endpoint, data or {})

    def remove(self, *, force: bool = False) -> None:
        """Remove the application: all units are dying first; `force`: no hook runs."""
        if force:
            self._vanish()
        else:
            self.model.settle()
            self._leave(self.units)
        with self.model.agent.edit() as state:
            del self.model.apps[self.name]
            del state["applications"][self.name]
            for relation, _ in self._relations(state):
                del state["relations"][str(relation["id"])]
            secrets = state["secrets"]
            state["secrets"] = {
                k: s for k, s in secrets.items() if s["owner"].partition("/")[0] != self.name
            }
        self._objects.delete()

    def publish(self, state: State) -> None:
        """Write Service and EndpointSlice as the units' ports and readiness are now."""
        ready = {unit.address: unit.ready() for unit in self.units if not unit.away}
        records = [u for u in state["units"].values() if u["application"] == self.name]
        ports = sorted({port for record in records for port in record["ports"]})
        self._objects.publish(ready, ports=ports or [PLACEHOLDER])

    def _start(self, unit: Unit, *, boot: bool = True) -> None:
        self._objects.write_credentials(unit.folder / "serviceaccount", self.model.cluster.ca)
        unit.start(self._charm, self._images if boot else {})

    def _replace(
        self, unit: Unit, *, killed: bool = False, told: bool = True, boot: bool = True
    ) -> None:
        """End a unit's pod, which leaves the Service at once, and start the next one."""
        agent = self.model.agent
        unit.away = True
        self.model.publish()
        if not killed:
            with ThreadPoolExecutor() as pool:
                ended = pool.submit(unit.terminate)
                agent.run(unit, Event("stop"))
                ended.result()
        with unit.turn:
            self._start(unit, boot=boot)
        with agent.edit() as state:
            state["units"][unit.name]["address"] = unit.address
            first = ("upgrade-charm", "config-changed", "start") if told else ()
            unit.queue.extendleft(Event(name) for name in reversed(first))

    def _leave(self, leaving: list[Unit], *, forgotten: bool = False) -> None:
        """Let units go at the same time; all are dying from the start. Raises DispatchError."""
        with self.model.agent.edit() as state:
            for unit in leaving:
                state["units"][unit.name]["life"] = "dying"
                unit.leaving = True
        with ThreadPoolExecutor() as pool:
            done = [pool.submit(self._let_go, unit, forgotten=forgotten) for unit in leaving]
        for each in done:
            each.result()

    def _let_go(self, unit: Unit, *, forgotten: bool) -> None:
        agent = self.model.agent
        try:
            self._depart(unit, forgotten=forgotten)
            for event in ("stop", "remove"):
                agent.run(unit, Event(event))
        finally:
            unit.away = True
            self.model.publish()
            unit.terminate()
            with agent.edit() as state:
                del agent.units[unit.name]
                del state["units"][unit.name]
                self._elect(state, unit)

    def _vanish(self) -> None:
        """Take every unit away at once, without a hook."""
        agent = self.model.agent
        with agent.edit() as state:
            units = self.units
            for unit in units:
                unit.away = True
                del agent.units[unit.name]
                del state["units"][unit.name]
            for relation, _ in self._relations(state):
                relation["units"][self.name] = []
        for unit in units:
            unit.kill()

    def _depart(self, leaving: Unit, *, forgotten: bool) -> None:
        """Take a unit out of its relations; it sees them broken, its peers see it depart."""
        agent = self.model.agent
        with agent.edit() as state:
            relations = self._relations(state)
            for relation, remote in relations:
                if forgotten and remote == self.name:
                    continue
                relation["units"][self.name].remove(leaving.name)
                gone = {"remote_unit": leaving.name, "departing": leaving.name}
                for queue in self._queues(relation["units"][remote]):
                    queue.append(related(relation, remote, "departed", **gone))
        for relation, _ in relations:
            agent.run(leaving, related(relation, self.name, "broken"))

    def _elect(self, state: State, gone: Unit) -> None:
        application = state["applications"][self.name]
        if application["leader"] == gone.name:
            # One that leaves as well does not lead.
            stay = [u for u in self.units if state["units"][u.name]["life"] != "dying"]
            application["leader"] = stay[0].name if stay else None
            if stay:
                stay[0].queue.append(Event("leader-elected"))

    def _relations(self, state: State) -> list[tuple[State, str]]:
        """Return the application's relations, each with who is at its other end."""
        own = [r for r in state["relations"].values() if self.name in r["endpoints"]]
        return [
            (r, next((app for app in r["endpoints"] if app != self.name), self.name)) for r in own
        ]

    def _queues(self, units: list[str]) -> list[collections.deque[Event]]:
        """Return the queues of those units that are deployed; others the test plays."""
        deployed = self.model.agent.units
        return [deployed[name].queue for name in units if name in deployed]

    def _tell_all(self, told: Event) -> None:
        with self.model.agent.lock:
            for unit in self.units:
                unit.queue.append(told)

    def _unit(self, number: int) -> Unit:
        return self.model.agent.units[f"{self.name}/{number}"]

    def _record(self) -> State:
        return self.model.store.read()["applications"][self.name]


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
                own.queue.extend(joining(record, app.name, [unit]))
        return cls(app, remote, record["id"])

    def update(self, data: Mapping[str, str]) -> None:
        """Change keys of the played application's databag; an empty value deletes one."""
        with self.app.model.agent.edit() as state:
            record = state["relations"][str(self.number)]
            databag = {**record["data"].get(self.remote, {}), **data}
            record["data"][self.remote] = {key: value for key, value in databag.items() if value}
            for unit in self.app.units:
                unit.queue.append(related(record, self.app.name, "changed"))

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
                agent.run(unit, related(record, app.name, kind, remote_unit=who, departing=who))
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


# Who sees an event, and which.
Addressed = tuple[str, Event]


def related(
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
    return [
        related(relation_, app, "created"),
        *(
            related(relation_, app, kind, remote_unit=unit)
            for unit in remote_units
            for kind in ("joined", "changed")
        ),
    ]


def consequences(before: State, after: State, by: str) -> Iterator[Addressed]:
    """Yield what its peers see of the databags that a hook of unit `by` has changed."""
    app = by.partition("/")[0]
    for number, record in after["relations"].items():
        old = before["relations"].get(number, {}).get("data", {})
        changed = [entity for entity, data in record["data"].items() if data != old.get(entity, {})]
        for entity in changed if [*record["endpoints"]] == [app] else []:
            remote = entity if "/" in entity else ""
            yield from (
                (unit, related(record, app, "changed", remote_unit=remote))
                for unit in after["units"]
                if unit != by and after["units"][unit]["application"] == app
            )
