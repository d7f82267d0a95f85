"""The state of one model, in one JSON file; hooks work on a copy that is promoted on success.

model         name, uuid
applications  name -> charm, local, leader, config, status, version, resources
units         name -> application, life, status, agent, ports, address, action
relations     number -> id, endpoints by application, units in scope, databags
secrets       id -> owner, label, revisions, tracked, grants
failing       hook tool -> the words with which it fails
"""

from __future__ import annotations

import contextlib
import json
import shutil
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
        identity = {"name": model, "uuid": str(uuid.uuid4())}
        kinds = ("applications", "units", "relations", "secrets", "failing")
        self._write({"model": identity, **{kind: {} for kind in kinds}})

    def read(self) -> State:
        """Return the state as it is now."""
        return json.loads(self.path.read_text())

    @contextlib.contextmanager
    def edit(self) -> Iterator[State]:
        """Let the caller change the state; nothing is written when the block raises."""
        state = self.read()
        yield state
        self._write(state)

    def open_hook(self, folder: Path, context: Mapping[str, Any]) -> None:
        """Make a hook's folder with its working copy of the state and what the event says."""
        folder.mkdir(parents=True)
        shutil.copy2(self.path, folder / "state.json")
        (folder / "context.json").write_text(json.dumps(context))
        for name in ("trace.jsonl", "log"):
            (folder / name).touch()

    def close_hook(self, folder: Path, *, succeeded: bool) -> str:
        """Promote the working copy; of a failed hook only statuses and versions stand.

        Returns why Juju cannot commit what a hook did that succeeded, which makes it a failed one.
        """
        draft: State = json.loads((folder / "state.json").read_text())
        refused = draft.pop("refused", "")
        if succeeded and not refused:
            for unit in draft["units"].values():
                unit.pop("action", None)
            self._write(draft)
            return ""
        with self.edit() as state:
            for name, unit in state["units"].items():
                unit["status"] = draft["units"][name]["status"]
            for name, application in state["applications"].items():
                application["status"] = draft["applications"][name]["status"]
                application["version"] = draft["applications"][name]["version"]
        return refused

    def _write(self, state: State) -> None:
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(state, indent=1))
        draft.rename(self.path)


def application(name: str, **fields: Any) -> State:
    """Return the record of an application; one that is not `local` is played by the test."""
    record: State = {"name": name, "charm": name, "local": False, "leader": None, "config": {}}
    return {**record, "status": dict(UNKNOWN), "version": "", "resources": {}, **fields}


def unit(app: str, address: str) -> State:
    """Return the record of a new unit."""
    waiting = {"status": "waiting", "message": "agent initialising"}
    record: State = {"application": app, "life": "active", "address": address, "ports": []}
    return {**record, "status": waiting, "agent": {"status": "allocating", "message": ""}}


def new_relation(state: State, endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Add a relation between endpoints of applications, one alone for peers; returns its record."""
    number = max(map(int, state["relations"]), default=-1) + 1
    units = {app: [] for app in endpoints}
    record = {"id": number, "endpoints": dict(endpoints), "units": units, "data": {}}
    state["relations"][str(number)] = record
    return record
