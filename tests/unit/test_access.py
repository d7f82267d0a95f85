"""Credentials, and exec over a WebSocket: which are understood, and what is said of others."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import web
from istio_aux.kube import access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import AccessError, UnreachableError
from istio_aux.kube.exec import (
    BYTES,
    FRAMES,
    OUTPUT,
    Channels,
    ExecChannels,
    ForwardChannels,
    execute,
    forward,
)
from istio_aux.model.moment import TokenLife, token_life
from istio_aux.model.pod import Key
from istio_aux.model.sidecars import AttemptResult
from unit.apiserver import OK, ApiServer, Exec, certificate, kubeconfig, sending
from unit.screens import Run

# Credentials: which kubeconfigs are understood, and what is said of one that is not.


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.mark.parametrize("form", ["data", "file", "relative file", "unseen"])
async def test_the_cluster_s_authority_is_trusted_in_any_form(
    api: ApiServer, form: str, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(api.ca.read_bytes())
    cluster = {
        "data": {"certificate-authority-data": encoded(api.ca)},
        "file": {"certificate-authority": str(api.ca)},
        "relative file": {"certificate-authority": "ca.crt"},
        "unseen": {"insecure-skip-tls-verify": True},
    }[form]
    path = kubeconfig(tmp_path, cluster={"server": api.url + "/", **cluster})
    async with Client(access.load(path)) as client:
        assert b"items" in await client.get("/api/v1/pods")


@pytest.mark.parametrize("form", ["data", "files", "one of each"])
async def test_a_client_certificate_is_taken_in_any_form(
    api: ApiServer, form: str, tmp_path: Path
) -> None:
    """The server closes connections without it."""
    crt, key = certificate(tmp_path)
    user = {
        "data": {"client-certificate-data": encoded(crt), "client-key-data": encoded(key)},
        "files": {"client-certificate": crt.name, "client-key": key.name},
        "one of each": {"client-certificate-data": encoded(crt), "client-key": key.name},
    }[form]
    api.demand(crt)
    await api.stop()
    await api.start()
    cluster = {"server": api.url, "certificate-authority": str(api.ca)}
    async with Client(access.load(kubeconfig(tmp_path, cluster=cluster, user=user))) as client:
        assert b"items" in await client.get("/api/v1/pods")
    assert api.tokens == [""]


@pytest.mark.parametrize("password", ["", "secret"], ids=["another's key", "an encrypted key"])
def test_a_client_certificate_whose_key_does_not_open_it_is_refused_without_a_prompt(
    password: str, tmp_path: Path
) -> None:
    crt, key = certificate(tmp_path, password=password)
    if not password:
        _, key = certificate(tmp_path, stem="other")
    user = {"client-certificate": str(crt), "client-key": str(key)}
    with pytest.raises(AccessError, match="client certificate"):
        access.load(kubeconfig(tmp_path, user=user))


def test_a_token_file_is_read_again_when_it_changes_unless_it_is_missing_or_empty(
    tmp_path: Path,
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    token = access.load(kubeconfig(tmp_path, user={"tokenFile": "token"})).token
    file.unlink()
    assert token() == "first"
    file.write_text("")
    assert token() == "first"
    file.write_text("second")
    assert token() == "second"


def jwt(claims: str) -> str:
    """A JSON Web Token with these claims, as the API server signs it, but for the signature."""
    return f"e30.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.sig"


def test_a_token_says_when_it_expires() -> None:
    token = jwt('{"iat": 1700000000, "exp": 1700604800, "sub": "system:serviceaccount:a:b"}')
    assert token_life(token) == TokenLife(1_700_000_000, 1_700_604_800)


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "opaque",
        "e30.e30.sig",
        "a.é.b",
        jwt("no JSON"),
        jwt("[" * 100_000),
        jwt('{"iat": 0, "exp": 1e12}'),
    ],
)
def test_the_life_of_another_token_is_not_known(token: str | None) -> None:
    assert token_life(token) is None


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path)
    crt.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "namespace").write_text("istio-aux\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = access.in_cluster(environ, tmp_path)
    assert (found.server, found.token()) == ("https://[fd00::1]:443", "mounted")
    assert found.namespace == "istio-aux"


def two_contexts(folder: Path) -> Path:
    """A kubeconfig with a second context, which is not the current one."""
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", "namespace": name}}
        for name in ("here", "there")
    ]
    return kubeconfig(folder, contexts=contexts)


@pytest.mark.parametrize("by", ["file", "variable"])
def test_a_context_that_is_given_wins_over_the_current_one(tmp_path: Path, by: str) -> None:
    path = two_contexts(tmp_path)
    given = (path, {}) if by == "file" else (None, {"KUBECONFIG": str(path)})
    assert access.find(*given).namespace == "here"
    assert access.find(*given, context="there").namespace == "there"


@pytest.mark.parametrize("name", ["nowhere", ""])
def test_a_context_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, name: str
) -> None:
    expected = f'context: "{name}": expected one of: here, there'
    with pytest.raises(AccessError, match=re.escape(expected)):
        access.find(two_contexts(tmp_path), context=name)


def test_a_context_without_a_kubeconfig_is_not_the_pods_own_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessError, match=r"\.kube/config: No such file"):
        access.find(None, inside, context="there")


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ({"current-context": "there"}, 'current-context: "there": expected one of: here'),
        ({"context": {"cluster": "d"}}, 'context here: no cluster "d"'),
        ({"cluster": {"server": "api"}}, 'cluster c: server: "api": expected an http or https'),
        ({"cluster": {"server": "https://[::1:6443"}}, 'c: server: "https://[::1:6443": Invalid'),
        ({"cluster": {"server": "https://host:abc"}}, 'c: server: "https://host:abc": Port could'),
        ({"cluster": {"server": "https://me:word@host"}}, "c: server: a user in a URL is not supp"),
        ({"cluster": {"proxy-url": "http://[p"}}, 'c: proxy-url: "http://[p": Invalid'),
        ({"cluster": {"server": 7}}, "cluster c: Expected `str`, got `int` - at `$.server`"),
        ({"context": {"user": "v"}}, 'context here: no user "v"'),
        ({"user": {"as": "admin"}}, "user u: as is not supported"),
        ({"user": {"auth-provider": {"name": "oidc"}}}, "user u: auth-provider is not supported"),
        ({"user": {"client-certificate": "a.crt"}}, "user u: client-certificate without client-k"),
        ({"cluster": {"proxy-url": "socks5://p"}}, 'c: proxy-url: "socks5://p": expected an http'),
        ({"cluster": {"certificate-authority": "no.crt"}}, "no.crt: No such file"),
        ({"cluster": {"certificate-authority-data": "?"}}, "certificate-authority-data: not base"),
        ({"cluster": {"certificate-authority-data": "YQ=="}}, "no certificate authority in PEM"),
        ({"user": {"tokenFile": "none"}}, "none: no token to read"),
        ({"clusters": 7}, "no kubeconfig: Expected `array | null`"),
        ("{", "no kubeconfig: "),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused_in_one_line(
    parts: dict[str, Any] | str, complaint: str, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, **({} if isinstance(parts, str) else parts))
    if isinstance(parts, str):
        path.write_text(parts)
    with pytest.raises(AccessError) as caught:
        access.load(path)
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def part(folder: Path, **parts: Any) -> Path:
    """A file that has some of what makes a kubeconfig."""
    folder.mkdir()
    path = folder / "config"
    path.write_text(json.dumps(parts))
    return path


def test_of_several_kubeconfigs_the_first_that_says_something_wins(tmp_path: Path) -> None:
    """As kubectl merges them (client-go clientcmd loader.go)."""
    one, two = tmp_path / "one", tmp_path / "two"
    first = part(
        one,
        contexts=[{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "one"}}],
        users=[{"name": "u", "user": {"tokenFile": "token"}}],
    )
    (one / "token").write_text("one")
    second = part(
        two,
        contexts=[{"name": "here", "context": {"cluster": "d", "user": "v", "namespace": "two"}}],
        clusters=[{"name": "c", "cluster": {"server": "https://two:6443"}}],
        users=[{"name": "u", "user": {"token": "two"}}],
        **{"current-context": "here"},
    )
    third = part(tmp_path / "three", **{"current-context": "there"})
    variable = f"{first}:{tmp_path / 'absent'}::{second}:{third}"
    found = access.find(None, {"KUBECONFIG": variable})
    assert (found.namespace, found.server) == ("one", "https://two:6443")
    assert found.token() == "one"


def test_kubeconfigs_of_which_none_is_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"KUBECONFIG: no such file: .*/a, .*/b"):
        access.find(None, {"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"})


@pytest.mark.parametrize("mounted", [False, True], ids=["kubeconfig", "service account"])
async def test_a_new_authority_is_trusted_and_the_old_one_is_not_once_its_file_changed(
    api: ApiServer, mounted: bool, tmp_path: Path
) -> None:
    """A cluster's CA is rotated; nothing has to be started again for it."""
    ca = tmp_path / "ca.crt"
    for name in ("token", "namespace"):
        (tmp_path / name).write_text(name)
    other, _ = certificate(tmp_path, stem="other")
    ca.write_bytes(other.read_bytes())
    cluster = {"server": api.url, "certificate-authority": "ca.crt"}
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": api.url[18:]}
    found = (
        access.in_cluster(environ, tmp_path)
        if mounted
        else access.load(kubeconfig(tmp_path, cluster=cluster))
    )
    async with Client(found) as client:
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await client.get("/api/v1/pods")
        ca.write_bytes(api.ca.read_bytes() + b"\n")
        assert b"items" in await client.get("/api/v1/pods")
        ca.write_bytes(other.read_bytes() + b"\n\n")
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await client.get("/api/v1/pods")


