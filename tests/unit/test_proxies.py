"""Ways to the API server that kubectl has, too: proxies, another user, and patience."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from istio_aux.kube import access
from istio_aux.kube.client import Client
from unit.apiserver import ApiServer
from unit.screens import Run
from unit.test_access import kubeconfig


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


def through(path: Path, url: str) -> Path:
    config = json.loads(path.read_text())
    config["clusters"][0]["cluster"]["proxy-url"] = url
    path.write_text(json.dumps(config))
    return path


async def test_the_proxy_of_a_kubeconfig_is_used(tmp_path: Path) -> None:
    """Its TLS ends at the API server, not at the proxy."""
    async with ApiServer() as api, proxy() as (url, asked):
        found = access.load(through(api.kubeconfig(tmp_path), url))
        async with Client(found) as client:
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


async def test_another_user_asks(tmp_path: Path) -> None:
    """Also after credentials are looked at again, as before each request."""
    users = list[str]()
    async with ApiServer() as api:

        async def asked(request: web.Request) -> None:
            users.append(request.headers.get("Impersonate-User", ""))

        api.faults += [asked]
        found = access.load(api.kubeconfig(tmp_path))
        async with Client(access.acting(found, "eve")) as client:
            await client.get("/api/v1/pods")
            await client.get("/api/v1/pods")
    assert users == ["eve"] * 2


def test_a_command_takes_another_user(tmp_path: Path, run: Run) -> None:
    argv = ("--as", "eve", "--kubeconfig", str(tmp_path / "none"))
    assert run("audit", *argv).err == f"{tmp_path / 'none'}: No such file or directory\n"
