"""Traces: what an OTLP receiver gets, and what happens when it does not take it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from istio_aux.traces import BATCH, QUEUED, Parent, Span, Traces, sampled
from unit.asynchronous import background, driven, until
from unit.hooked import post, review, serving
from unit.quitting import cluster

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ENDED = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)  # The payload, by `unit.core.pods`.
CALLED = f"00-{TRACE}-{CALLER}-01"


@dataclass
class Receiver:
    """Takes spans, or answers with one of `answers` first."""

    answers: list[int] = field(default_factory=list[int])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        document = json.loads(await request.read())
        if self.answers:
            return web.Response(status=self.answers.pop(0), headers={"Location": "/elsewhere"})
        self.requests.append(document)
        return web.json_response({})

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@asynccontextmanager
async def receiving(*answers: int) -> AsyncGenerator[tuple[Receiver, Traces]]:
    receiver = Receiver([*answers])
    application = web.Application()
    application.router.add_post("/v1/traces", receiver.take)
    async with TestServer(application) as server:
        about = {"service.name": "istio-aux"}
        traces = Traces(str(server.make_url("/")), about, look=0.01, retry=(0.02, 0.05))
        async with background(traces.run()):
            yield receiver, traces


def facts(span: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def numbered(number: int) -> Span:
    return Span("quit", 1.0, 2.5, {"attempts": number, "outcome": "exited"})


@driven
async def test_a_span_arrives_as_otlp_has_it() -> None:
    """opentelemetry-proto trace.proto: hexadecimal ids, times as text, in nanoseconds."""
    async with receiving() as (receiver, traces):
        traces.add(numbered(2))
        (span,) = await until(lambda: receiver.spans, "the span")

    assert (len(span.pop("traceId")), len(span.pop("spanId"))) == (32, 16)
    assert span == {
        "name": "quit",
        "kind": 1,
        "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": "2500000000",
        "attributes": [
            {"key": "attempts", "value": {"intValue": "2"}},
            {"key": "outcome", "value": {"stringValue": "exited"}},
        ],
    }
    (resource,) = receiver.requests[0]["resourceSpans"]
    assert facts(resource["resource"]) == {"service.name": "istio-aux"}


@driven
async def test_a_receiver_that_is_away_gets_the_spans_later_and_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with receiving(503, 429, 503) as (receiver, traces):
        for number in range(BATCH + 5):
            traces.add(numbered(number))
        await until(lambda: len(receiver.spans) == BATCH + 5, "all spans")

    assert [facts(span)["attempts"] for span in receiver.spans] == [
        str(number) for number in range(BATCH + 5)
    ]
    assert len([r for r in caplog.records if "traces not sent: 503" in r.message]) == 2


@driven
@pytest.mark.parametrize("answer", [400, 302])
async def test_spans_that_are_refused_for_good_are_dropped_and_the_next_ones_sent(
    answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with receiving(answer) as (receiver, traces):
        traces.add(numbered(1))
        await until(lambda: not receiver.answers, "the refusal")
        traces.add(numbered(2))
        await until(lambda: receiver.spans, "the next span")

    assert [facts(span)["attempts"] for span in receiver.spans] == ["2"]
    assert f"traces not sent: {answer}" in caplog.text


def test_while_nobody_takes_them_spans_take_a_bounded_memory() -> None:
    traces = Traces("http://127.0.0.1:9", {})
    for number in range(2 * QUEUED):
        traces.add(numbered(number))
    assert len(traces._waiting) == QUEUED


def test_without_a_url_nothing_is_kept() -> None:
    traces = Traces(None, {})
    traces.add(numbered(1))
    assert not traces.on
    assert not traces._waiting


@driven
async def test_what_tenants_write_is_cut() -> None:
    async with receiving() as (receiver, traces):
        traces.add(Span("quit", 1.0, 2.0, {"reason": "x" * 10**6}))
        (span,) = await until(lambda: receiver.spans, "the span")

    assert len(facts(span)["reason"]) == 256


@pytest.mark.parametrize(
    ("header", "parent"),
    [
        (CALLED, Parent(TRACE, CALLER)),
        (f"00-{TRACE}-{CALLER}-00", None),
        (f"00-{'0' * 32}-{CALLER}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"ff-{TRACE}-{CALLER}-01", None),
        (CALLED.upper(), None),
        (f"{CALLED}-more", None),
        ("", None),
    ],
)
def test_a_caller_says_whether_it_traces(header: str, parent: Parent | None) -> None:
    assert sampled(header) == parent


@driven
async def test_a_review_is_traced_when_the_api_server_traces_it(tmp_path: Path) -> None:
    async with receiving() as (receiver, traces), serving(tmp_path) as hook:
        hook.metrics.traces = traces
        async with hook.client() as client:
            await client.ask(post(review()))
            await client.ask(post(review(), f"traceparent: {CALLED}"))
        (span,) = await until(lambda: receiver.spans, "the span")

    assert (span["traceId"], span["parentSpanId"], span["kind"]) == (TRACE, CALLER, 2)
    assert span["name"] == "review"
    assert facts(span)["k8s.pod.name"] == "training/job-*"


@driven
async def test_a_quit_is_traced_from_the_end_of_the_payload() -> None:
    async with receiving() as (receiver, traces), cluster() as world:
        world.telemetry.traces = traces
        await world.pod("train")
        (span,) = await until(lambda: receiver.spans, "the span")

    found = facts(span)
    assert (span["name"], found["outcome"], found["attempts"]) == ("quit", "exited", "1")
    assert (found["k8s.namespace.name"], found["k8s.pod.name"]) == ("training", "train")
    assert int(span["startTimeUnixNano"]) == 1e9 * ENDED.timestamp()
    assert int(span["startTimeUnixNano"]) < int(span["endTimeUnixNano"])
