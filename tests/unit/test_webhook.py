"""The webhook over HTTPS: answers, refusals, metrics, log lines, TLS and a new certificate."""

from __future__ import annotations

import asyncio
import base64
import errno
import io
import json
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from istio_aux.injector.probe_rules import WORD, Question
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.serving import ServingLimits
from istio_aux.start import plan, webhook
from istio_aux.start.turns import Turns
from istio_aux.start.webhook import Certificate, CertificateError
from lab.sidecar_cases import Case
from unit.apiserver import ApiServer, certificate
from unit.hooked import JSON, Answer, Client, Hook, chunked, post, review, serving
from unit.process import logging_to, until
from unit.rules.pods import reviewed

# The webhook over HTTPS: answers, refusals, metrics and log lines.

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u", "controller": True}
READ = "GET /apis/batch/v1/namespaces/training/jobs/a"


@pytest.mark.parametrize(
    ("job", "native"),
    [
        ({}, True),
        ({"onExitCodes": {"operator": "In", "values": [143], "containerName": "main"}}, True),
        ({"onExitCodes": {"operator": "In", "values": [143]}}, False),
        (None, False),
        ("refused", False),
        ("hung", False),
    ],
    ids=["no exit codes", "of a container", "of any", "gone", "refused", "hung"],
)
async def test_a_sidecar_stays_if_the_job_of_its_pod_counts_its_exit_code_or_is_not_known(
    job: Any, native: bool
) -> None:
    """cloud-sql-proxy#1803. A Job is read for no other pod."""
    about = {"name": "a", "namespace": "training", "uid": "u"}
    pod = Case(name="").pod
    owned = {**pod["metadata"], "ownerReferences": [OWNER]}
    plain = {**pod["spec"], "containers": pod["spec"]["containers"][:1]}

    async with ApiServer() as api, serving(lambda: Case(name="").setting, api) as hook:
        if isinstance(job, dict):
            policy = {"rules": [{"action": "FailJob", **job}]}
            api.put("jobs", {"metadata": about, "spec": {"podFailurePolicy": policy}})
        elif job == "refused":
            api.refuse(READ, 403, "Forbidden")
        elif job == "hung":
            api.hang(READ)
        for others in ({"metadata": pod["metadata"]}, {"metadata": owned, "spec": plain}):
            await hook.ask(post(review(**{**pod, **others})))
        assert api.requests == []
        answer = await hook.ask(post(review(**{**pod, "metadata": owned})))
        assert api.requests == [READ]

    assert moves(answer) is native


def moves(answer: Answer) -> bool:
    """Whether containers become native."""
    ops = json.loads(base64.b64decode(answer.response["patch"]))
    return any(op["path"].startswith("/spec/initContainers") for op in ops)


@pytest.mark.parametrize(
    ("job", "classic"),
    [
        ({"backoffLimit": 1}, True),
        ({"backoffLimit": 2}, False),
        ({"backoffLimit": 2, "parallelism": 2}, True),
        (None, False),
    ],
)
async def test_a_proxy_that_istio_makes_native_stays_so_unless_the_job_is_known_to_fail_by_it(
    job: dict[str, int] | None, classic: bool
) -> None:
    """eventing#6804. Two answers of the API server's, and one review."""
    metadata = {"generateName": "a-", "namespace": "training", "ownerReferences": [OWNER]}
    post_quit = {"name": "main", "command": ["curl", "-XPOST", "localhost:15020/quitquitquit"]}
    pod = {"metadata": metadata, "spec": {"restartPolicy": "OnFailure", "containers": [post_quit]}}

    async with (
        ApiServer() as api,
        serving(lambda: StartPolicy(capability=Capability.UNASKED), api) as hook,
    ):
        if job:
            about = {"name": "a", "namespace": "training", "uid": "u"}
            api.put("jobs", {"metadata": about, "spec": job})
        answer = await hook.ask(post(review(**pod)))
        assert api.requests == [READ]

    assert ("patch" in answer.response) is classic


