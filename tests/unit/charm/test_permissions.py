"""What the charm says when it may not do what it has to."""

from __future__ import annotations

import dataclasses

import httpx2
import pytest
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer

Context = testing.Context[IstioAuxCharm]


@pytest.mark.parametrize(
    "permission",
    [
        "patch mutatingwebhookconfigurations",
        "list mutatingadmissionpolicies",
        "delete mutatingadmissionpolicybindings",
        "patch peerauthentications",
        "create clusterroles",
        "create serviceaccounts/token",
    ],
)
def test_missing_trust_blocks_and_names_the_permission(
    permission: str, ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.denied = {permission}

    out = ctx.run(ctx.on.config_changed(), fresh)

    assert isinstance(out.unit_status, testing.BlockedStatus)
    instruction = "Trust not granted: run `juju trust istio-aux --scope=cluster`"
    assert out.unit_status.message.startswith(f"{instruction} ({permission}")
    assert not api.writes


def test_a_follower_needs_less(ctx: Context, settled: testing.State, api: ApiServer) -> None:
    api.denied = {"patch mutatingwebhookconfigurations", "list clusterroles"}

    out = ctx.run(ctx.on.update_status(), dataclasses.replace(settled, leader=False))

    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_an_api_server_that_knows_no_roles_yet_is_no_missing_trust(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.ignorant = 1

    out = ctx.run(ctx.on.update_status(), settled)

    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_trust_that_is_granted_later_mends_it(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.denied = {"patch clusterroles"}
    blocked = ctx.run(ctx.on.config_changed(), fresh)

    api.denied = set()
    out = ctx.run(ctx.on.update_status(), blocked)

    assert isinstance(out.unit_status, testing.ActiveStatus)


def test_a_permission_that_is_refused_in_use_blocks_too(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    body = {"kind": "Status", "code": 403, "message": "attempting to grant extra privileges"}
    api.failures = [httpx2.Response(403, json=body)]

    out = ctx.run(ctx.on.config_changed(), fresh)

    assert isinstance(out.unit_status, testing.BlockedStatus)
    assert "attempting to grant extra privileges" in out.unit_status.message
