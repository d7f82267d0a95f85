"""How an injector is asked, and what bad answers mean; the other side is a real TLS server."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from istio_aux.injector.probe import DryRuns, Prober
from istio_aux.injector.probe_rules import Question
from istio_aux.injector.replica import ProbeAnswer, tls_context
from istio_aux.injector.rules import NOT_CHECKED
from istio_aux.kube.client import Client
from istio_aux.model.policy import Capability
from istio_aux.model.webhooks import Address, ClientConfig
from istio_aux.telemetry import Telemetry
from lab import ports
from lab.certificates import Authority
from lab.istio import World
from unit.asynchronous import until
from unit.injecting import (
    HOST,
    Cluster,
    Istiod,
    Talk,
    chain,
    encoded,
    http,
    saying,
    sidecar_for,
    silence,
)
from unit.logged import counted
from unit.rules.table import row
from unit.store import refusal
from unit.tls import certificate

ISTIOS = "namespace.sidecar-injector.istio.io"
PLAIN = Question("plain", {"istio.io/rev": "default"}, selected=True)
OTHER = Question("other", {}, selected=True)
NOWHERE = Question("istio-system", {})
UNREADABLE = b"-----BEGIN CERTIFICATE-----\nbm8gREVS\n-----END CERTIFICATE-----"


class Probing:
    """Probes an injector, and says what was counted."""

    def __init__(self, api: Cluster, client: Client) -> None:
        self.api = api
        self.telemetry = Telemetry()
        self._prober, self._runs = Prober(client, self.telemetry), DryRuns()

    async def ask(self, target: ClientConfig, *ports: int, about: Question = PLAIN) -> ProbeAnswer:
        return await self.ask_at(target, [Address("127.0.0.1", p) for p in ports], about)

    async def ask_at(
        self, target: ClientConfig, addresses: list[Address], *about: Question
    ) -> ProbeAnswer:
        async with self._prober.ask(target, addresses, about or [PLAIN], self._runs) as answer:
            return answer

    def counted(self, way: str, outcome: str) -> float:
        """How often that way had that outcome."""
        labels = f'{{outcome="{outcome}",way="{way}"}}'
        return counted(self.telemetry, f"istio_aux_injector_probes_total{labels}")


@asynccontextmanager
async def probing() -> AsyncGenerator[Probing]:
    async with Cluster() as api, Client(api.access()) as client:
        yield Probing(api, client)


@pytest.mark.parametrize(
    ("native", "found_out"),
    [
        ("on request", Capability.UNKNOWN),
        ("never", Capability.CLASSIC),
    ],
)
async def test_an_injector_that_gives_a_sidecar_is_live_and_says_which(
    native: World, found_out: Capability, tmp_path: Path
) -> None:
    """It is asked for a native one, which a dry run has yet to confirm."""
    async with probing() as prober, Istiod(tmp_path) as istiod:
        istiod.native = native

        found = await prober.ask(istiod.target, istiod.port)

        assert found.probe.injected
        assert found.probe.native.capability is found_out
        assert found.connection
        assert prober.counted("direct", "injected") == 1
        assert prober.api.dry_runs == []


async def test_no_token_of_ours_is_sent_and_no_proxy_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{ports.reserve()}")
    async with probing() as prober, Istiod(tmp_path) as istiod:
        assert (await prober.ask(istiod.target, istiod.port)).probe.injected

        [head] = istiod.heads
        assert head.startswith("POST /inject HTTP/1.1\r\nHost: istiod.istio-system.svc\r\n")
        assert "Content-Type: application/json\r\n" in head
        assert "Authorization" not in head
        assert "secret" not in head


async def hang_up(_review: bytes, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def stop_halfway(review: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(http(sidecar_for(review))[:300])
    writer.close()


async def refuse(review: bytes, writer: asyncio.StreamWriter) -> None:
    bad = review.replace(b'"annotations":{', b'"annotations":{"proxy.istio.io/config":"- x",')
    writer.write(http(sidecar_for(bad)))


ENDLESS = http(b"\n" * (5 << 20), "200 OK", "Connection: close")
ELSEWHERE = http(b"", "302 Found", "Location: https://elsewhere", "Content-Length: 0")


@pytest.mark.parametrize(
    ("talk", "why"),
    [
        row("an error", saying(http(b"no AdmissionReview found", "400 Bad Request")), "400: no Ad"),
        row("a redirect", saying(ELSEWHERE), "302"),
        row("garbage", saying(http(b"<html>")), "not an AdmissionReview"),
        row("no HTTP", saying(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "is not HTTP/1.1"),
        row("an endless head", saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 20)), "8190 bytes"),
        row("an endless answer", saying(ENDLESS), "larger than 4 MiB"),
        row("no answer", hang_up, "the connection ended before the answer"),
        row("half an answer", stop_halfway, "its answer is not complete"),
        row("silence", silence, "no complete answer within 0.2 s"),
        row("a refusal", refuse, "it refuses a pod: failed to run injection template"),
    ],
)
async def test_a_bad_answer_or_none_makes_it_one_that_does_not_inject(
    talk: Talk, why: str, tmp_path: Path
) -> None:
    about = msgspec.structs.replace(PLAIN, timeout=0.2 if talk is silence else 20.0)
    async with probing() as prober, Istiod(tmp_path) as istiod:
        istiod.talk = talk

        found = await prober.ask(istiod.target, istiod.port, about=about)

        assert (found.probe.injected, found.probe.reached) == (False, True)
        assert why in found.probe.why
        assert found.probe.why.startswith(f"127.0.0.1:{istiod.port}: ")
        assert prober.counted("direct", "refused") == 1
        assert prober.api.dry_runs == []


async def test_a_server_of_another_name_or_authority_is_not_trusted(tmp_path: Path) -> None:
    """A foreign caBundle, and an istiod that is another Service's."""
    other = Authority(tmp_path / "other").pair.certificate.read_text()
    async with (
        probing() as prober,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path / "named", "istiod.kubeflow.svc") as elsewhere,
    ):
        istiod.authority.pair.certificate.write_text(other)
        for server in (istiod, elsewhere):
            found = await prober.ask(server.target, server.port)
            assert "its certificate is not trusted" in found.probe.why
            assert found.probe.reached
            assert server.heads == []


