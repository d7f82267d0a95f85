"""The actions: what they answer, how they fail, and what the workload may do meanwhile."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from istio_aux.cli import commands
from istio_aux.model.found import Found
from istio_aux.model.resources import Requests
from msgspec.structs import replace
from ops import testing
from unit.rules.pods import held

import actions
import workload

from .conftest import METADATA, PILOT, SINCE, Unit

CREATED = datetime.fromisoformat(SINCE)
POD = Found(
    namespace="team-a",
    name="web-0",
    state="unmeshed",
    reason="created before Istio could inject",
    since=CREATED,
    owner="StatefulSet/web",
)
STUCK = Found(
    namespace="team-a",
    name="mnist-0",
    state="stuck",
    reason="exit code 137",
    since=CREATED,
    attempts=3,
    code="IA0101",
)
BLOCKED = Found(
    namespace="team-b",
    name="import-0",
    state="blocked",
    reason="not finished: vault-agent (running)",
    since=CREATED,
)


def explain(unit: Unit, **answer: Any) -> str:
    """Run the action where the workload's command line answers like this."""
    unit.change_container(execs={testing.Exec(["istio-aux", "explain"], **answer)})
    return unit.act("explain", pod="team-a/web-0")["explanation"]


def understood(unit: Unit) -> Any:
    """What the workload's command line makes of the only command that was executed."""
    (call,) = unit.ctx.exec_history["istio-aux"]
    settings = str(unit.etc / "config.yaml")  # Where the test finds that of the container.
    argv = [settings if word == workload.CONFIG else word for word in call.command]
    return commands.parser().parse_args(argv[1:])


def failure(action: Callable[..., object], *args: Any, **answer: Any) -> str:
    with pytest.raises(testing.ActionFailed) as failed:
        action(*args, **answer)
    return failed.value.message


def test_pods_without_a_sidecar_are_listed_with_owner_age_and_reason(unit: Unit) -> None:
    """A tenant cannot add lines."""
    nothing = {"total": 0, "unknown": 0, "next": "", "pods": "", "json": "[]"}
    assert unit.act("list-unmeshed") == nothing
    unit.process.pods = [POD, replace(POD, name="bare", owner="", reason="a\nteam-b/forged: b")]
    unit.process.more = {"unmeshed-unknown": 3}

    found = unit.act("list-unmeshed")

    assert (found["total"], found["unknown"], found["next"]) == (2, 3, "")
    assert found["pods"] == (
        "team-a/bare no owner since 2026-11-21 19:40Z: a\\nteam-b/forged: b\n"
        "team-a/web-0 StatefulSet/web since 2026-11-21 19:40Z: created before Istio could inject"
    )
    _, last = json.loads(found["json"])
    assert last == {
        "namespace": "team-a",
        "name": "web-0",
        "state": "unmeshed",
        "reason": "created before Istio could inject",
        "since": "2026-11-21T19:40:12.500000Z",
        "owner": "StatefulSet/web",
    }


def named_by_a_tenant(number: int) -> Found:
    """A pod whose name, owner and reason are as long as they get, and not all ASCII."""
    name = f"{number:04}-{'x' * 248}"
    return replace(POD, name=name, owner=f"Job/{'ä' * 9999}", reason="\N{PILE OF POO}" * 9999)


def test_all_pods_are_listed_by_pages_that_are_arguments_of_a_process(unit: Unit) -> None:
    unit.process.pods = pods = [named_by_a_tenant(number) for number in range(100)]
    seen: list[str] = []
    found = {"next": ""}
    while len(seen) < len(pods):
        found = unit.act("list-unmeshed", after=found["next"])

        arguments = [f"{key}={value}" for key, value in found.items()]
        assert max(len(each.encode()) for each in arguments) <= actions.LARGEST
        subprocess.run(["true", *arguments], check=True)
        names = [pod["name"] for pod in json.loads(found["json"])]
        assert len(found["pods"].splitlines()) == len(names) > 0
        seen += names
    assert (found["total"], found["next"]) == (len(pods), "")
    assert seen == [pod.name for pod in pods]


def test_a_page_has_as_many_pods_as_asked_for(unit: Unit) -> None:
    unit.process.pods = [replace(POD, name=f"web-{number}") for number in range(5)]

    found = unit.act("list-unmeshed", limit=2, after="team-a/web-1")

    assert [pod["name"] for pod in json.loads(found["json"])] == ["web-2", "web-3"]
    assert found["next"] == "team-a/web-3"


