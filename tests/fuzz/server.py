"""`istio-aux serve` in a process of its own, with no other client."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
import urllib.request
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import aiohttp
from unit.apiserver import kubeconfig
from unit.tls import certificate

from benchmarks.processes import cpu, usage
from fuzz.bodies import Ask
from fuzz.judge import Answer

_PROGRAM = (sys.executable, "-c", "import sys; from istio_aux.cli import main; sys.exit(main())")


@dataclass(frozen=True)
class Server:
    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession
    status: str

    async def answer(self, ask: Ask) -> Answer:
        json_ = {"Content-Type": "application/json"}
        async with self.session.post(ask.path, data=BytesIO(ask.body), headers=json_) as answer:
            kind = answer.headers.get("Content-Type", "")
            return Answer(answer.status, kind, await answer.read())

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    @property
    def memory(self) -> float:
        """Resident, in MiB."""
        return usage(self.process.pid).rss / (1 << 20)

    @property
    def cpu(self) -> float:
        return cpu(self.process.pid)

    @property
    def faults(self) -> int:
        with urllib.request.urlopen(f"http://{self.status}/metrics") as answer:
            [count] = re.findall(
                r"^istio_aux_internal_errors_total (\S+)$", answer.read().decode(), re.MULTILINE
            )
        return int(float(count))


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Server]:
    """Run the webhook during the block, without an API server and with `quit: disabled`."""
    crt, key = certificate(folder)
    nowhere = {"server": "https://127.0.0.1:9", "insecure-skip-tls-verify": True}
    settings = {
        "tls-certificate": str(crt),
        "tls-key": str(key),
        "kubeconfig": str(kubeconfig(folder, cluster=nowhere, user={"token": "x"})),
        "webhook-address": "127.0.0.1:0",
        "status-address": "127.0.0.1:0",
        "quit": "disabled",
    }
    (folder / "config.yaml").write_text(json.dumps(settings))
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM, "serve", "--config", str(folder / "config.yaml"), stdout=PIPE, limit=1 << 20
    )
    assert process.stdout
    try:
        started = {}
        while started.get("event") != "start":
            started = json.loads(await process.stdout.readline())
        trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(crt)))
        reading = asyncio.create_task(_drop(process.stdout))
        url = f"https://{started['webhook']}"
        async with aiohttp.ClientSession(url, connector=trust) as session:
            yield Server(process, session, started["status"])
        reading.cancel()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 20):
        pass