async def test_a_kubeconfig_that_changes_is_followed_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ApiServer() as old, ApiServer() as new:
        (folder := tmp_path / "new").mkdir()
        path = old.kubeconfig(tmp_path)
        async with Client(access.load(path)) as client:
            await client.get("/api/v1/pods")
            path.write_text("{")
            await client.get("/api/v1/pods")
            await client.get("/api/v1/pods")
            assert (len(old.requests), len(new.requests)) == (3, 0)
            new.kubeconfig(folder).replace(path)
            await client.get("/api/v1/pods")
            assert (len(old.requests), len(new.requests)) == (3, 1)
    assert caplog.text.count("no kubeconfig") == 1


def test_an_authority_without_key_usage_and_key_identifiers_is_trusted_on_every_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Go, and so kubectl, asks for neither; from Python 3.13 on a context is strict by itself."""
    made = ssl.create_default_context()
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: made)
    flags = access.load(kubeconfig(tmp_path)).tls.verify_flags
    assert not flags & ssl.VERIFY_X509_STRICT
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN


def test_neither_pod_nor_kubeconfig_says_what_to_give() -> None:
    with pytest.raises(AccessError, match="--kubeconfig"):
        access.in_cluster({})


# Ways to the API server that kubectl has, too: proxies, and another user.


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@asynccontextmanager
async def proxy() -> AsyncGenerator[tuple[str, list[str]]]:
    """An HTTP proxy that tunnels: its URL, and what it was asked for."""
    asked, served = list[str](), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split("\r\n")[0])
        host, _, port = head.split()[1].rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_pump(reader, back), _pump(there, writer))
        await asyncio.gather(back.wait_closed(), writer.wait_closed(), return_exceptions=True)
        served.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        await served.wait()
    finally:
        server.close()


async def test_the_proxy_of_a_kubeconfig_is_used(tmp_path: Path) -> None:
    """Its TLS ends at the API server, not at the proxy."""
    async with ApiServer() as api, proxy() as (url, asked):
        cluster = {"certificate-authority": str(api.ca), "proxy-url": url}
        path = kubeconfig(tmp_path, cluster={"server": api.url, **cluster})
        async with Client(access.load(path)) as client:
            assert b"items" in await client.get("/api/v1/pods")
    assert asked == [f"CONNECT {api.url.removeprefix('https://')} HTTP/1.1"]


@pytest.mark.parametrize(
    ("server", "exceptions", "used"),
    [
        ("https://api.example.com", "", True),
        ("https://api.example.com", "example.com", False),
        ("https://api.example.com", "*.example.com", False),
        ("https://api.example.com", "example.com:6443, ple.com", True),
        ("https://api.example.com", "*", False),
        ("https://10.1.2.3:6443", "10.0.0.0/8", False),
        ("https://10.1.2.3:6443", "10.2.0.0/16", True),
        ("https://10.1.2.3:6443", "10.1.2.3", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://localhost:6443", "", False),
    ],
)
def test_the_environment_names_a_proxy_and_its_exceptions(
    server: str, exceptions: str, used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for every program in Go (golang.org/x/net http/httpproxy)."""
    monkeypatch.setenv("HTTPS_PROXY", "proxy:3128")
    monkeypatch.setenv("NO_PROXY", exceptions)
    path = kubeconfig(tmp_path, cluster={"server": server})
    assert access.load(path).proxy == ("http://proxy:3128" if used else None)


