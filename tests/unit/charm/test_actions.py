"""The actions: what they answer, how they fail, and what the workload may do meanwhile."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from istio_aux.cli import commands
from istio_aux.model.found import Found
from istio_aux.model.resources import Requests
from msgspec.structs import replace
from ops import pebble, testing
from scenario import mocking
from unit.rules.pods import held

import actions
import workload

from .conftest import SINCE, Unit

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


def results(unit: Unit) -> dict[str, Any]:
    assert unit.ctx.action_results is not None
    return unit.ctx.action_results


def act(name: str, unit: Unit, **params: Any) -> dict[str, Any]:
    unit.run(unit.on.action(name, params=params))
    return results(unit)


list_unmeshed, list_stuck = partial(act, "list-unmeshed"), partial(act, "list-stuck")


def explain(unit: Unit, pod: str = "team-a/web-0", **answer: Any) -> None:
    """Run the action where the workload's command line answers like this."""
    unit.change_container(execs={testing.Exec(["istio-aux", "explain"], **answer)})
    unit.run(unit.on.action("explain", params={"pod": pod}))


def failure(action: Callable[..., object], *args: Any, **answer: Any) -> str:
    with pytest.raises(testing.ActionFailed) as failed:
        action(*args, **answer)
    return failed.value.message


def test_pods_without_a_sidecar_are_listed_with_owner_age_and_reason(unit: Unit) -> None:
    """A tenant cannot add lines."""
    status = unit.state.unit_status
    assert list_unmeshed(unit) == {"total": 0, "unknown": 0, "next": "", "pods": "", "json": "[]"}
    unit.process.pods = [POD, replace(POD, name="bare", owner="", reason="a\nteam-b/forged: b")]
    unit.process.unmeshed_unknown = 3

    found = list_unmeshed(unit)

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
    assert unit.state.unit_status == status


def named_by_a_tenant(number: int) -> Found:
    """A pod whose name, owner and reason are as long as they get, and not all ASCII."""
    name = f"{number:04}-{'x' * 248}"
    return replace(POD, name=name, owner=f"Job/{'ä' * 9999}", reason="\N{PILE OF POO}" * 9999)


def test_all_pods_are_listed_by_pages_that_are_arguments_of_a_process(unit: Unit) -> None:
    unit.process.pods = pods = [named_by_a_tenant(number) for number in range(100)]
    seen: list[str] = []
    after = ""
    while True:
        found = list_unmeshed(unit, after=after)

        arguments = [f"{key}={value}" for key, value in found.items()]
        assert max(len(each.encode()) for each in arguments) <= actions.LARGEST
        subprocess.run(["true", *arguments], check=True)
        names = [pod["name"] for pod in json.loads(found["json"])]
        assert len(found["pods"].splitlines()) == len(names)
        seen += names
        after = found["next"]
        if not after:
            break
    assert found["total"] == len(pods)
    assert seen == [pod.name for pod in pods]


def test_a_page_has_as_many_pods_as_asked_for(unit: Unit) -> None:
    unit.process.pods = [replace(POD, name=f"web-{number}") for number in range(5)]

    found = list_unmeshed(unit, limit=2, after="team-a/web-1")

    assert [pod["name"] for pod in json.loads(found["json"])] == ["web-2", "web-3"]
    assert found["next"] == "team-a/web-3"


def test_pods_that_do_not_complete_are_listed_with_state_age_and_attempts(unit: Unit) -> None:
    unit.process.pods = [POD, STUCK, BLOCKED]
    unit.process.held = [held("vault-agent", since=CREATED, requests=Requests(gpus=8))]

    found = list_stuck(unit)

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

    found = list_stuck(unit)

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
    assert failure(list_stuck, unit).startswith(leader + said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"race": "none"}, "race-policy: none: the workload does not look for such pods"),
        ({"injectors": []}, "not known yet whether Istio injects"),
        ({"missing": ["the list of pods"]}, "workload: the list of pods"),
    ],
)
def test_listing_fails_while_nothing_is_known(
    unit: Unit, change: dict[str, Any], said: str
) -> None:
    vars(unit.process).update(change)

    assert failure(list_unmeshed, unit) == said