async def test_another_certificate_decides_nothing_and_a_dry_run_does(tmp_path: Path) -> None:
    """From outside the cluster: a network that intercepts TLS answers at the pod's address."""
    async with probing() as prober, Istiod(tmp_path, "proxy.example.org") as intercepts:
        prober.api.dry_run = chain("never")
        found = await prober.ask(intercepts.target, intercepts.port)
        assert found.probe.injected
        assert (intercepts.heads, len(prober.api.dry_runs)) == ([], 1)


@pytest.mark.parametrize("issued", [True, False])
async def test_any_certificate_of_a_bundle_is_trusted_by_itself(
    issued: bool, tmp_path: Path
) -> None:
    """As by Go, without the marks that Python 3.13 wants, and beside one that cannot be read."""
    async with probing() as prober, Istiod(tmp_path) as istiod:
        anchor = tmp_path / "istiod.crt"
        if not issued:
            anchor, key = certificate(tmp_path, HOST)
            istiod.present(anchor, key)
        bundle = encoded(UNREADABLE, anchor.read_bytes())
        target = msgspec.structs.replace(istiod.target, ca_bundle=bundle)

        assert (await prober.ask(target, istiod.port)).probe.injected


async def test_a_ca_bundle_that_has_expired_is_not_trusted(tmp_path: Path) -> None:
    async with probing() as prober, Istiod(tmp_path) as istiod:
        expired, key = certificate(tmp_path, HOST, hours=-1)
        istiod.present(expired, key)
        target = msgspec.structs.replace(istiod.target, ca_bundle=encoded(expired.read_bytes()))

        found = await prober.ask(target, istiod.port)

    assert "its certificate is not trusted: certificate has expired" in found.probe.why
    assert (found.probe.injected, found.probe.reached) == (False, True)


def test_without_a_bundle_the_system_is_trusted_and_old_protocols_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate(tmp_path)[0]))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))

    tls = tls_context(ClientConfig(url="https://istiod"))
    assert tls.cert_store_stats()["x509"] == 1
    assert tls.minimum_version is ssl.TLSVersion.TLSv1_2
    assert not tls.hostname_checks_common_name


async def test_a_server_without_tls_is_no_injector(tmp_path: Path) -> None:
    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with probing() as prober, server, Istiod(tmp_path) as istiod:
        found = await prober.ask(istiod.target, server.sockets[0].getsockname()[1])

    assert "TLS: " in found.probe.why


async def test_one_replica_that_injects_is_enough(tmp_path: Path) -> None:
    """Neither one that is gone nor one that says nothing keeps it waiting."""

    async def after_both_were_asked(review: bytes, writer: asyncio.StreamWriter) -> None:
        await until(lambda: mute.heads, "the other one is asked")
        writer.write(http(sidecar_for(review)))

    async with (
        probing() as prober,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path, authority=istiod.authority) as mute,
    ):
        mute.talk = silence
        istiod.talk = after_both_were_asked
        begun = time.monotonic()

        found = await prober.ask(istiod.target, ports.reserve(), mute.port, istiod.port)

        assert found.probe.injected
        assert time.monotonic() - begun < PLAIN.timeout


