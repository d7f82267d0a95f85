"""Sends traces to an OTLP receiver, such as Tempo: spans of quits, and of reviews.

A review is traced when the API server traces its request. Off without a URL.

The format is OTLP/HTTP with JSON (opentelemetry-proto docs/specification.md). OpenTelemetry's SDK
and exporter would add nine packages for one POST every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Iterable, Mapping
from importlib.metadata import version

import aiohttp
import msgspec

from istio_aux.kube.errors import Backoff

_log = logging.getLogger(__name__)

QUEUED = 2048  # Spans that wait for the receiver; more are dropped.
BATCH = 512  # Spans of a request.
LOOK = 5.0  # Seconds between two requests.
DEADLINE = 10.0  # Seconds for the receiver's answer.
RETRY = (5.0, 300.0)  # Seconds before the second attempt, and the most before any later one.
LONGEST = 256  # Characters of a value: pods and reasons may quote what a tenant wrote.

# https://www.w3.org/TR/trace-context: version, trace, parent, flags.
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_NOTHING = re.compile(r"0+")


class Parent(msgspec.Struct, frozen=True):
    """The caller's span; without one, a span begins a trace of its own."""

    trace: str = ""
    span: str = ""


class Span(msgspec.Struct, frozen=True):
    """What happened from ``began`` to ``ended``, in seconds since 1970."""

    name: str
    began: float
    ended: float
    facts: Mapping[str, str | int]
    parent: Parent = Parent()


def sampled(traceparent: str) -> Parent | None:
    """The caller's span, by its header; None unless the caller records it."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or _NOTHING.fullmatch(found[1]) or _NOTHING.fullmatch(found[2]):
        return None
    return Parent(found[1], found[2]) if int(found[3], 16) & 1 else None


class Traces:
    """Spans that wait, and the endless task that sends them."""

    def __init__(
        self, url: str | None, about: Mapping[str, str], *, look: float = LOOK,
        retry: tuple[float, float] = RETRY,
    ) -> None:  # fmt: skip
        """Prepare to send to the receiver at ``url``; None: nothing is kept.

        ``about`` has the attributes of this process, such as ``service.name``.
        """
        self._url, self._about = f"{(url or '').rstrip('/')}/v1/traces", about
        self._waiting = deque[Span](maxlen=QUEUED if url else 0)
        self._look, self._backoff, self._trouble = look, Backoff(*retry), ""

    @property
    def on(self) -> bool:
        """Whether spans are kept."""
        return bool(self._waiting.maxlen)

    def add(self, span: Span) -> None:
        """Send ``span`` soon."""
        self._waiting.append(span)

    async def run(self) -> None:
        """Send what waits, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=DEADLINE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(self._look)
                while self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                    if not await self._send(session, encode(batch, self._about)):
                        self._waiting.extendleft(reversed(batch))
                        await asyncio.sleep(self._backoff.next())
                        break
                    self._backoff.reset()

    async def _send(self, session: aiohttp.ClientSession, body: bytes) -> bool:
        """Return whether the spans are gone: accepted, or refused for good."""
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                trouble = "" if answer.status < 300 else f"{answer.status} {answer.reason}"
                again = answer.status in {429, 502, 503, 504}
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trouble, again = str(error) or f"no answer in {DEADLINE:g} s", True
        # Log only changes: the receiver may be away for long.
        if trouble and trouble != self._trouble:
            _log.warning("%s: traces not sent: %s", self._url, trouble, extra={"event": "traces"})
        self._trouble = trouble
        return not (trouble and again)


def encode(spans: Iterable[Span], about: Mapping[str, str]) -> bytes:
    """The body of a request (opentelemetry-proto ExportTraceServiceRequest)."""
    scope = {"name": "istio-aux", "version": version("istio-aux")}
    every = {"scope": scope, "spans": [_span(span) for span in spans]}
    return msgspec.json.encode(
        {"resourceSpans": [{"resource": {"attributes": _facts(about)}, "scopeSpans": [every]}]}
    )


def _span(span: Span) -> dict[str, object]:
    parent = span.parent
    known: dict[str, object] = {
        "traceId": parent.trace or os.urandom(16).hex(),
        "spanId": os.urandom(8).hex(),
        "name": span.name,
        "kind": 2 if parent.span else 1,  # Server, internal.
        "startTimeUnixNano": str(int(span.began * 1e9)),
        "endTimeUnixNano": str(int(max(span.began, span.ended) * 1e9)),
        "attributes": _facts(span.facts),
    }
    if parent.span:
        known["parentSpanId"] = parent.span
    return known


def _facts(facts: Mapping[str, str | int]) -> list[dict[str, object]]:
    return [
        {
            "key": key,
            "value": {"intValue": str(value)}
            if isinstance(value, int)
            else {"stringValue": value[:LONGEST]},
        }
        for key, value in facts.items()
    ]