def test_the_workload_explains_a_pod_with_its_credentials_and_the_options(unit: Unit) -> None:
    unit.configure(sidecars="vault-agent=ignore,daprd=quit", pod_selector="team=a")

    explain(unit, stdout="team-a/web-0: wait: main runs\n")

    assert results(unit) == {"explanation": "team-a/web-0: wait: main runs"}
    (call,) = unit.ctx.exec_history["istio-aux"]
    settings = str(unit.etc / "config.yaml")  # Where the test finds that of the container.
    argv = [settings if word == workload.CONFIG else word for word in call.command]
    understood = commands.parser().parse_args(argv[1:])
    assert (understood.namespace, understood.targets) == ("team-a", ["pod/web-0"])
    assert str(understood.config.settings.pod_selector) == "team=a"
    assert str(understood.kubeconfig) == workload.KUBECONFIG
    rules = understood.config.settings.quit_policy.sidecars
    assert [rule.container for rule in rules] == ["vault-agent", "daprd"]
    assert understood.output.format == "text"


@pytest.mark.parametrize(
    "pod", ["web-0", "team-a/", "a/b/c", "Team/web", "team-a/web-0 -o json", "-f/etc", "a/b\n"]
)
def test_a_bad_pod_name_is_named_with_what_is_expected(pod: str, unit: Unit) -> None:
    assert failure(explain, unit, pod) == f"pod: {json.dumps(pod)}: expected NAMESPACE/NAME"


def test_an_answer_is_an_argument_of_a_process_however_long_it_is(unit: Unit) -> None:
    said = failure(explain, unit, return_code=1, stderr="ä" * 200_000)
    assert len(said.encode()) <= actions.LARGEST

    explain(unit, stdout="ä" * 200_000)

    shown = results(unit)["explanation"]
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
    unit.run(unit.on.action("run-check"))
    return results(unit)


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
    (call,) = unit.ctx.exec_history["istio-aux"]
    understood = commands.parser().parse_args([*call.command[1:2], "--output", "json"])
    assert understood.output.format == "json"
    assert call.command[2:-2] == [
        *("--kubeconfig", workload.KUBECONFIG, "--config", workload.CONFIG, "--output", "json")
    ]
    assert run_check(unit, LIVE, {**FAR, "result": "note"})["works"] == "true"


def test_a_check_finds_missing_trust_a_bad_option_and_a_service_without_a_unit(
    unit: Unit,
) -> None:
    unit.api.endpoints = []
    unit.state = dataclasses.replace(unit.state, config={"log-level": "loud"})

    found = run_check(unit, LIVE)

    assert found["works"] == "false"
    assert 'problem: options: IA0327: log-level: "loud"' in found["findings"]
    assert "problem: units: IA0318: the Service lacks a ready endpoint" in found["findings"]

    unit.api.denied.add("list namespaces")
    found = run_check(unit, LIVE)
    assert "problem: trust: IA0304: Namespace: Kubernetes API server: " in found["findings"]
    assert "run `juju trust istio-aux --scope=cluster`" in found["findings"]
    assert "problem: units: IA0318: the Service lacks a ready endpoint" in found["findings"]

    unit.api.denied, unit.api.broken = set(), {"list namespaces", "list endpointslices"}
    found = run_check(unit, LIVE)
    assert (
        "unknown: trust: IA0301: Namespace: Kubernetes API server: etcd is slow"
        in found["findings"]
    )
    assert "unknown: units: IA0301: EndpointSlices of Service istio-aux: " in found["findings"]


def test_a_check_leaves_time_where_the_api_server_hangs(unit: Unit) -> None:
    """`juju run` waits for a minute."""
    unit.api.patience.clear()

    run_check(unit, LIVE)

    assert "GET /api/v1/namespaces" in unit.api.patience
    assert max(unit.api.patience.values()) <= 3


@pytest.mark.parametrize(
    "answer",
    [
        {"return_code": 2, "stderr": "usage: ...\nistio-aux: error: invalid choice: 'check'"},
        {"return_code": 0},
    ],
)
def test_a_workload_that_checks_nothing_is_unknown(unit: Unit, answer: dict[str, Any]) -> None:
    found = run_check(unit, **answer)

    assert found["works"] == "false"
    assert "unknown: workload: IA0301: it checked nothing" in found["findings"]


