"""The webhook's certificate is replaced without a broken handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from istio_aux.start.webhook import Certificate, CertificateError
from unit.asynchronous import background, driven
from unit.tls import certificate


@asynccontextmanager
async def serving(served: Certificate) -> AsyncGenerator[int]:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.start_tls(served.context())
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def shown(port: int, name: str | None = None) -> bytes:
    """Shake hands and return the certificate that the server showed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name or ""
    )
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await reader.read()
    writer.close()
    await writer.wait_closed()
    return der


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


@pytest.mark.parametrize("name", ["istio-aux.kubeflow.svc", None])
@driven
async def test_a_new_pair_is_served_from_the_next_handshake_on(
    name: str | None, tmp_path: Path
) -> None:
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    assert served.context().minimum_version is ssl.TLSVersion.TLSv1_2
    async with serving(served) as port:
        assert await shown(port, name) == der(crt)
        assert not served.reload(), "nothing has changed"
        certificate(tmp_path)
        assert served.reload()
        assert await shown(port, name) == der(crt)


@pytest.mark.parametrize("content", [b"", b"garbage"])
@driven
async def test_a_file_that_is_no_certificate_changes_nothing(
    content: bytes, tmp_path: Path
) -> None:
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    old = der(crt)
    crt.write_bytes(content)
    async with serving(served) as port:
        assert not served.reload()
        assert await shown(port) == old
        crt.unlink()
        assert not served.reload()
        assert await shown(port) == old


@driven
async def test_a_chain_that_is_half_written_changes_nothing(tmp_path: Path) -> None:
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    old = der(crt)
    new_crt, new_key = certificate(tmp_path, stem="new")
    whole = new_crt.read_text() * 2
    new_key.replace(key)
    async with serving(served) as port:
        crt.write_text(whole[: len(whole) * 3 // 4])
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


@driven
async def test_an_expired_pair_is_served_like_any_other(tmp_path: Path) -> None:
    """Clients judge by their own clocks, and the previous one is older."""
    crt, key = certificate(tmp_path)
    served = Certificate(crt, key)
    certificate(tmp_path, hours=-1)
    assert served.reload()
    async with serving(served) as port:
        assert await shown(port) == der(crt)


@driven
async def test_a_mounted_secret_is_followed_through_its_link(tmp_path: Path) -> None:
    """The kubelet replaces one link, ``..data``, and by that both files at once."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name)
    (tmp_path / "..data").symlink_to("one")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    served = Certificate(tmp_path / "tls.crt", tmp_path / "tls.key")
    async with serving(served) as port, background(served.follow(0.01)):
        (tmp_path / "..data_tmp").symlink_to("two")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        new = der(tmp_path / "two" / "tls.crt")
        async with asyncio.timeout(60):
            while await shown(port) != new:
                pass


def test_the_error_names_a_pair_that_cannot_be_loaded(tmp_path: Path) -> None:
    crt, _ = certificate(tmp_path, stem="one")
    _, key = certificate(tmp_path, stem="other")
    with pytest.raises(CertificateError, match=r"one\.crt, .*other\.key: no certificate and key"):
        Certificate(crt, key)
    with pytest.raises(CertificateError, match="No such file"):
        Certificate(tmp_path / "absent", key)
