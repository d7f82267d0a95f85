"""The program as a process, at an API server of a test's own."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from unit.apiserver import ApiServer, proxy_quits
from unit.asynchronous import background, until
from unit.core.pods import RUNNING, State, document, exited
from unit.tls import certificate

PROGRAM = (sys.executable, "-c", "import sys; from istio_aux.cli import main; sys.exit(main())")
LABELS = {"io.datastrophic/istio-aux": "enabled"}


@dataclass
class Served:
    """A running `istio-aux serve`."""

    process: Process
    crt: Path
    log: list[dict[str, Any]] = field(default_factory=list)

    async def read_log(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.log.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    @property
    def addresses(self) -> dict[str, str]:
        return self.events("start")[0]

    async def ask(self, path: str) -> tuple[int, str]:
        url = f"http://{self.addresses['status']}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def status(self) -> dict[str, Any]:
        return json.loads((await self.ask("/status"))[1])

    async def ready(self) -> None:
        await self.listening()
        async with asyncio.timeout(20):
            while (await self.ask("/readyz"))[0] != 200:
                pass

    async def listening(self) -> None:
        await until(lambda: self.events("start"), "it listens", within=30)


def config(folder: Path, api: ApiServer, **settings: str) -> Path:
    crt, key = certificate(folder)
    lines = {
        "tls-certificate": crt,
        "tls-key": key,
        "kubeconfig": api.kubeconfig(folder),
        "webhook-address": "127.0.0.1:0",
        "status-address": "127.0.0.1:0",
        **{key.replace("_", "-"): value for key, value in settings.items()},
    }
    path = folder / "config.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


@asynccontextmanager
async def serving(folder: Path, api: ApiServer, **settings: str) -> AsyncGenerator[Served]:
    path = config(folder, api, **settings)
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "serve", "--config", str(path), stdout=PIPE
    )
    served = Served(process, folder / "tls.crt")
    async with background(served.read_log()) as reading:
        try:
            yield served
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading


async def finished_pod(
    api: ApiServer, name: str, containers: dict[str, State] | None = None
) -> None:
    await api.put("namespaces", {"metadata": {"name": "training", "labels": LABELS}})
    body = document(containers or {"istio-proxy": RUNNING, "main": exited(0)})
    body["metadata"].update(name=name)
    await api.put("pods", body)


def freeing(api: ApiServer) -> Any:
    async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await proxy_quits(socket, namespace, pod)
        body = document({"istio-proxy": exited(0), "main": exited(0)}, phase="Succeeded")
        body["metadata"].update(name=pod)
        body["metadata"].pop("uid")
        await api.put("pods", body)

    return free


async def run(*arguments: str) -> tuple[int, str, str]:
    """Run the program to its end; returns its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(*PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
