"""The admission webhook: what a request must look like, its review, the counters, one log line."""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from aiohttp import web

from istio_aux.core import review
from istio_aux.core.policy import Start
from istio_aux.serving import Listener, ServingLimits
from istio_aux.telemetry import Closed, Telemetry

_log = logging.getLogger(__name__)

MUTATE, INJECT = "/mutate", "/inject"  # How a pod starts; that it asks for a sidecar, too.
JSON = "application/json"

# Bytes of a body. The API server accepts objects of 3 MiB, and etcd stores 1.5 MB.
BODY = 4 << 20

# How an error answer is counted.
_OUTCOMES = {
    400: "malformed", 404: "not-allowed", 405: "not-allowed", 408: "timeout", 413: "too-large",
    415: "not-allowed", 503: "busy",
}  # fmt: skip


class AdmissionWebhook:
    """The webhook."""

    def __init__(
        self,
        metrics: Telemetry,
        how: Callable[[], Start],
        *,
        limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
        body: int = BODY,
    ) -> None:
        """Answer reviews of ``body`` bytes at most; ``how`` returns how pods are started now."""
        self._telemetry, self._how, self._limits, self._body = metrics, how, limits, body
        self._listener: Listener | None = None

    async def listen(
        self, host: str, port: int, context: Callable[[], ssl.SSLContext]
    ) -> tuple[str, int]:
        """Serve at ``host`` (empty: every address) and ``port`` (0: any); return where that is.

        ``context`` returns the TLS context of a handshake that begins now.

        Raises:
            OSError: the port is not available.
        """
        server = web.Server(self._answer)
        listener = Listener(server, self._limits, context, self._closed, self._refused)
        self._telemetry.connections.set_function(lambda: len(listener.connections))
        where = await listener.listen(host, port)
        self._listener = listener
        return where

    def drain(self) -> None:
        """Close each connection with its next answer; new connections are still accepted.

        API servers learn only later that this endpoint ends (kubernetes#127335).
        """
        if self._listener:
            self._listener.draining = True

    async def close(self, patience: float) -> None:
        """Stop listening, and close all connections within ``patience`` seconds."""
        if self._listener:
            await self._listener.close(patience)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.raw_path.partition("?")[0]
        if path not in {MUTATE, INJECT}:
            shown = _shown(request.raw_path)
            raise web.HTTPNotFound(text=f"{shown}: expected {MUTATE} or {INJECT}\n")
        if request.method != "POST":
            text = f"{_shown(request.method)}: expected POST\n"
            raise web.HTTPMethodNotAllowed(request.method, ["POST"], text=text)
        if request.content_type != JSON:
            kind = _shown(request.headers.get("Content-Type", ""))
            text = f'content-type "{kind}": expected {JSON}\n'
            raise web.HTTPUnsupportedMediaType(text=text)
        body = await self._read(request)
        began = time.perf_counter()
        try:
            answer = self._review(path, body)
        except review.Malformed as error:
            text = " ".join(str(error).split())[:500]
            self._refused(400, text)
            return web.Response(status=400, text=f"{text}\n")
        self._telemetry.review_seconds.observe(time.perf_counter() - began)
        self._telemetry.reviews.labels(answer.outcome).inc()
        facts: dict[str, object] = {
            "event": "review", "uid": answer.uid[:36], "outcome": answer.outcome,
            "reason": answer.reason,
        }  # fmt: skip
        if answer.warnings:
            facts["warnings"] = answer.warnings
        _log.info("%s", answer.pod, extra=facts)
        return web.Response(body=answer.body, content_type=JSON)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the body. `Connection.charge` counts what it takes."""
        if (request.content_length or 0) > self._body:
            raise self._too_large()
        expect = request.headers.get("Expect", "").lower()
        if expect == "100-continue" and request.version > (1, 0):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        while part := await request.content.readany():
            body += part
            if len(body) > self._body:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> web.HTTPException:
        return web.HTTPRequestEntityTooLarge(self._body, text=f"body over {self._body} bytes\n")

    def _review(self, path: str, body: bytes) -> review.ReviewResult:
        try:
            return review.answer(body, self._how(), inject=path == INJECT)
        except review.Malformed:
            raise
        except Exception:  # A fault of ours must not refuse a pod.
            _log.exception("internal error", extra={"event": "review"})
            self._telemetry.internal_errors.inc()
            return review.leave(body, review.Malformed("internal error"))

    def _closed(self, why: Closed) -> None:
        self._telemetry.closed_connections.labels(why).inc()

    def _refused(self, status: int, text: str) -> None:
        outcome = _OUTCOMES[status]
        self._telemetry.reviews.labels(outcome).inc()
        _log.warning("%s", text, extra={"event": "review", "outcome": outcome, "status": status})


def _shown(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()[:256]