async def test_another_user_asks(api: ApiServer, tmp_path: Path) -> None:
    """Also after credentials are looked at again, as before each request."""
    users = list[str]()

    async def asked(request: web.Request) -> None:
        users.append(request.headers.get("Impersonate-User", ""))

    api.faults += [asked]
    async with Client(access.load(api.kubeconfig(tmp_path)), user="eve") as client:
        await client.get("/api/v1/pods")
        await client.get("/api/v1/pods")
    assert users == ["eve"] * 2


def test_a_command_takes_another_user(tmp_path: Path, run: Run) -> None:
    argv = ("--as", "eve", "--kubeconfig", str(tmp_path / "none"))
    assert run("audit", *argv).err == f"{tmp_path / 'none'}: No such file or directory\n"


# Exec over a WebSocket: frames to a result, and every way in which none comes.
#
# istio.io#5073, istio#11659, python#2156, kubernetes#103177, python#1132.

SUCCESS = b'\x03{"metadata":{},"status":"Success"}'


def failure(code: str) -> bytes:
    """The Status of a command that ended with a code (remotecommand v4)."""
    status = {
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": code}]},
    }
    return b"\x03" + json.dumps(status).encode()


C = TypeVar("C", bound=Channels)


def fed(channels: C, *frames: bytes) -> C:
    for frame in frames:
        channels.feed(frame)
    return channels


