"""Finds out whether the sidecar of a pod that asks for a native one is native.

Versions may rule it out. Otherwise a dry run shows it, which all webhooks take part in.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from itertools import islice

import msgspec

from istio_aux.core import native
from istio_aux.core.injection_probe import Question
from istio_aux.core.native import NativeCheck
from istio_aux.core.pod import Metadata, Struct
from istio_aux.core.webhooks import Configuration
from istio_aux.injector.probe import Rhythm, dry_run
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, Backoff, KubeError, UnreadableError, asked, jittered

KEPT = 300.0
"""Seconds that an answer counts while the API server gives no other one."""

NAMESPACES = 3
"""Namespaces that are tried: a quota or a policy may refuse any pod."""

_TEMPORARY = frozenset({401, 408, 429})


class _Version(Struct, frozen=True):
    git_version: str = ""


class _NodeInfo(Struct, frozen=True):
    kubelet_version: str = ""


class _NodeStatus(Struct, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class _Node(Struct, frozen=True):
    metadata: Metadata = Metadata()
    status: _NodeStatus = _NodeStatus()


class NativeChecker:
    """Asks for a `ProbeLoop`, whose subject is all configurations."""

    def __init__(
        self, client: Client, questions: Callable[[], Iterable[Question]], rhythm: Rhythm
    ) -> None:
        """Prepare; ``questions`` returns pods for which the injector is called, the best first."""
        self._client, self._questions, self._rhythm = client, questions, rhythm
        self._backoff = Backoff(2 * rhythm.other, rhythm.live)
        self._subject: tuple[Configuration, ...] | None = None
        self._answered_at = -math.inf

    async def ask(
        self, subject: tuple[Configuration, ...], last: NativeCheck | None
    ) -> tuple[NativeCheck, float, None]:
        """See `probe.Ask`; pauses get longer while the API server does not answer."""
        clock = asyncio.get_running_loop().time
        changed, self._subject = subject != self._subject, subject
        if changed:
            self._backoff.reset()
        try:
            result = await check(self._client, self._questions())
        except (KubeError, TimeoutError) as error:
            if last is None or clock() >= self._answered_at + KEPT:
                last = native.unknown(str(error) or "the API server does not answer in time")
            return last, max(self._backoff.next(), min(asked(error), KEPT)), None
        self._answered_at = clock()
        if changed:  # The API server calls a new webhook a moment after its watch reports it.
            return result, self._backoff.next(), None
        self._backoff.reset()
        return result, jittered(self._rhythm.live), None


async def check(client: Client, questions: Iterable[Question]) -> NativeCheck:
    """Find it out now.

    Args:
        client: an open client.
        questions: pods for which the API server calls the injector, the best first.

    Raises:
        KubeError, TimeoutError: there is no answer now.
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
        nodes = await actions.list_all(client, actions.NODES, _Node, {}, limit=500)
    except (ApiError, UnreadableError) as error:
        if _temporary(error):
            raise
        return native.unknown(f"nodes: {error}")
    return native.of_kubelets({n.metadata.name: n.status.node_info.kubelet_version for n in nodes})


async def _of_dry_runs(client: Client, questions: Iterable[Question]) -> NativeCheck:
    unclear = "there is no namespace where a dry run asks this injector and no other"
    for question in questions:
        try:
            return native.of_dry_run(await dry_run(client, question, native=True))
        except ApiError as error:
            if _temporary(error):
                raise
            refusal = error
        # Is the pod refused because of the native sidecar?
        try:
            await dry_run(client, question, native=False)
        except ApiError as error:
            if _temporary(error) or error.code >= 500:
                raise
            unclear = f"no dry run is possible in namespace {question.namespace}: {error}"
            continue
        if refusal.code < 500:
            return native.refused(str(refusal))
        try:
            return native.of_dry_run(await dry_run(client, question, native=True))
        except ApiError as error:
            return native.refused(str(error))
    return native.unknown(unclear)


def _temporary(error: KubeError) -> bool:
    return isinstance(error, ApiError) and error.code in _TEMPORARY
