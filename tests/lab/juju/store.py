"""The state of one model, in one JSON file; hooks work on a copy that is promoted on success.

Hooks of several units may be open at once: what a hook changed in its copy is merged.

model         name, uuid
applications  name -> leader, who does not know that it was deposed, config, status
units         name -> application, life, status, agent, ports, address, action
relations     number -> id, endpoints by application, units in scope, databags, whether gone
secrets       id -> owner, label, content (null if it is lost)
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

State = dict[str, Any]
UNKNOWN = {"status": "unknown", "message": ""}


class Store:
    """The model's state on disk."""

    def __init__(self, folder: Path, model: str) -> None:
        self.path = folder / "model.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._commits: list[tuple[State, State, str]] = []
        identity = {"name": model, "uuid": str(uuid.uuid4())}
        kinds = ("applications", "units", "relations", "secrets")
        self._write({"model": identity, **{kind: {} for kind in kinds}})

    def read(self) -> State:
        return json.loads(self.path.read_text())

    @contextlib.contextmanager
    def edit(self) -> Iterator[State]:
        """Let the caller change the state; nothing is written when the block raises."""
        with self._lock:
            state = self.read()
            yield state
            self._write(state)

    def take_commits(self) -> list[tuple[State, State, str]]:
        """The states around each hook that succeeded since the last call, and its unit."""
        with self._lock:
            taken, self._commits = self._commits, []
            return taken

    def open_hook(self, folder: Path, context: Mapping[str, Any]) -> None:
        """Make a hook's folder with its working copy of the state and what the event says."""
        folder.mkdir(parents=True)
        with self._lock:
            for name in ("state.json", "opened.json"):
                shutil.copy2(self.path, folder / name)
        (folder / "context.json").write_text(json.dumps(context))
        for name in ("tools", "log"):
            (folder / name).touch()

    def close_hook(self, folder: Path, unit: str, *, succeeded: bool) -> None:
        """Promote what a unit's hook changed; of a failed hook only the statuses stand."""
        opened, draft = (
            json.loads((folder / name).read_text()) for name in ("opened.json", "state.json")
        )
        for each in draft["units"].values():
            each.pop("action", None)
        with self.edit() as state:
            if succeeded:
                before = self.read()
                merge(opened, draft, state)
                self._commits.append((before, state, unit))
            else:
                for kind in ("units", "applications"):
                    old, new = (
                        {name: {"status": each["status"]} for name, each in of[kind].items()}
                        for of in (opened, draft)
                    )
                    merge(old, new, state[kind])

    def refuses(self, folder: Path, unit: str) -> bool:
        """Whether a hook changed what only a leader may, and its unit is none any more.

        Juju asks when it applies a hook's changes, and refuses all of them (juju#20975).
        """
        opened, draft = (
            json.loads((folder / name).read_text()) for name in ("opened.json", "state.json")
        )
        app = unit.partition("/")[0]

        def shared(state: State) -> list[Any]:
            databags = [record["data"].get(app) for record in state["relations"].values()]
            return [databags, state["secrets"]]

        leader = self.read()["applications"].get(app, {}).get("leader")
        return leader != unit and shared(opened) != shared(draft)

    def _write(self, state: State) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(state, indent=1))
        draft.rename(self.path)


def merge(old: State, new: State, into: State) -> None:
    """Change in a dictionary, and those in it, what differs between an old and a new one."""
    for key in old.keys() - new.keys():
        into.pop(key, None)
    for key, value in new.items():
        before, there = old.get(key), into.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and isinstance(there, dict):
            merge(before, value, there)
        # What somebody else has deleted stays so.
        elif value != before and (key not in old or key in into):
            into[key] = value


def application(**fields: Any) -> State:
    record: State = {"leader": None, "deposed": None, "config": {}, "status": dict(UNKNOWN)}
    return {**record, **fields}


def unit(app: str, address: str) -> State:
    waiting = {"status": "waiting", "message": "agent initialising"}
    record: State = {"application": app, "life": "active", "address": address, "ports": []}
    return {**record, "status": waiting, "agent": {"status": "allocating", "message": ""}}


def new_relation(state: State, endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Add a relation between endpoints of applications, one alone for peers; returns its record."""
    number = max(map(int, state["relations"]), default=-1) + 1
    units = {app: [] for app in endpoints}
    record: State = {"id": number, "endpoints": dict(endpoints), "units": units, "data": {}}
    record["gone"] = False
    state["relations"][str(number)] = record
    return record
