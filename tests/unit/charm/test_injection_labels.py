"""The option `inject-namespaces`: Istio's label comes once Istio injects, and goes with the option.

What the API server makes of it is tested in `tests/cluster/test_injection_labels.py`.
"""

from __future__ import annotations

import dataclasses

import pytest
from lightkube.resources.core_v1 import Namespace
from ops import testing

import cluster
from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload

Context = testing.Context[IstioAuxCharm]


@pytest.fixture
def named(settled: testing.State, api: ApiServer) -> testing.State:
    """Two namespaces, of which the option names one."""
    api.add_namespace("team-a")
    api.add_namespace("team-b")
    return naming(settled, "team-a")


def naming(state: testing.State, namespaces: str) -> testing.State:
    return dataclasses.replace(state, config={"inject-namespaces": namespaces})


def labels(api: ApiServer, namespace: str) -> dict[str, str]:
    """What the namespace is labelled with and, by annotation, who did it."""
    metadata = api.objects[f"/api/v1/namespaces/{namespace}"]["metadata"]
    return metadata["labels"] | metadata["annotations"]


OURS = {"istio-injection": "enabled", "istio-aux.io/injection": "kubeflow/istio-aux"}


def test_the_namespaces_of_the_option_are_labelled_and_no_other(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    out = ctx.run(ctx.on.config_changed(), named)

    assert labels(api, "team-a") == OURS
    assert labels(api, "team-b") == {}
    assert out.unit_status == testing.ActiveStatus(WELL)


def test_the_workload_and_its_policy_know_the_namespaces_of_the_option(
    ctx: Context, named: testing.State, api: ApiServer, files: Files
) -> None:
    """Jobs there get a sidecar by us: they are started and quit by us."""
    ctx.run(ctx.on.config_changed(), named)

    assert files()["applications"].splitlines()[1:] == ["team-a/**"]
    (injected,) = [
        variable["expression"]
        for variable in api.one("ValidatingAdmissionPolicy")["spec"]["variables"]
        if variable["name"] == "injected"
    ]
    assert injected == '{"team-a": ["*"]}'


@pytest.mark.parametrize("live", [False, None])
def test_nothing_is_labelled_before_istio_injects(
    live: bool | None, ctx: Context, named: testing.State, api: ApiServer, process: Workload
) -> None:
    process.injects = live
    waiting = ctx.run(ctx.on.config_changed(), named)
    assert labels(api, "team-a") == {}
    assert waiting.unit_status.message.endswith(
        "inject-namespaces: team-a: waiting until Istio injects"
    )

    process.injects = True
    ctx.run(ctx.on.update_status(), waiting)

    assert labels(api, "team-a") == OURS


def test_a_label_stays_while_istio_is_down(
    ctx: Context, named: testing.State, api: ApiServer, process: Workload
) -> None:
    before = ctx.run(ctx.on.config_changed(), named)

    process.running = False
    ctx.run(ctx.on.update_status(), before)

    assert labels(api, "team-a") == OURS


def test_a_second_time_writes_nothing(ctx: Context, named: testing.State, api: ApiServer) -> None:
    before = ctx.run(ctx.on.config_changed(), named)
    api.calls.clear()

    ctx.run(ctx.on.update_status(), before)

    assert "PATCH /api/v1/namespaces/team-a" not in api.calls


def test_a_follower_labels_nothing(ctx: Context, named: testing.State, api: ApiServer) -> None:
    ctx.run(ctx.on.config_changed(), dataclasses.replace(named, leader=False))

    assert labels(api, "team-a") == {}


@pytest.mark.parametrize("options", ["", "team-b"])
def test_what_the_option_does_not_name_any_more_is_taken_back(
    options: str, ctx: Context, named: testing.State, api: ApiServer
) -> None:
    before = ctx.run(ctx.on.config_changed(), named)

    ctx.run(ctx.on.config_changed(), naming(before, options))

    assert labels(api, "team-a") == {}
    assert labels(api, "team-b") == (OURS if options else {})


def test_an_option_that_is_not_valid_takes_nothing_back(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    before = ctx.run(ctx.on.config_changed(), named)

    ctx.run(ctx.on.config_changed(), naming(before, "team b"))

    assert labels(api, "team-a") == OURS


def test_what_somebody_else_has_set_stays_when_the_option_goes(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.add_namespace("theirs", **{"istio-injection": "enabled"})
    before = ctx.run(ctx.on.config_changed(), naming(settled, "theirs"))

    ctx.run(ctx.on.config_changed(), naming(before, ""))

    assert labels(api, "theirs") == {"istio-injection": "enabled"}


@pytest.mark.parametrize(
    ("present", "why"),
    [
        ({"istio.io/dataplane-mode": "ambient"}, "is ambient"),
        ({"istio.io/rev": "1-28"}, "has istio.io/rev=1-28"),
        ({"istio-injection": "disabled"}, "has istio-injection=disabled"),
    ],
)
def test_a_namespace_that_says_something_else_to_istio_is_told_of_and_left(
    present: dict[str, str], why: str, ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.add_namespace("theirs", **present)

    out = ctx.run(ctx.on.config_changed(), naming(settled, "theirs"))

    assert labels(api, "theirs") == present
    assert out.unit_status == testing.ActiveStatus(f"{WELL}; inject-namespaces: theirs: {why}")


def test_a_namespace_that_is_not_there_is_told_of_and_not_made(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    out = ctx.run(ctx.on.config_changed(), naming(named, "gone,team-a"))

    assert "/api/v1/namespaces/gone" not in api.objects
    assert labels(api, "team-a") == OURS
    assert out.unit_status == testing.ActiveStatus(f"{WELL}; inject-namespaces: gone: not found")


def test_the_last_unit_takes_the_labels_back_and_leaves_the_namespaces(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    before = ctx.run(ctx.on.config_changed(), named)

    ctx.run(ctx.on.remove(), dataclasses.replace(before, leader=False, planned_units=0))

    assert api.kinds() == ["Namespace", "Namespace"]
    assert labels(api, "team-a") == {}


def test_labels_of_another_application_stay(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    theirs = {"istio-aux.io/injection": "kubeflow/another"}
    api.objects["/api/v1/namespaces/team-b"]["metadata"]["annotations"] |= theirs

    ctx.run(ctx.on.remove(), dataclasses.replace(named, planned_units=0))

    assert labels(api, "team-b") == theirs
    assert "PATCH /api/v1/namespaces/team-b" not in api.calls


def test_a_label_that_may_not_be_taken_back_any_more_does_not_stop_the_removal(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    before = ctx.run(ctx.on.config_changed(), named)
    api.denied = {"list namespaces"}

    ctx.run(ctx.on.remove(), dataclasses.replace(before, planned_units=0))

    assert labels(api, "team-a") == OURS


def test_a_server_that_fails_makes_juju_try_the_removal_again(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    api.broken = {"list namespaces"}

    with pytest.raises(testing.errors.UncaughtCharmError, match="etcd is slow"):
        ctx.run(ctx.on.remove(), dataclasses.replace(named, planned_units=0))


def test_a_namespace_that_may_not_be_labelled_is_told_of_and_the_others_are(
    ctx: Context, named: testing.State, api: ApiServer
) -> None:
    api.guarded = {"team-a"}

    out = ctx.run(ctx.on.config_changed(), naming(named, "team-a,team-b"))

    assert labels(api, "team-b") == OURS
    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; inject-namespaces: team-a: denied by the namespaces' owner"
    )


def test_namespaces_are_no_kind_that_the_charm_owns() -> None:
    """What it owns it deletes by label, and with a namespace goes everything in it."""
    assert Namespace not in cluster.OWNED