def test_pods_that_do_not_complete_are_listed_with_state_age_and_attempts(unit: Unit) -> None:
    unit.process.pods = [POD, STUCK, BLOCKED]
    unit.process.held = [held("vault-agent", since=CREATED, requests=Requests(gpus=8))]

    found = unit.act("list-stuck")

    assert found["pods"] == (
        "team-a/mnist-0 stuck, IA0101 since 2026-11-21 19:40Z, 3 attempts: exit code 137\n"
        "team-b/import-0 blocked since 2026-11-21 19:40Z: not finished: vault-agent (running)"
    )
    assert found["holders"] == ("1 pod is kept by vault-agent since 2026-11-21 19:40Z: 8 GPUs")
    first = json.loads(found["json"])[0]
    assert (first["attempts"], first["code"]) == (3, "IA0101")
    assert (found["total"], found["next"]) == (2, "")


def test_any_unit_lists_the_stuck_pods_that_only_the_leader_knows(unit: Unit) -> None:
    unit.process.pods, unit.process.leads = [STUCK, BLOCKED], False
    unit.process.held = [held("istio-proxy")]
    unit.api.add_pod("istio-aux-1", "10.1.0.10")

    found = unit.act("list-stuck")

    assert [pod["name"] for pod in json.loads(found["json"])] == ["mnist-0", "import-0"]
    assert found["holders"].startswith("1 pod is kept by istio-proxy")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.1.0.11", "no answer at http://10.1.0.11:8080: no route to host"),
        ("", "Pod istio-aux-1 has no address yet"),
        (None, "Pod istio-aux-1: "),
    ],
)
def test_the_unit_to_ask_is_named_when_it_does_not_answer(
    address: str | None, said: str, unit: Unit
) -> None:
    unit.process.pods, unit.process.leads = [STUCK], False
    if address is not None:
        unit.api.add_pod("istio-aux-1", address)

    leader = "istio-aux-1_5e6f holds the Lease and knows stuck pods; run the action there: "
    assert failure(unit.act, "list-stuck").startswith(leader + said)


def test_the_workload_explains_a_pod_with_its_credentials_and_the_options(unit: Unit) -> None:
    unit.configure(sidecars="vault-agent=ignore,daprd=quit", pod_selector="team=a")

    said = explain(unit, stdout="team-a/web-0: wait: main runs\n")

    assert said == "team-a/web-0: wait: main runs"
    given = understood(unit)
    assert (given.namespace, given.targets) == ("team-a", ["pod/web-0"])
    assert (given.output, str(given.kubeconfig)) == ("text", workload.KUBECONFIG)
    assert str(given.config.settings.pod_selector) == "team=a"
    rules = given.config.settings.quit_policy.sidecars
    assert [rule.container for rule in rules] == ["vault-agent", "daprd"]


def test_an_answer_is_an_argument_of_a_process_however_long_it_is(unit: Unit) -> None:
    said = failure(explain, unit, return_code=1, stderr="ä" * 200_000)
    assert len(said.encode()) <= actions.LARGEST

    shown = explain(unit, stdout="ä" * 200_000)

    assert len(f"explanation={shown}".encode()) <= actions.LARGEST
    assert shown.endswith("(cut: the answer is larger than an action can return)")


LIVE = {"check": "injector", "result": "ok", "what": "istio is live"}
FAR = {
    "check": "network", "result": "problem", "what": "no answer", "do": "open port 8443",
    "code": "IA0310",
}  # fmt: skip


def run_check(unit: Unit, *found: dict[str, str], **answer: Any) -> dict[str, Any]:
    """Run the action where the workload's command line finds this."""
    answer = {"stdout": "".join(f"{json.dumps(each)}\n" for each in found), **answer}
    unit.change_container(execs={testing.Exec(["istio-aux", "check"], **answer)})
    return unit.act("run-check")