def said(text: str) -> AttemptResult:
    return AttemptResult(text.startswith(("exit code 0", "HTTP 2")), sent=True, text=text)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        pytest.param([b"\x01OK\n", SUCCESS], "exit code 0: OK", id="success"),
        pytest.param([b"\x01", b"\x02", b"\x03", b"", SUCCESS], "exit code 0", id="empty frames"),
        pytest.param([b"\x01OK", b"\x02o\nh", SUCCESS], "exit code 0: o h", id="stderr"),
        pytest.param([b"\x07?", b"\xff\x01", SUCCESS], "exit code 0", id="unknown channels"),
        pytest.param(
            [failure("255")],
            "exit code 255: command terminated with non-zero exit code: exit status 255",
            id="exit code",
        ),
        pytest.param(
            [b'\x03{"status":"Failure","message":"container not found (\\"istio-proxy\\")"}'],
            'no exit code: container not found ("istio-proxy")',
            id="no exit code",
        ),
        pytest.param(
            [failure("many")],
            "no exit code: command terminated with non-zero exit code: exit status many",
            id="exit code is no number",
        ),
        pytest.param([b"\x01OK"], "no exit code: cut", id="no status"),
        pytest.param([b"\x01\xff", SUCCESS], "exit code 0: \ufffd", id="no UTF-8"),
    ],
)  # fmt: skip
def test_frames_make_a_result(frames: list[bytes], text: str) -> None:
    assert fed(ExecChannels(), *frames).result("cut") == said(text)


