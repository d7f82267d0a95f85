"""The emulated hook tools answer ops's own calls, made by the library that charms use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.juju import hooks
from lab.juju.hooktools import texts
from lab.juju.store import Store, application, unit
from ops import hookcmds
from ops.hookcmds import Port

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


def test_configuration_is_read_whole_and_by_key(hook: Hook) -> None:
    assert hookcmds.config_get() == {"log-level": "info"}
    assert hookcmds.config_get("log-level") == "info"


def test_the_leader_knows_that_it_leads_and_the_follower_that_it_does_not(hook: Hook) -> None:
    assert hookcmds.is_leader()
    hook.begin("istio-aux/1")
    assert not hookcmds.is_leader()


def test_a_status_reads_back_as_it_was_set(hook: Hook) -> None:
    hookcmds.status_set("blocked", "run `juju trust istio-aux`")
    hookcmds.status_set("active", app=True)
    assert hookcmds.status_get().message == "run `juju trust istio-aux`"
    assert hookcmds.status_get(app=True).status == "active"


def test_a_follower_may_not_set_the_status_of_the_application(hook: Hook) -> None:
    hook.begin("istio-aux/1")
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.status_set("active", app=True)
    assert failure.value.stderr.strip() == "ERROR this unit is not the leader"


def test_ports_open_close_and_are_listed(hook: Hook) -> None:
    hookcmds.open_port("tcp", 8443)
    hookcmds.open_port("tcp", 8080)
    hookcmds.close_port("tcp", 8080)
    assert hookcmds.opened_ports() == [Port("tcp", 8443)]


def test_goal_state_and_network_describe_the_unit(hook: Hook) -> None:
    assert set(hookcmds.goal_state().units) == {"istio-aux/0", "istio-aux/1"}
    assert hookcmds.network_get("peers").ingress_addresses == ["10.1.0.0"]


def test_relations_are_found_by_endpoint(hook: Hook) -> None:
    assert hookcmds.relation_ids("istio-pilot") == [f"istio-pilot:{FOREIGN}"]
    assert hookcmds.relation_list(FOREIGN) == ["istio-pilot/0"]
    assert hookcmds.relation_list(FOREIGN, app=True) == "istio-pilot"
    assert hookcmds.relation_list(PEER) == ["istio-aux/1"]


def test_the_other_end_of_a_relation_may_be_in_another_model(hook: Hook, store: Store) -> None:
    own = store.read()["model"]["uuid"]
    assert hookcmds.relation_model_get(FOREIGN) == hookcmds.RelationModel(uuid=own)
    with store.edit() as state:
        state["relations"][str(FOREIGN)]["remote-model"] = "another"
    hook.begin()
    assert hookcmds.relation_model_get(FOREIGN) == hookcmds.RelationModel(uuid="another")


def test_databags_change_by_key_and_an_empty_value_deletes(hook: Hook) -> None:
    hookcmds.relation_set({"a": "1", "b": "2"}, FOREIGN, app=True)
    hookcmds.relation_set({"a": ""}, FOREIGN, app=True)
    assert hookcmds.relation_get(FOREIGN, unit="istio-aux", app=True) == {"b": "2"}
    remote = hookcmds.relation_get(FOREIGN, unit="istio-pilot", app=True)
    assert remote == {"data": "service-name: istiod"}


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


def test_a_missing_secret_is_not_found(hook: Hook) -> None:
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.secret_get(label="none")
    assert "not found" in failure.value.stderr


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


def test_an_action_reads_parameters_and_reports(hook: Hook) -> None:
    hook.begin(action={"pod": "ns/name"})
    assert hookcmds.action_get("pod") == "ns/name"
    hookcmds.action_set({"answer": {"stuck": "0"}})
    hookcmds.action_fail("no such pod")
    state = json.loads((hook.context / "state.json").read_text())
    action = state["units"]["istio-aux/0"]["action"]
    assert action == {"results": {"answer": {"stuck": "0"}}, "log": [], "failed": "no such pod"}


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


def test_every_call_is_traced_and_logs_are_kept(hook: Hook) -> None:
    hookcmds.is_leader()
    hookcmds.juju_log("Emitting Juju event install.", level="DEBUG")
    trace = (hook.context / "trace.jsonl").read_text().splitlines()
    trace = [json.loads(line) for line in trace]
    assert [call["tool"] for call in trace] == ["is-leader"]
    assert (hook.context / "log").read_text() == "DEBUG: Emitting Juju event install.\n"


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


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
        max_leaves=10,
    )
)
def test_the_tools_read_and_write_json_as_the_library_does(value: object):
    assert texts.dumps(value) == json.dumps(value)
    assert texts.loads(f"{json.dumps(value, indent=1)}\n") == value


def test_a_tool_fails_in_the_words_that_a_test_gives_it(hook: Hook, store: Store) -> None:
    """Secrets of a Kubernetes model may be out of reach for a while (juju#22051)."""
    identifier = hookcmds.secret_add({"key": "one"})
    hook.end()
    with store.edit() as state:
        state["failing"]["secret-get"] = "getting cluster client: forbidden"
    hook.begin()
    with pytest.raises(hookcmds.Error) as failure:
        hookcmds.secret_get(id=identifier)
    assert failure.value.stderr.strip() == "ERROR getting cluster client: forbidden"
    hook.end()
    with store.edit() as state:
        del state["failing"]["secret-get"]
    hook.begin()
    assert hookcmds.secret_get(id=identifier) == {"key": "one"}


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


def test_a_secret_that_is_gone_fails_the_commit(hook: Hook) -> None:
    """juju#20794: its revisions are still announced one by one."""
    identifier = hookcmds.secret_add({"key": "one"})
    hookcmds.secret_remove(identifier)
    hook.end()
    hook.begin()
    hookcmds.secret_remove(identifier, revision=1)
    assert "not found" in hook.end()
