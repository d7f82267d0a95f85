"""How an injector is asked, and what bad answers mean; the other side is a real TLS server."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec
import pytest
from istio_aux.core.policy import Capability
from istio_aux.core.webhooks import Address
from istio_aux.injector import exchange
from lab import ports
from lab.certificates import Authority
from lab.istio import World
from unit.asking import PLAIN, asking
from unit.asynchronous import driven, until
from unit.injecting import HOST, Istiod, Talk, http, saying, sidecar_for, silence
from unit.test_injector_trust import encoded
from unit.tls import certificate


@pytest.mark.parametrize(
    ("native", "found_out"),
    [
        ("default", Capability.NATIVE),
        ("on request", Capability.NATIVE),
        ("never", Capability.CLASSIC),
    ],
)
@driven
async def test_an_injector_that_gives_a_sidecar_is_live_and_says_which(
    native: World, found_out: Capability, tmp_path: Path
) -> None:
    """It is asked for a native one."""
    async with asking() as who, Istiod(tmp_path) as istiod:
        istiod.native = native

        found = await who.ask(istiod.target, istiod.port)

        assert found.probe.injected
        assert found.probe.native is found_out
        assert found.connection
        assert who.counted() == {("direct", "injected"): 1}
        assert who.api.dry_runs == []


@driven
async def test_no_token_of_ours_is_sent_and_no_proxy_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{ports.reserve()}")
    async with asking() as who, Istiod(tmp_path) as istiod:
        assert (await who.ask(istiod.target, istiod.port)).probe.injected

        [head] = istiod.heads
        assert head.startswith("POST /inject HTTP/1.1\r\nHost: istiod.istio-system.svc\r\n")
        assert "Content-Type: application/json\r\n" in head
        assert "Authorization" not in head
        assert "secret" not in head


ENDLESS = http(b"\n" * (5 << 20), "200 OK", "Connection: close")
BAD: dict[str, tuple[bytes, str]] = {
    "an error": (http(b"no AdmissionReview found", "400 Bad Request"), "400: no Admission"),
    "a redirect": (
        http(b"", "302 Found", "Location: https://elsewhere", "Content-Length: 0"),
        "302",
    ),
    "garbage": (http(b"<html>"), "no AdmissionReview"),
    "nothing": (http(b""), "no AdmissionReview"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "no HTTP/1.1"),
    "an endless head": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20), "is not found"),
    "a huge answer": (http(b"", "200 OK", "Content-Length: 5000000"), "larger than 4 MiB"),
    "a negative answer": (http(b"", "200 OK", "Content-Length: -1"), "larger than 4 MiB"),
    "a huge chunk": (http(b"ffffffff\r\n", "200 OK", "Transfer-Encoding: chunked"), "larger than"),
    "an endless answer": (ENDLESS, "larger than 4 MiB"),
    "a broken chunk": (http(b"x\r\n", "200 OK", "Transfer-Encoding: chunked"), "invalid literal"),
}


@pytest.mark.parametrize("what", BAD)
@driven
async def test_a_bad_answer_makes_it_one_that_does_not_inject(what: str, tmp_path: Path) -> None:
    answer, why = BAD[what]
    async with asking() as who, Istiod(tmp_path) as istiod:
        istiod.talk = saying(answer)

        found = await who.ask(istiod.target, istiod.port)

        assert (found.probe.injected, found.probe.asked) == (False, True)
        assert why in found.probe.why
        assert found.probe.why.startswith(f"127.0.0.1:{istiod.port}: ")
        assert who.counted() == {("direct", "refused"): 1}
        assert who.api.dry_runs == []


async def hang_up(_review: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def stop_halfway(review: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(http(sidecar_for(review))[:300])
    writer.close()


async def refuse(review: bytes, writer: asyncio.StreamWriter) -> None:
    bad = review.replace(b'"annotations":{', b'"annotations":{"proxy.istio.io/config":"- x",')
    writer.write(http(sidecar_for(bad)))


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        (hang_up, "the connection ended before the answer"),
        (stop_halfway, "the connection ended before the answer"),
        (silence, "no complete answer within 0.2 s"),
        (refuse, "it refuses a pod: failed to run injection template"),
    ],
)
@driven
async def test_an_answer_that_does_not_come_or_refuses_is_no_sidecar(
    talk: Talk, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "DEADLINE", 0.2 if talk is silence else 20.0)
    async with asking() as who, Istiod(tmp_path) as istiod:
        istiod.talk = talk

        found = await who.ask(istiod.target, istiod.port)

        assert found.probe.asked
        assert why in found.probe.why


@driven
async def test_a_server_of_another_name_or_authority_is_not_trusted(tmp_path: Path) -> None:
    """A foreign caBundle, and an istiod that is another Service's."""
    other = Authority(tmp_path / "other").pair.certificate.read_text()
    async with (
        asking() as who,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path / "named", "istiod.kubeflow.svc") as elsewhere,
    ):
        istiod.authority.pair.certificate.write_text(other)
        for server in (istiod, elsewhere):
            found = await who.ask(server.target, server.port)
            assert "its certificate is not trusted" in found.probe.why
            assert found.probe.asked
            assert server.heads == []


