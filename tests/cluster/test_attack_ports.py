"""Attacks by those who reach a port and need no credentials: nobody else's pod notices.

Meanwhile the API server has pods of a selected namespace reviewed, in bursts, too. Each of them is
created and changed.
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
import lightkube
import pytest
from istio_aux.serving import raise_descriptors
from lab import creation, meshed
from lab.creation import Stream
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.served import program, stage
from lab.workload import Workload
from lightkube.resources.core_v1 import Pod

RATE = 25  # Creations a second.
BURST = 240  # Further creations.
AT_ONCE = 100  # Of these. For each the API server opens a connection, and it keeps 25.
HELD = b"holdApplicationUntilProxyStarts"
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


@pytest.fixture(scope="module")
def attacked(cluster: lab.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workload]:
    """The process under attack. It answers all reviews."""
    raise_descriptors()
    with program(cluster, tmp_path_factory.mktemp("ports"), "ports") as workload:
        workload.publish()
        yield workload
        workload.withdraw()


@pytest.fixture(scope="module")
def victims(
    client: lightkube.Client, kubelet: ScriptedKubelet, attacked: Workload
) -> Iterator[Scene]:
    """A namespace that is served."""
    with stage(client, kubelet, attacked) as scene:
        attacked.await_admission(scene.namespace)
        yield scene


class Beside:
    """Creates pods beside an attack."""

    def __init__(self, cluster: lab.Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._pod: Pod = meshed.nameless(namespace, sidecar=None)
        self._made: list[creation.Creation] = []

    async def create(self) -> None:
        """Create some at a rate, and more at once."""
        await asyncio.to_thread(self._create)

    def _create(self) -> None:
        with Stream(self._cluster, self._pod, rate=RATE, dry_run=True) as pods:
            pods.await_more(2 * RATE)
            burst = [self._pod] * BURST
            self._made += creation.create(self._cluster, *burst, dry_run=True, at_once=AT_ONCE)
            pods.await_more(2 * RATE)
        self._made += pods.creations

    def judge(self) -> None:
        """Raise AssertionError unless each was created and changed."""
        assert len(self._made) >= BURST + 4 * RATE
        assert [made.body for made in self._made if made.status != 201] == []
        unchanged = sum(HELD not in made.body for made in self._made)
        assert unchanged == 0, f"{unchanged} of {len(self._made)} are unchanged"


@pytest.fixture
def beside(cluster: lab.Cluster, attacked: Workload, victims: Scene) -> Iterator[Beside]:
    """All pods that it creates are changed, and the process lives on."""
    pods = Beside(cluster, victims.namespace)
    yield pods
    pods.judge()
    attacked.process.check()


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


@pytest.mark.parametrize(
    "address",
    [pytest.param(API_SERVER, id="API server's address"), pytest.param(OTHER, id="other")],
)
def test_bodies_that_never_end_take_less_than_the_charts_limit_and_are_given_back(
    attacked: Workload, beside: Beside, address: str
):
    before = resident(attacked)

    async def run() -> None:
        async with attack(attacked) as attacker:
            await asyncio.gather(
                attacker.connect([address] * 2000, BEGUN + b" " * 65_300), beside.create()
            )

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
        pytest.param(270, b"", id="many addresses"),
        pytest.param(270, ANSWERED, id="many addresses, each answered once"),
        pytest.param(0, b"", id="API server's address"),
    ],
)
def test_idle_connections_close_none_that_the_api_server_uses(
    attacked: Workload, beside: Beside, number: int, sent: bytes
):
    """There are 2,160 of them."""
    sources = addresses(number, each=8) if number else [API_SERVER] * 2160

    async def run() -> None:
        async with attack(attacked) as attacker:
            await attacker.connect(sources, sent)
            await beside.create()

    asyncio.run(run())


def test_handshakes_that_dribble_from_many_addresses_close_none_of_the_api_server(
    attacked: Workload, beside: Beside
):
    async def run() -> None:
        async with attack(attacked) as attacker:
            await attacker.connect(addresses(1040), attacker.hello(), tls=False)
            dribble = asyncio.create_task(attacker.dribble())
            await beside.create()
            dribble.cancel()

    asyncio.run(run())


def test_a_flood_of_requests_to_the_status_port_changes_nothing_for_others(
    attacked: Workload, beside: Beside
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
            await beside.create()
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)

    asyncio.run(run())

    assert attacked.get("/readyz") == (200, "ok\n")
