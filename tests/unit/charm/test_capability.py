"""The policy in the API server follows what the workload finds out of cluster and Istio."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Workload

Context = testing.Context[IstioAuxCharm]

NATIVE = ("native", "istio: native sidecars on request")
CLASSIC = ("classic", "istio: a webhook drops restartPolicy")


def spec(api: ApiServer) -> dict[str, Any]:
    """What the policy does."""
    return api.one("MutatingAdmissionPolicy")["spec"]


def test_the_policy_follows_what_cluster_and_istio_can_do(
    ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    """The workload's notice wakes the charm at each change."""
    process.capability = CLASSIC
    out = ctx.run(ctx.on.update_status(), settled)
    held = spec(api)

    process.capability = NATIVE
    out = ctx.run(ctx.on.update_status(), out)
    native = spec(api)
    webhook = api.one("MutatingWebhookConfiguration")["webhooks"]
    process.capability = CLASSIC
    ctx.run(ctx.on.update_status(), out)

    assert (native != held, spec(api) == held) == (True, True)
    assert api.one("MutatingWebhookConfiguration")["webhooks"] != webhook


@pytest.mark.parametrize("change", ["not known yet", "silent", "older", "no container"])
def test_the_policy_stays_as_it_is_while_nothing_is_known(
    change: str, ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    """A restart of the workload, or of istiod, must not change the policy twice."""
    process.capability = NATIVE
    out = ctx.run(ctx.on.update_status(), settled)
    native = spec(api)

    if change == "no container":
        stopped = dataclasses.replace(out.get_container("istio-aux"), can_connect=False)
        out = dataclasses.replace(out, containers={stopped})
    process.running = change != "silent"
    process.unsaid = {"capability", "capability-why"} if change == "older" else set()
    process.capability = ("unknown", "")
    ctx.run(ctx.on.update_status(), out)

    assert spec(api) == native


def test_the_policy_holds_where_it_cannot_be_found_out_what_can_be_done(
    ctx: Context, settled: testing.State, api: ApiServer, process: Workload
) -> None:
    """That is an answer, unlike that it is not known yet."""
    process.capability = CLASSIC
    out = ctx.run(ctx.on.update_status(), settled)
    held = spec(api)
    process.capability = NATIVE
    out = ctx.run(ctx.on.update_status(), out)

    process.capability = ("unknown", "istio: no dry run can show it: 403")
    ctx.run(ctx.on.update_status(), out)

    assert spec(api) == held


def test_before_anything_is_known_the_policy_holds(
    ctx: Context, fresh: testing.State, api: ApiServer, process: Workload
) -> None:
    process.capability = ("unknown", "")
    out = ctx.run(ctx.on.config_changed(), fresh)
    held = spec(api)

    process.capability = CLASSIC
    ctx.run(ctx.on.update_status(), out)

    assert spec(api) == held


@pytest.mark.parametrize(
    ("option", "capability", "said"),
    [
        ("auto", NATIVE, ""),
        ("auto", CLASSIC, "; pods are held, not native: istio: a webhook drops restartPolicy"),
        ("auto", ("unknown", ""), ""),
        ("auto", ("unknown", "istio: 403"), "; pods are held, not native: istio: 403"),
        ("hold", CLASSIC, "; start: hold"),
    ],
)
def test_the_status_says_why_pods_are_not_native(
    ctx: Context,
    settled: testing.State,
    process: Workload,
    *,
    option: str,
    capability: tuple[str, str],
    said: str,
) -> None:
    process.capability = capability

    changed = dataclasses.replace(settled, config={"start-mode": option})
    out = ctx.run(ctx.on.config_changed(), changed)

    assert out.unit_status == testing.ActiveStatus(f"{WELL}{said}")
