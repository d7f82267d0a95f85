"""Attacks by those who reach a port and need no credentials: nobody else's pod notices.

Meanwhile the API server has pods of a selected namespace reviewed, in bursts, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path

import aiohttp
import lab
import pytest
from istio_aux.serving import raise_descriptors
from lab.bystanders import Bystanders
from lab.workload import Workload

MIB = 1 << 20
CHART_LIMIT = 512 * MIB  # Of the container (chart/values.yaml).
API_SERVER = "127.0.0.1"
OTHER = "127.0.7.1"

BEGUN = (
    b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 900000\r\n\r\n"
)
_REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "training",
            "operation": "CREATE",
            "object": {"metadata": {"generateName": "job-"}, "spec": {"containers": []}},
        },
    }
).encode()
ANSWERED = BEGUN.replace(b"900000", str(len(_REVIEW)).encode()) + _REVIEW


class Attack:
    """Connections to the webhook, which nobody closes before the end."""

    def __init__(self, workload: Workload) -> None:
        self._where = workload.cluster.host, workload.webhook_port
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._at_once = asyncio.Semaphore(50)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, addresses: Iterable[str], sent: bytes, *, tls: bool = True) -> None:
        """Connect from each of these addresses, and send this."""
        await asyncio.gather(*(self._connect(address, sent, tls) for address in addresses))

    async def dribble(self) -> None:
        """Send a byte a second on each connection, until cancelled."""
        while True:
            for writer in self.writers:
                writer.write(b"\x00")
            await asyncio.sleep(1)  # The rate is the point.

    def hello(self) -> bytes:
        """A ClientHello but for its last byte."""
        out = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
        return out.read()[:-1]

    async def _connect(self, address: str, sent: bytes, tls: bool) -> None:
        async with self._at_once:
            with contextlib.suppress(OSError):  # It may be closed at any time.
                _, writer = await asyncio.open_connection(
                    *self._where, ssl=self._tls if tls else None, local_addr=(address, 0)
                )
                self.writers.append(writer)
                writer.write(sent)


@contextlib.asynccontextmanager
async def attack(workload: Workload) -> AsyncGenerator[Attack]:
    """All connections are closed in the end."""
    raise_descriptors()
    made = Attack(workload)
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    try:
        yield made
    finally:
        for writer in made.writers:
            writer.transport.abort()


def addresses(number: int, each: int = 1) -> Iterator[str]:
    """So many addresses of this machine, each so often."""
    for index in range(number * each):
        high, low = divmod(index % number, 250)
        yield f"127.9.{high}.{low + 1}"


def resident(workload: Workload, what: str = "VmRSS") -> int:
    """Bytes of memory that the process takes, or has taken at most (``VmHWM``)."""
    status = Path(f"/proc/{workload.process.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found, status
    return int(found[1]) << 10


def test_bodies_that_never_end_take_less_than_the_charts_limit_and_are_given_back(
    attacked: Workload, bystanders: Bystanders
):
    """From the API server's own address, as where all clients' addresses are translated."""
    before = resident(attacked)

    async def run() -> None:
        async with attack(attacked) as attacker:
            sent = BEGUN + b" " * 65_300
            await asyncio.gather(
                attacker.connect([API_SERVER] * 2000, sent), asyncio.to_thread(bystanders.burst)
            )

    with bystanders:
        asyncio.run(run())

    assert resident(attacked, "VmHWM") < CHART_LIMIT
    lab.until(
        lambda: resident(attacked) < before + 64 * MIB,
        timeout=60,
        what=f"memory to be given back: {before} bytes before, {resident(attacked)} after",
    )


@pytest.mark.parametrize(
    ("number", "sent"),
    [
        pytest.param(270, ANSWERED, id="many addresses, each answered once"),
        pytest.param(0, b"", id="API server's address"),
    ],
)
def test_idle_connections_close_none_that_the_api_server_uses(
    attacked: Workload, bystanders: Bystanders, number: int, sent: bytes
):
    """There are 2,160 of them."""
    sources = addresses(number, each=8) if number else [API_SERVER] * 2160

    async def run() -> None:
        async with attack(attacked) as attacker:
            await attacker.connect(sources, sent)
            await asyncio.to_thread(bystanders.burst)

    with bystanders:
        asyncio.run(run())


def test_handshakes_that_dribble_from_many_addresses_close_none_of_the_api_server(
    attacked: Workload, bystanders: Bystanders
):
    async def run() -> None:
        async with attack(attacked) as attacker:
            await attacker.connect(addresses(1040), attacker.hello(), tls=False)
            dribble = asyncio.create_task(attacker.dribble())
            await asyncio.to_thread(bystanders.burst)
            dribble.cancel()

    with bystanders:
        asyncio.run(run())


def test_a_flood_of_requests_to_the_status_port_changes_nothing_for_others(
    attacked: Workload, bystanders: Bystanders
):
    """From many clients at once, of all that the port shows."""
    port = f"http://{attacked.cluster.host}:{attacked.status_port}"
    paths = itertools.cycle(["/readyz", "/status", "/metrics", "/pods", "/pods?state=stuck"])

    async def ask(session: aiohttp.ClientSession) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):  # It may be closed at any time.
                async with session.get(port + next(paths)) as answer:
                    await answer.read()

    async def run() -> None:
        connector = aiohttp.TCPConnector(local_addr=(OTHER, 0))
        async with aiohttp.ClientSession(connector=connector) as session:
            clients = [asyncio.create_task(ask(session)) for _ in range(32)]
            await asyncio.to_thread(bystanders.burst)
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)

    with bystanders:
        asyncio.run(run())

    assert attacked.get("/readyz") == (200, "ok\n")