@pytest.mark.parametrize("issued", [True, False])
@driven
async def test_any_certificate_of_a_bundle_is_trusted_by_itself(
    issued: bool, tmp_path: Path
) -> None:
    """Go asks neither that it is an authority's own nor for the marks that Python 3.13 wants."""
    async with asking() as who, Istiod(tmp_path) as istiod:
        anchor = tmp_path / "istiod.crt"
        if not issued:
            anchor, key = certificate(tmp_path, HOST)
            istiod._tls.load_cert_chain(anchor, key)
        target = msgspec.structs.replace(istiod.target, ca_bundle=encoded(anchor.read_bytes()))

        assert (await who.ask(target, istiod.port)).probe.injected


@driven
async def test_a_server_without_tls_is_no_injector(tmp_path: Path) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with asking() as who, server, Istiod(tmp_path) as istiod:
        found = await who.ask(istiod.target, server.sockets[0].getsockname()[1])

    assert "TLS: " in found.probe.why


@driven
async def test_one_replica_that_injects_is_enough(tmp_path: Path) -> None:
    """Neither one that is gone nor one that says nothing keeps it waiting."""

    async def after_both_were_asked(review: bytes, writer: asyncio.StreamWriter) -> None:
        await until(lambda: mute.heads, "the other one is asked")
        writer.write(http(sidecar_for(review)))

    async with (
        asking() as who,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path, authority=istiod.authority) as mute,
    ):
        mute.talk = silence
        istiod.talk = after_both_were_asked
        begun = time.monotonic()

        found = await who.ask(istiod.target, ports.reserve(), mute.port, istiod.port)

        assert found.probe.injected
        assert time.monotonic() - begun < exchange.DEADLINE


@driven
async def test_no_connection_is_left_to_those_that_are_not_needed(tmp_path: Path) -> None:
    """Neither to a second one that injects, nor to one that does not."""
    async with (
        asking() as who,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path, authority=istiod.authority) as other,
    ):
        for talk in (other.talk, saying(http(b"", "500 Oops"))):
            other.talk = talk

            await who.ask(istiod.target, istiod.port, other.port)

            await until(lambda: not istiod.connections, "the one that was used is closed")
            await until(lambda: not other.connections, "the other one is closed")
        assert len(istiod.heads) == 2


@driven
async def test_where_no_replica_injects_it_says_what_each_of_them_did(tmp_path: Path) -> None:
    async with asking() as who, Istiod(tmp_path) as istiod:
        istiod.talk = saying(http(b"", "503 Service Unavailable"))
        dead = ports.reserve()

        found = await who.ask(istiod.target, dead, istiod.port)

        assert found.probe.why == (
            f"127.0.0.1:{istiod.port}: it answered 503:; 127.0.0.1:{dead}: Connection refused"
        )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@driven
async def test_an_address_may_be_one_of_ipv6(tmp_path: Path) -> None:
    async with asking() as who, Istiod(tmp_path) as istiod:
        istiod.talk = saying(http(b"", "500 Oops"))
        relay = await asyncio.start_server(istiod._serve, "::1", 0, ssl=istiod._tls)
        async with relay:
            port = relay.sockets[0].getsockname()[1]
            found = await who._prober.ask(istiod.target, [Address("::1", port)], PLAIN)

    assert found.probe.why == f"[::1]:{port}: it answered 500:"
