"""The stand-in for Juju: which events follow from what a hook has changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.juju import events, store
from lab.juju.store import State, new_relation


@pytest.fixture
def state() -> State:
    """Two units, led by the first, with a peer relation and a secret that both have read."""
    state: State = {"model": {}, "applications": {}, "units": {}, "relations": {}, "secrets": {}}
    state["applications"]["app"] = store.application("app", local=True, leader="app/0")
    for number in (0, 1):
        state["units"][f"app/{number}"] = store.unit("app", f"10.0.0.{number}")
    new_relation(state, {"app": "peers"})
    state["secrets"]["s1"] = {
        "owner": "app",
        "label": "tls",
        "revisions": {"1": {"key": "one"}},
        "latest": 1,
        "tracked": {"app/0": 1, "app/1": 1},
        "consumer-labels": {},
    }
    return state


def following(before: State, change: Callable[[State], Any]) -> list[tuple[str, str]]:
    """Unit and name of the events that follow from what a hook of app/0 changed."""
    after = copy.deepcopy(before)
    change(after)
    return [(unit, event.name) for unit, event in events.consequences(before, after, "app/0")]


def revise(state: State, *readers: str) -> None:
    """Add a revision of the secret; the readers move on to it."""
    secret = state["secrets"]["s1"]
    secret["revisions"]["2"], secret["latest"] = {"key": "two"}, 2
    secret["tracked"].update(dict.fromkeys(readers, 2))


def test_peers_see_a_changed_databag_and_its_writer_does_not(state: State) -> None:
    def write(after: State) -> None:
        after["relations"]["0"]["data"]["app"] = {"a": "1"}

    assert following(state, write) == [("app/1", "peers-relation-changed")]


def test_a_unit_that_tracks_an_older_revision_sees_secret_changed(state: State) -> None:
    # Who wrote it knows, whichever revision that unit tracks.
    assert following(state, revise) == [("app/1", "secret-changed")]


def test_a_revision_that_nobody_tracks_any_more_is_for_its_owner_to_remove(state: State) -> None:
    revise(state, "app/0")
    assert following(state, lambda after: revise(after, "app/1")) == [("app/0", "secret-remove")]


def test_the_units_of_a_related_application_see_what_another_one_writes(state: State) -> None:
    state["applications"]["asking"] = store.application("asking", local=True, leader="asking/0")
    state["units"]["asking/0"] = store.unit("asking", "10.0.0.9")
    new_relation(state, {"app": "sidecar", "asking": "mesh"})

    def write(after: State) -> None:
        after["relations"]["1"]["data"]["app"] = {"live": "true"}

    assert following(state, write) == [("asking/0", "mesh-relation-changed")]


def test_hooks_of_two_units_that_run_at_once_keep_what_the_other_wrote(tmp_path: Path) -> None:
    model = store.Store(tmp_path / "model", "kubeflow")
    with model.edit() as state:
        state["applications"]["app"] = store.application("app", local=True, leader="app/0")
        for number in (0, 1):
            state["units"][f"app/{number}"] = store.unit("app", f"10.0.0.{number}")
        new_relation(state, {"app": "peers"})
    units = ("app/0", "app/1")
    for unit in units:
        model.open_hook(tmp_path / unit, {})
    for unit in units:
        draft = tmp_path / unit / "state.json"
        written = json.loads(draft.read_text())
        written["relations"]["0"]["data"][unit] = {"serves": unit}
        draft.write_text(json.dumps(written))
        assert model.close_hook(tmp_path / unit, unit, succeeded=True) == ""

    assert model.read()["relations"]["0"]["data"] == {unit: {"serves": unit} for unit in units}
    told = [
        (unit, event.name)
        for before, after, by in model.take_commits()
        for unit, event in events.consequences(before, after, by)
    ]
    assert told == [("app/1", "peers-relation-changed"), ("app/0", "peers-relation-changed")]


def test_a_hook_that_ends_late_brings_nothing_back() -> None:
    opened = {"relations": {"0": {"data": {}}, "1": {"data": {}}}}
    state = {"relations": {"0": {"data": {}}}}
    store.merge(
        opened, {"relations": {"0": {"data": {"a": "1"}}, "1": {"data": {"a": "1"}}}}, state
    )
    assert state == {"relations": {"0": {"data": {"a": "1"}}}}
