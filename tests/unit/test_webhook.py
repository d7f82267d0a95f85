"""The webhook over HTTPS: answers, refusals, metrics and log lines."""

from __future__ import annotations

import asyncio
import base64
import errno
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from istio_aux.serving import ServingLimits
from istio_aux.start import plan as start
from unit.asynchronous import driven
from unit.hooked import JSON, Client, post, review, serving
from unit.logged import logging_to


@driven
async def test_a_pod_is_answered_with_a_patch(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review()))
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert (answer.response["uid"], answer.response["allowed"]) == ("u-1", True)
    assert b"holdApplicationUntilProxyStarts" in base64.b64decode(answer.response["patch"])
    assert hook.reviews("hold") == 1
    assert hook.metric("istio_aux_admission_seconds_count") == 1


@driven
async def test_the_path_says_what_a_pod_is_reviewed_for(tmp_path: Path) -> None:
    """Also on one connection, one after another."""
    async with serving(tmp_path) as hook, hook.client() as client:
        for kind in (JSON, "content-TYPE: Application/JSON; charset=utf-8"):
            await client.ask(post(review(), kind=kind))
            answer = await client.ask(post(review(), path="/inject?timeout=3s", kind=kind))
            op, _ = json.loads(base64.b64decode(answer.response["patch"]))
            label = {"sidecar.istio.io/inject": "true"}
            assert (op["path"], op["value"]) == ("/metadata/labels", label)
    assert (hook.reviews("hold"), hook.reviews("labelled")) == (2, 2)
    assert hook.metric("istio_aux_admission_seconds_count") == 4


@driven
async def test_a_review_logs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(tmp_path) as hook:
            await hook.ask(post(review()))
    (line,) = [record for record in caplog.records if record.name.startswith("istio_aux")]
    assert line.getMessage().startswith("training/job-")
    reason = "added holdApplicationUntilProxyStarts"
    facts = {"event": "review", "uid": "u-1", "outcome": "hold", "reason": reason}
    assert vars(line).items() >= facts.items()


@driven
async def test_each_of_many_pipelined_reviews_logs_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with logging_to(path.open("wb")):
        async with serving(tmp_path) as hook, hook.client() as client:
            for count in (1, 20):
                before = len(path.read_bytes().splitlines())
                await client.send(post(review()) * count)
                for _ in range(count):
                    assert (await client.answer()).status == 200
                lines = [json.loads(line) for line in path.read_bytes().splitlines()[before:]]
                assert [line["event"] for line in lines] == ["review"] * count


