"""The actions: what they answer, and how they fail."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from istio_aux.cli import commands
from ops import testing

import workload

from .conftest import SINCE, Unit

POD = {
    "namespace": "team-a",
    "name": "web-0",
    "owner": "StatefulSet/web",
    "reason": "created before Istio could inject",
    "since": SINCE,
}


def results(unit: Unit) -> dict[str, Any]:
    assert unit.ctx.action_results is not None
    return unit.ctx.action_results


def list_unmeshed(unit: Unit) -> None:
    unit.run(unit.on.action("list-unmeshed"))


def explain(unit: Unit, pod: str = "team-a/web-0", **answer: Any) -> None:
    """Run the action where the workload's command line answers like this."""
    unit.change_container(execs={testing.Exec(["istio-aux", "explain"], **answer)})
    unit.run(unit.on.action("explain", params={"pod": pod}))


def failure(action: Callable[..., None], *args: Any, **answer: Any) -> str:
    with pytest.raises(testing.ActionFailed) as failed:
        action(*args, **answer)
    return failed.value.message


def test_pods_without_a_sidecar_are_listed_with_owner_age_and_reason(unit: Unit) -> None:
    unit.process.unmeshed = [POD, {**POD, "name": "bare", "owner": ""}]
    unit.process.unmeshed_total, unit.process.unmeshed_unknown = 612, 3
    status = unit.state.unit_status

    list_unmeshed(unit)

    assert (results(unit)["total"], results(unit)["unknown"]) == (612, 3)
    assert results(unit)["pods"] == (
        "team-a/web-0 StatefulSet/web since 2026-11-21 19:40Z: created before Istio could inject\n"
        "team-a/bare no owner since 2026-11-21 19:40Z: created before Istio could inject"
    )
    first, _ = json.loads(str(results(unit)["json"]))
    assert first == {**POD, "since": "2026-11-21 19:40:12.500000+00:00"}
    assert unit.state.unit_status == status


def test_the_list_is_empty_when_every_pod_has_its_sidecar(unit: Unit) -> None:
    list_unmeshed(unit)

    assert results(unit) == {"total": 0, "unknown": 0, "pods": "", "json": "[]"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"race": "off"}, "race-policy: off: the workload does not look for such pods"),
        ({"injectors": []}, "not known yet whether Istio injects"),
        ({"missing": ["the list of pods"]}, "workload: the list of pods"),
        (
            {"unsaid": {"injectors"}},
            "the workload's image is older than the charm and does not watch injectors",
        ),
    ],
)
def test_listing_fails_while_nothing_is_known(
    unit: Unit, change: dict[str, Any], said: str
) -> None:
    vars(unit.process).update(change)

    assert failure(list_unmeshed, unit) == said


def test_the_workload_explains_a_pod_with_its_credentials_and_the_options(unit: Unit) -> None:
    unit.configure(ignore_containers="vault-agent")

    explain(unit, stdout="team-a/web-0: wait: main runs\n")

    assert results(unit) == {
        "explanation": "team-a/web-0: wait: main runs",
        "new-pods": "native; istio: sidecars are native on request",
    }
    (call,) = unit.ctx.exec_history["istio-aux"]
    understood = commands.parser().parse_args(call.command[1:])
    assert understood.pods == [("team-a", "web-0")]
    assert str(understood.kubeconfig) == workload.KUBECONFIG
    assert understood.ignore_containers == {"vault-agent"}
    assert understood.output == "text"


@pytest.mark.parametrize(
    ("mode", "capability", "said"),
    [
        ("auto", ("native", "istio: on request"), "native; istio: on request"),
        ("auto", ("classic", "istio: 422"), "held, not native; istio: 422"),
        ("auto", ("unknown", "istio: 403"), "held, not native; istio: 403"),
        ("auto", ("unknown", ""), "held, not native; not known yet whether Istio can do more"),
        ("hold", ("native", "istio: on request"), "start-mode: hold"),
    ],
)
def test_an_explanation_says_how_new_pods_start_and_why(
    unit: Unit, mode: str, capability: tuple[str, str], said: str
) -> None:
    unit.process.capability = capability
    unit.configure(start_mode=mode)

    explain(unit, stdout="well")

    assert results(unit)["new-pods"] == said


@pytest.mark.parametrize(
    "pod", ["web-0", "team-a/", "a/b/c", "Team/web", "team-a/web-0 -o json", "-f/etc", "a/b\n"]
)
def test_a_bad_pod_name_is_named_with_what_is_expected(pod: str, unit: Unit) -> None:
    assert failure(explain, unit, pod) == f"pod: {json.dumps(pod)}: expected NAMESPACE/NAME"


def test_the_workloads_error_is_the_actions_failure(unit: Unit) -> None:
    said = 'team-a/gone: pods "gone" not found'

    assert failure(explain, unit, "team-a/gone", return_code=1, stderr=f"{said}\n") == said


def test_a_pod_is_explained_while_an_option_is_invalid(unit: Unit) -> None:
    unit.state = dataclasses.replace(unit.state, config={"log-level": "loud"})

    explain(unit, stdout="well")

    assert results(unit) == {"explanation": "well"}
    (log,) = unit.ctx.action_logs
    assert 'log-level: "loud"' in log


def test_explain_fails_while_pebble_does_not_answer(unit: Unit) -> None:
    unit.change_container(can_connect=False)

    assert failure(explain, unit) == "container istio-aux: Pebble does not answer"
