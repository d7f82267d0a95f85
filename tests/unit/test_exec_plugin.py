"""Credentials that a program gives, named by a kubeconfig (client.authentication.k8s.io)."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.kube import access, exec_plugin
from istio_aux.kube.client import Client
from istio_aux.kube.errors import AccessError, ApiError
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import until
from unit.test_access import kubeconfig

V1 = "client.authentication.k8s.io/v1"


def credential(version: str = V1, **status: Any) -> str:
    """What a plugin prints."""
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


class Plugin:
    """A program that answers with what is in a file, and notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.answer, self.calls = folder, folder / "answer", folder / "calls"
        self.program = folder / "plugin"
        self.says(credential(token="first"))
        self.does(
            f"echo \"$@|$EXTRA|$KUBERNETES_EXEC_INFO\" >> '{self.calls}'",
            f"cat '{self.answer}'",
        )

    def says(self, text: str) -> None:
        self.answer.write_text(text)

    def does(self, *lines: str) -> None:
        self.program.write_text("\n".join(("#!/bin/sh", *lines, "")))
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def client(self, api: ApiServer, **spec: Any) -> Client:
        found = {"apiVersion": V1, "command": str(self.program), "interactiveMode": "Never"} | spec
        return Client(access.load(api.kubeconfig(self.folder, {"exec": found})))


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_a_token_comes_from_the_program_that_the_kubeconfig_names(
    version: str, plugin: Plugin
) -> None:
    plugin.says(credential(version, token="first"))
    async with ApiServer() as api:
        async with plugin.client(
            api, apiVersion=version, command="./plugin", args=["get", "token"],
            env=[{"name": "EXTRA", "value": "more"}],
        ) as client:  # fmt: skip
            await asyncio.gather(*(client.get("/api/v1/pods") for _ in range(5)))
        assert set(api.tokens) == {"Bearer first"}
    (call,) = plugin.called
    arguments, extra, info = call.split("|")
    assert (arguments, extra) == ("get token", "more")
    assert json.loads(info) == {
        "apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}
    }  # fmt: skip


async def test_the_program_gets_the_cluster_if_the_kubeconfig_says_so(plugin: Plugin) -> None:
    async with ApiServer() as api, plugin.client(api, provideClusterInfo=True) as client:
        await client.get("/api/v1/pods")
        told = json.loads(plugin.called[0].split("|")[2])["spec"]["cluster"]
        assert told["server"] == api.url
        assert "certificate-authority-data" in told


async def test_a_token_that_has_expired_is_asked_for_again(plugin: Plugin) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    plugin.says(credential(token="first", expirationTimestamp=past))
    async with ApiServer() as api, plugin.client(api) as client:
        await client.get("/api/v1/pods")
        future = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        plugin.says(credential(token="second", expirationTimestamp=future))
        await client.get("/api/v1/pods")
        await client.get("/api/v1/pods")
        assert api.tokens == ["Bearer first", "Bearer second", "Bearer second"]
        assert len(plugin.called) == 2


async def test_a_token_that_the_server_refuses_is_asked_for_again(plugin: Plugin) -> None:
    async def unauthorized(request: web.Request) -> web.StreamResponse | None:
        if request.headers["Authorization"] == "Bearer second":
            return None
        return refusal(401, "Unauthorized", "Unauthorized")

    async with ApiServer() as api, plugin.client(api) as client:
        api.faults.append(unauthorized)
        with pytest.raises(ApiError, match="401"):
            await client.get("/api/v1/pods")
        plugin.says(credential(token="second"))
        await client.get("/api/v1/pods")
        assert len(plugin.called) == 2


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("no json", "no ExecCredential"),
        (credential("client.authentication.k8s.io/v1beta1", token="a"), "expected ExecCredential"),
        (credential(), "neither token nor client certificate"),
        (credential(clientCertificateData="a"), "clientCertificateData and clientKeyData"),
        (credential(clientCertificateData="a", clientKeyData="b"), "client certificate"),
    ],
)
async def test_an_unusable_answer_is_reported_in_one_line(
    answer: str, complaint: str, plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the program runs again after a while, not at once."""
    plugin.says(answer)
    async with ApiServer() as api, plugin.client(api) as client:
        with pytest.raises(AccessError) as caught:
            await client.get("/api/v1/pods")
        with pytest.raises(AccessError):
            await client.get("/api/v1/pods")
        assert len(plugin.called) == 1
        monkeypatch.setattr(exec_plugin, "AGAIN", 0.0)
        plugin.says(credential(token="second"))
        await client.get("/api/v1/pods")
        assert api.tokens == ["Bearer second"]
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


async def test_a_program_that_fails_is_quoted_and_not_run_again_at_once(plugin: Plugin) -> None:
    plugin.does(f"echo called >> '{plugin.calls}'", "echo 'log in first' >&2", "exit 3")
    async with ApiServer() as api, plugin.client(api) as client:
        tries = (client.get("/api/v1/pods") for _ in range(5))
        for error in await asyncio.gather(*tries, return_exceptions=True):
            assert str(error).endswith("exit status 3: log in first")
    assert len(plugin.called) == 1


async def test_a_program_that_never_ends_is_ended(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "DEADLINE", 0.2)
    plugin.does("sleep 300 &", "sleep 300")
    async with ApiServer() as api, plugin.client(api) as client:
        with pytest.raises(AccessError, match=r"no answer within 0\.2 s"):
            await client.get("/api/v1/pods")


@pytest.mark.parametrize("turns", [2, 3, 4, 20])
async def test_a_program_whose_request_is_cancelled_is_ended_with_its_children(
    turns: int, plugin: Plugin, tmp_path: Path
) -> None:
    """Also so many turns of the event loop after the request, while asyncio starts the program."""
    plugin.does("sleep 300 &", f"echo $! > '{plugin.calls}'", "wait")
    found = {"apiVersion": V1, "command": str(plugin.program), "interactiveMode": "Never"}
    here = access.load(kubeconfig(tmp_path, user={"exec": found}))
    async with asyncio.timeout(60):
        current = asyncio.create_task(here.current())
        for _ in range(turns):
            await asyncio.sleep(0)
        while not plugin.called:
            time.sleep(0.01)  # noqa: ASYNC251  (no turn of the loop passes)
        current.cancel()
        with pytest.raises(asyncio.CancelledError):
            await current
        await until(lambda: has_ended(int(plugin.called[0])), "the child is ended")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for whoever reads its exit status."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_program_that_is_not_there_is_named_with_its_hint(
    plugin: Plugin,
) -> None:
    spec = {"command": "no-such-plugin", "installHint": "snap install it"}
    async with ApiServer() as api, plugin.client(api, **spec) as client:
        with pytest.raises(AccessError, match=r"no-such-plugin: .*; snap install it"):
            await client.get("/api/v1/pods")


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "exec: apiVersion: .*v1alpha1"),
        ({"interactiveMode": None}, "exec: interactiveMode: expected Never, IfAvailable or Always"),
        ({"interactiveMode": "Always"}, "exec: interactiveMode: Always: .* no terminal"),
        ({"command": ""}, "exec: command: expected the name of a program"),
        ({"surprise": 1}, "exec: surprise is not supported"),
    ],
)
def test_a_program_that_cannot_be_run_as_it_should_is_refused(
    spec: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    found = {"apiVersion": V1, "command": "plugin", "interactiveMode": "Never"} | spec
    path = kubeconfig(tmp_path, user={"exec": found})
    with pytest.raises(AccessError, match=f"user u: {complaint}"):
        access.load(path)
