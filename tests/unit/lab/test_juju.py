"""The stand-in for Juju: hook tools that answer ops's own calls, and hooks that overlap."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.juju import events, hooks
from lab.juju.store import Store, application, new_relation, unit
from ops import hookcmds

PEERS, PILOT, GONE = 0, 1, 2
LEADER, FOLLOWER = "istio-aux/0", "istio-aux/1"


class Model:
    """Two units, peers, an istio-pilot, a relation that is gone, and a secret without content."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.store, self._folder, self._patch = Store(folder / "model", "kubeflow"), folder, patch
        self._answered: dict[str, contextlib.ExitStack] = {}
        with self.store.edit() as state:
            own = application(leader=LEADER)
            state["applications"] = {"istio-aux": own, "istio-pilot": application()}
            state["units"] = {name: unit("istio-aux", "10.1.0.1") for name in (LEADER, FOLLOWER)}
            new_relation(state, {"istio-aux": "peers"})
            new_relation(state, {"istio-aux": "istio-pilot", "istio-pilot": "istio-pilot"})
            new_relation(state, {"istio-aux": "certificates", "pki": "it"})["gone"] = True
            lost = {"owner": "istio-aux", "label": "lost", "content": None}
            state["secrets"] = {"lost": lost}
        tools = hooks.install(folder / "tools", Path(sys.executable))
        patch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))

    def enter(self, unit: str) -> None:
        """Be in the hook of a unit, which begins if it has not."""
        hook = self._folder / unit
        if not hook.exists():
            self.store.open_hook(hook, {})
            self._answered[unit] = contextlib.ExitStack()
            self._answered[unit].enter_context(hooks.answering(hook, unit))
        self._patch.setenv("JUJU_CONTEXT_ID", str(hook))
        self._patch.setenv("JUJU_UNIT_NAME", unit)

    def close(self) -> None:
        """Answer nobody any more."""
        for each in self._answered.values():
            each.close()

    def end(self, unit: str, *, succeeded: bool = True) -> None:
        """End the hook of a unit."""
        self._answered.pop(unit).close()
        hook = self._folder / unit
        self.store.close_hook(hook, unit, succeeded=succeeded)
        hook.rename(hook.with_suffix(".ended"))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    model = Model(tmp_path, monkeypatch)
    with contextlib.closing(model):
        yield model


@pytest.mark.parametrize(
    ("unit", "tool", "arguments", "words"),
    [
        (FOLLOWER, "status_set", {"status": "active", "app": True}, "not the leader"),
        (FOLLOWER, "relation_set", {"data": {"a": "1"}, "id": 99}, "relation not found"),
        (
            FOLLOWER,
            "relation_set",
            {"data": {"a": "1"}, "id": PILOT, "app": True},
            "permission den",
        ),
        (FOLLOWER, "secret_add", {"content": {"key": "one"}}, "not the leader"),
        (LEADER, "secret_get", {"id": "secret:none"}, '"secret:none" not found'),
        (LEADER, "action_get", {}, "not running an action"),
        (LEADER, "relation_get", {"id": PEERS, "unit": "another/0"}, "permission denied"),
        (LEADER, "relation_get", {"id": GONE, "unit": "pki", "app": True}, "permission denied"),
        (LEADER, "relation_set", {"data": {"a": "1"}, "id": GONE}, "permission denied"),
        (LEADER, "relation_model_get", {"id": GONE}, "permission denied"),
        (LEADER, "secret_get", {"label": "lost"}, "not found"),
        (LEADER, "secret_add", {"content": {"key": "1"}, "label": "lost"}, "already exists"),
    ],
)
def test_what_juju_refuses_is_refused_in_the_words_ops_looks_for(
    model: Model, unit: str, tool: str, arguments: dict[str, Any], words: str
) -> None:
    model.enter(unit)
    with pytest.raises(hookcmds.Error) as failure:
        getattr(hookcmds, tool)(**arguments)
    assert words in failure.value.stderr


def test_a_follower_reads_the_secret_of_its_application_by_its_id_only(model: Model) -> None:
    model.enter(LEADER)
    identifier = hookcmds.secret_add({"key": "one"}, label="tls")
    assert hookcmds.secret_get(label="tls") == {"key": "one"}
    model.end(LEADER)

    model.enter(FOLLOWER)
    assert hookcmds.secret_get(id=identifier) == {"key": "one"}
    with pytest.raises(hookcmds.Error):
        hookcmds.secret_get(label="tls")


def test_a_failed_hook_leaves_its_status_and_nothing_else(model: Model) -> None:
    model.enter(LEADER)
    hookcmds.secret_add({"key": "one"})
    hookcmds.open_port("tcp", 8443)
    hookcmds.relation_set({"a": "1"}, PEERS)
    hookcmds.status_set("maintenance", "half way")
    model.end(LEADER, succeeded=False)

    state = model.store.read()
    left = state["units"][LEADER]
    assert left["status"] == {"status": "maintenance", "message": "half way"}
    assert ([*state["secrets"]], left["ports"]) == (["lost"], [])
    assert state["relations"]["0"]["data"] == {}


def test_hooks_of_two_units_that_run_at_once_keep_what_the_other_wrote_and_tell_it(
    model: Model,
) -> None:
    units = (LEADER, FOLLOWER)
    for each in units:
        model.enter(each)
        hookcmds.relation_set({"serves": each}, PEERS)
    for each in units:
        model.end(each)

    data = model.store.read()["relations"][str(PEERS)]["data"]
    assert data == {each: {"serves": each} for each in units}
    assert [
        (who, event.name)
        for before, after, by in model.store.take_commits()
        for who, event in events.consequences(before, after, by)
    ] == [(FOLLOWER, "peers-relation-changed"), (LEADER, "peers-relation-changed")]
