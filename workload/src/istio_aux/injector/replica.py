"""Asks one replica of an injector for a sidecar, as the API server does: one POST over TLS.

No proxy, no redirect and no credentials of ours: those belong to the API server, and istiod asks
for none. Size is bounded, and time by what the API server grants: an injector that is slow is live.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp.client_proto import ResponseHandler

from istio_aux.injector.probe_rules import Question, answered, refusal
from istio_aux.injector.rules import Probe
from istio_aux.model.webhooks import Address, ClientConfig

CONNECT = 2.0  # Seconds for a connection: TCP and TLS.
LARGEST = 4 << 20  # Bytes of an answer; istiod sends about 20,000.
IDLE = 3600.0  # Seconds that a connection stays open; it is dropped much earlier.

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "istio-aux",
}


class ReplicaConnection(aiohttp.TCPConnector):
    """A connection to one replica. It stays open after its request; ``ended`` is set at its end."""

    def __init__(self) -> None:
        super().__init__(keepalive_timeout=IDLE)  # pyright: ignore[reportUnknownMemberType]
        self.ended = asyncio.Event()
        self.opened = False

    async def _create_connection(self, *args: Any, **options: Any) -> ResponseHandler:
        protocol = await super()._create_connection(*args, **options)
        self.opened = True
        if closed := protocol.closed:
            closed.add_done_callback(self._closed_by_peer)
        return protocol

    def _closed_by_peer(self, closed: asyncio.Future[None]) -> None:
        closed.exception()  # It counts as retrieved.
        self.ended.set()

    async def drop(self) -> None:
        """Close the connection now."""
        await self.close(abort_ssl=True)


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
    """Ask the replica at ``address`` as if it had been found by ``url``."""
    connection, probe = ReplicaConnection(), Probe(injected=False)
    try:
        probe = await _ask(connection, address, url, tls, question)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Another certificate may be that of a network that answers for every address. A dry run
        # shows whether the API server reaches istiod.
        foreign = isinstance(error, aiohttp.ClientConnectorCertificateError)
        reached = connection.opened or (isinstance(error, aiohttp.ClientSSLError) and not foreign)
        probe = refusal(_why(error, question.timeout), reached=reached)
    finally:
        if not probe.injected:
            await connection.drop()
    if probe.injected:
        return ProbeAnswer(probe, connection)
    return ProbeAnswer(refusal(f"{address}: {probe.why}", reached=probe.reached))


async def _ask(
    connection: ReplicaConnection,
    address: Address,
    url: str,
    tls: ssl.SSLContext,
    question: Question,
) -> Probe:
    uid, where = str(uuid.uuid4()), urlsplit(url)
    async with (
        asyncio.timeout(question.timeout),
        aiohttp.ClientSession(
            connector=connection,
            connector_owner=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(sock_connect=CONNECT),
        ) as session,
        session.post(
            where._replace(netloc=str(address)).geturl(),
            data=question.review(uid),
            headers={**_HEADERS, "Host": where.netloc},
            allow_redirects=False,
            ssl=tls,
            server_hostname=where.hostname,
        ) as response,
    ):
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > LARGEST:
                return refusal(f"its answer is larger than {LARGEST >> 20} MiB")
    if response.status != 200:
        message = body[:200].decode(errors="replace")
        return refusal(f"it answered {response.status}: {message}")
    return answered(bytes(body), uid)


def _why(error: Exception, timeout: float) -> str:
    match error:
        case aiohttp.ConnectionTimeoutError():
            text = f"no connection within {CONNECT:g} s"
        case TimeoutError():
            text = f"no complete answer within {timeout:g} s"
        case aiohttp.ClientConnectorCertificateError(
            certificate_error=ssl.SSLCertVerificationError(verify_message=why)
        ):
            text = f"its certificate is not trusted: {why}"
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLError(reason=str(reason))):
            text = f"TLS: {reason.lower().replace('_', ' ')}"
        case aiohttp.ClientConnectorError():
            failed = error.os_error
            text = os.strerror(failed.errno) if failed.errno else str(failed)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            text = "the connection ended before the answer"
        case aiohttp.ClientPayloadError():
            text = f"its answer is not complete: {error.__cause__ or error}"
        case aiohttp.ClientResponseError():
            text = f"its answer is not HTTP/1.1: {error.message}"
        case _:
            text = str(error) or type(error).__name__
    return text
