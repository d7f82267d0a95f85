"""Pods are changed by a policy in the API server where there can be one, else by the webhook."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files, Workload

Context = testing.Context[IstioAuxCharm]

BEFORE_1_36 = {"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}
POLICY = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
WEBHOOK = {"MutatingWebhookConfiguration"}


def forms(api: ApiServer) -> set[str]:
    return set(api.kinds()) & (POLICY | WEBHOOK)


def with_option(state: testing.State, admission: str) -> testing.State:
    return dataclasses.replace(state, config={"admission": admission})


@pytest.mark.parametrize(
    ("admission", "served", "expected"),
    [
        ("auto", True, POLICY | WEBHOOK),
        ("auto", False, WEBHOOK),
        ("policy", True, POLICY | WEBHOOK),
        ("webhook", True, WEBHOOK),
        ("webhook", False, WEBHOOK),
    ],
)
def test_the_option_and_what_the_cluster_serves_say_who_changes_pods(
    ctx: Context,
    fresh: testing.State,
    api: ApiServer,
    *,
    admission: str,
    served: bool,
    expected: set[str],
) -> None:
    api.unknown = set() if served else BEFORE_1_36

    out = ctx.run(ctx.on.config_changed(), with_option(fresh, admission))
    again = ctx.run(ctx.on.update_status(), out)

    assert again.unit_status == out.unit_status == testing.ActiveStatus(WELL)
    assert forms(api) == expected


def test_a_policy_that_is_not_served_blocks_while_all_that_works_goes_on(
    ctx: Context, fresh: testing.State, api: ApiServer, files: Files
) -> None:
    api.unknown = BEFORE_1_36
    settled = ctx.run(ctx.on.config_changed(), fresh)
    objects, contents = dict(api.objects), files()

    options: dict[str, str] = {"admission": "policy", "log-level": "debug"}
    out = ctx.run(ctx.on.config_changed(), dataclasses.replace(settled, config=options))

    assert out.unit_status == testing.BlockedStatus(
        'admission: "policy": expected auto or webhook, because the API server does not serve'
        " MutatingAdmissionPolicy v1 (Kubernetes 1.36 does)"
    )
    assert api.objects == objects
    assert files() == contents
    assert out.get_container("istio-aux").plan == settled.get_container("istio-aux").plan


def test_a_follower_leaves_that_to_its_leader(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.unknown = BEFORE_1_36
    follower = dataclasses.replace(with_option(settled, "policy"), leader=False)

    out = ctx.run(ctx.on.config_changed(), follower)

    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_an_upgrade_of_the_cluster_is_noticed(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.unknown = BEFORE_1_36
    settled = ctx.run(ctx.on.config_changed(), fresh)
    assert forms(api) == WEBHOOK

    api.unknown = set()
    ctx.run(ctx.on.update_status(), settled)

    assert forms(api) == POLICY | WEBHOOK


def test_an_api_server_that_does_not_say_is_asked_again(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    objects = dict(api.objects)
    api.broken = {"list mutatingadmissionpolicies"}

    out = ctx.run(ctx.on.update_status(), settled)

    assert isinstance(out.unit_status, testing.WaitingStatus)
    assert out.unit_status.message.startswith("MutatingAdmissionPolicy: ")
    assert api.objects == objects


def test_the_policy_waits_for_no_workload(
    ctx: Context, fresh: testing.State, api: ApiServer, process: Workload
) -> None:
    """T37"""
    process.running = False

    ctx.run(ctx.on.config_changed(), fresh)

    assert forms(api) == POLICY


def test_the_policy_is_there_before_the_webhook_leaves_pods_to_it(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    settled = ctx.run(ctx.on.config_changed(), with_option(fresh, "webhook"))
    api.calls.clear()

    ctx.run(ctx.on.config_changed(), with_option(settled, "policy"))

    written = [call.split("/")[-2] for call in api.calls if call.startswith("PATCH")]
    assert written.index("mutatingadmissionpolicybindings") < written.index(
        "mutatingwebhookconfigurations"
    )


def test_the_policy_stays_until_the_webhook_serves(
    ctx: Context, fresh: testing.State, api: ApiServer, process: Workload
) -> None:
    """T37"""
    process.running = False
    starting = ctx.run(ctx.on.config_changed(), fresh)
    waiting = ctx.run(ctx.on.config_changed(), with_option(starting, "webhook"))
    assert forms(api) == POLICY

    process.running = True
    # API servers take a moment to call a new webhook, so that the policy goes with the next event.
    ready = ctx.run(ctx.on.update_status(), waiting)
    assert forms(api) == POLICY | WEBHOOK

    ctx.run(ctx.on.update_status(), ready)
    assert forms(api) == WEBHOOK


def test_not_for_a_moment_does_neither_form_apply(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.moments.clear()

    for admission in ("webhook", "policy", "webhook", "auto"):
        settled = ctx.run(ctx.on.config_changed(), with_option(settled, admission))

    assert any(not POLICY & moment for moment in api.moments)
    assert all(moment >= POLICY or moment >= WEBHOOK for moment in api.moments)
    # The binding goes first: one whose policy is gone would fail every request under `Fail`.
    gone = {
        kind
        for before, after in pairwise(api.moments)
        if before >= POLICY
        for kind in before - after
    }
    assert gone == {"MutatingAdmissionPolicyBinding"}


def test_the_policy_follows_the_start_mode(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    before = api.one("MutatingAdmissionPolicy")["spec"]

    ctx.run(ctx.on.config_changed(), dataclasses.replace(settled, config={"start-mode": "hold"}))

    assert api.one("MutatingAdmissionPolicy")["spec"] != before


def test_webhooks_of_istio_that_are_called_first_are_named_with_what_that_means(
    ctx: Context, settled: testing.State, process: Workload
) -> None:
    """T33: only a sidecar that Istio has not injected yet can be made native."""
    process.called_before = ["asm-sidecar-injector", "istio-a"]

    out = ctx.run(ctx.on.config_changed(), with_option(settled, "webhook"))

    assert out.unit_status == testing.ActiveStatus(
        f"{WELL}; called after asm-sidecar-injector, istio-a, so pods are held, not native"
    )


@pytest.mark.parametrize(
    ("admission", "called_before"),
    [("policy", ["asm-sidecar-injector"]), ("webhook", []), ("webhook", None)],
    ids=["the policy comes before all", "none", "not known"],
)
def test_an_order_that_changes_nothing_is_not_spoken_of(
    admission: str,
    called_before: list[str] | None,
    ctx: Context,
    settled: testing.State,
    process: Workload,
) -> None:
    """T33"""
    process.called_before = called_before

    out = ctx.run(ctx.on.config_changed(), with_option(settled, admission))

    assert out.unit_status == testing.ActiveStatus(WELL)


def test_a_workload_in_a_strict_mesh_lets_the_api_server_in_once_istio_is_there(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    """T36"""
    api.unknown = {"peerauthentications"}
    settled = ctx.run(ctx.on.config_changed(), fresh)
    assert settled.unit_status == testing.ActiveStatus(WELL)
    assert "PeerAuthentication" not in api.kinds()

    api.unknown = set()
    ctx.run(ctx.on.update_status(), settled)

    path = "/apis/security.istio.io/v1/namespaces/kubeflow/peerauthentications/istio-aux"
    assert api.objects[path]["spec"] == {
        "selector": {"matchLabels": {"app.kubernetes.io/name": "istio-aux"}},
        "portLevelMtls": {"8443": {"mode": "DISABLE"}},
    }
