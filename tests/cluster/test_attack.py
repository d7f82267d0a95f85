"""Attacks by those who reach the webhook's port, and by those who may create pods.

Meanwhile the API server has pods of another namespace reviewed, in bursts, too. In the end each of
them was admitted and changed within the seconds that charm and chart give, and the same process
holds the Lease. Skipped where a burst takes too long without an attack: that machine cannot tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import ssl
from collections.abc import AsyncGenerator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import lab
import lightkube
import pytest
from istio_aux.model.annotations import QUIT_AFTER, QUIT_GRACE, SIDECARS
from istio_aux.serve import raise_descriptors
from istio_aux.start.hold import ANNOTATION as CONFIG, HOLD
from lab import creation, meshed
from lab.creation import Creation, Stream
from lab.nightly import NIGHTLY
from lab.scene import Scene
from lab.workload import Programs, Stages, Workload, end_at_once
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from benchmarks.flood import bodies, flooding
from benchmarks.processes import usage

# Creations a second, and further ones at once. For each of these the API server opens a
# connection, and it keeps 25.
RATE, BURST, AT_ONCE = 25, 240, 100
HELD = HOLD.encode()
PATIENCE = 3.0  # Seconds that the API server waits for an answer (charm, chart/values.yaml).
SHARE = 1 / 3  # Of the reviewers' time, what an attack leaves to the API server (start/turns.py).


def leadership(client: lightkube.Client, lease: str) -> tuple[object, ...]:
    """Who leads by that Lease, how often that has changed, and since when it has been so."""
    spec = client.get(Lease, lease, namespace=lease).spec
    assert spec
    return spec.holderIdentity, spec.leaseTransitions, spec.acquireTime


class Bystanders:
    """Pods of a namespace that is attacked by nobody, and whose pods a workload changes."""

    def __init__(self, cluster: lab.Cluster, workload: Workload, scene: Scene) -> None:
        """`workload` leads and changes the pods of `scene`."""
        self._cluster, self._workload, self._scene = cluster, workload, scene
        self._pod = meshed.nameless(scene.namespace, sidecar=None)
        self._made: list[Creation] = []

    def burst(self) -> None:
        """Create more at once than the API server has connections."""
        self._made += self._burst()

    def _burst(self) -> list[Creation]:
        return creation.create(self._cluster, *([self._pod] * BURST), dry_run=True, at_once=AT_ONCE)

    def _alone(self) -> float:
        """The seconds that the slowest of a burst takes without an attack."""
        return max(each.seconds for each in self._burst())

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        """Create pods, and judge them and the workload at the end.

        Raises AssertionError: one was refused, was late or is unchanged, or another process leads.
        Skips the test instead where this machine is too slow for any server.
        """
        alone = self._alone()
        before = leadership(self._scene.client, self._workload.name)
        with Stream(self._cluster, self._pod, rate=RATE, dry_run=True) as stream:
            stream.await_more(RATE)
            yield
            stream.await_more(RATE)
        try:
            self._judge(self._made + stream.creations)
            assert leadership(self._scene.client, self._workload.name) == before
        except AssertionError:
            alone = max(alone, self._alone())
            if alone > PATIENCE * SHARE:
                pytest.skip(f"without an attack, {AT_ONCE} pods at once take {alone:.1f} s here")
            raise

    def _judge(self, made: list[Creation]) -> None:
        assert [each.body for each in made if each.status != 201] == []
        unchanged = [each.seconds for each in made if HELD not in each.body]
        late = sum(seconds >= PATIENCE for seconds in unchanged)
        assert not unchanged, f"{len(unchanged)} of {len(made)} are unchanged, {late} of them late"
        self._workload.process.check()
        assert self._workload.status()["leader"]


MIB = 1 << 20
CHART_LIMIT = 512 * MIB  # Of the container (chart/values.yaml).
API_SERVER = "127.0.0.1"

# Proxies that babble at once.
MANY = 4
# Requests at once that change a pod.
CHANGES = 4
NAMES = ",".join(f"container-{n}" for n in range(130_000))
SLOW = ("#?" + "\r" * 20) * 700 + "#\na: b"

BEGUN = (
    b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 900000\r\n\r\n"
)


@pytest.fixture(scope="module")
def attacked(programs: Programs) -> Iterator[Workload]:
    """The process under attack: it leads, and answers all reviews.

    Its heir answers none, but would lead as soon as the Lease is not renewed in time.
    """
    leader = programs(
        "attacked", {"lease": "attacked/attacked", "race-policy": "restart"}, publish=True
    )
    lab.until(lambda: leader.status().get("leader"), what="it to lead")
    heir = leader.replica("attacked-1")
    heir.start()
    heir.await_ready()
    yield leader
    end_at_once(heir)


@pytest.fixture(scope="module")
def victims(attacked: Workload, stages: Stages) -> Scene:
    """A namespace that is served, and attacks nobody."""
    return stages(attacked, changed=True)


@pytest.fixture
def bystanders(cluster: lab.Cluster, attacked: Workload, victims: Scene) -> Bystanders:
    """``with bystanders.judged():`` creates pods of the victims beside the attack in its block."""
    return Bystanders(cluster, attacked, victims)


class Attack:
    """Connections to the webhook, which nobody closes before the end."""

    def __init__(self, workload: Workload) -> None:
        self._where = workload.cluster.host, workload.webhook_port
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._at_once = asyncio.Semaphore(50)
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, addresses: Iterable[str], sent: bytes, *, tls: bool = True) -> None:
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


def addresses(number: int) -> Iterator[str]:
    for index in range(number):
        high, low = divmod(index, 250)
        yield f"127.9.{high}.{low + 1}"


def test_bodies_that_never_end_take_less_than_the_charts_limit_and_are_given_back(
    attacked: Workload, bystanders: Bystanders
):
    """From the API server's own address, as where all clients' addresses are translated."""
    pid = attacked.process.pid
    before = usage(pid).rss

    async def run() -> None:
        async with attack(attacked) as attacker:
            # By day over fewer connections, beside other tests: handshakes cost CPU on both ends.
            connections, sent = (2000, 65_300) if NIGHTLY else (150, 600_000)
            await asyncio.gather(
                attacker.connect([API_SERVER] * connections, BEGUN + b" " * sent),
                asyncio.to_thread(bystanders.burst),
            )

    with bystanders.judged():
        asyncio.run(run())

    assert usage(pid).peak < CHART_LIMIT
    lab.until(
        lambda: usage(pid).rss < before + 64 * MIB,
        what=f"memory to be given back: {before} bytes before, {usage(pid).rss} after",
    )


def test_idle_connections_close_none_that_the_api_server_uses(
    attacked: Workload, bystanders: Bystanders
):
    """From its own address."""

    async def run() -> None:
        async with attack(attacked) as attacker:
            # There is room for 1,024 that are not answered.
            await attacker.connect([API_SERVER] * (2160 if NIGHTLY else 1100), b"")
            await asyncio.to_thread(bystanders.burst)

    with bystanders.judged():
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

    with bystanders.judged():
        asyncio.run(run())


def test_an_agent_that_sends_single_bytes_without_end_stalls_nobody(
    stages: Stages, attacked: Workload, bystanders: Bystanders
):
    """What answers in a pod is the pod's own program. The others' proxies quit all the same."""
    attackers = stages(attacked)
    pods = [attackers.start(f"babbles-{n}") for n in range(MANY)]
    honest = attackers.start("honest")
    for pod in pods:
        attackers.kubelet.misbehave(pod, "babble", via="exec")

    with bystanders.judged():
        for pod in pods:
            attackers.kubelet.finish(pod, "main")
        for pod in pods:
            lab.until(lambda pod=pod: attackers.kubelet.execs_of(pod), what="it to babble")
        attackers.kubelet.finish(honest, "main")
        attackers.await_phase(honest, "Succeeded")
        for pod in pods:  # There is another way, and it is taken.
            attackers.await_phase(pod, "Succeeded")


@pytest.fixture(scope="module")
def attackers(attacked: Workload, stages: Stages) -> Scene:
    """A served namespace in which the attacker may create pods."""
    return stages(attacked, changed=True)


@pytest.mark.parametrize(
    ("annotations", "number", "status"),
    [
        pytest.param({CONFIG: SLOW}, 30, 201, id="a text that is slow to read"),
        # The API server looks at the length of annotations only after its webhooks.
        pytest.param({SIDECARS: NAMES}, 60, 422, id="a text as long as a request"),
    ],
)
def test_an_annotation_delays_the_review_of_no_other_pod(
    cluster: lab.Cluster, attackers: Scene, bystanders: Bystanders,
    *, annotations: dict[str, str], number: int, status: int,
):  # fmt: skip
    """Anybody who may create pods may have this one reviewed as often as they like."""
    pod = meshed.nameless(attackers.namespace, sidecar=None, annotations=annotations)

    with bystanders.judged():
        made = creation.create(cluster, *[pod] * number, dry_run=True)

    assert {each.status for each in made} == {status}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(
            {"annotations": {QUIT_GRACE: "9" * 32_000 + "x"}}, id="a grace period of digits"
        ),
        pytest.param({"annotations": {QUIT_AFTER: NAMES[:255_000]}}, id="many names"),
    ],
)  # fmt: skip
def test_a_stored_pod_that_is_slow_to_judge_delays_no_other(
    cluster: lab.Cluster, attackers: Scene, victims: Scene, bystanders: Bystanders,
    what: dict[str, Any],
):  # fmt: skip
    """Each change of it is judged, and its author changes it as often as they like."""
    case = secrets.token_hex(4)
    slow = {name: attackers.start(name, **what) for name in (f"slow-{case}-{n}" for n in range(2))}
    honest = victims.start(f"beside-{case}")
    for pod in slow.values():
        attackers.kubelet.finish(pod, "main")

    def change(number: int) -> bool:
        """Change each of them; whether the API server, which takes seconds, had the time."""
        labels = {"metadata": {"labels": {"changed": f"{number}"}}}
        try:
            for name in slow:
                attackers.client.patch(Pod, name, labels, namespace=attackers.namespace)
        except lightkube.ApiError as error:
            if error.status.code != 504:
                raise
            return False
        return True

    with bystanders.judged(), ThreadPoolExecutor(CHANGES) as threads:
        # One after another first: at once they may all take longer than the API server waits.
        lab.until(lambda: change(0), what=f"a change of {', '.join(slow)}")
        more = threads.map(change, range(1, CHANGES + 1))
        victims.kubelet.finish(honest, "main")
        victims.await_phase(honest, "Succeeded")
        list(more)  # Raises what they raised.

    for scene in (attackers, victims):
        creation.send(cluster, "DELETE", f"/api/v1/namespaces/{scene.namespace}/pods")


@pytest.mark.parametrize(
    "flood",
    [
        "495 keys",  # Of which a review takes longest.
        *(
            pytest.param(each, marks=pytest.mark.nightly("495 keys"))
            for each in bodies()
            if each != "495 keys"
        ),
    ],
)
def test_a_flood_of_reviews_makes_no_other_one_late(
    attacked: Workload, bystanders: Bystanders, flood: str
):
    """200 connections, each from another address, ask for the slowest small reviews there are."""
    where = attacked.cluster.host, attacked.webhook_port
    with flooding(*where, 200, bodies()[flood]), bystanders.judged():
        bystanders.burst()


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
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(local_addr=(next(addresses(1)), 0))
        ) as session:
            clients = [asyncio.create_task(ask(session)) for _ in range(32)]
            await asyncio.to_thread(bystanders.burst)
            for client in clients:
                client.cancel()
            await asyncio.wait(clients)

    with bystanders.judged():
        asyncio.run(run())

    assert attacked.get("/readyz") == (200, "ok\n")
