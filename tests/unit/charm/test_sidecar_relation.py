"""The relation `sidecar`: who gets a sidecar by it, and what each charm is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from charms.istio_aux.v0.sidecar import Mesh
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload
from .test_reconcile import with_failed_checks

Context = testing.Context[IstioAuxCharm]


def asking(application: str, model: str = "kubeflow", remote: str = "") -> testing.Relation:
    return testing.Relation(
        "sidecar",
        remote_app_name=remote or application,
        remote_app_data={"application": application, "model": model},
    )


TENSORBOARD = asking("tensorboard")
NAME = "expected up to 63 lower-case letters, digits and hyphens"
# Across models, Juju names who is on the other side by a token.
GRAFANA = asking("grafana", "cos", remote="remote-6f1d")


def state_of(name: str, model: str = "kubeflow", **more: Any) -> dict[str, Any]:
    """What the workload says of an application."""
    said = {
        "live": True,
        "live-reason": "istio-sidecar-injector injects",
        "revision": "default",
        "root-namespace": "istio-system",
        "meshed": False,
        "meshed-reason": f"{name}-0 has no sidecar",
    }
    return {"namespace": model, "name": name, **said, **more}


def related(state: testing.State, *relations: testing.Relation) -> testing.State:
    return dataclasses.replace(state, relations={*state.relations, *relations})


def told(state: testing.State, relation: testing.Relation) -> Mesh | None:
    return Mesh.from_databag(state.get_relation(relation.id).local_app_data)


def named(files: Files) -> list[str]:
    """The applications that the workload is told of."""
    return files()["applications"].splitlines()[1:]


def injected(api: ApiServer) -> set[str]:
    """The models for which there is a webhook that asks for sidecars."""
    webhooks = api.one("MutatingWebhookConfiguration")["webhooks"]
    names = (webhook["name"] for webhook in webhooks)
    return {name.partition(".")[0] for name in names if name.endswith(".inject.istio-aux.io")}


def test_who_asks_is_injected_in_its_own_model_whatever_the_option_says(
    ctx: Context, settled: testing.State, files: Files, api: ApiServer
) -> None:
    options: dict[str, str | int | float | bool] = {"inject-applications": "minio,other/*"}
    state = related(dataclasses.replace(settled, config=options), TENSORBOARD, GRAFANA)

    ctx.run(ctx.on.relation_changed(TENSORBOARD), state)

    assert named(files) == ["cos/grafana", "kubeflow/minio", "kubeflow/tensorboard", "other/*"]
    assert injected(api) == {"cos", "kubeflow", "other"}


def test_who_leaves_is_not_injected_any_more(
    ctx: Context, settled: testing.State, files: Files, api: ApiServer
) -> None:
    before = ctx.run(ctx.on.relation_changed(GRAFANA), related(settled, TENSORBOARD, GRAFANA))

    ctx.run(ctx.on.relation_broken(before.get_relation(GRAFANA.id)), before)

    assert named(files) == ["kubeflow/tensorboard"]
    assert injected(api) == {"kubeflow"}


def test_a_new_application_is_no_reason_to_restart(ctx: Context, settled: testing.State) -> None:
    out = ctx.run(ctx.on.relation_changed(TENSORBOARD), related(settled, TENSORBOARD))

    assert out.get_container("istio-aux").plan == settled.get_container("istio-aux").plan


@pytest.mark.parametrize("known", [[state_of("tensorboard")], []], ids=["known", "unknown"])
def test_every_unit_tells_its_workload_and_only_the_leader_answers(
    known: list[dict[str, Any]],
    ctx: Context,
    settled: testing.State,
    files: Files,
    process: Workload,
) -> None:
    process.applications = known
    follower = related(dataclasses.replace(settled, leader=False), TENSORBOARD)

    out = ctx.run(ctx.on.relation_changed(TENSORBOARD), follower)

    assert named(files) == ["kubeflow/tensorboard"]
    assert told(out, TENSORBOARD) is None


def test_each_is_told_what_the_workload_knows_of_it(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    disabled = "namespace cos: istio-injection=disabled"
    nothing = {"revision": "", "root-namespace": "", "meshed": None, "meshed-reason": "not live"}
    process.applications = [
        state_of("tensorboard"),
        state_of("grafana", "cos", live=False, **{"live-reason": disabled}, **nothing),
    ]

    out = ctx.run(
        ctx.on.pebble_ready(settled.get_container("istio-aux")),
        related(settled, TENSORBOARD, GRAFANA),
    )

    assert told(out, TENSORBOARD) == Mesh(
        live=True,
        reason="istio-sidecar-injector injects",
        root_namespace="istio-system",
        revision="default",
        meshed=False,
        meshed_reason="tensorboard-0 has no sidecar",
    )
    assert told(out, GRAFANA) == Mesh(live=False, reason=disabled, meshed_reason="not live")
    assert out.unit_status == testing.ActiveStatus(f"{WELL}; not injected: cos/grafana: {disabled}")


@pytest.mark.parametrize(
    ("relation", "refusal"),
    [
        (
            asking("minio", remote="tensorboard"),
            "tensorboard: application minio: expected its own name",
        ),
        (
            asking("coredns", "kube-system", remote="remote-6f1d"),
            "remote-6f1d: model kube-system: expected one that Istio does not ignore",
        ),
        (
            asking("*", remote="tensorboard"),
            f'tensorboard: application "*": {NAME}',
        ),
    ],
    ids=["another's pods", "a model that is never injected", "unreadable"],
)
def test_a_request_that_is_not_granted_is_answered_with_the_reason(
    relation: testing.Relation,
    refusal: str,
    ctx: Context,
    settled: testing.State,
    *,
    files: Files,
    api: ApiServer,
) -> None:
    out = ctx.run(ctx.on.relation_changed(relation), related(settled, relation))

    assert told(out, relation) == Mesh(live=False, reason=refusal)
    assert named(files) == []
    assert injected(api) == set()
    assert out.unit_status == testing.ActiveStatus(f"{WELL}; not granted: {refusal}")


UNKNOWN = Mesh(live=False, reason="not known yet whether Istio injects")


def starting(process: Workload) -> None:
    process.missing = ["the list of pods"]


def just_started(process: Workload) -> None:
    process.injectors, process.injects = [], None
    process.applications = [state_of("tensorboard", live=None, meshed=None)]


def not_read_yet(process: Workload) -> None:
    process.applications = []


@pytest.mark.parametrize("unknowing", [starting, just_started, not_read_yet])
def test_before_the_first_word_nothing_is_live_and_after_it_a_restart_is_no_news(
    unknowing: Any, ctx: Context, settled: testing.State, process: Workload
) -> None:
    known = dict(vars(process))
    unknowing(process)
    before = ctx.run(ctx.on.relation_changed(TENSORBOARD), related(settled, TENSORBOARD))
    assert told(before, TENSORBOARD) == UNKNOWN

    vars(process).update(known)
    process.applications = [state_of("tensorboard")]
    live = ctx.run(ctx.on.update_status(), before)
    unknowing(process)
    again = ctx.run(ctx.on.update_status(), live)

    assert told(live, TENSORBOARD) == told(again, TENSORBOARD) != UNKNOWN


def test_an_injector_that_cannot_be_asked_is_not_live(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.applications = [state_of("tensorboard")]
    live = ctx.run(ctx.on.update_status(), related(settled, TENSORBOARD))

    why = "nobody could ask it"
    process.applications = [state_of("tensorboard", live=None, **{"live-reason": why})]
    out = ctx.run(ctx.on.update_status(), live)

    mesh = told(out, TENSORBOARD)
    assert mesh
    assert (mesh.live, mesh.reason) == (False, why)


def test_a_workload_that_failed_is_not_believed_any_more(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.applications = [state_of("tensorboard")]
    live = ctx.run(ctx.on.update_status(), related(settled, TENSORBOARD))

    process.running = False
    out = ctx.run(ctx.on.update_status(), with_failed_checks(live))

    assert told(out, TENSORBOARD) == Mesh(
        live=False, reason="workload: no answer at http://localhost:8080: connection refused"
    )


def test_an_image_that_knows_nothing_of_sidecars_says_so(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    process.unsaid = {"injectors", "injector-live", "race", "applications"}

    out = ctx.run(ctx.on.relation_changed(TENSORBOARD), related(settled, TENSORBOARD))

    assert told(out, TENSORBOARD) == Mesh(
        live=False,
        reason="the workload's image is older than the charm and does not watch injectors",
    )
