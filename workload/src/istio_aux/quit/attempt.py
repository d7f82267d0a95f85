"""The requests of the quit controller: read a pod, tell its proxy to exit, delete the pod.

`Slots` bound how many of them run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from istio_aux.core import quit as quitting
from istio_aux.core.pod import Key
from istio_aux.core.quit import Rung
from istio_aux.core.quit_state import Answer, Send
from istio_aux.kube import portforward, streams
from istio_aux.kube.client import Client


class Slots:
    """So many slots; pods of one node have half of them at most, those of a namespace a quarter.

    A node may hang, and so may the agents of a tenant. On a cluster of one node the other tenants
    still have a share. A slot is held until the request has ended, so that a slow API server never
    sees more of them at once; deadlines bound that.
    """

    def __init__(self, number: int) -> None:
        self._number, self._free = number, asyncio.Semaphore(number)
        # A share is forgotten with the last pod that waits for it.
        self._shares = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def take(self, namespace: str, node: str) -> AsyncGenerator[None]:
        """Hold a slot for a pod while the body runs; ``node`` is empty if it is unknown."""
        of_namespace = self._share(f"namespace {namespace}", 4)
        of_node = self._share(f"node {node}", 2 if node else 1)
        async with of_namespace, of_node, self._free:
            yield

    def _share(self, name: str, part: int) -> asyncio.Semaphore:
        return self._shares.setdefault(name, asyncio.Semaphore(max(1, self._number // part)))


async def send(client: Client, pod: Key, what: Send, deadline: float) -> Answer:
    """Tell a proxy to exit. Raises KubeError: nothing was sent."""
    if what.rung is Rung.PORT_FORWARD:
        answer = await portforward.request(
            client, pod[:2], what.port, "POST /quitquitquit", deadline
        )
        return Answer(answer.status == 200, not answer.unsent, str(answer))
    command = quitting.command(what.rung, what.port)
    result = await streams.execute(client, pod[:2], what.proxy, command, deadline)
    return Answer(result.exit_code == 0, not result.unsent, str(result))
