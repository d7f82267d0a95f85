"""How a request fails, what it never does, and how long a client waits after failures."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import re
import socket
import stat
import time
from collections.abc import AsyncIterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.kube import access, actions, client as kube_client, exec_plugin
from istio_aux.kube.client import Client
from istio_aux.kube.errors import (
    AccessError,
    ApiError,
    Backoff,
    InvalidNameError,
    NoConnectionError,
    UnreachableError,
)
from unit.apiserver import ApiServer, Fault, refusal
from unit.process import until
from unit.test_access import kubeconfig


def connections(port: int) -> list[socket.socket]:
    """Those of this process to a server that are open."""
    found = list[socket.socket]()
    for each in gc.get_objects():
        if isinstance(each, socket.socket) and each.family == socket.AF_INET:
            with suppress(OSError):  # It is closed, or not connected.
                found += [each] if each.getpeername()[1] == port else []
    return found


async def drained(lines: AsyncIterable[object]) -> None:
    async for _ in lines:
        pass


def saying(response: web.Response) -> Fault:
    """Answer one request so."""

    async def fault(_request: web.Request) -> web.Response:
        return response

    return fault


async def test_an_error_in_plain_text_is_cut_to_one_line(api: ApiServer, client: Client) -> None:
    page = web.Response(status=502, text="<html>\n<p>bad gateway</p>\n" + "x" * 5000)
    api.faults.append(saying(page))
    with pytest.raises(ApiError) as caught:
        await client.get("/api/v1/pods")
    assert str(caught.value).startswith("502: <html> <p>bad gateway</p> xxx")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("soon", None), ("", None)])
async def test_the_time_that_a_server_asks_for_is_read(
    api: ApiServer, client: Client, header: str, seconds: int | None
) -> None:
    api.faults.append(saying(refusal(429, "TooManyRequests", headers={"Retry-After": header})))
    with pytest.raises(ApiError) as caught:
        await client.get("/api/v1/pods")
    assert caught.value.retry_after == seconds


async def test_a_type_is_that_of_the_first_version_of_its_group_that_serves_it(
    api: ApiServer, client: Client
) -> None:
    def version(name: str, *kinds: str) -> dict[str, object]:
        types = [{"resource": f"{each}s".lower(), "responseKind": {"kind": each}} for each in kinds]
        return {"version": name, "resources": types}

    versions = [version("v1", "Job"), version("v1beta1", "Job", "CronJob")]
    groups: list[dict[str, object]] = [{"metadata": {"name": "batch"}, "versions": versions}]
    api.faults += [saying(web.json_response({"items": items})) for items in ([], groups)]
    types = await actions.served_types(client)
    assert [(each.version, each.kind) for each in types] == [("v1", "Job"), ("v1beta1", "CronJob")]


async def test_a_token_that_no_header_may_have_is_named_and_not_shown(api: ApiServer) -> None:
    async with Client(dataclasses.replace(api.access(), token=lambda: "first\nsecond")) as client:
        with pytest.raises(AccessError, match="token") as caught:
            await client.get("/api/v1/pods")
    assert "first" not in str(caught.value)


async def test_a_redirect_is_an_error_because_it_would_carry_the_token_away(
    api: ApiServer, client: Client
) -> None:
    api.faults.append(saying(web.Response(status=302, headers={"Location": api.url})))
    with pytest.raises(ApiError, match="302"):
        await client.get("/api/v1/pods")
    assert len(api.requests) == 1


async def test_a_server_that_never_finishes_the_handshake_has_been_asked_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a watch goes on from its version; a list would tell the server the same at more cost."""
    monkeypatch.setattr(kube_client, "CONNECT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with ApiServer() as api:
            server = f"https://127.0.0.1:{silent.getsockname()[1]}"
            async with Client(dataclasses.replace(api.access(), server=server)) as client:
                with pytest.raises(NoConnectionError, match="Connection timeout"):
                    await client.get("/api/v1/pods")


@pytest.mark.parametrize("turns", range(20))
async def test_a_client_leaves_no_connection_open_whenever_its_watch_was_cancelled(
    api: ApiServer,
    turns: int,
) -> None:
    async with Client(api.access()) as client:
        lines = client.watch("/api/v1/pods", {"watch": "1", "resourceVersion": "1"}, silence=60)
        watch = asyncio.create_task(drained(lines))
        for _ in range(turns):
            await asyncio.sleep(0)
        watch.cancel()
        await asyncio.wait([watch])
    assert not connections(int(api.url.rpartition(":")[2]))


async def test_an_answer_that_comes_byte_by_byte_is_given_up(
    api: ApiServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waits for it holds one of few places."""
    monkeypatch.setattr(kube_client, "REQUEST", 0.3)

    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    api.faults.append(drip)
    with pytest.raises(UnreachableError, match=r"no complete answer within 0\.3 s"):
        await client.get("/api/v1/pods")


def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    backoff = Backoff(first=1, longest=8)
    waits = [backoff.next() for _ in range(6)]
    for wait, step in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert step / 2 <= wait <= step
    assert len(set(waits[3:])) > 1, "clients that failed together do not come back together"
    assert max(backoff.next() for _ in range(5000)) <= 8, "nor does it overflow"
    backoff.reset()
    assert backoff.next() <= 1, "after a success the next failure is the first again"


# Paths.

SOURCE = Path(actions.__file__).parents[1]

BAD = ["", ".", "..", "../pods", "a/b", "a?watch=1", "a#b", "a%2fb", "A", "a b", "a\n", "é", "-a",
       "a-", "a..b", "a.-b", "a" * 254, "a;b", "a\x00", "\u0661"]  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_object_can_be_called_is_in_no_path(name: str) -> None:
    """A tenant writes the references of its pods to their owners."""
    with pytest.raises(InvalidNameError, match=r"no object can have it"):
        actions.pod_path("training", name)
    if name:
        with pytest.raises(InvalidNameError, match=r"no object can have it"):
            actions.collection("v1", "pods", name)


@pytest.mark.parametrize("api", ["", "v1/", "batch/", "batch/..", "batch/../v1", "/v1", "a/b/v1",
                                 "batch/v1?", "Batch/v1"])  # fmt: skip
def test_what_no_group_can_be_called_is_in_no_path(api: str) -> None:
    with pytest.raises(InvalidNameError, match="serves none of that name"):
        actions.collection(api, "jobs", "training")


def test_an_error_shows_the_beginning_of_a_long_name_in_one_line() -> None:
    with pytest.raises(InvalidNameError) as caught:
        actions.pod_path("training", "\n" + "x" * 100_000)
    assert str(caught.value) == rf'name "\n{"x" * 59}…": no object can have it (RFC 1123)'


def test_no_other_file_makes_a_path() -> None:
    made = re.compile(r"""["'][^"'\s`]*(/api/v1|/apis/|/namespaces/)""")
    found = {
        str(file.relative_to(SOURCE)): line.strip()
        for file in sorted(SOURCE.rglob("*.py"))
        for line in file.read_text().splitlines()
        if made.search(line)
    }
    assert found.keys() == {"kube/actions.py"}, found


# Credentials that a program gives, named by a kubeconfig (client.authentication.k8s.io).


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
    api: ApiServer, version: str, plugin: Plugin
) -> None:
    plugin.says(credential(version, token="first"))
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


def kuberc(**given: object) -> str:
    return json.dumps(
        {"apiVersion": "kubectl.config.k8s.io/v1beta1", "kind": "Preference", **given}
    )


ALLOWLIST = "credentialPluginAllowlist"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (kuberc(), ""),
        (kuberc(credentialPluginPolicy="AllowAll"), ""),
        (kuberc(credentialPluginPolicy="DenyAll"), "credentialPluginPolicy: DenyAll"),
        (kuberc(credentialPluginPolicy="Deny"), '"Deny": expected AllowAll, DenyAll or Allowlist'),
        (kuberc(credentialPluginPolicy="Allowlist"), "credentialPluginAllowlist: it is not in"),
        (kuberc(credentialPluginPolicy="Allowlist", **{ALLOWLIST: [{"command": "other"}]}),
         "credentialPluginAllowlist: it is not in"),
        (kuberc(credentialPluginPolicy="Allowlist", **{ALLOWLIST: [{"name": "sh"}]}), ""),
        (kuberc(credentialPluginPolicy="Allowlist", **{ALLOWLIST: [{"command": "/bin/sh"}]}), ""),
        ("kind: Other\n---\n" + kuberc(credentialPluginPolicy="DenyAll"), "DenyAll"),
        ("{", "Expecting property name"),
        (None, "No such file"),
    ],
    ids=["no policy", "all", "none", "another word", "an empty list", "another one is in the list",
         "its name is in the list", "its path is in the list", "a second document", "no YAML",
         "it is not there"],
)  # fmt: skip
def test_a_kuberc_says_which_programs_may_run(
    text: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubernetes/enhancements#3104, as kubectl 1.35."""
    path = tmp_path / "kuberc"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("KUBERC", str(path))
    monkeypatch.setenv("PATH", "/bin")
    spec = {"apiVersion": V1, "command": "sh", "interactiveMode": "Never"}
    if not why:
        access.load(kubeconfig(tmp_path, user={"exec": spec}))
        return
    with pytest.raises(AccessError) as caught:
        access.load(kubeconfig(tmp_path, user={"exec": spec}))
    assert str(path) in str(caught.value)
    assert why in str(caught.value)
