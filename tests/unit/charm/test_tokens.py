"""The workload's token is replaced in time, and when its account was made anew."""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ops import testing

import certificates
from charm import IstioAuxCharm

from .apiserver import ApiServer, jwt

Context = testing.Context[IstioAuxCharm]


@pytest.mark.parametrize(
    ("token", "due"),
    [
        pytest.param("", True, id="there is none"),
        pytest.param("no.token", True, id="it is no token"),
        pytest.param("e30.e30.sig", True, id="it says nothing about itself"),
        pytest.param(jwt("uid", 900, 1200), False, id="a third is used up"),
        pytest.param(jwt("uid", 800, 1100), True, id="two thirds are used up"),
        pytest.param(jwt("uid", 100, 200), True, id="it expired"),
        pytest.param(jwt("other", 900, 1200), True, id="its account was made anew"),
    ],
)
def test_a_token_is_due_when(token: str, due: bool) -> None:
    assert certificates.token_is_due(token, "uid", datetime.fromtimestamp(1000, UTC)) is due


def test_a_token_is_good_for_half_a_day(settled: testing.State, api: ApiServer, etc: Path) -> None:
    assert isinstance(settled.unit_status, testing.ActiveStatus)
    token = (etc / "token").read_text()
    uid = api.one("ServiceAccount")["metadata"]["uid"]

    def due_in(hours: float) -> bool:
        return certificates.token_is_due(
            token, uid, datetime.fromtimestamp(time.time() + hours * 3600, UTC)
        )

    assert not due_in(11.9)
    assert due_in(12.1)


def test_an_old_token_is_replaced(
    ctx: Context, settled: testing.State, api: ApiServer, etc: Path
) -> None:
    uid = api.one("ServiceAccount")["metadata"]["uid"]
    old = jwt(uid, time.time() - 50_000, time.time() + 30_000)
    (etc / "token").write_text(old)

    ctx.run(ctx.on.update_status(), settled)

    assert (etc / "token").read_text() != old


def test_an_account_that_was_deleted_gets_a_new_token(
    ctx: Context, settled: testing.State, api: ApiServer, etc: Path
) -> None:
    before = (etc / "token").read_text()
    (path,) = [p for p, o in api.objects.items() if o["kind"] == "ServiceAccount"]
    del api.objects[path]

    ctx.run(ctx.on.update_status(), settled)

    assert (etc / "token").read_text() != before


def test_a_follower_waits_for_the_account(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.objects.clear()

    out = ctx.run(ctx.on.update_status(), dataclasses.replace(settled, leader=False))

    assert isinstance(out.unit_status, testing.WaitingStatus)
    assert "ServiceAccount istio-aux-workload" in out.unit_status.message