def test_a_check_shows_what_charm_and_workload_find_with_problems_first(unit: Unit) -> None:
    found = run_check(unit, LIVE, FAR, return_code=1)

    assert found["works"] == "false"
    assert found["findings"] == (
        "problem: network: IA0310: no answer; to do: open port 8443\n"
        "ok: trust: the charm reads what it needs\n"
        "ok: units: a unit is ready behind the Service\n"
        "ok: sidecars: no pod of the selected namespaces has a sidecar\n"
        "ok: injector: istio is live"
    )
    assert json.loads(found["json"])[0] == FAR
    given = understood(unit)
    assert (given.output, str(given.kubeconfig)) == ("json", workload.KUBECONFIG)
    assert run_check(unit, LIVE, {**FAR, "result": "note"})["works"] == "true"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"config": {"log-level": "loud"}}, 'problem: options: IA0327: log-level: "loud"*'),
        (
            {"api": {"endpoints": []}},
            "problem: units: IA0318: the Service lacks a ready endpoint; to do: see `juju status`",
        ),
        (
            {"api": {"denied": {"list namespaces"}}},
            "problem: trust: IA0304: *; to do: run `juju trust istio-aux --scope=cluster`",
        ),
        (
            {"api": {"broken": {"list namespaces"}}},
            "unknown: trust: IA0301: Namespace: Kubernetes API server: etcd is slow",
        ),
        (
            {"api": {"broken": {"list endpointslices"}}},
            "unknown: units: IA0301: EndpointSlices of Service istio-aux: *",
        ),
        ({"process": {"running": False}}, "problem: workload: IA0318: does not answer: *"),
        (
            {"relations": (PILOT, METADATA)},
            "note: relations: IA0328: istio-pilot: root namespace kubeflow, istio-metadata: *",
        ),
        (
            {"process": {"more": {"sidecars": None}}},
            "note: sidecars: IA0301: not known how many pods have a sidecar",
        ),
    ],
    ids=[
        "a bad option", "a Service without a unit", "missing trust", "a slow API server",
        "a slow list of units", "a workload that does not answer", "two control planes",
        "an image that does not count",
    ],
)  # fmt: skip
def test_a_check_finds(facts: dict[str, Any], said: str, unit: Unit) -> None:
    vars(unit.api).update(facts.get("api", {}))
    vars(unit.process).update(facts.get("process", {}))
    related = {*unit.state.relations, *facts.get("relations", ())}
    unit.state = dataclasses.replace(unit.state, config=facts.get("config", {}), relations=related)

    found = run_check(unit, LIVE)

    assert len(fnmatch.filter(found["findings"].splitlines(), said)) == 1
    assert (found["works"] == "true") is said.startswith("note")


def test_a_check_leaves_time_where_the_api_server_hangs(unit: Unit) -> None:
    """`juju run` waits for a minute."""
    unit.api.patience.clear()

    run_check(unit, LIVE)

    assert "GET /api/v1/namespaces" in unit.api.patience
    assert max(unit.api.patience.values()) <= 3


@pytest.mark.parametrize(
    ("answers", "answer", "why"),
    [
        (True, {"return_code": 2, "stderr": "usage: ...\nerror: no 'check'"}, "error: no 'check'"),
        (True, {"return_code": 0}, "no answer"),
        (False, {}, "container istio-aux: "),
    ],
    ids=["it does not know how", "it says nothing", "Pebble does not answer"],
)
def test_a_workload_that_checks_nothing_is_unknown(
    answers: bool, answer: dict[str, Any], why: str, unit: Unit
) -> None:
    unit.change_container(can_connect=answers)

    found = run_check(unit, **answer)

    assert found["works"] == "false"
    assert f"unknown: workload: IA0301: it checked nothing: {why}" in found["findings"]


PLAIN = {"namespace": "team", "name": "web-0", "outcome": "restarted", "reason": "no sidecar"}
HELD = {"namespace": "team", "name": "job-0", "outcome": "kept", "reason": "it is a Job's"}
DRY, FOR_GOOD = {"dry-run": True}, {"dry-run": False}


def restart(
    unit: Unit, *found: dict[str, str], given: dict[str, Any] = DRY, **answer: Any
) -> dict[str, Any]:
    """Run the action with what is given, where the workload's command line does this."""
    answer.setdefault("stdout", "".join(f"{json.dumps(each)}\n" for each in found))
    unit.change_container(execs={testing.Exec(["istio-aux", "restart-unmeshed"], **answer)})
    unit.api.applied.clear()
    return unit.act("restart-unmeshed", **given)


def evicting(unit: Unit) -> list[bool]:
    """Whether the workload may evict pods, by each role that was applied."""
    return [
        any("pods/eviction" in rule["resources"] for rule in each["rules"])
        for each in unit.api.applied
        if each["kind"] == "ClusterRole"
    ]


def test_restarts_are_a_dry_run_unless_told_otherwise(unit: Unit) -> None:
    would = {**PLAIN, "outcome": "would-restart"}

    found = restart(unit, HELD, would)

    assert (found["would-restart"], found["kept"], found["unfinished"]) == (1, 1, "")
    assert found["pods"] == ("team/web-0 would-restart: no sidecar\nteam/job-0 kept: it is a Job's")
    assert understood(unit).dry_run
    assert evicting(unit) == []