POD = Key("training", "job", "u-1")


async def run(api: ApiServer, client: Client) -> AttemptResult:
    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await execute(client, POD, ["pilot-agent", "request", "a b"], 10)


async def answered(on_exec: Exec) -> AttemptResult:
    async with ApiServer() as api, Client(api.access()) as client:
        api.on_exec = on_exec
        return await run(api, client)


async def test_the_command_arrives_word_by_word_with_output_and_without_input(
    api: ApiServer, client: Client
) -> None:
    assert await run(api, client) == said("exit code 0: OK")
    words = ("pilot-agent", "request", "a b")
    assert api.execs == [("training", "job", "istio-proxy", words)]
    query = api.queries[-1]
    assert (query["stdout"], query["stderr"], "stdin" in query) == ("true", "true", False)


@pytest.mark.parametrize("spoken", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
async def test_either_protocol_will_do_and_the_newer_is_preferred(
    api: ApiServer, client: Client, spoken: str
) -> None:
    """The handshake accepts any type, because a kubelet names none."""
    offered: list[str] = []

    async def speak(request: web.Request) -> web.StreamResponse | None:
        assert request.headers["Accept"] == "*/*"
        offered.append(request.headers["Sec-WebSocket-Protocol"])
        socket = web.WebSocketResponse(protocols=(spoken,))
        await socket.prepare(request)
        await socket.send_bytes(SUCCESS)
        await socket.close()
        return socket

    api.faults.append(speak)
    assert (await run(api, client)).well
    assert offered[0].replace(" ", "") == "v5.channel.k8s.io,v4.channel.k8s.io"


async def test_a_socket_that_is_closed_without_a_status_is_no_verdict() -> None:
    found = await answered(sending(b"\x01OK"))
    assert found == said("no exit code: closed without a status (1000)")


@pytest.mark.parametrize(
    ("frame", "frames"),
    [
        pytest.param(b"\x01", FRAMES + 1, id="many frames"),
        pytest.param(b"\x01" + b"x" * (64 << 10), BYTES // (64 << 10), id="many bytes"),
    ],
)
async def test_a_command_that_says_too_much_is_left(frame: bytes, frames: int) -> None:
    """A tenant's program may send as much as it can."""
    why = f"closed after {frames} frames and {frames * len(frame)} bytes without a result"
    assert await answered(sending(*[frame] * (frames + 10))) == said(f"no exit code: {why}")


async def test_a_refused_handshake_says_what_the_api_server_said(
    api: ApiServer, client: Client
) -> None:
    """By `create` since Kubernetes 1.35, by `get` before."""
    why = 'pods "job" is forbidden: User "me" cannot create'
    api.refuse("/exec", 403, "Forbidden", why)
    result = await run(api, client)
    assert result == AttemptResult(False, False, f"no exit code: 403 Forbidden: {why}")


# An HTTP request through a forwarded port.

DATA, ERROR = b"\x00", b"\x01"
OPENED = [b"\x00\xac:", b"\x01\xac:"]
"""How both channels begin when 15020 is forwarded, as recorded."""
REFUSED = b"error forwarding port 15020 to pod u-1: connection refused"


def forwarded(*frames: bytes) -> AttemptResult:
    channels = fed(ForwardChannels(), *frames)
    return channels.result("" if channels.finished else "cut")


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        pytest.param([DATA + OK], "HTTP 200: OK", id="200"),
        pytest.param([DATA + OK[:5], DATA, DATA + OK[5:]], "HTTP 200: OK", id="in parts"),
        pytest.param([DATA + OK.replace(b"\r\n", b"\n")], "HTTP 200: OK", id="bare LF"),
        pytest.param([b"\x02?", b"\xff!", b"", DATA + OK], "HTTP 200: OK",
                     id="unknown channels"),
        pytest.param([DATA + b"HTTP/1.1 403 Forbidden\r\ncontent-length: 9\r\n\r\nlocalhost"],
                     "HTTP 403: localhost", id="403"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nO", DATA + b"K"], "HTTP 200: OK",
                     id="no length"),
        pytest.param([DATA + OK[:9]], "no answer: cut", id="cut in the first line"),
        pytest.param([ERROR + REFUSED], f"no answer: {REFUSED.decode()}",
                     id="nobody listens"),
        pytest.param([DATA + OK[:-1], ERROR + b"reset"], "HTTP 200: reset",
                     id="an answer and an error"),
        pytest.param([], "no answer: cut", id="nothing"),
    ],
)  # fmt: skip
def test_forwarded_frames_make_a_result(frames: list[bytes], text: str) -> None:
    assert forwarded(*OPENED, *frames) == said(text)


