"""Serve the admission webhook: bounded bytes in, one pure function, bytes out.

Only HTTP may live here; what is in a review is the core's affair. Figures follow the API server's
behaviour as a client (apiserver pkg/util/webhook/client.go).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from aiohttp import web

from istio_aux.core import review
from istio_aux.core.policy import Start
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

PATH = "/mutate"

BODY = 8 << 20
"""Bytes. The API server takes objects of 3 MiB; controller-runtime allows webhooks 7 MiB."""

READ = 10.0
"""Seconds for a body to arrive; the API server gives up after timeoutSeconds, 30 at most."""

KEEPALIVE = 120.0
"""Seconds. Must exceed the API server's idle time of 90 s: a POST on a connection that we are just
closing is not sent again, and the pod would be created without us."""

LINGER = 1.0
"""Seconds for which what is left of a body is read and dropped after an early answer."""

BACKLOG = 1024
"""Connections. The API server opens one for each review above 25 at once, in bursts."""


def runner(application: web.Application, *, patience: float) -> web.AppRunner:
    """A runner with the bounds of this module; it gives handlers ``patience`` seconds to end."""
    return web.AppRunner(
        application,
        access_log=None,
        keepalive_timeout=KEEPALIVE,
        lingering_time=LINGER,
        shutdown_timeout=patience,
    )


class Webhook:
    """The webhook's handler; `application` makes an aiohttp application of it.

    Attributes:
        draining: set on shutdown: answers then ask the API server to connect anew, elsewhere.
    """

    def __init__(
        self, telemetry: Telemetry, how: Callable[[], Start], *, read_timeout: float = READ
    ) -> None:
        """Answer reviews; ``how`` tells, at any moment, how pods are to be started."""
        self.draining = False
        self._telemetry, self._how = telemetry, how
        self._read_timeout = read_timeout

    def application(self) -> web.Application:
        """An application with the one path."""
        application = web.Application(client_max_size=BODY)
        application.router.add_route("*", PATH, self.handle)
        return application

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request; every answer is counted and logged in one line."""
        if request.method != "POST":
            return self._refuse(405, "not-allowed", f"{request.method}: expected POST")
        if request.content_type != "application/json":
            what = f'content-type "{request.content_type}": expected application/json'
            return self._refuse(415, "not-allowed", what)
        try:
            async with asyncio.timeout(self._read_timeout):
                body = await request.read()
        except TimeoutError:
            return self._refuse(408, "timeout", f"no complete body in {self._read_timeout:g} s")
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(413, "too-large", f"body over {BODY} bytes")
        except ConnectionError:  # The client left in mid-body; the answer reaches nobody.
            return self._refuse(400, "malformed", "the client left before the body was complete")
        return self._answer(body)

    def _answer(self, body: bytes) -> web.Response:
        began = time.perf_counter()
        try:
            answer = review.answer(body, self._how())
        except review.Malformed as error:
            return self._refuse(400, "malformed", str(error))
        self._telemetry.review_seconds.observe(time.perf_counter() - began)
        outcome = answer.outcome
        self._telemetry.reviews.labels(outcome).inc()
        facts = {"uid": answer.uid, "outcome": outcome, "reason": answer.reason}
        warnings = {"warnings": answer.warnings} if answer.warnings else {}
        _log.info("%s", answer.pod, extra={"event": "review", **facts, **warnings})
        return self._close_if_draining(
            web.Response(body=answer.body, content_type="application/json")
        )

    def _refuse(self, status: int, outcome: str, why: str) -> web.Response:
        self._telemetry.reviews.labels(outcome).inc()
        line = " ".join(why.split())[:500]
        _log.warning("%s", line, extra={"event": "review", "outcome": outcome, "status": status})
        headers = {"Allow": "POST"} if status == 405 else None
        response = web.Response(status=status, text=line + "\n", headers=headers)
        if status in {408, 413}:  # What is left of the body is still on the wire.
            response.force_close()
        return self._close_if_draining(response)

    def _close_if_draining(self, response: web.Response) -> web.Response:
        if self.draining:
            response.force_close()
        return response
