"""The stand-in for the kubelet: registers the node and runs the Go program that plays its pods."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lab
import lab.tools
from lab.kubelet import kubelet
from lab.kubelet.api import Api

from benchmarks import pods

PROGRAM = "bench-kubelet"
CONNECTIONS = 24
"""To the API server, all of them busy only while pods are made."""


class MeasurementError(Exception):
    """Something kept the benchmark from measuring; the message says what."""


class Where(NamedTuple):
    """Pods go, one after another, to ``spread`` namespaces: the plan's name with a number each.

    ``first`` is the first number. By default all pods go to the plan's namespace itself.
    """

    first: int = 0
    spread: int = 0


HERE = Where()


class Driver:
    """The running program; every method returns once it has done its part.

    It obeys orders on its stdin and replies on its stdout, one JSON object a line.
    """

    def __init__(self, process: subprocess.Popen[str], plan: Path) -> None:
        """A process that was started; its first answer is the port on which it serves exec."""
        self._process, self._plan = process, plan
        self.pid, self.port = process.pid, self._answer()["port"]
        self.execs = 0  # Quits that had arrived when `await_exits` returned last.

    @contextmanager
    def twin(self) -> Generator[Driver]:
        """Another program of this plan, for a second order at the same time: it answers no exec."""
        with _started(self._plan) as program:
            yield program

    def create(
        self, prefix: str, count: int, body: str, *, light: bool = False, pod: str = "pod",
        where: Where = HERE,
    ) -> None:  # fmt: skip
        """Make pods ``<prefix>-0`` and so on from ``pod``, whose status is then that of ``body``.

        The API server makes the first one; copies of what it stored go to etcd, with other names.
        ``light``: without managedFields, a sixth of their bytes. The API server then spends half as
        much on each patch, which is the lab's part of the load.
        """
        self._order(
            do="create", prefix=prefix, count=count, pod=pod, body=body, light=light,
            **where._asdict(),
        )  # fmt: skip

    def patch(
        self, prefix: str, count: int, body: str, *, events: int = 0, rate: float = 0,
        where: Where = HERE,
    ) -> dict[str, list[float]]:  # fmt: skip
        """Patch the status of these pods, ``rate`` a second; ``events`` 0: each of them once.

        Returns when each patch was ``sent`` and ``stored``, in seconds of the wall clock.
        """
        return self._order(
            do="patch", prefix=prefix, count=count, body=body, events=events, rate=rate,
            **where._asdict(),
        )  # fmt: skip

    def await_exits(
        self, prefix: str, count: int, limit: float, *, where: Where = HERE
    ) -> dict[str, Any]:
        """Wait until all proxies of these pods have exited.

        Returns when each was ``told`` and had ``ended``, in seconds of the wall clock, and how many
        ``execs`` there were in all. Raises MeasurementError when ``limit`` seconds did not suffice.
        """
        reply = self._order(do="await", prefix=prefix, count=count, limit=limit, **where._asdict())
        if missing := reply["ended"].count(0):
            raise MeasurementError(
                f"{missing} of {count} proxies have not exited after {limit:g} s"
            )
        self.execs = reply["execs"]
        return reply

    def _order(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next reply. Raises MeasurementError for one that says what failed."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": "it ended"}
        if "error" in reply:
            raise MeasurementError(f"{PROGRAM}: {reply['error']}")
        return reply


@contextmanager
def running(
    cluster: lab.Cluster,
    namespace: str,
    name: str,
    exit_delay: float,
    more: Mapping[str, str] | None = None,
) -> Generator[Driver]:
    """Play the node ``name`` and its pods in ``namespace``, which is there; ends with the block.

    ``exit_delay``: seconds from the quit to the proxy's end in the API. ``more``: other bodies.
    """
    folder = cluster.state / name
    folder.mkdir()
    pair = cluster.issue(name, name, organizations=["system:masters"], hosts=["127.0.0.1"])
    plan = folder / "plan.json"
    text = {
        "server": cluster.server,
        "etcd": cluster.etcd,
        "ca": str(cluster.ca),
        "certificate": str(pair.certificate),
        "key": str(pair.key),
        "namespace": namespace,
        "connections": CONNECTIONS,
        "exit-delay": exit_delay,
        "bodies": {**pods.bodies(name), **(more or {})},
    }
    plan.write_text(json.dumps(text))
    tls = ssl.create_default_context(cafile=str(cluster.ca))
    tls.load_cert_chain(pair.certificate, pair.key)
    with _started(plan) as driver:
        asyncio.run(_register(cluster.server, tls, name, driver.port))
        yield driver


@contextmanager
def _started(plan: Path) -> Generator[Driver]:
    # It ends with its stdin, so it cannot outlive this process.
    with subprocess.Popen(
        [lab.tools.path(PROGRAM), plan], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Driver(process, plan)
        except BaseException:
            process.kill()  # It may be in the middle of an order.
            raise
        finally:
            assert process.stdin
            process.stdin.close()


async def _register(server: str, tls: ssl.SSLContext, name: str, port: int) -> None:
    async with Api(server, tls) as api:
        await kubelet.register(api, name, port)
