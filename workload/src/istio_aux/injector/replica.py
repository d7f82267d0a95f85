"""Asks one replica of an injector for a sidecar, as the API server does: one POST over TLS.

No proxy, no redirect and no credentials of ours: those belong to the API server, and istiod asks
for none. Size is bounded, and time by what the API server grants: an injector that is slow is live.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler

from istio_aux.injector.probe_rules import Question, answered, refusal
from istio_aux.injector.rules import Probe
from istio_aux.model.webhooks import Address, ClientConfig

CONNECT = 1.0  # Seconds for a TCP connection.
LARGEST = 4 << 20  # Bytes of an answer; istiod sends about 20,000.

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "istio-aux",
}


class _Protocol(ResponseHandler):
    """aiohttp's protocol; it also reports the end of a connection that has had its answer."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.answered = False
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        if self.answered:  # Nobody asked for more.
            self.abort()
        else:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.ended.set()


class ReplicaConnection(aiohttp.BaseConnector):
    """A connection for one request. It stays open until `drop`.

    aiohttp's own connectors do not report that a connection has ended, nor whether it failed before
    the other side was reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self._protocol = _Protocol()
        self._transport: asyncio.Transport | None = None
        self.ended = self._protocol.ended

    @property
    def connected(self) -> bool:
        """Whether there was a TCP connection."""
        return self._transport is not None

    async def open(self, address: Address, name: str, tls: ssl.SSLContext) -> None:
        """Connect; the certificate must be for ``name``. Raises OSError and ValueError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT):
            self._transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        encrypted = await loop.start_tls(self._transport, self._protocol, tls, server_hostname=name)
        if encrypted is None:
            raise ConnectionResetError
        self._protocol.connection_made(encrypted)

    async def post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Return status and body. Raises aiohttp.ClientError, OSError and ValueError."""
        async with (
            aiohttp.ClientSession(
                connector=self,
                connector_owner=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(),
            ) as session,
            session.post(url, data=body, headers=_HEADERS, allow_redirects=False) as response,
        ):
            answer = bytearray()
            async for part in response.content.iter_any():
                answer += part
                if len(answer) > LARGEST:
                    raise ValueError(f"its answer is larger than {LARGEST >> 20} MiB")
            self._protocol.answered = True
            return response.status, bytes(answer)

    def drop(self) -> None:
        """Close the connection now."""
        if self._transport:
            self._transport.abort()

    async def _create_connection(self, *_: Any, **__: Any) -> ResponseHandler:
        return self._protocol

    def _release(self, *_: Any, should_close: bool = False, **__: Any) -> None:
        """Keep the connection out of aiohttp's pool, which closes idle ones."""
        if should_close or self._protocol.should_close:
            self._protocol.close()


class ProbeAnswer(NamedTuple):
    """The result of asking; ``connection`` is to the replica that injected, if one did."""

    probe: Probe
    connection: ReplicaConnection | None = None


def tls_context(target: ClientConfig) -> ssl.SSLContext:
    """Return a context that trusts what the API server trusts at this endpoint.

    Every certificate of the caBundle is an anchor, an authority's or not (Go crypto/x509 Verify).
    Without a caBundle the system's certificates are.
    """
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.hostname_checks_common_name = False
    # The API server speaks HTTP/1.1 to webhooks (apimachinery util/net/http.go).
    tls.set_alpn_protocols(["http/1.1"])
    if not target.ca_bundle:
        tls.load_default_certs()
    else:
        # Python's own default asks authorities for extensions that Go does not ask for.
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for der in target.anchors:
        with suppress(ssl.SSLError, ValueError):
            tls.load_verify_locations(cadata=der)
    return tls


async def ask(address: Address, url: str, tls: ssl.SSLContext, question: Question) -> ProbeAnswer:
    """Ask the replica at ``address`` as if it had been found by ``url``; raises nothing."""
    uid = str(uuid.uuid4())
    connection = ReplicaConnection()
    with ExitStack() as stack:
        stack.callback(connection.drop)
        try:
            async with asyncio.timeout(question.timeout):
                await connection.open(address, urlsplit(url).hostname or "", tls)
                code, body = await connection.post(url, question.review(uid))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = _why(error, question.timeout, connected=connection.connected)
            return ProbeAnswer(refusal(f"{address}: {why}", reached=connection.connected))
        if code != 200:
            message = body[:200].decode(errors="replace")
            return ProbeAnswer(refusal(f"{address}: it answered {code}: {message}"))
        probe = answered(body, uid)
        if not probe.injected:
            return ProbeAnswer(refusal(f"{address}: {probe.why}"))
        stack.pop_all()
        return ProbeAnswer(probe, connection)


def _why(error: Exception, timeout: float, *, connected: bool) -> str:
    match error:
        case TimeoutError():
            slow = "complete answer", timeout
            why = "no {} within {:g} s".format(*(slow if connected else ("connection", CONNECT)))
        case ssl.SSLCertVerificationError():
            why = f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError() if error.reason:
            why = f"TLS: {error.reason.lower().replace('_', ' ')}"
        case aiohttp.ServerDisconnectedError() | ConnectionResetError():
            why = "the connection ended before the answer"
        case aiohttp.ClientPayloadError():
            why = f"its answer is not complete: {error.__cause__ or error}"
        case aiohttp.ClientResponseError():
            why = f"its answer is not HTTP/1.1: {error.message}"
        case ConnectionError() if error.errno:
            why = os.strerror(error.errno)
        case _:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return why
