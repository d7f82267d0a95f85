"""The webhook that answers reviews of new pods, and its certificate.

`review` decides. Connections and their limits are in `serving`. An internal error leaves the pod as
it is: an admission helper must never be the reason that a pod is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

from aiohttp import web
from msgspec import structs

from istio_aux.injector import probe_rules
from istio_aux.kube import actions
from istio_aux.kube.access import stamps
from istio_aux.kube.client import Client
from istio_aux.kube.errors import UNANSWERED
from istio_aux.model.owners import JobCounts
from istio_aux.model.pod import OwnerReference
from istio_aux.model.text import one_line
from istio_aux.serving import Closed, Connection, Listener, ServingLimits
from istio_aux.start import review
from istio_aux.start.plan import Excluded, left_to_ambient
from istio_aux.start.turns import Turns
from istio_aux.tasks import Slots
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

POLL = 2.0  # Seconds between two readings of the files.
PATIENCE = 1.0  # Seconds to read the Job of a pod: the API server waits for 3 s.
KNOWN = 86400.0  # Seconds that an address counts as an API server's after a review showed it.


class CertificateError(Exception):
    """The files are no certificate and its key; ``str()`` is one line."""


class Certificate:
    """A certificate and its key in two files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Load the pair; raises CertificateError."""
        self._files = (certificate, key)
        self._stamps = stamps(self._files)
        self.fingerprint = ""  # SHA-256 of the certificate that is served.
        self._current = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new handshake.

        `sni_callback` could choose it, but logs a traceback for a name that is not ASCII.
        """
        return self._current

    def reload(self) -> bool:
        """Load the files again if they have changed; return whether a new pair is served."""
        seen = stamps(self._files)
        if seen == self._stamps:
            return False
        self._stamps = seen
        try:
            self._current = self._load()
        except CertificateError as error:
            _log.error("%s", error, extra={"event": "certificate", "outcome": "kept"})
            return False
        _log.info("%s", self._files[0], extra={"event": "certificate", "outcome": "reloaded"})
        return True

    async def follow(self, interval: float = POLL) -> None:
        """Reload whenever the files change, until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.reload()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")  # TLS 1.2 without CBC (RFC 9325).
        # The API server speaks HTTP/1.1 to webhooks (apimachinery util/net/http.go).
        context.set_alpn_protocols(["http/1.1"])
        certificate, key = self._files
        try:
            # Without the argument, OpenSSL asks a terminal for the password of an encrypted key.
            context.load_cert_chain(certificate, key, password="")
        except OSError as error:  # ssl.SSLError is one.
            raise CertificateError(
                f"{certificate}, {key}: no certificate and key: {error.strerror or error}"
            ) from error
        self.fingerprint = _fingerprint(certificate)
        return context


def _fingerprint(file: Path) -> str:
    """The SHA-256 of the first certificate in ``file``; empty if it is in another form."""
    with contextlib.suppress(OSError, ValueError):
        before, end, _ = file.read_text().partition("-----END CERTIFICATE-----")
        return hashlib.sha256(
            ssl.PEM_cert_to_DER_cert(before[before.index("-----BEGIN CERT") :] + end)
        ).hexdigest()
    return ""


MUTATE, INJECT = "/mutate", "/inject"  # The second adds the label for a sidecar, too.
JSON = "application/json"

# Bytes of a body. The API server accepts objects of 3 MiB, and etcd stores 1.5 MB.
BODY = 4 << 20

# The outcome that counts an error answer, by its HTTP status.
_OUTCOMES = {
    400: "malformed",
    404: "not-allowed",
    405: "not-allowed",
    408: "timeout",
    413: "too-large",
    415: "not-allowed",
    503: "busy",
}

# Reviews are answered with 200, "malformed" ones with 200 or 400, the last four with an error.
REVIEW_OUTCOMES = (*review.Outcome, "too-large", "timeout", "not-allowed", "busy")


def _too_large() -> web.HTTPException:
    return web.HTTPRequestEntityTooLarge(BODY, text=f"body over {BODY} bytes\n")


class AdmissionWebhook:
    """The webhook."""

    def __init__(
        self,
        metrics: Telemetry,
        how: review.How,
        client: Client,
        *,
        excluded: Excluded = left_to_ambient,
        word: str = probe_rules.WORD,
        limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Prepare to `listen`; see `review.How` for ``how``, and `plan.plan` for ``excluded``.

        A review with ``word`` in it comes from an API server.
        """
        self._how, self._excluded = how, excluded
        self._internal_errors = metrics.internal_errors
        self._reviews = metrics.counter(
            "admission_reviews",
            "Admission reviews, by answer.",
            outcome=REVIEW_OUTCOMES,
        )
        self._seconds = metrics.histogram(
            "admission_seconds",
            "From the complete request to its answer.",
            *(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3),
        )
        self._connections = metrics.gauge(
            "admission_connections",
            "Open connections to the webhook.",
        )
        self._closures = metrics.counter(
            "admission_connections_closed",
            "Closed connections to the webhook, by reason.",
            reason=Closed,
        )
        self._word = word.encode()
        self._known = set[str]()  # Addresses of API servers.
        self._limits, self._turns = limits, Turns(self._known)
        self._client, self._slots = client, Slots(8, 0.01)  # To read Jobs, in about 10 ms each.

    async def listen(
        self,
        host: str,
        port: int,
        context: Callable[[], ssl.SSLContext],
    ) -> tuple[str, int]:
        """Do as `Listener.listen`; ``context`` returns the TLS context of a new handshake."""
        self._listener = Listener(
            web.Server(self._answer),
            self._limits,
            context,
            lambda why: self._closures.labels(why).inc(),
            self._refused,
            turn=self._turns.turn,
            known=self._known,
        )
        self._connections.set_function(lambda: len(self._listener.connections))
        return await self._listener.listen(host, port)

    def drain(self) -> None:
        """Close each connection with its next answer; new connections are still accepted.

        API servers learn only later that this endpoint ends (kubernetes#127335).
        """
        self._listener.draining = True

    async def close(self, patience: float) -> None:
        """Stop listening, and close all connections within ``patience`` seconds."""
        await self._listener.close(patience)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.raw_path.partition("?")[0]
        if path not in {MUTATE, INJECT}:
            text = f"{request.raw_path[:256]!r}: expected {MUTATE} or {INJECT}\n"
            raise web.HTTPNotFound(text=text)
        if request.method != "POST":
            text = f"{request.method[:256]!r}: expected POST\n"
            raise web.HTTPMethodNotAllowed(request.method, ["POST"], text=text)
        if request.content_type != JSON:
            kind = request.headers.get("Content-Type", "")[:256]
            raise web.HTTPUnsupportedMediaType(text=f"content-type {kind!r}: expected {JSON}\n")
        body = await self._read(request)
        began, peer = time.perf_counter(), cast("Connection", request.protocol)
        try:
            async with self._turns.turn(peer, review=True):
                if request.transport is None:  # The client has left meanwhile.
                    raise web.HTTPBadRequest(text="the client has left\n")
                if self._word in body:
                    self._know(peer.address)
                answer = self._review(path, body, self._how)
            if answer.job:
                job = await self._counts(answer.pod.partition("/")[0], answer.job)
                async with self._turns.turn(peer, review=True):
                    known = partial(structs.replace, job=job)
                    answer = self._review(path, body, lambda pod: known(self._how(pod)))
        except review.Malformed as error:
            text = one_line(str(error), 500)
            self._refused(400, text)
            return web.Response(status=400, text=f"{text}\n")
        self._seconds.observe(time.perf_counter() - began)
        self._reviews.labels(answer.outcome).inc()
        # A dry run creates no pod, and the probes of each process make some every few seconds.
        _log.log(
            logging.DEBUG if answer.dry_run else logging.INFO,
            "%s",
            answer.pod,
            extra={
                "event": "review",
                "uid": answer.uid[:36],
                "outcome": answer.outcome,
                "reason": answer.reason,
                **({"warnings": answer.warnings} if answer.warnings else {}),
            },
        )
        return web.Response(body=answer.body, content_type=JSON)

    def _know(self, address: str) -> None:
        """Count ``address`` as an API server's for `KNOWN` seconds; it may go to another client."""
        if address not in self._known:
            _log.info("%s is an API server's", address, extra={"event": "api-server"})
            self._known.add(address)
            asyncio.get_running_loop().call_later(KNOWN, self._known.discard, address)

    async def _read(self, request: web.BaseRequest) -> bytes:
        if (request.content_length or 0) > BODY:
            raise _too_large()
        body = bytearray()
        while part := await request.content.readany():
            body += part
            if len(body) > BODY:
                raise _too_large()
        return bytes(body)

    async def _counts(self, namespace: str, job: OwnerReference) -> JobCounts:
        """Read what a Job counts. Without an answer, exit codes count, and restarts do not."""
        try:
            async with asyncio.timeout(PATIENCE), self._slots.take(namespace, node=""):
                found = await actions.read_job(self._client, namespace, job)
        except UNANSWERED:
            found = None
        return JobCounts.of(found.spec) if found else JobCounts(exits=True)

    def _review(self, path: str, body: bytes, how: review.How) -> review.ReviewResult:
        try:
            return review.answer(body, how, requested=path == INJECT, excluded=self._excluded)
        except review.Malformed:
            raise
        except Exception:  # A fault of ours must not refuse a pod.
            _log.exception("internal error", extra={"event": "review"})
            self._internal_errors.inc()
            return review.allow_unchanged(body, review.Malformed("internal error"))

    def _refused(self, status: int, text: str) -> None:
        outcome = _OUTCOMES[status]
        self._reviews.labels(outcome).inc()
        _log.warning("%s", text, extra={"event": "review", "outcome": outcome, "status": status})