async def test_no_connection_is_left_to_those_that_are_not_needed(tmp_path: Path) -> None:
    """Neither to a second one that injects, nor to one that does not."""
    async with (
        probing() as prober,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path, authority=istiod.authority) as other,
    ):
        for talk in (other.talk, saying(http(b"", "500 Oops"))):
            other.talk = talk

            await prober.ask(istiod.target, istiod.port, other.port)

            await until(lambda: not istiod.connections, "the one that was used is closed")
            await until(lambda: not other.connections, "the other one is closed")
        assert len(istiod.heads) == 2


async def test_a_probe_that_is_cancelled_after_an_answer_leaves_no_connection(
    tmp_path: Path,
) -> None:
    """Each time it is cancelled one turn of the event loop later, until it ends before that."""
    cancelled = list[BaseException]()  # Their frames keep connections from the garbage collector.
    async with (
        probing() as prober,
        Istiod(tmp_path) as istiod,
        Istiod(tmp_path, authority=istiod.authority) as mute,
    ):
        mute.talk, inject, answered = silence, istiod.talk, asyncio.Event()

        async def answer(review: bytes, writer: asyncio.StreamWriter) -> None:
            await until(lambda: mute.heads, "the other one is asked")
            await inject(review, writer)
            answered.set()

        istiod.talk = answer
        for turns in itertools.count():
            mute.heads.clear()
            answered.clear()
            probe = asyncio.create_task(prober.ask(istiod.target, istiod.port, mute.port))
            await answered.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            probe.cancel()
            [ended] = await asyncio.gather(probe, return_exceptions=True)
            await until(lambda: not istiod.connections | mute.connections, f"{turns} turns later")
            if not isinstance(ended, BaseException):
                break
            cancelled.append(ended)
    assert {type(error) for error in cancelled} == {asyncio.CancelledError}


async def test_where_no_replica_injects_it_says_what_each_of_them_did(tmp_path: Path) -> None:
    async with probing() as prober, Istiod(tmp_path) as istiod:
        istiod.talk = saying(http(b"", "503 Service Unavailable"))
        dead = ports.reserve()

        found = await prober.ask(istiod.target, dead, istiod.port)

        assert found.probe.why == (
            f"127.0.0.1:{istiod.port}: it answered 503:; 127.0.0.1:{dead}: Connection refused"
        )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_an_address_may_be_one_of_ipv6(tmp_path: Path) -> None:
    async with probing() as prober, Istiod(tmp_path) as istiod:
        istiod.talk = saying(http(b"", "500 Oops"))
        relay = await asyncio.start_server(istiod._serve, "::1", 0, ssl=istiod._tls)
        async with relay:
            port = relay.sockets[0].getsockname()[1]
            found = await prober.ask_at(istiod.target, [Address("::1", port)])

    assert found.probe.why == f"[::1]:{port}: it answered 500:"


# Injectors that cannot be reached from here, and those behind a URL.


@pytest.mark.parametrize("known", [True, False])
async def test_one_that_cannot_be_reached_is_asked_by_a_dry_run(
    known: bool, tmp_path: Path
) -> None:
    """Also where nothing says which port is the webhook's."""

    def inject(pod: dict[str, Any]) -> web.Response:
        containers = [{"name": "istio-proxy", "restartPolicy": "Always"}]
        spec = {**pod["spec"], "initContainers": containers}
        return web.json_response({**pod, "spec": spec}, status=201)

    async with probing() as prober:
        target = Istiod(tmp_path).target
        prober.api.dry_run = inject

        found = await prober.ask(target, *((ports.reserve(),) if known else ()))

        # It did not ask for a native sidecar: that is another question.
        assert (found.probe.injected, found.probe.native) == (True, NOT_CHECKED)
        assert found.connection is None
        assert prober.counted("direct", "unreachable") == prober.counted("dry-run", "injected") == 1
        [pod] = prober.api.dry_runs
        assert pod["metadata"]["generateName"] == "istio-aux-probe-"
        assert prober.api.requests == ["POST /api/v1/namespaces/plain/pods"]


