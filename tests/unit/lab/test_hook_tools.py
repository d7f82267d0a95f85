"""The emulated hook tools answer ops's own calls, made by the library that charms use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lab.juju import hooks
from lab.juju.store import Store, application, unit
from ops import hookcmds

PEER, FOREIGN = 0, 3


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A model with two units of istio-aux, a peer relation and one to istio-pilot."""
    store = Store(tmp_path / "model", "kubeflow")
    with store.edit() as state:
        own = application("istio-aux", config={"log-level": "info"}, leader="istio-aux/0")
        state["applications"] = {"istio-aux": own, "istio-pilot": application("istio-pilot")}
        for number in (0, 1):
            state["units"][f"istio-aux/{number}"] = unit("istio-aux", f"10.1.0.{number}")
        state["relations"] = {
            str(PEER): {
                "id": PEER,
                "endpoints": {"istio-aux": "peers"},
                "units": {"istio-aux": ["istio-aux/0", "istio-aux/1"]},
                "data": {},
            },
            str(FOREIGN): {
                "id": FOREIGN,
                "endpoints": {"istio-aux": "istio-pilot", "istio-pilot": "istio-pilot"},
                "units": {"istio-aux": ["istio-aux/0"], "istio-pilot": ["istio-pilot/0"]},
                "data": {"istio-pilot": {"data": "service-name: istiod"}},
            },
        }
    return store


class Hook:
    """A hook that is running: environment set, tools on PATH."""

    def __init__(self, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.folder, self._patch = store, folder, monkeypatch
        tools = hooks.install(folder / "tools", Path(sys.executable))
        monkeypatch.setenv("PATH", os.pathsep.join([str(tools), os.environ["PATH"]]))

    def begin(self, unit: str = "istio-aux/0", **context: object) -> None:
        """Start a hook of a unit."""
        self.unit = unit
        self.context = self.folder / f"hook-{len(list(self.folder.iterdir()))}"
        self.store.open_hook(self.context, context)
        self._patch.setenv("JUJU_CONTEXT_ID", str(self.context))
        self._patch.setenv("JUJU_UNIT_NAME", unit)

    def end(self, *, succeeded: bool = True) -> str:
        """End it and promote, or drop, what it did; return why Juju cannot commit it, if so."""
        return self.store.close_hook(self.context, self.unit, succeeded=succeeded)


@pytest.fixture
def hook(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hook:
    """The leader's hook, begun."""
    hook = Hook(store, tmp_path, monkeypatch)
    hook.begin()
    return hook


def test_a_follower_may_not_set_the_status_of_the_application(hook: Hook) -> None:
    hook.begin("istio-aux/1")
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.status_set("active", app=True)
    assert failure.value.stderr.strip() == "ERROR this unit is not the leader"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(99, "relation not found"), (FOREIGN, "permission denied")],
    ids=["unknown relation", "application databag as follower"],
)
def test_a_forbidden_databag_is_refused_in_the_words_ops_looks_for(
    hook: Hook, number: int, expected: str
) -> None:
    hook.begin("istio-aux/1")
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.relation_set({"a": "1"}, number, app=True)
    assert expected in failure.value.stderr


def test_a_secret_has_revisions_of_which_one_is_tracked(hook: Hook) -> None:
    identifier = hookcmds.secret_add({"key": "one"}, label="tls")
    assert hookcmds.secret_get(label="tls") == {"key": "one"}
    hookcmds.secret_set(identifier, content={"key": "two"})
    assert hookcmds.secret_get(id=identifier) == {"key": "one"}
    assert hookcmds.secret_get(id=identifier, peek=True) == {"key": "two"}
    assert hookcmds.secret_get(id=identifier, refresh=True) == {"key": "two"}
    assert hookcmds.secret_get(label="tls") == {"key": "two"}
    assert hookcmds.secret_info_get(label="tls").revision == 2


def test_a_follower_reads_the_secret_of_its_application_and_cannot_change_it(hook: Hook) -> None:
    identifier = hookcmds.secret_add({"key": "one"}, label="tls")
    hook.end()
    hook.begin("istio-aux/1")
    assert hookcmds.secret_get(label="tls") == {"key": "one"}
    with pytest.raises(hookcmds.Error, match="secret-set"):
        hookcmds.secret_set(identifier, content={"key": "two"})


def test_another_application_reads_a_secret_only_while_it_is_granted(hook: Hook) -> None:
    identifier = hookcmds.secret_add({"key": "one"})
    hookcmds.secret_grant(identifier, FOREIGN)
    hook.end()
    hook.begin("istio-pilot/0")
    assert hookcmds.secret_get(id=identifier) == {"key": "one"}
    hook.begin()
    hookcmds.secret_revoke(identifier, relation_id=FOREIGN)
    hook.end()
    hook.begin("istio-pilot/0")
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.secret_get(id=identifier)
    assert "permission denied" in failure.value.stderr


def test_a_failed_hook_leaves_its_status_and_nothing_else(hook: Hook, store: Store) -> None:
    hookcmds.secret_add({"key": "one"})
    hookcmds.open_port("tcp", 8443)
    hookcmds.relation_set({"a": "1"}, PEER)
    hookcmds.status_set("maintenance", "half way")
    hook.end(succeeded=False)
    state = store.read()
    unit = state["units"]["istio-aux/0"]
    assert unit["status"] == {"status": "maintenance", "message": "half way"}
    assert (state["secrets"], unit["ports"], state["relations"]["0"]["data"]) == ({}, [], {})


def test_a_tool_that_is_not_emulated_fails_instead_of_being_absent(hook: Hook) -> None:
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.credential_get()
    assert "not emulated" in failure.value.stderr


def test_an_unknown_flag_is_an_error(hook: Hook) -> None:
    answer = subprocess.run(["is-leader", "--yaml"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (
        1,
        "ERROR flag provided but not defined: --yaml\n",
    )


def test_a_revision_is_removed_once_and_then_fails_the_commit(hook: Hook, store: Store) -> None:
    """The tool itself succeeds, so no charm can catch it (juju#19036)."""
    identifier = hookcmds.secret_add({"key": "one"})
    hookcmds.secret_set(identifier, content={"key": "two"})
    hookcmds.secret_remove(identifier, revision=1)
    assert hook.end() == ""

    hook.begin()
    hookcmds.secret_remove(identifier, revision=1)
    hookcmds.open_port("tcp", 8443)
    name = identifier.removeprefix("secret:")
    assert hook.end() == f'removing secrets: secret revision "{name}/1" not found'
    assert store.read()["units"]["istio-aux/0"]["ports"] == []
