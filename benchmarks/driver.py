"""The stand-in for the kubelet: registers the node and runs the Go program that plays its pods."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import lab
from lab.kubelet import node
from lab.kubelet.api import Api

from benchmarks import pods
from benchmarks.conversation import Conversation, MeasurementError, started

PROGRAM = "bench-kubelet"
CONNECTIONS = 24
"""To the API server, all of them busy only while pods are made."""


class Driver:
    """The running program; every method returns once it has done its part."""

    def __init__(self, program: Conversation) -> None:
        self._program = program
        self.pid = program.pid
        self.execs = 0  # Quits that had arrived when `await_exits` returned last.

    def create(self, prefix: str, count: int, body: str, *, light: bool = False) -> None:
        """Make pods ``<prefix>-0`` and so on, whose status is then that of ``body``.

        ``light``: without managedFields, a sixth of their bytes. The API server then spends half as
        much on each patch, which is the lab's part of the load.
        """
        self._program.order(do="create", prefix=prefix, count=count, body=body, light=light)

    def patch(
        self, prefix: str, count: int, body: str, *, events: int = 0, rate: float = 0
    ) -> dict[str, list[float]]:
        """Patch the status of these pods, ``rate`` a second; ``events`` 0: each of them once.

        Returns when each patch was ``sent`` and ``stored``, in seconds of the wall clock.
        """
        return self._program.order(
            do="patch", prefix=prefix, count=count, body=body, events=events, rate=rate
        )

    def await_exits(self, prefix: str, count: int, limit: float) -> dict[str, Any]:
        """Wait until all proxies of these pods have exited.

        Returns when each was ``told`` and had ``ended``, in seconds of the wall clock, and how many
        ``execs`` there were in all. Raises MeasurementError when ``limit`` seconds did not suffice.
        """
        reply = self._program.order(do="await", prefix=prefix, count=count, limit=limit)
        if missing := reply["ended"].count(0):
            raise MeasurementError(
                f"{missing} of {count} proxies have not exited after {limit:g} s"
            )
        self.execs = reply["execs"]
        return reply


@contextmanager
def running(
    cluster: lab.Cluster, namespace: str, name: str, exit_delay: float
) -> Generator[Driver]:
    """Play the node ``name`` and its pods in ``namespace``, which is there; ends with the block.

    ``exit_delay``: seconds from the quit to the proxy's end in the API.
    """
    folder = cluster.state / name
    folder.mkdir()
    pair = cluster.issue(name, name, organizations=["system:masters"], hosts=["127.0.0.1"])
    plan = folder / "plan.json"
    text = {
        "server": cluster.server,
        "ca": str(cluster.ca),
        "certificate": str(pair.certificate),
        "key": str(pair.key),
        "namespace": namespace,
        "connections": CONNECTIONS,
        "exit-delay": exit_delay,
        "bodies": pods.bodies(namespace, name),
    }
    plan.write_text(json.dumps(text))
    tls = ssl.create_default_context(cafile=str(cluster.ca))
    tls.load_cert_chain(pair.certificate, pair.key)
    with started(PROGRAM, plan) as program:
        asyncio.run(_register(cluster.server, tls, name, program.answer()["port"]))
        yield Driver(program)


async def _register(server: str, tls: ssl.SSLContext, name: str, port: int) -> None:
    async with Api(server, tls) as api:
        await node.register(api, name, port)
