"""TLS of the webhook, and a certificate that changes under load."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import closing
from pathlib import Path

import pytest
from istio_aux.model.policy import Start
from istio_aux.start.webhook import AdmissionWebhook, Certificate
from istio_aux.telemetry import Telemetry
from unit.asynchronous import driven, until
from unit.hooked import Bare, Client, Hook, post, review, serving
from unit.tls import certificate


@pytest.mark.parametrize(
    "sent",
    [post(b"{}"), b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"],
    ids=["plain HTTP", "half a hello"],
)
@driven
async def test_a_client_without_tls_gets_no_answer(
    sent: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as hook:
        client = Client(*await asyncio.open_connection("127.0.0.1", hook.port))
        await client.send(sent)
        assert await client.closed()
        await client.close()
        assert hook.ended("handshake") == 1
    (line,) = caplog.records
    assert (vars(line)["event"], vars(line)["outcome"]) == ("connection", "handshake")


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [([], None), (["h2"], None), (["h2", "http/1.1"], "http/1.1")],
    ids=["nothing", "h2", "both"],
)
@driven
async def test_only_http_1_1_is_offered(
    offered: list[str], chosen: str | None, tmp_path: Path
) -> None:
    """h2 would be chosen by an API server that calls a loopback URL (apimachinery http.go)."""
    async with serving(tmp_path) as hook:
        hook.trust.set_alpn_protocols(offered)
        async with hook.client() as client:
            assert client.tls.selected_alpn_protocol() == chosen
            assert (await client.ask(post(review()))).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@driven
async def test_tls_1_2_and_1_3_are_spoken(version: ssl.TLSVersion, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        hook.trust.minimum_version = hook.trust.maximum_version = version
        answer = await hook.ask(post(review()))
    assert answer.status == 200


@driven
async def test_a_name_that_is_not_ascii_is_served_like_any_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python's sni_callback logs a traceback for it."""
    async with serving(tmp_path) as hook:
        hook.trust.check_hostname = False
        # Nine bytes of a name become others of which the last is not ASCII.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = hook.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        hello = outgoing.read().replace(b"localhost", b"localhos\xff")
        client = Client(*await asyncio.open_connection("127.0.0.1", hook.port))
        await client.send(hello)
        assert (await client._reader.readexactly(1)) == b"\x16"
        await client.close()
        await until(lambda: hook.connections == 0, "it is gone")
    assert capfd.readouterr().err == ""


@driven
async def test_a_client_that_does_not_trust_the_certificate_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as hook:
        with closing(Bare(hook.port, ssl.create_default_context())) as client:
            with pytest.raises(ssl.SSLCertVerificationError):
                await client.shake_hands()
            await until(lambda: hook.ended("handshake"), "it is gone")
    assert "unknown ca" in caplog.text


@driven
async def test_certificates_change_under_load_and_no_review_is_lost(tmp_path: Path) -> None:
    """Half-written and mismatched pairs are among them."""
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    metrics = Telemetry()
    webhook = AdmissionWebhook(metrics, Start)
    _, port = await webhook.listen("127.0.0.1", 0, served.context)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    hook = Hook(webhook, metrics, port, trust)
    rotated = asyncio.Event()

    async def ask_on() -> list[int]:
        async with hook.client() as kept:
            codes = [(await kept.ask(post(review()))).status]
            while not rotated.is_set():
                codes.append((await hook.ask(post(review()))).status)
                codes.append((await kept.ask(post(review()))).status)
            return codes

    async def rotate() -> int:
        reloads = 0
        for _ in range(4):
            new_crt, new_key = certificate(tmp_path, stem="new")
            crt.write_bytes(new_crt.read_bytes()[:100])
            served.reload()
            await hook.ask(post(review()))
            new_crt.replace(crt)
            served.reload()
            await hook.ask(post(review()))
            new_key.replace(key)
            reloads += served.reload()
            await hook.ask(post(review()))
        rotated.set()
        return reloads

    try:
        reloads, one, other = await asyncio.gather(rotate(), ask_on(), ask_on())
    finally:
        await webhook.close(0)
    assert reloads == 4
    assert set(one + other) == {200}
