"""Keep finding out whether sidecars can be native on request: for one injector, while it is live.

The API server is asked, by dry runs that make no object: all webhooks have their say there. Whether
the injector is live is another question (`Inquiry`), and never waits for this one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice

import msgspec

from istio_aux.core import native
from istio_aux.core.injection_probe import Question
from istio_aux.core.native import NativeCheck
from istio_aux.core.pod import Metadata, Struct
from istio_aux.injector.inquiry import Rhythm
from istio_aux.injector.probe import DRY_RUN
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, KubeError, UnreadableError
from istio_aux.telemetry import Telemetry

_log = logging.getLogger(__name__)

NODES = actions.collection("v1", "nodes")

KEPT = 300.0
"""Seconds that an answer stays while the API server gives no other one."""

NAMESPACES = 3
"""How many are tried, for a quota or a policy of one of them may refuse any pod."""

_PASSING = frozenset({401, 408, 429})


class _Version(Struct, frozen=True):
    git_version: str = ""


class _NodeInfo(Struct, frozen=True):
    kubelet_version: str = ""


class _NodeStatus(Struct, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class _Node(Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _NodeStatus = _NodeStatus()


async def check(client: Client, questions: Iterable[Question]) -> NativeCheck:
    """Find out what pods get that ask for a native sidecar.

    Args:
        client: an open client.
        questions: pods that the API server would ask the injector about, the best first.

    Raises:
        KubeError, TimeoutError: there was no answer; another time there may be one.
    """
    body = await client.get("/version")
    try:
        version = msgspec.json.decode(body, type=_Version).git_version
    except (ValueError, RecursionError) as error:
        return native.unknown(f"/version of the API server: {error}")
    if found := native.of_server(version):
        return found
    if not native.assured(version) and (found := await _of_nodes(client)):
        return found
    return await _of_dry_runs(client, islice(questions, NAMESPACES))


async def _of_nodes(client: Client) -> NativeCheck | None:
    try:
        return native.of_kubelets(await _kubelets(client))
    except ApiError as error:
        if _passes(error):
            raise
        return native.unknown(f"nodes: {error}")
    except UnreadableError as error:
        return native.unknown(f"nodes: {error}")


async def _kubelets(client: Client) -> Mapping[str, str]:
    """Versions by node."""
    nodes = await actions.list_all(client, NODES, _Node, {}, page=500)
    return {node.metadata.name: node.status.node_info.kubelet_version for node in nodes}


async def _of_dry_runs(client: Client, questions: Iterable[Question]) -> NativeCheck:
    unclear = "there is no namespace where a dry run would ask this injector and no other"
    for question in questions:
        try:
            return native.of_dry_run(await _create(client, question, native=True))
        except ApiError as error:
            if _passes(error):
                raise
            refusal = error
        # Is it for the native sidecar that the pod is refused?
        try:
            await _create(client, question, native=False)
        except ApiError as error:
            if _passes(error) or error.code >= 500:
                raise
            unclear = f"no dry run is possible in namespace {question.namespace}: {error}"
            continue
        if refusal.code < 500:
            return native.refused(str(refusal))
        try:
            return native.of_dry_run(await _create(client, question, native=True))
        except ApiError as error:
            return native.refused(str(error))
    return native.unknown(unclear)


async def _create(client: Client, question: Question, *, native: bool) -> bytes:
    async with asyncio.timeout(DRY_RUN):
        return await actions.dry_run_pod(client, question.namespace, question.body(native=native))


def _passes(error: ApiError) -> bool:
    return error.code in _PASSING


class NativeProbe:
    """Checks at once, at each change, now and then, and often while the API server gives no answer.

    Attributes:
        found: the last answer, None while there is none.
        settled: set while there is nothing that has still to be asked at once.
    """

    def __init__(
        self,
        name: str,
        check: Callable[[], Awaitable[NativeCheck]],
        told: Callable[[], None],
        telemetry: Telemetry,
        rhythm: Rhythm,
    ) -> None:
        """Prepare; nothing is asked before `run` and `look`.

        Args:
            name: of the injector, for the log.
            check: asks once; may raise.
            told: is called when there is another answer.
            telemetry: counts errors that nobody foresaw.
            rhythm: how often.
        """
        self.found: NativeCheck | None = None
        self.settled = asyncio.Event()
        self._name, self._check, self._told = name, check, told
        self._telemetry, self._rhythm = telemetry, rhythm
        self._subject: object = None
        self._heard = 0.0
        self._retry_after = 0.0
        self._woken = asyncio.Event()
        self.settled.set()

    def look(self, subject: object) -> None:
        """Take what the answer depends on; None: the injector is not live, and nothing is asked.

        When that changes, the last answer stays until there is a new one.
        """
        if subject == self._subject:
            return
        if subject is None:
            self.found = None
            self.settled.set()
        elif self._subject is None:
            self.settled.clear()
        self._subject = subject
        self._woken.set()

    async def run(self) -> None:
        """Ask until cancelled; whatever asking raises is no answer."""
        patience = self._rhythm.other
        while True:
            changed = self._woken.is_set()
            self._woken.clear()
            subject = self._subject
            if subject is not None:
                answered = await self._once()
                # The API server knows of a webhook a moment after those who watch it.
                patience = self._next(patience, soon=changed or not answered)
            self.settled.set()
            try:
                async with asyncio.timeout(patience if subject is not None else None):
                    await self._woken.wait()
            except TimeoutError:
                continue
            patience = self._rhythm.other

    def _next(self, patience: float, *, soon: bool) -> float:
        """Seconds until the next question: longer each time while there is no answer."""
        wait = 2 * patience if soon else self._rhythm.live
        wait = max(min(wait, self._rhythm.live), self._retry_after)
        # Never sooner than the API server asked for, so not `jittered`.
        return wait * random.uniform(1.0, 1.2)  # noqa: S311  (spreads load, guards nothing)

    async def _once(self) -> bool:
        """Ask, and keep the answer; returns whether there was one."""
        clock = asyncio.get_running_loop().time
        answered, self._retry_after = False, 0.0
        try:
            found = await self._check()
            self._heard, answered = clock(), True
        except (KubeError, TimeoutError) as error:
            found = native.unknown(str(error) or "the API server does not answer in time")
            if self.found and clock() < self._heard + KEPT:
                found = self.found
            if isinstance(error, ApiError):
                self._retry_after = min(error.retry_after or 0.0, KEPT)
        # A defect of ours must not end the watching, nor pass for an answer.
        except Exception as error:  # Admission goes on; the answer is "unknown", so pods are held.
            self._telemetry.internal_errors.inc()
            _log.exception("%s: %r", self._name, error, extra={"event": "internal-error"})
            found = native.unknown(f"internal error: {error!r}")
        if self._subject is not None and found != self.found:
            self.found = found
            self._told()
        return answered