def test_restarts_say_how_many_pods_their_answer_has_no_room_for(unit: Unit) -> None:
    kept = [{**HELD, "name": f"job-{number}", "reason": "x" * 400} for number in range(500)]

    found = restart(unit, *kept, PLAIN)

    shown = found["pods"].splitlines()
    assert shown[0].startswith("team/web-0 ")
    assert found["kept"] == 500
    assert found["not-shown"] == 501 - len(shown) > 0
    assert restart(unit, HELD)["not-shown"] == 0


def test_the_workload_may_evict_pods_only_while_it_restarts_them(unit: Unit) -> None:
    found = restart(unit, PLAIN, HELD, given={**FOR_GOOD, "namespace": "team", "limit": 3})

    assert (found["restarted"], found["kept"]) == (1, 1)
    given = understood(unit)
    assert (given.dry_run, given.namespace, given.limit) == (False, "team", 3)
    assert evicting(unit) == [True, False]


def test_the_right_to_evict_is_taken_away_after_a_failure(unit: Unit) -> None:
    why = "this account may not create"

    assert failure(restart, unit, given=FOR_GOOD, return_code=1, stderr=why) == why

    assert evicting(unit) == [True, False]


def test_what_was_not_restarted_in_time_is_said_beside_what_was(unit: Unit) -> None:
    why = "not finished within 240 s: run it again"

    found = restart(unit, PLAIN, given=FOR_GOOD, return_code=1, stderr=why)

    assert (found["restarted"], found["unfinished"]) == (1, why)


@pytest.mark.parametrize("slow", [0.0, 30.0, 90.0])
def test_an_action_answers_while_somebody_waits(
    slow: float, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`juju run` waits for a minute; the API server and the other units may be slow, too."""
    times = itertools.count(step=slow)
    for action in (explain, run_check, restart):
        unit.ctx.exec_history.clear()
        with monkeypatch.context() as patch:
            patch.setattr(actions, "monotonic", lambda: next(times))
            action(unit, stdout="")
        (call,) = unit.ctx.exec_history["istio-aux"]
        timeout = call.timeout or 0
        assert 0 < timeout <= max(5, actions.ANSWER - slow)
        if action is not explain:
            given = float(call.command[call.command.index("--timeout") + 1])
            assert 0 < given < timeout
        assert actions.ANSWER < 60


NO_PODS = ("web-0", "team-a/", "a/b/c", "Team/web", "team-a/web-0 -o json", "-f/etc", "a/b\n")
ALREADY = "the workload restarts these pods already"
ON_THE_LEADER = "run it on the leader: juju run istio-aux/leader ..."


@pytest.mark.parametrize(
    ("action", "params", "facts", "said"),
    [
        (
            "list-unmeshed", {}, {"process": {"more": {"race": "none"}}},
            "race-policy: none: the workload does not look for such pods",
        ),
        (
            "list-unmeshed", {}, {"process": {"injectors": []}},
            "not known yet whether Istio injects",
        ),
        (
            "list-unmeshed", {}, {"process": {"missing": ["the list of pods"]}},
            "workload: the list of pods",
        ),
        ("list-unmeshed", {"after": "web-0"}, {}, 'after: "web-0": expected NAMESPACE/NAME'),
        *(
            ("explain", {"pod": pod}, {}, f"pod: {json.dumps(pod)}: expected NAMESPACE/NAME")
            for pod in NO_PODS
        ),
        (
            "restart-unmeshed", {**DRY, "namespace": "Team/a"}, {},
            'namespace: "Team/a": expected one namespace',
        ),
        ("restart-unmeshed", FOR_GOOD, {"state": {"leader": False}}, ON_THE_LEADER),
        (
            "restart-unmeshed", FOR_GOOD, {"state": {"config": {"race-policy": "restart"}}},
            f"race-policy: restart: {ALREADY}; list-unmeshed has the reasons",
        ),
        ("replace-authority", {}, {"state": {"leader": False}}, ON_THE_LEADER),
        (
            "replace-authority", {}, {"state": {"relations": {testing.PeerRelation("peers")}}},
            "there is no certificate authority yet",
        ),
    ],
)  # fmt: skip
def test_an_action_that_cannot_be_done_says_why_and_writes_nothing(
    action: str, params: dict[str, Any], facts: dict[str, Any], said: str, unit: Unit
) -> None:
    vars(unit.process).update(facts.get("process", {}))
    unit.state = dataclasses.replace(unit.state, **facts.get("state", {}))
    unit.api.calls.clear()

    assert failure(unit.act, action, **params) == said

    assert unit.api.writes == []


def test_an_action_of_a_workload_without_settings_says_where_to_look(unit: Unit) -> None:
    (unit.etc / "config.yaml").unlink()

    assert failure(explain, unit, stdout="well") == (
        "the workload has no settings yet: `juju status` says what it waits for"
    )
