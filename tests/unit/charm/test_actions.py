"""The actions: what they answer, and how they fail."""

from __future__ import annotations

import dataclasses
import json

import pytest
from istio_aux.cli import commands
from ops import testing

import workload
from charm import IstioAuxCharm

from .conftest import SINCE, Workload

Context = testing.Context[IstioAuxCharm]

POD = {
    "namespace": "team-a",
    "name": "web-0",
    "owner": "StatefulSet/web",
    "reason": "created before Istio could inject",
    "since": SINCE,
}


def listed(ctx: Context, state: testing.State) -> dict[str, object]:
    ctx.run(ctx.on.action("list-unmeshed"), state)
    assert ctx.action_results is not None
    return ctx.action_results


def test_pods_without_a_sidecar_are_listed_with_owner_age_and_reason(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.unmeshed = [POD, {**POD, "name": "bare", "owner": ""}]
    process.unmeshed_total, process.unmeshed_unknown = 612, 3

    results = listed(ctx, settled)

    assert (results["total"], results["unknown"]) == (612, 3)
    assert results["pods"] == (
        "team-a/web-0 StatefulSet/web since 2026-11-21 19:40Z: created before Istio could inject\n"
        "team-a/bare no owner since 2026-11-21 19:40Z: created before Istio could inject"
    )
    first, _ = json.loads(str(results["json"]))
    assert first == {**POD, "since": "2026-11-21 19:40:12.500000+00:00"}


def test_where_all_pods_are_well_the_list_is_empty(ctx: Context, settled: testing.State) -> None:
    assert listed(ctx, settled) == {
        "total": 0,
        "unknown": 0,
        "pods": "",
        "json": "[]",
    }


def failure(ctx: Context, name: str, state: testing.State, **params: object) -> str:
    with pytest.raises(testing.ActionFailed) as failed:
        ctx.run(ctx.on.action(name, params=params), state)
    return failed.value.message


def test_what_is_not_known_is_no_empty_list(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    said: list[str] = []
    for change in (
        {"race": "off"},
        {"injectors": []},
        {"missing": ["the list of pods"]},
        {"unsaid": {"injectors"}},
    ):
        before = dict(vars(process))
        vars(process).update(change)
        said.append(failure(ctx, "list-unmeshed", settled))
        vars(process).update(before)

    assert said == [
        "race-policy: off: the workload does not look for such pods",
        "not known yet whether Istio injects",
        "workload: the list of pods",
        "the workload's image is older than the charm and does not watch injectors",
    ]


def explaining(state: testing.State, **answer: object) -> testing.State:
    """The same, where the workload's command line answers so."""
    container = state.get_container("istio-aux")
    exec_ = testing.Exec(["istio-aux", "explain"], **answer)  # pyright: ignore[reportArgumentType]  its options
    container = dataclasses.replace(container, execs={exec_})
    return dataclasses.replace(state, containers={container})


def test_a_pod_is_explained_by_the_workload_with_its_credentials_and_the_options(
    ctx: Context, settled: testing.State
) -> None:
    state = dataclasses.replace(
        explaining(settled, stdout="team-a/web-0: wait: main runs\n"),
        config={"ignore-containers": "vault-agent"},
    )

    ctx.run(ctx.on.action("explain", params={"pod": "team-a/web-0"}), state)

    assert ctx.action_results == {
        "explanation": "team-a/web-0: wait: main runs",
        "new-pods": "native; istio: sidecars are native on request",
    }
    (call,) = ctx.exec_history["istio-aux"]
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
def test_an_explanation_says_how_new_pods_are_started_and_why(
    ctx: Context,
    settled: testing.State,
    process: Workload,
    *,
    mode: str,
    capability: tuple[str, str],
    said: str,
) -> None:
    process.capability = capability
    state = dataclasses.replace(explaining(settled, stdout="well"), config={"start-mode": mode})

    ctx.run(ctx.on.action("explain", params={"pod": "team-a/web-0"}), state)

    assert (ctx.action_results or {})["new-pods"] == said


@pytest.mark.parametrize(
    "pod", ["web-0", "team-a/", "a/b/c", "Team/web", "team-a/web-0 -o json", "-f/etc", "a/b\n"]
)
def test_what_is_no_pod_is_named_with_what_is_expected(
    pod: str, ctx: Context, settled: testing.State
) -> None:
    assert failure(ctx, "explain", explaining(settled), pod=pod) == (
        f"pod: {json.dumps(pod)}: expected NAMESPACE/NAME"
    )


def test_what_the_workload_says_of_a_pod_that_is_not_there_is_the_failure(
    ctx: Context, settled: testing.State
) -> None:
    said = 'team-a/gone: pods "gone" not found'
    state = explaining(settled, return_code=1, stderr=f"{said}\n")

    assert failure(ctx, "explain", state, pod="team-a/gone") == said


def test_options_that_are_not_valid_do_not_stop_an_explanation(
    ctx: Context, settled: testing.State
) -> None:
    state = dataclasses.replace(explaining(settled, stdout="well"), config={"log-level": "loud"})

    ctx.run(ctx.on.action("explain", params={"pod": "team-a/web-0"}), state)

    assert ctx.action_results == {"explanation": "well"}
    (log,) = ctx.action_logs
    assert 'log-level: "loud"' in log


def test_a_container_that_is_not_there_is_the_failure(ctx: Context, settled: testing.State) -> None:
    container = testing.Container("istio-aux", can_connect=False)
    gone = dataclasses.replace(settled, containers={container})

    said = failure(ctx, "explain", gone, pod="team-a/web-0")

    assert said == "container istio-aux: Pebble does not answer"


def test_an_action_leaves_the_status(ctx: Context, settled: testing.State) -> None:
    out = ctx.run(ctx.on.action("list-unmeshed"), settled)

    assert out.unit_status == settled.unit_status
