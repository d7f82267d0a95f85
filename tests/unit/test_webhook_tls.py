"""TLS of the webhook, and a certificate that changes under load."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from istio_aux.start.webhook import Certificate, CertificateError
from unit.apiserver import certificate
from unit.hooked import Client, Hook, post, review
from unit.process import until


@pytest.mark.parametrize(
    "sent",
    [post(b"{}"), b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"],
    ids=["plain HTTP", "half a hello"],
)
async def test_a_client_without_tls_gets_no_answer(
    hook: Hook, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", hook.port))
    await client.send(sent)
    assert await client.closed()
    await client.close()
    assert hook.ended("handshake") == 1
    (line,) = caplog.records
    assert (vars(line)["event"], vars(line)["outcome"]) == ("connection", "handshake")


@pytest.mark.parametrize(
    ("offered", "version", "chosen"),
    [
        (["h2"], ssl.TLSVersion.TLSv1_2, None),
        (["h2", "http/1.1"], ssl.TLSVersion.TLSv1_3, "http/1.1"),
    ],
    ids=["h2, TLS 1.2", "both, TLS 1.3"],
)
async def test_only_http_1_1_is_offered(
    hook: Hook, offered: list[str], version: ssl.TLSVersion, chosen: str | None
) -> None:
    """h2 would be chosen by an API server that calls a loopback URL (apimachinery http.go)."""
    hook.trust.set_alpn_protocols(offered)
    hook.trust.maximum_version = version
    async with hook.client() as client:
        assert client.tls.selected_alpn_protocol() == chosen
        assert (await client.ask(post(review()))).status == 200


async def test_with_tls_1_2_only_suites_with_forward_secrecy_and_authentication_are_taken(
    hook: Hook,
) -> None:
    """A client that offers CBC alone is refused (RFC 9325, 4.2); Go's has both."""
    hook.trust.maximum_version = ssl.TLSVersion.TLSv1_2
    async with hook.client() as client:
        chosen, *_ = client.tls.cipher() or ("",)
    hook.trust.set_ciphers("ECDHE+AES:DHE+AES:!AESGCM:!AESCCM")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await hook.ask(post(review()))
    await until(lambda: hook.ended("handshake"), "it is gone")
    assert re.match(r"ECDHE-.*(GCM|CHACHA20)", chosen), chosen


# The pair of files.


@asynccontextmanager
async def handshakes(served: Certificate) -> AsyncGenerator[int]:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.start_tls(served.context())
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def shown(port: int) -> bytes:
    """Shake hands and return the certificate that the server showed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return der


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


async def test_a_new_pair_is_served_and_what_is_no_pair_or_half_of_one_changes_nothing(
    tmp_path: Path,
) -> None:
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    assert served.context().minimum_version is ssl.TLSVersion.TLSv1_2
    assert not served.reload(), "nothing has changed"
    old = der(crt)
    new_crt, new_key = certificate(tmp_path, stem="new")
    whole = new_crt.read_text() * 2
    new_key.replace(key)
    async with handshakes(served) as port:
        for broken in ("garbage", "", whole[: len(whole) * 3 // 4]):
            crt.unlink(missing_ok=True)
            if broken:
                crt.write_text(broken)
            assert not served.reload()
            assert await shown(port) == old
        crt.write_text(whole)
        assert served.reload()
        assert await shown(port) == der(new_crt)


def test_an_encrypted_key_prompts_for_no_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """OpenSSL would ask on the terminal, and block all reviews."""
    with pytest.raises(CertificateError, match="no certificate and key"):
        Certificate(*certificate(tmp_path, password="secret"))
    assert capfd.readouterr().err == ""


def test_the_error_names_a_pair_that_cannot_be_loaded(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path, stem="one")
    _, key = certificate(tmp_path, stem="other")
    with pytest.raises(CertificateError, match=r"one\.crt, .*other\.key: no certificate and key"):
        Certificate(crt, key)
    with pytest.raises(CertificateError, match="No such file"):
        Certificate(tmp_path / "absent", key)