@pytest.mark.parametrize(
    ("frames", "finished"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([DATA + OK[:-3]], False, id="no body yet"),
        pytest.param([DATA + OK], True, id="all of it"),
        pytest.param([DATA + OK.lower().replace(b"http", b"HTTP")], True, id="any spelling"),
        pytest.param([DATA + b"HTTP/1.1 200 OK\r\n\r\nOK"], False, id="no length: to the end"),
        pytest.param([DATA + b"x" * OUTPUT], False, id="much, and no end of the head"),
        pytest.param([ERROR + REFUSED], True, id="an error"),
    ],
)
def test_an_answer_is_over_when_its_length_or_the_node_says_so(
    frames: list[bytes], *, finished: bool
) -> None:
    assert fed(ForwardChannels(), *OPENED, *frames).finished is finished


def test_single_bytes_cost_no_more_than_a_glance_each() -> None:
    """What a pod's own program sends, and how, is the tenant's affair."""
    channels = fed(ForwardChannels(), *OPENED, DATA + b"\nx" * (OUTPUT // 2 - FRAMES))
    began = time.thread_time()
    for _ in range(FRAMES):
        channels.feed(DATA + b"x")
        assert not channels.finished
    assert time.thread_time() - began < 1, "0.01 s; with a look at all that has come, 7 s"


def test_an_answer_that_is_no_http_is_no_status() -> None:
    result = forwarded(*OPENED, DATA + b"SSH-2.0\r\n\r\n" + b"x" * OUTPUT)
    assert not result.well
    assert result.text.startswith("no answer: the answer is no HTTP: 'SSH-2.0")


async def quit_at(api: ApiServer, client: Client, deadline: float = 10) -> AttemptResult:
    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    return await forward(client, POD, 18020, "POST /quitquitquit", deadline)


async def test_the_request_arrives_at_the_port_and_its_answer_here(
    api: ApiServer, client: Client
) -> None:
    assert await quit_at(api, client) == said("HTTP 200: OK")
    ((*to, head),) = api.forwards
    assert to == ["training", "job", 18020]
    assert head.split("\r\n")[:2] == ["POST /quitquitquit HTTP/1.1", "Host: localhost:18020"]


async def test_a_refusal_is_heard_although_the_node_has_closed_before_the_request(
    api: ApiServer, client: Client
) -> None:
    """It connects to the port at once; that of a real one came before the pod was read again."""
    refused = asyncio.Event()

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/portforward"):
            return None
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for frame in (*OPENED, ERROR + REFUSED):
            await socket.send_bytes(frame)
        assert request.transport
        request.transport.close()
        refused.set()
        return socket

    async def still() -> bool:
        await refused.wait()
        await asyncio.sleep(0.05)  # No event says that the connection is closed on this side.
        return True

    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    api.faults.append(refuse)
    channels = ForwardChannels()
    await forward(client, POD, 15020, "GET /", 10.0, still=still, channels=channels)
    assert channels.ready is False
