"""Pods of an ambient mesh: since when they are not captured, and whether ztunnel listens there.

`rules` decides. The annotation of most pods shows whether they are captured. Where the annotation
may be from an earlier network of the pod, the leader port-forwards to ztunnel's port in the pod.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from itertools import takewhile

from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import KubeError
from istio_aux.kube.exec import listens
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Key, Pod
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.rules import TUNNEL, AwaitCapture, RepairAction, ReportUnmeshed, Skip

AT_ONCE = 8  # Pods that are probed at the same time, each on another node: one may hang.
DEADLINE = 5.0  # Seconds for the answer.
AGAIN = 300.0  # Seconds until a pod that gave no answer is probed again.


class Captures:
    """What is known of pods that should be captured and may not be. Empty if all are captured.

    Attributes:
        doubted: pods to probe, by node, each with the time when its network was made.
        answers: results of the probes, each with the time when the probed network was made. None:
            there was no answer.
        unkept: namespaces with pods that have no stored candidate: they refuse a sidecar.
        unread: namespaces of `unkept` that have become ambient, so that their pods must be read.
    """

    def __init__(self, clock: Clock, settled: float) -> None:
        """``settled``: seconds after which an uncaptured pod is outside; see `rules.SETTLED`."""
        self._now = clock
        self._settled = settled
        self._since: dict[Key, float] = {}  # Since when uncaptured pods have an address.
        self._waiting: dict[Key, float] = {}  # When those are decided on again, in order.
        self.answers: dict[Key, tuple[float, bool | None]] = {}
        self.doubted = defaultdict[str, dict[Key, float]](dict)
        self.unkept, self.unread = set[str](), set[str]()

    def settled(self, pod: Candidate) -> bool:
        """Whether the pod has had its address, and was not captured, long enough."""
        since = self._since.get(pod.key)
        return since is not None and self._now().monotonic >= since + self._settled

    def listens(self, pod: Candidate) -> bool | None:
        """Whether ztunnel listens in the network of the pod; None: not known."""
        network, answer = self.answers.get(pod.key, (0.0, None))
        return answer if network == pod.addressed else None

    def decided(self, pod: Candidate, action: RepairAction) -> bool:
        """Remember what follows from a decision on the pod; return whether there is more to do."""
        key = pod.key
        self.doubted.get(pod.node, {}).pop(key, None)
        if isinstance(action, AwaitCapture) and pod.addressed:
            if key not in self._since:
                self._since[key] = now = self._now().monotonic
                self._waiting[key] = now + self._settled
                return True
        elif isinstance(action, Skip | AwaitCapture):
            self._since.pop(key, None)
            self._waiting.pop(key, None)
        asked = self.answers.get(key, (0.0,))[0] == pod.addressed
        if isinstance(action, ReportUnmeshed) and action.doubted and not asked:
            self.doubted[pod.node][key] = pod.addressed
            return True
        return False

    def forget(self, key: Key, node: str = "") -> None:
        """The pod is gone."""
        for known in (self._since, self._waiting, self.answers, self.doubted.get(node, {})):
            known.pop(key, None)

    @property
    def until(self) -> float | None:
        """When the next pod is decided on again (monotonic)."""
        return next(iter(self._waiting.values()), None)

    def due(self) -> list[Key]:
        """Take the pods that are decided on again now."""
        now = self._now().monotonic
        due = [*takewhile(lambda key: self._waiting[key] <= now, self._waiting)]
        for key in due:
            del self._waiting[key]
        return due


class Asking:
    """Probes doubted pods, one on each node at a time, and reads pods without a candidate."""

    def __init__(
        self,
        client: Client,
        captures: Captures,
        reconsider: Callable[[Key], None],
        reread: Callable[[Pod], None],
    ) -> None:
        """``reconsider`` decides on a stored pod again; ``reread`` takes a pod that was read."""
        self._client = client
        self._captures = captures
        self._reconsider = reconsider
        self._reread = reread
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Probe and read as many pods as may be at once."""
        doubted = self._captures.doubted
        unread = self._captures.unread
        while unread and len(self.tasks) < AT_ONCE:
            name = f"read {unread.pop()}"
            self.tasks[name] = asyncio.create_task(self._read(name), name=name)
        for node in [node for node in doubted if node not in self.tasks]:
            if not doubted[node]:
                del doubted[node]
            elif len(self.tasks) < AT_ONCE:
                key = next(iter(doubted[node]))
                self.tasks[node] = asyncio.create_task(
                    self._ask(node, key, doubted[node].pop(key)), name=f"ask {key}"
                )

    async def _read(self, name: str) -> None:
        """Read the pods of a namespace that has become ambient."""
        namespace = name.removeprefix("read ")
        path = actions.collection("v1", "pods", namespace)
        try:
            async for page in actions.pages(self._client, path, Pod, actions.NOT_TERMINAL):
                for pod in page.items:
                    self._reread(pod)
        except KubeError:
            again = self._captures.unread.add, namespace
            asyncio.get_running_loop().call_later(AGAIN, *again)
        finally:
            del self.tasks[name]

    async def _ask(self, node: str, key: Key, network: float) -> None:
        try:
            answer = await ask(self._client, key)
        finally:
            del self.tasks[node]
        self._captures.answers[key] = network, answer
        if answer is None:
            asyncio.get_running_loop().call_later(AGAIN, self._ask_again, key)
        self._reconsider(key)

    def _ask_again(self, key: Key) -> None:
        self._captures.answers.pop(key, None)
        self._reconsider(key)


async def ask(client: Client, key: Key) -> bool | None:
    """Whether ztunnel listens in the network of a pod; None: not known."""
    return await listens(client, key, TUNNEL, DEADLINE)