def test_a_check_answers_while_pebble_does_not(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise pebble.ConnectionError("no socket")

    monkeypatch.setattr(mocking._MockPebbleClient, "exec", refuse)
    unit.run(unit.on.action("run-check"))

    said = results(unit)["findings"]
    assert "unknown: workload: IA0301: it checked nothing: container istio-aux: no socket" in said


def test_a_check_finds_a_workload_that_does_not_answer(unit: Unit) -> None:
    unit.process.running = False

    said = run_check(unit, LIVE)["findings"]
    assert "problem: workload: IA0318: does not answer: " in said


PLAIN = {"namespace": "team", "name": "web-0", "outcome": "restarted", "reason": "no sidecar"}
HELD = {"namespace": "team", "name": "job-0", "outcome": "kept", "reason": "it is a Job's"}
PARAMETERS = ("namespace", "limit", "dry_run")


def restart(unit: Unit, *found: dict[str, str], **given: Any) -> dict[str, Any]:
    """Run the action where the workload's command line does this."""
    params = {name.replace("_", "-"): given.pop(name) for name in [*given] if name in PARAMETERS}
    given.setdefault("stdout", "".join(f"{json.dumps(each)}\n" for each in found))
    unit.change_container(execs={testing.Exec(["istio-aux", "restart-unmeshed"], **given)})
    unit.api.applied.clear()
    unit.run(unit.on.action("restart-unmeshed", params=params))
    return results(unit)


def evicting(unit: Unit) -> list[bool]:
    """Whether the workload may evict pods, by each role that was applied."""
    return [
        any("pods/eviction" in rule["resources"] for rule in each["rules"])
        for each in unit.api.applied
        if each["kind"] == "ClusterRole"
    ]


def understood(unit: Unit) -> Any:
    (call,) = unit.ctx.exec_history["istio-aux"]
    options = list(call.command[1:])
    # The settings file is in the container.
    at = options.index("--config")
    assert options[at + 1] == workload.CONFIG
    return commands.parser().parse_args(options[:at] + options[at + 2 :])


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
    found = restart(unit, PLAIN, HELD, dry_run=False, namespace="team", limit=3)

    assert (found["restarted"], found["kept"]) == (1, 1)
    given = understood(unit)
    assert (given.dry_run, given.namespace, given.limit) == (False, "team", 3)
    assert evicting(unit) == [True, False]


def test_the_right_to_evict_is_taken_away_after_a_failure(unit: Unit) -> None:
    why = "this account may not create"

    assert failure(restart, unit, dry_run=False, return_code=1, stderr=why) == why

    assert evicting(unit) == [True, False]


def test_what_was_not_restarted_in_time_is_said_beside_what_was(unit: Unit) -> None:
    why = "not finished within 240 s: run it again"

    found = restart(unit, PLAIN, dry_run=False, return_code=1, stderr=why)

    assert (found["restarted"], found["unfinished"]) == (1, why)


def test_only_the_leader_restarts_pods(unit: Unit) -> None:
    unit.state = dataclasses.replace(unit.state, leader=False)

    said = failure(restart, unit, dry_run=False)

    assert said == "run it on the leader: juju run istio-aux/leader ..."
    assert evicting(unit) == []


def test_pods_that_the_workload_restarts_anyway_are_not_restarted_twice(unit: Unit) -> None:
    unit.configure(race_policy="restart")

    assert failure(restart, unit, dry_run=False).startswith("race-policy: restart: the workload")


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


@pytest.mark.parametrize(
    ("action", "params", "said"),
    [
        (list_unmeshed, {"after": "web-0"}, 'after: "web-0": expected NAMESPACE/NAME'),
        (restart, {"namespace": "Team/a"}, 'namespace: "Team/a": expected one namespace'),
    ],
)
def test_a_bad_parameter_is_named(
    unit: Unit, action: Callable[..., object], params: dict[str, Any], said: str
) -> None:
    assert failure(action, unit, **params) == said
