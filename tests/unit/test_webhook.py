"""The webhook over HTTPS: answers, refusals, bounds (T37)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from istio_aux.admission import server
from istio_aux.admission.server import Webhook
from istio_aux.core.policy import Start
from istio_aux.telemetry import Telemetry
from unit.asynchronous import driven, until
from unit.tls import certificate


class Hook:
    """A webhook that serves, and a client like the API server's."""

    def __init__(self, session: aiohttp.ClientSession, webhook: Webhook, port: int) -> None:
        self.session, self.webhook, self.port = session, webhook, port
        self.telemetry = Telemetry()

    async def post(self, body: bytes, **options: Any) -> tuple[int, str]:
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        url = f"https://127.0.0.1:{self.port}{options.pop('path', server.PATH)}"
        method = options.pop("method", "POST")
        data = io.BytesIO(body)
        async with self.session.request(method, url, data=data, headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
def metrics() -> Telemetry:
    return Telemetry()


@asynccontextmanager
async def serving(folder: Path, metrics: Telemetry, **options: Any) -> AsyncGenerator[Hook]:
    crt, key = certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(crt, key)
    webhook = Webhook(metrics, Start, **options)
    runner = server.runner(webhook.application(), patience=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    trust = ssl.create_default_context(cafile=str(crt))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
        yield Hook(session, webhook, runner.addresses[0][1])
    await runner.cleanup()


def review(**pod: Any) -> bytes:
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "training",
            "operation": "CREATE",
            "object": {"metadata": {"generateName": "job-"}, "spec": {"containers": []}, **pod},
        },
    }
    return json.dumps(body).encode()


def counted(metrics: Telemetry, outcome: str) -> bool:
    return f'istio_aux_admission_reviews_total{{outcome="{outcome}"}} 1.0' in (
        metrics.render().decode()
    )


@driven
async def test_a_pod_is_answered_with_a_patch(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(review())
    response = json.loads(text)["response"]
    assert (code, response["uid"], response["allowed"]) == (200, "u-1", True)
    assert b"holdApplicationUntilProxyStarts" in base64.b64decode(response["patch"])
    assert counted(metrics, "hold")
    assert b"istio_aux_admission_seconds_count 1.0" in metrics.render()


@driven
async def test_a_pod_that_has_opted_out_is_answered_without(
    tmp_path: Path, metrics: Telemetry
) -> None:
    out = {"annotations": {"sidecar.istio.io/inject": "false"}}
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(review(metadata=out))
    assert code == 200
    assert "patch" not in json.loads(text)["response"]
    assert counted(metrics, "unchanged")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"request": {}}', b"\xff\xfe", b"[" * 9999])
@driven
async def test_what_is_no_review_is_refused_in_one_line(
    body: bytes, tmp_path: Path, metrics: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(body)
        after, _ = await hook.post(review())
    assert (code, after) == (400, 200)
    assert text.startswith("malformed AdmissionReview")
    assert text.count("\n") == 1
    assert counted(metrics, "malformed")
    assert len([r for r in caplog.records if r.name == server.__name__]) <= 2


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@driven
async def test_only_post_is_allowed(method: str, tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        assert await hook.post(b"", method=method) == (405, f"{method}: expected POST\n")


@driven
async def test_only_json_is_taken(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(review(), headers={"Content-Type": "text/yaml"})
    assert (code, text) == (415, 'content-type "text/yaml": expected application/json\n')


@driven
async def test_another_path_is_not_found(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        assert (await hook.post(review(), path="/other"))[0] == 404


@driven
async def test_the_api_server_s_own_query_does_no_harm(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        assert (await hook.post(review(), path="/mutate?timeout=3s"))[0] == 200


@driven
async def test_a_pod_of_7_mib_is_answered(tmp_path: Path, metrics: Telemetry) -> None:
    big = {"managedFields": [{"fieldsV1": {"f:x": "x" * (7 << 20)}}]}
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(review(metadata=big))
    assert code == 200
    assert "patch" in json.loads(text)["response"]


@driven
async def test_a_body_over_8_mib_is_refused(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        code, text = await hook.post(b" " * (server.BODY + 1))
        assert (await hook.post(review()))[0] == 200
    assert (code, text) == (413, f"body over {server.BODY} bytes\n")
    assert counted(metrics, "too-large")


@driven
async def test_a_body_that_never_ends_is_given_up(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics, read_timeout=0.2) as hook:
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        reader, writer = await asyncio.open_connection("127.0.0.1", hook.port, ssl=trust)
        writer.write(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        began = asyncio.get_running_loop().time()
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408")
        # aiohttp waits 10 s for the rest of a body unless it is told not to.
        assert asyncio.get_running_loop().time() - began < 8
        assert (await hook.post(review()))[0] == 200
    assert counted(metrics, "timeout")


@driven
async def test_a_client_that_leaves_in_mid_body_leaves_no_trace_of_an_error(
    tmp_path: Path, metrics: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, metrics) as hook:
        trust = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        _, writer = await asyncio.open_connection("127.0.0.1", hook.port, ssl=trust)
        writer.write(
            b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        await writer.drain()
        await asyncio.sleep(0.1)  # The server has to be reading; there is nothing to await it by.
        writer.transport.abort()
        await until(lambda: counted(metrics, "malformed"), "it is counted")
    assert [r for r in caplog.records if r.exc_info] == []


@driven
async def test_many_reviews_at_once_are_all_answered(tmp_path: Path, metrics: Telemetry) -> None:
    async with serving(tmp_path, metrics) as hook:
        answers = await asyncio.gather(*(hook.post(review()) for _ in range(200)))
    assert {code for code, _ in answers} == {200}


@driven
async def test_a_server_that_is_about_to_stop_asks_for_a_new_connection(
    tmp_path: Path, metrics: Telemetry
) -> None:
    async with serving(tmp_path, metrics) as hook:
        url = f"https://127.0.0.1:{hook.port}{server.PATH}"
        headers = {"Content-Type": "application/json"}
        async with hook.session.post(url, data=review(), headers=headers) as answer:
            assert "Connection" not in answer.headers
        hook.webhook.draining = True
        async with hook.session.post(url, data=review(), headers=headers) as answer:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")


def test_idle_connections_outlive_the_api_server_s() -> None:
    """apimachinery util/net/http.go: IdleConnTimeout is 90 s."""
    assert server.KEEPALIVE > 90
