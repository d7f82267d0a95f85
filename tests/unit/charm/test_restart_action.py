"""The action `restart-unmeshed`: what it answers, and what the workload may do meanwhile."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from istio_aux.cli import commands
from ops import testing

import workload

from .conftest import Unit
from .test_actions import failure, results

PLAIN = {"namespace": "team", "name": "web-0", "outcome": "restarted", "reason": "no sidecar"}
HELD = {"namespace": "team", "name": "job-0", "outcome": "kept", "reason": "restart-jobs is off"}
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
    assert found["pods"] == (
        "team/web-0 would-restart: no sidecar\nteam/job-0 kept: restart-jobs is off"
    )
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
    asked = understood(unit)
    assert (asked.dry_run, asked.namespace, asked.limit) == (False, "team", 3)
    assert evicting(unit) == [True, False]


def test_the_right_to_evict_is_taken_away_after_a_failure(unit: Unit) -> None:
    why = "this account may not create"

    assert failure(restart, unit, dry_run=False, return_code=1, stderr=why) == why

    assert evicting(unit) == [True, False]


def test_what_was_not_restarted_in_time_is_said_beside_what_was(unit: Unit) -> None:
    why = "not finished within 240 s: run it again"

    found = restart(unit, PLAIN, dry_run=False, return_code=1, stderr=why)

    assert (found["restarted"], found["unfinished"]) == (1, why)


def test_an_event_takes_away_what_a_killed_action_left(unit: Unit) -> None:
    role = unit.api.one("ClusterRole")
    role["rules"].append({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]})
    unit.api.applied.clear()

    unit.run()

    assert evicting(unit) == [False]


def test_only_the_leader_restarts_pods(unit: Unit) -> None:
    unit.state = dataclasses.replace(unit.state, leader=False)

    said = failure(restart, unit, dry_run=False)

    assert said == "run it on the leader: juju run istio-aux/leader ..."
    assert evicting(unit) == []


def test_pods_that_the_workload_restarts_anyway_are_not_restarted_twice(unit: Unit) -> None:
    unit.configure(race_policy="restart")

    assert failure(restart, unit, dry_run=False).startswith("race-policy: restart: the workload")


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"limit": 0}, "limit: 0: expected 1 to 500"),
        ({"namespace": "Team/a"}, 'namespace: "Team/a": expected one namespace'),
    ],
)
def test_a_bad_parameter_of_restarts_is_named(
    unit: Unit, params: dict[str, Any], said: str
) -> None:
    assert failure(restart, unit, **params) == said