@pytest.mark.parametrize(("seconds", "words", "times"), [
    (3600.0, ["none of ours", WORD, WORD], 1), (0.0, [WORD, WORD], 2), (0.0, ["none of ours"], 0)
])  # fmt: skip
async def test_who_brings_a_dry_run_of_this_process_is_known_as_an_api_server_for_so_long(
    seconds: float, words: list[str], times: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(webhook, "KNOWN", seconds)
    path = tmp_path / "log"
    with logging_to(path.open("wb")):
        async with serving() as hook:
            for word in words:
                marked = {"generateName": "a-", "annotations": {"any": word}}
                await hook.ask(post(review(metadata=marked)))
    assert path.read_text().count("127.0.0.1 is an API server's") == times


async def test_each_step_of_a_handshake_waits_for_its_turn(
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handshakes cost more than most reviews, and anybody may begin any number of them."""
    chosen = list[str]()
    choose = Turns.choose

    def chosen_one(self: Turns, waiting: Mapping[Any, str]) -> Any:
        chosen.append("a step")
        return choose(self, waiting)

    monkeypatch.setattr(Turns, "choose", chosen_one)
    await hook.ask(post(review()))

    assert len(chosen) == 3, "ClientHello, Finished, the review"


async def test_jobs_that_pods_of_one_namespace_name_delay_no_pod_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant may make any number of such pods; a Job that is not read in time keeps a sidecar."""
    monkeypatch.setattr(webhook, "PATIENCE", 3600.0)
    pod, held = Case(name="").pod, asyncio.Event()
    owned = {**pod["metadata"], "ownerReferences": [OWNER]}

    def asks(namespace: str) -> bytes:
        made = {**pod, "metadata": owned}
        return post(json.dumps(reviewed(object=made, namespace=namespace)).encode())

    async with ApiServer() as api, serving(lambda: Case(name="").setting, api) as hook:
        api.before("/flood/jobs/a", held.wait)
        api.put("jobs", {"metadata": {"name": "a", "namespace": "training", "uid": "u"}})
        flood = [asyncio.create_task(hook.ask(asks("flood"))) for _ in range(20)]
        for _ in flood:
            assert moves(await asyncio.wait_for(hook.ask(asks("training")), 60))
        held.set()
        await asyncio.gather(*flood)


async def test_each_of_many_pipelined_reviews_logs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(path.open("wb")):
        async with serving() as hook, hook.client() as client:
            await client.send(post(review()) * 20)
            for _ in range(20):
                assert (await client.answer()).status == 200
            lines = [json.loads(line) for line in path.read_bytes().splitlines()]
            assert [line["event"] for line in lines] == ["review"] * 20
    reason = "added holdApplicationUntilProxyStarts"
    assert lines[0].items() >= {"uid": "u-1", "outcome": "hold", "reason": reason}.items()
    assert lines[0]["message"].startswith("training/job-")


async def test_a_probe_of_the_injector_is_no_line_of_the_log_and_is_not_warned(
    tmp_path: Path,
) -> None:
    """Each process sends some every few seconds, for as long as it runs."""
    path, probe = tmp_path / "log", json.loads(Question("training", {}).body(native=True))
    with logging_to(path.open("wb")):
        async with serving() as hook:
            answer = await hook.ask(post(json.dumps(reviewed(object=probe, dryRun=True)).encode()))

    assert answer.response["allowed"]
    assert "warnings" not in answer.response
    assert '"event":"review"' not in path.read_text()


class Full(io.BytesIO):
    """A log on a disk that is full at first."""

    full = True

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_log_that_cannot_be_written_delays_no_answer() -> None:
    with logging_to(Full()) as log:
        async with serving() as hook, asyncio.timeout(ServingLimits().idle / 2):
            answer = await hook.ask(post(review()))
        log.full = False
        assert answer.status == 200
        assert json.loads(log.getvalue().splitlines()[0])["event"] == "review"


@pytest.mark.parametrize("path", ["/mutate", "/inject"])
async def test_an_error_of_our_own_refuses_no_pod(
    hook: Hook, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """istio#26380: an exception in a rule."""

    def err(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(plan, "plan", err)
    answer = await hook.ask(post(review(), path=path))
    assert (answer.status, answer.response["allowed"]) == (200, True)
    assert "patch" not in answer.response
    assert answer.response["warnings"] == ["istio-aux: left alone: internal error"]
    assert hook.metric("istio_aux_internal_errors_total") == 1
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("given", "status", "expected"),
    [
        ({"kind": "Content-Type: text/yaml"}, 415, "application/json"),
        ({"kind": "X: application/json"}, 415, "application/json"),
        ({"path": "/other"}, 404, "/mutate or /inject"),
        ({"path": "http://x/mutate"}, 404, "/mutate or /inject"),
    ],
)
async def test_only_json_is_accepted_and_at_two_paths(
    hook: Hook, given: dict[str, str], status: int, expected: str
) -> None:
    answer = await hook.ask(post(review(), **given))
    assert (answer.status, answer.body.decode().count("\n")) == (status, 1)
    assert answer.body.decode().endswith(f": expected {expected}\n")


# HTTP/1.1, byte by byte.

HEAD = f"POST /mutate HTTP/1.1\r\nHost: x\r\n{JSON}\r\n".encode()


MALFORMED = (400, "malformed", b"")


@pytest.mark.parametrize(
    ("sent", "refused"),
    [
        (b"\x00\x01\x02\x03\r\n\r\n", MALFORMED),
        (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{", MALFORMED),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n", MALFORMED),
        (HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", MALFORMED),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", MALFORMED),
        (HEAD + b"X: " + b"x" * 70_000, MALFORMED),
        (b"POST /" + b"y" * 70_000, MALFORMED),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"z" * 70_000, MALFORMED),
        (b"GET" + HEAD[4:] + b"\r\n", (405, "not-allowed", b"'GET': expected POST\n")),
        (b"CONNECT" + HEAD[4:] + b"\r\n", (405, "not-allowed", b"'CONNECT': expected POST\n")),
        (HEAD + b"Content-Length: %d\r\n\r\n" % ((4 << 20) + 1),
         (413, "too-large", b"body over 4194304 bytes\n")),
    ],
    ids=lambda each: repr(each[-60:]) if isinstance(each, bytes) else None,
)  # fmt: skip
async def test_what_no_body_could_make_a_review_is_refused_before_its_body_is_read(
    sent: bytes, refused: tuple[int, str, bytes]
) -> None:
    """Request smuggling above all: what two parsers could read in two ways. So are large heads."""
    status, outcome, text = refused
    async with serving() as hook, hook.client() as client:
        answer = await client.ask(sent)
        assert await client.closed()
        await until(lambda: hook.ended("refused") == 1, "it is closed")
    assert (answer.status, answer.headers.get("Allow")) == (
        status,
        "POST" if status == 405 else None,
    )
    assert answer.body.startswith(text)
    assert hook.reviews(outcome) == 1


@pytest.mark.parametrize(
    "request_",
    [post(b" " * (5 << 20)), chunked(*[b" " * (1 << 20)] * 5)],
    ids=["one body", "chunks"],
)
async def test_a_client_that_sends_the_whole_of_a_too_large_body_reads_413(
    request_: bytes,
) -> None:
    """After a reset the client would report a network error."""
    async with serving(linger=30) as hook:
        answer = await asyncio.to_thread(hook.insist, request_)
    assert answer.status == 413
    assert hook.held == 0


# Shutdown loses no review.


async def test_a_review_that_crosses_the_close_gets_503_with_retry_after() -> None:
    """client-go repeats a POST for this answer, not for a closed connection."""
    async with serving() as hook, hook.client() as client:
        await client.ask(post(review()))
        closing = asyncio.create_task(hook.webhook.close(5))
        answer = await client.answer()
        # Written before the client could know; a reset would take the answer back.
        await client.send(post(review()))
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.headers["Connection"] == "close"
        assert await client.closed()
        await client.close()
        await closing
        assert hook.ended("drain") == 1


async def test_a_review_that_has_begun_is_answered() -> None:
    request = post(review())
    async with serving() as hook, hook.client() as client:
        await client.send(request[:50])
        await until(lambda: hook.connections, "it is there")
        closing = asyncio.create_task(hook.webhook.close(5))
        with pytest.raises(OSError, match="Connect call failed"):
            await hook.connect_on()
        answer = await client.ask(request[50:])
        assert (answer.status, answer.headers["Connection"]) == (200, "close")
        await client.close()
        await closing


async def test_close_waits_no_longer_than_its_patience() -> None:
    async with serving() as hook, hook.client() as client:
        await client.send(post(review())[:50])
        await until(lambda: hook.connections, "it is there")
        await hook.webhook.close(0.1)
        assert await client.closed()
        assert hook.connections == 0


# TLS of the webhook, and a certificate that changes under load.


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