@pytest.mark.parametrize(
    ("answer", "asked", "why"),
    [
        ((500, "InternalError", f'failed calling webhook "{ISTIOS}": EOF'), True, "EOF"),
        ((400, "", f'admission webhook "{ISTIOS}" denied the request: no'), True, "denied"),
        ((500, "InternalError", "etcd is away"), False, "etcd is away"),
        ((401, "Unauthorized", "no such token"), False, "no such token"),
        ((403, "Forbidden", "cannot create resource"), False, "cannot create resource"),
        ((404, "NotFound", "no such namespace"), False, "no such namespace"),
    ],
)
async def test_the_api_servers_answer_to_a_dry_run_is_reported(
    answer: tuple[int, str, str], asked: bool, why: str, tmp_path: Path
) -> None:
    """That it does not let us ask says nothing of the injector."""
    async with probing() as prober:
        prober.api.dry_run = lambda _pod: refusal(*answer)
        port = ports.reserve()

        address = Address("127.0.0.1", port)
        found = await prober.ask_at(Istiod(tmp_path).target, [address], PLAIN, OTHER)

        assert (found.probe.injected, found.probe.reached) == (False, asked)
        assert why in found.probe.why
        assert len(prober.api.dry_runs) == (2 if answer[0] in {403, 404} else 1)
        assert f"cannot be probed directly: 127.0.0.1:{port}: Connection refused" in found.probe.why


async def test_a_round_of_dry_runs_is_bounded_says_who_refuses_and_the_next_goes_on(
    tmp_path: Path,
) -> None:
    """Rounds without an answer have growing pauses between them."""
    names = [f"team-{number:02}" for number in range(25)]
    async with probing() as prober:
        prober.api.dry_run = lambda _pod: refusal(
            403, "Forbidden", f'pods "x" is forbidden: exceeded quota: {"gpu" * 99}'
        )
        questions = [Question(name, {}, selected=True) for name in names]
        begun, whys = time.monotonic(), list[str]()
        while len(asked := [pod["metadata"]["namespace"] for pod in prober.api.dry_runs]) < 30:
            found = await prober.ask_at(Istiod(tmp_path).target, [], *questions)
            assert not found.probe.reached
            whys.append(found.probe.why)
            await asyncio.sleep(0.01)
        assert time.monotonic() - begun > 0.5 + 1.0

    # A round begins with the last one of the round before, which may have answered.
    assert asked == [*names[:10], *names[9:19], *names[18:], *names[:3]]
    start = "dry run: namespaces refuse the pod: team-00: exceeded quota: gpugpu"
    assert whys[0].startswith(start)
    assert "… and 7 more (cannot be probed directly: no endpoint" in whys[0]
    assert max(map(len, whys)) <= 401
    assert "; dry run: namespaces refuse the pod: team-00: " in whys[1]


async def test_without_a_namespace_for_a_dry_run_nothing_is_known(tmp_path: Path) -> None:
    async with probing() as prober:
        found = await prober.ask(Istiod(tmp_path).target, ports.reserve(), about=NOWHERE)

        assert (found.probe.injected, found.probe.reached) == (False, False)
        assert prober.api.requests == []


async def test_one_behind_a_url_is_asked_there(tmp_path: Path) -> None:
    async with probing() as prober, Istiod(tmp_path, "127.0.0.1") as istiod:
        url = f"https://127.0.0.1:{istiod.port}/inject/cluster/one?net=two"

        found = await prober.ask(ClientConfig(url=url, ca_bundle=istiod.bundle))

        assert found.probe.injected
        assert istiod.heads[0].startswith("POST /inject/cluster/one?net=two HTTP/1.1\r\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "https://", "https://h:99999/"])
async def test_a_url_that_the_api_server_would_not_call_is_not_called(url: str) -> None:
    async with probing() as prober:
        found = await prober.ask(ClientConfig(url=url, ca_bundle="eA=="))

    assert found.probe.why.startswith(f'url "{url}": ')


async def test_whom_the_system_trusts_is_for_the_api_server_to_say(tmp_path: Path) -> None:
    """Without a caBundle it is its own system that counts, not ours."""
    async with probing() as prober, Istiod(tmp_path, "127.0.0.1") as istiod:
        prober.api.dry_run = lambda _pod: refusal(403, "Forbidden", "no")

        found = await prober.ask(ClientConfig(url=f"https://127.0.0.1:{istiod.port}/inject"))

        assert not found.probe.reached
        assert len(prober.api.dry_runs) == 1


@pytest.mark.parametrize(
    "code",
    [429, 503, 504, 500, 502],
)
async def test_dry_runs_wait_for_as_long_as_an_api_server_asks_that_is_busy(
    code: int, tmp_path: Path
) -> None:
    """An injector that is not live is asked every second."""
    async with probing() as prober:
        target = Istiod(tmp_path).target
        prober.api.dry_run = lambda _pod: refusal(
            code, "", "slow down", headers={"Retry-After": "60"}
        )
        first = await prober.ask(target)
        second = await prober.ask(target)

        assert "slow down" in first.probe.why
        assert "slow down" in second.probe.why
        assert len(prober.api.dry_runs) == 1