class Output(io.BytesIO):
    """A log that notes whether the client has its answer when a line is flushed."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client, self.late = client, list[bool]()

    def flush(self) -> None:
        if not self.closed and self.getvalue():
            self.late.append(self.client.has_data)


@pytest.mark.parametrize("draining", [False, True])
@driven
async def test_a_review_is_logged_before_it_is_answered(draining: bool, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.ask(post(review()))
        if draining:
            hook.webhook.drain()
        with logging_to(Output(client)) as output:
            await client.ask(post(review()))
            assert output.late == [False]


class Full(io.BytesIO):
    """A log on a disk that is full at first."""

    full = True

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")


@driven
async def test_a_log_that_cannot_be_written_delays_no_answer(tmp_path: Path) -> None:
    with logging_to(Full()) as log:
        async with serving(tmp_path) as hook, asyncio.timeout(ServingLimits().idle / 2):
            answer = await hook.ask(post(review()))
        log.full = False
        assert answer.status == 200
        assert json.loads(log.getvalue().splitlines()[0])["event"] == "review"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"request": {}}', b"\xff\xfe", b"[" * 9999])
@driven
async def test_what_is_no_review_is_refused_in_one_line(
    body: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        refused = await client.ask(post(body))
        after = await client.ask(post(review()))
    assert (refused.status, after.status) == (400, 200)
    assert refused.body.startswith(b"malformed AdmissionReview")
    assert refused.body.count(b"\n") == 1
    assert hook.reviews("malformed") == 1
    assert [r.levelname for r in caplog.records if r.name.startswith("istio_aux")] == ["WARNING"]


@driven
async def test_a_malformed_review_with_a_uid_gets_a_review_as_its_answer(tmp_path: Path) -> None:
    """The API server can use nothing else, and refuses the pod under `failurePolicy: Fail`."""
    body = json.dumps({"request": {"uid": "u-2", "object": 7}}).encode()
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(body))
    assert (answer.status, answer.response["uid"]) == (200, "u-2")
    assert answer.response["allowed"] is True
    assert "left alone" in answer.response["warnings"][0]


@pytest.mark.parametrize(("path", "rule"), [("/mutate", "plan"), ("/inject", "plan_label")])
@driven
async def test_an_error_of_our_own_refuses_no_pod(
    path: str,
    rule: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """T37: an exception in a rule."""

    def err(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(start, rule, err)
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review(), path=path))
    assert (answer.status, answer.response["allowed"]) == (200, True)
    assert "patch" not in answer.response
    assert answer.response["warnings"] == ["istio-aux: left alone: internal error"]
    assert hook.metric("istio_aux_internal_errors_total") == 1
    assert [record.exc_info is not None for record in caplog.records] == [True]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "CONNECT"])
@driven
async def test_only_post_is_allowed(method: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        answer = await client.ask(f"{method} /mutate HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert await client.closed()
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert answer.body.decode() == f"{method!r}: expected POST\n"
    assert hook.reviews("not-allowed") == 1


@driven
async def test_head_is_refused_without_a_body(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook, hook.client() as client:
        await client.send(b"HEAD /mutate HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 405")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("kind", ["Content-Type: text/yaml", "X: application/json"])
@driven
async def test_only_json_is_accepted(kind: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review(), kind=kind))
    assert answer.status == 415
    assert answer.body.endswith(b": expected application/json\n")


@pytest.mark.parametrize("path", ["/other", "/", "/mutate/", "/injected", "http://x/mutate"])
@driven
async def test_another_path_is_not_found(path: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review(), path=path))
    assert answer.status == 404
    assert answer.body.decode() == f"{path!r}: expected /mutate or /inject\n"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ({"metadata": {"annotations": {"note": "x" * (3 << 20)}}}, "2097152 are looked at"),
        ({"spec": {"containers": [{}] * 60_000}}, "60006 objects, and 50000 are looked at"),
        ({"metadata": {"labels": dict.fromkeys(map(str, range(20_000)), "x")}}, "30000 are looked"),
    ],
    ids=["bytes", "objects", "strings"],
)
@driven
async def test_a_pod_that_would_take_too_long_is_allowed_with_a_warning(
    pod: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """All other reviews would wait for it; etcd stores 1.5 MB of a pod."""
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review(**pod)))
    assert (answer.status, answer.response["uid"]) == (200, "u-1")
    assert answer.response["allowed"] is True
    assert "patch" not in answer.response
    assert why in answer.response["warnings"][0]
    assert hook.listener.connections.cost == 0


@driven
async def test_a_pod_of_the_size_that_etcd_stores_gets_hold(tmp_path: Path) -> None:
    env = [{"name": "NOTE", "value": "x" * 1_500_000}]
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review(spec={"containers": [{"name": "main", "env": env}]})))
    assert "patch" in answer.response
    assert hook.reviews("hold") == 1


@driven
async def test_an_answer_of_many_records_arrives_whole(tmp_path: Path) -> None:
    uid = "u" * 200_000
    async with serving(tmp_path) as hook:
        answer = await hook.ask(post(review().replace(b"u-1", uid.encode())))
    assert answer.response["uid"] == uid


@driven
async def test_many_reviews_at_once_are_all_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as hook:
        answers = await asyncio.gather(*(hook.ask(post(review())) for _ in range(100)))
    assert {answer.status for answer in answers} == {200}
    assert hook.reviews("hold") == 100
