"""The program as a process: `istio-aux serve` and `istio-aux audit`, signals and exit statuses."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from unit.apiserver import ApiServer, proxy_quits
from unit.asynchronous import background, driven, until
from unit.core.pods import RUNNING, document, exited
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


async def finished_pod(api: ApiServer, name: str) -> None:
    await api.put("namespaces", {"metadata": {"name": "training", "labels": LABELS}})
    body = document({"istio-proxy": RUNNING, "main": exited(0)})
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


@driven
async def test_it_serves_watches_and_frees(tmp_path: Path) -> None:
    async with ApiServer() as api:
        api.on_exec = freeing(api)
        async with serving(tmp_path, api) as served:
            await served.ready()
            await finished_pod(api, "job")
            await until(lambda: served.events("quit"), "the pod is freed")
            assert (await served.ask("/livez"))[0] == 200
            status = await served.status()
            assert status["ready"] is True
            assert status["selected-namespaces"] == ["training"]
            assert (status["stuck-pods"], status["quits-total"]) == ([], 1)
            metrics = (await served.ask("/metrics"))[1]
            assert 'istio_aux_quits_total{outcome="exited",rung="exec"} 1.0' in metrics
            trust = ssl.create_default_context(cafile=str(served.crt))
            url = f"https://{served.addresses['webhook']}/mutate"
            post = {"json": {}, "ssl": trust}
            async with aiohttp.ClientSession() as session, session.post(url, **post) as answer:
                assert answer.status == 400


@driven
async def test_it_is_not_ready_before_it_has_seen_all_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    async with ApiServer() as api:
        path = api.kubeconfig(tmp_path)
        await api.stop()
        async with serving(tmp_path, api, kubeconfig=str(path)) as served:
            await until(lambda: served.events("watch"), "the API server is missed", within=30)
            code, text = await served.ask("/readyz")
            assert code == 503
            assert "pods: no complete list yet: /api/v1/pods: Cannot connect to host" in text
            assert "namespaces: no complete list yet" in text
            assert (await served.status())["ready"] is False
            assert (await served.ask("/livez"))[0] == 200
            await api.start()
            await served.ready()


@driven
async def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    async with ApiServer() as api, serving(tmp_path, api) as served:
        await served.ready()
        trust = ssl.create_default_context(cafile=str(served.crt))
        host, port = served.addresses["webhook"].split(":")
        # A connection that idles, as the API server keeps some: it must not delay the end.
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert await served.process.wait() == 0
        assert time.monotonic() - began < 9, "the deadline of an exec is 10 s"
        assert await reader.read() == b""
        writer.close()
    assert [line["event"] for line in served.log[-2:]] == ["stop", "stopped"]


@driven
async def test_a_hung_exec_does_not_delay_the_end(tmp_path: Path) -> None:
    async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
        await asyncio.sleep(30)

    async with ApiServer() as api:
        api.on_exec = hang
        await finished_pod(api, "job")
        async with serving(tmp_path, api) as served:
            await until(lambda: api.execs, "the exec hangs", within=30)
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            assert await served.process.wait() == 0
            assert time.monotonic() - began < 9, "the deadline of an exec is 10 s"


@driven
async def test_a_second_sigterm_ends_it_at_once(tmp_path: Path) -> None:
    async with ApiServer() as api, serving(tmp_path, api) as served:
        await served.ready()
        served.process.send_signal(signal.SIGTERM)
        await until(lambda: served.events("stop"), "the first has arrived")
        served.process.send_signal(signal.SIGTERM)
        assert await served.process.wait() == 1
    assert served.events("stopped") == []


@driven
async def test_kill_9_in_the_middle_of_an_attempt_loses_nobody(tmp_path: Path) -> None:
    async def hang(_socket: web.WebSocketResponse, *_: str) -> None:
        await asyncio.sleep(30)

    async with ApiServer() as api:
        api.on_exec = hang
        await finished_pod(api, "job")
        async with serving(tmp_path, api) as served:
            await until(lambda: api.execs, "the attempt is made", within=30)
            served.process.kill()
        api.on_exec = freeing(api)
        async with serving(tmp_path, api) as served:
            await until(lambda: served.events("quit"), "the next process frees it", within=30)


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(*PROGRAM, *arguments, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"namespace_selector": "a in b"}, 'config.yaml: namespace-selector: "a in b": expected'),
        ({"tls_key": "/absent"}, "/absent: no certificate and key: No such file"),
        ({"kubeconfig": "/absent"}, "/absent: No such file or directory"),
    ],
)
@driven
async def test_what_cannot_be_used_is_one_line_and_exit_2(
    settings: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    async with ApiServer() as api:
        path = config(tmp_path, api, **settings)
        code, out, err = await run("serve", "--config", str(path))
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1


@driven
async def test_a_port_that_is_taken_is_one_line_and_exit_1(tmp_path: Path) -> None:
    async with ApiServer() as api:
        taken = api.url.removeprefix("https://")
        path = config(tmp_path, api, status_address=taken)
        code, out, _ = await run("serve", "--config", str(path))
    assert code == 1
    assert "address already in use" in json.loads(out.splitlines()[-1])["message"]


@driven
async def test_audit_prints_what_it_finds(tmp_path: Path) -> None:
    async with ApiServer() as api:
        await finished_pod(api, "job")
        kubeconfig = str(api.kubeconfig(tmp_path))
        code, out, _ = await run("audit", "--kubeconfig", kubeconfig, "-o", "json")
        assert (code, json.loads(out)["name"]) == (0, "job")
        code, out, _ = await run("audit", "--kubeconfig", kubeconfig, "-n", "other")
        assert (code, out.splitlines()[-1].split(": ", 1)[1]) == (
            0,
            "0; stuck: 0, blocked: 0, lost: 0",
        )


@driven
async def test_audit_says_in_one_line_why_it_cannot(tmp_path: Path) -> None:
    async with ApiServer() as api:
        kubeconfig = str(api.kubeconfig(tmp_path))
        await api.stop()
        code, out, err = await run("audit", "--kubeconfig", kubeconfig)
        assert (code, out) == (1, "")
        assert "Cannot connect to host" in err
        assert err.count("\n") == 1
        await api.start()
    code, _, err = await run("audit", "--kubeconfig", str(tmp_path / "absent"))
    assert (code, err.count("\n")) == (2, 1)
