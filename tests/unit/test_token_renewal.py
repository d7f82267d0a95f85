"""The workload keeps its own token good, with nobody's help and beside somebody else who may."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from istio_aux.kube import access
from istio_aux.kube.client import Client
from istio_aux.kube.token_renewal import LIFE, TokenRenewal
from unit.apiserver import ApiServer
from unit.asynchronous import background, driven, until
from unit.store import Object, refusal

RENEW = "POST /api/v1/namespaces/kubeflow/serviceaccounts/istio-aux-workload/token"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
HOUR = 3600.0
FORBIDDEN = 'serviceaccounts "istio-aux-workload" is forbidden'


def token(issued: float, life: float = 24 * HOUR, account: str = "istio-aux-workload") -> str:
    """A token as the API server signs it, but for the signature."""
    claims = {
        "iat": int(issued), "exp": int(issued + life),
        "sub": f"system:serviceaccount:kubeflow:{account}",
    }  # fmt: skip
    text = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
    return f"e30.{text.rstrip('=')}.sig"


def names(folder: Path) -> set[str]:
    """What the folder has in it."""
    return {path.name for path in folder.iterdir()}


class Process:
    """A process that renews its token in a folder of its own; a test turns its clock."""

    def __init__(self, api: ApiServer, folder: Path, first: str) -> None:
        self.api, self.file, self.now = api, folder / "token", NOON
        self.file.write_text(first)
        self.access = access.load(api.kubeconfig(folder, {"tokenFile": "token"}))
        self.looks = 0
        self.results: list[bool] = []
        self.lives: list[float] = []
        api.grants = self._grant

    def _grant(self, account: str, spec: Object) -> str:
        self.lives.append(spec["expirationSeconds"])
        return token(self.now, self.lives[-1], account.partition("/")[2])

    def clock(self) -> float:
        self.looks += 1
        return self.now

    @property
    def token(self) -> str:
        return self.file.read_text()

    @property
    def renewals(self) -> int:
        return self.api.requests.count(RENEW)

    @asynccontextmanager
    async def renewing(self) -> AsyncGenerator[TokenRenewal]:
        async with Client(self.access) as client:
            renewal = TokenRenewal(
                client, self.access, counted=self.results.append, clock=self.clock,
                look=0.02, retry=(0.02, 0.04),
            )  # fmt: skip
            async with background(renewal.run()):
                yield renewal


@driven
async def test_a_week_without_its_charm_costs_a_workload_nothing(tmp_path: Path) -> None:
    """Each token is asked for with the one before, in its own name, and is in the file."""
    first = token(NOON - 1)
    async with ApiServer() as api:
        process = Process(api, tmp_path, first)
        async with process.renewing() as renewal:
            await until(lambda: renewal.expires, "it has looked")
            assert (process.token, process.renewals) == (first, 0)
            for half_day in range(1, 16):
                process.now = NOON + half_day * 12.1 * HOUR
                await until(lambda: process.token == token(process.now), "it is renewed")
                async with Client(process.access) as client:
                    await client.get("/api/v1/pods")
                assert api.tokens[-1] == f"Bearer {process.token}"
            assert renewal.expires == datetime.fromtimestamp(process.now + LIFE, UTC)
            assert renewal.trouble == ""
        assert process.now - NOON > 7 * 24 * HOUR
        assert set(process.results) == {True}
        assert set(process.lives) == {LIFE}


@driven
async def test_nothing_is_asked_for_during_the_first_half_of_a_life(tmp_path: Path) -> None:
    async with ApiServer() as api:
        process = Process(api, tmp_path, token(NOON))
        async with process.renewing() as renewal:
            await until(lambda: renewal.expires, "it has looked")
            process.now = NOON + 11.9 * HOUR
            looks = process.looks
            await until(lambda: process.looks > looks + 3, "it has looked several times")
            assert process.renewals == 0
            process.now = NOON + 12.1 * HOUR
            await until(lambda: process.results == [True], "it is renewed")


@driven
async def test_an_api_server_that_grants_less_is_asked_again_in_time(tmp_path: Path) -> None:
    async with ApiServer() as api:
        process = Process(api, tmp_path, token(NOON - 20 * HOUR))
        api.grants = lambda _account, _spec: token(process.now, life=HOUR)
        async with process.renewing():
            await until(lambda: process.token == token(NOON, life=HOUR), "it is renewed")
            process.now = NOON + 0.6 * HOUR
            await until(lambda: process.token == token(process.now, life=HOUR), "and again")


@pytest.mark.parametrize("code", [401, 403, 500])
@driven
async def test_a_refusal_is_shown_before_the_token_expires_and_tried_again(
    code: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse | None:
        if refused and request.path.endswith("/token"):
            api.faults.append(refuse)
            return refusal(code, "Refused", FORBIDDEN)
        return None

    refused = True
    async with ApiServer() as api:
        api.faults.append(refuse)
        process = Process(api, tmp_path, old := token(NOON - 13 * HOUR))
        async with process.renewing() as renewal:
            await until(lambda: len(process.results) > 3, "it has tried several times")
            assert renewal.trouble == f"{code} Refused: {FORBIDDEN}"
            assert renewal.expires == datetime.fromtimestamp(NOON + 11 * HOUR, UTC)
            assert process.token == old
            refused = False
            await until(lambda: process.token == token(NOON), "it is renewed")
            await until(lambda: renewal.trouble == "", "nothing is wrong any more")
    said = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert said == [f"token not renewed: {code} Refused: {FORBIDDEN}"], "once"


@driven
async def test_a_token_that_the_charm_writes_meanwhile_stays(tmp_path: Path) -> None:
    of_the_charm = token(NOON + 1)
    async with ApiServer() as api:
        process = Process(api, tmp_path, token(NOON - 13 * HOUR))

        def grant(_account: str, _spec: Object) -> str:
            process.file.write_text(of_the_charm)
            return token(NOON)

        api.grants = grant
        async with process.renewing() as renewal:
            expires = datetime.fromtimestamp(NOON + 1 + LIFE, UTC)
            await until(lambda: renewal.expires == expires, "it has looked again")
            assert process.token == of_the_charm


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("opaque", "expected a JSON Web Token of a ServiceAccount"),
        ("e30.e30.sig", "expected a JSON Web Token of a ServiceAccount"),
        (
            token(NOON, account="x").replace("e30.", "e30.bm90IEpTT04.", 1),
            "expected a JSON Web Token of a ServiceAccount",
        ),
        (token(NOON, life=1e12), "expected a JSON Web Token of a ServiceAccount"),
    ],
)
@driven
async def test_a_token_of_another_kind_is_left_alone(
    written: str, complaint: str, tmp_path: Path
) -> None:
    async with ApiServer() as api:
        process = Process(api, tmp_path, written)
        async with process.renewing() as renewal:
            await until(lambda: renewal.trouble, "it has looked")
            assert complaint in renewal.trouble
            assert process.token == written
            process.file.write_text(token(NOON))
            await until(lambda: not renewal.trouble, "somebody wrote another one")


@driven
async def test_a_kubeconfig_without_a_token_file_is_reported(tmp_path: Path) -> None:
    async with ApiServer() as api:
        user = {"token": token(NOON - 13 * HOUR)}
        found = access.load(api.kubeconfig(tmp_path, user))
        async with Client(found) as client:
            renewal = TokenRenewal(client, found, clock=lambda: NOON)
            async with background(renewal.run()):
                await until(lambda: renewal.trouble, "it has looked")
        assert renewal.trouble == "token: the kubeconfig has no tokenFile to renew"
        assert RENEW not in api.requests


@driven
async def test_nobody_else_can_read_the_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        async with ApiServer() as api:
            process = Process(api, tmp_path, token(NOON - 13 * HOUR))
            before = names(tmp_path)
            async with process.renewing():
                await until(lambda: process.results, "it is renewed")
            assert stat.S_IMODE(process.file.stat().st_mode) == 0o600
            assert names(tmp_path) == before
    finally:
        os.umask(umask)


@driven
async def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    async with ApiServer() as api:
        process = Process(api, tmp_path, token(NOON - 13 * HOUR))
        (tmp_path / ".token.new").mkdir()
        async with process.renewing() as renewal:
            await until(lambda: renewal.trouble, "it has tried")
            assert ".token.new" in renewal.trouble
            (tmp_path / ".token.new").rmdir()
            await until(lambda: process.token == token(NOON), "it is renewed")
