"""The quit controller when things go wrong, and of pods that are held or whose proxy is dead."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiohttp.client_ws import ClientWebSocketResponse
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import LateError
from istio_aux.kube.exec import Channels, execute
from istio_aux.kube.objects import Key
from istio_aux.model.annotations import STATUS_PORT
from istio_aux.model.moment import Moment
from istio_aux.model.policy import QuitPolicy
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import parse
from istio_aux.quit.attempt import PodState, Task
from msgspec.structs import replace
from unit.apiserver import ApiServer, agent_quits, proxy_quits, sending
from unit.controllers import ENDED, FAST, JOB, QuitWorld, freeing, nobody_listens, quitting
from unit.process import Late, descriptors, until
from unit.rules.pods import DELETE, NEW, RUNNING, exited, while_held

# The quit controller when things go wrong, when others are faster, and what it leaves behind.


@pytest.fixture
def world(options: dict[str, Any]) -> AbstractAsyncContextManager[QuitWorld]:
    return quitting(**options)


async def test_a_success_that_the_status_does_not_show_is_none(world: QuitWorld) -> None:
    """A 404 counts as success for pilot-agent, and the proxy runs on."""
    world.api.on_exec, world.api.on_forward = proxy_quits, agent_quits
    await world.pod("job", details={"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}})
    await until(lambda: len(world.told) >= 3, "it is told again")
    (stuck,) = await until(lambda: world.troubled("stuck"), "it is called stuck")
    assert f"{stuck.since:%d %H:%M:%S}" == "21 08:16:29", "its payload's end, whoever leads"
    assert stuck.requests == Requests(gpus=8)
    assert "exec: exit code 0: OK, but istio-proxy still runs" in stuck.reason
    assert world.count("istio_aux_stuck_pods") == 1
    assert world.count("istio_aux_kept_resources") == 8
    world.api.on_exec = freeing(world)
    await world.ended("exited")
    await until(lambda: not world.troubled("stuck"), "it is not called stuck any more")
    assert world.count("istio_aux_kept_resources") == 0


@pytest.mark.options(policy=QuitPolicy(sidecars=parse("vault-agent=8200/quit")))
async def test_what_a_sidecar_keeps_that_does_not_exit_does_not_count_for_the_proxy(
    world: QuitWorld,
) -> None:
    """As for `/status`, which names the sidecar."""
    answering(world, "404 Not Found")
    details = {"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}
    await world.pod("job", others={"vault-agent": RUNNING}, details=details)
    await until(lambda: world.troubled("stuck"), "it is called stuck")
    assert world.count('istio_aux_kept_resources{by="other",resource="gpu"}') == 8


NOT_FOUND = b'\x03{"status":"Failure","message":"container not found"}'


async def test_a_failed_attempt_is_made_again_until_it_succeeds(world: QuitWorld) -> None:
    """The agent may not be up yet."""

    async def too_early(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        if len(world.told) < 6:
            await socket.send_bytes(NOT_FOUND)
        else:
            await freeing(world)(socket, namespace, pod)

    world.api.on_exec, world.api.on_forward = too_early, nobody_listens
    await world.pod("job")
    await world.ended("exited")
    assert world.told == ["job"] * 6
    await until(lambda: "ProxyQuit" in world.reasons(), "the end is told")
    # Of five failures the 1st, the 2nd and the 4th.
    assert world.reasons().count("ProxyQuitFailed") == 3


async def test_a_pod_that_cannot_be_read_is_called_stuck_with_the_reason(world: QuitWorld) -> None:
    world.api.refuse("/pods/job", 429, "TooManyRequests", "no failure", times=4)
    world.api.refuse("/pods/job", 403, "Forbidden", "pods is forbidden")
    await world.pod("job")
    (stuck,) = await until(lambda: world.troubled("stuck"), "it is called stuck")
    assert (stuck.attempts, stuck.reason) == (0, "403 Forbidden: pods is forbidden")
    world.api.faults.clear()
    await world.ended("exited")


async def test_a_failure_is_told_once_though_the_api_server_is_busy_afterwards(
    world: QuitWorld,
) -> None:
    world.api.refuse("/pods/job", 403, "Forbidden", "pods is forbidden", times=1)
    world.api.refuse("/pods/job", 429, "TooManyRequests", times=3)
    await world.pod("job")
    await until(lambda: "ProxyQuit" in world.reasons(), "the end is told")
    assert world.reasons() == ["ProxyQuitFailed", "ProxyQuit"]


async def test_a_pod_that_makes_the_controller_fail_does_not_stop_other_pods(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tripped = 0

    def clock() -> Moment:
        nonlocal tripped
        task = asyncio.current_task()
        if task is not None and task.get_name() == "quit training/bad" and tripped < 2:
            tripped += 1
            raise ZeroDivisionError("a bug")
        return system_clock()

    async with quitting(clock=clock) as world:
        await world.pod("bad")
        await world.pod("good")
        await world.ended("exited", 2)
        assert world.count("istio_aux_internal_errors_total") == 2
        assert sorted(world.told) == ["bad", "good"]
    assert [record.exc_info is not None for record in caplog.records].count(True) == 2


@pytest.mark.parametrize(
    ("request_", "requests"),
    [
        ("job", ["exec"]),
        ("job/exec", ["exec", "exec"]),
        ("job/portforward", ["exec", "portforward", "portforward"]),
    ],
)
async def test_an_api_server_that_asks_for_patience_gets_it(
    world: QuitWorld, request_: str, requests: list[str]
) -> None:
    """The same request comes again, as nothing was sent and nothing has failed."""
    came = world.api.refuse(f"/pods/{request_}", 429, "TooManyRequests", times=1, after=1)
    if request_ == "job/portforward":
        world.api.on_exec = sending(NOT_FOUND)
    await world.pod("job")
    await world.ended("exited")
    assert came[1] - came[0] >= 1
    sent = [path.rsplit("/", 1)[1] for path in world.api.requests if "/pods/job/" in path]
    assert sent == requests
    assert not world.troubled("stuck")


# What quits leave behind in the process: nothing, however they end.

AT_ONCE = 20

POOL = 2 * AT_ONCE
"""Descriptors that reads at once may leave open for the next: both ends are in this process."""


def objects() -> list[str]:
    """The types of all living objects that a quit makes."""
    gc.collect()
    kinds = (PodState, Task, Channels, ClientWebSocketResponse)
    return sorted(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))


async def nothing_left(world: QuitWorld, before: int) -> None:
    """Wait until all objects are gone, and all descriptors but those that were there before."""
    await until(lambda: len(world.controller.known) == 0, "all are forgotten")
    await until(lambda: objects() == [], "nothing of them is left")
    await until(lambda: descriptors() <= before + POOL, "every connection is closed")


@pytest.mark.usefixtures("only_new")
async def test_quits_leave_neither_descriptors_nor_objects(world: QuitWorld) -> None:
    before = descriptors()
    for batch in range(5):
        names = [f"job-{batch}-{index}" for index in range(AT_ONCE)]
        await asyncio.gather(*(world.pod(name) for name in names))
        await world.ended("exited", (batch + 1) * AT_ONCE)
        for name in names:
            world.api.remove("pods", "training", name)
    await nothing_left(world, before)


@pytest.mark.usefixtures("only_new")
@pytest.mark.options(limits=replace(FAST, deadline=0.2))
async def test_attempts_that_hang_leave_neither_descriptors_nor_objects(world: QuitWorld) -> None:
    """kubernetes#103177, python#1132: a WebSocket that was given up is closed."""

    async def hang(socket: web.WebSocketResponse, *_: str) -> None:
        await socket.receive()

    before = descriptors()
    world.api.on_exec = world.api.on_forward = hang
    names = [f"hung-{index}" for index in range(AT_ONCE)]
    await asyncio.gather(*(world.pod(name) for name in names))
    await until(lambda: len(world.told) >= 4 * AT_ONCE, "all were tried again")
    for name in names:
        world.api.remove("pods", "training", name)
    await nothing_left(world, before)


# kuma#13617: exec and port-forward name a pod by its name, and another pod may have got that.

POD = "/api/v1/namespaces/training/pods/job"


async def recreate(world: QuitWorld) -> None:
    """Make a pod of the same name, whose payload runs."""
    world.api.remove("pods", "training", "job")
    await world.pod("job", main=RUNNING)


async def test_a_pod_whose_reads_are_all_slow_is_told_once_they_are_not() -> None:
    clock = Late()
    async with quitting(clock=clock) as world:
        reads = 0

        async def slow(request: web.Request) -> web.StreamResponse | None:
            nonlocal reads
            if request.path == POD and reads < 7:
                assert world.told == []
                reads += 1
                clock.seconds += 1.5
            return None

        world.api.faults.append(slow)
        await world.pod("job")
        await world.ended("exited")
        assert world.told == ["job"]
        assert world.troubled("stuck") == [], "it is the API server that is slow"
        sent = world.api.requests.index(f"GET {POD}/exec")
        assert world.api.requests[:sent].count(f"GET {POD}") == 8, "the first fast read is enough"


async def test_a_request_reaches_no_pod_that_was_made_while_it_was_connected(
    world: QuitWorld,
) -> None:
    world.api.before(f"{POD}/portforward", partial(recreate, world))
    await world.pod("job", annotations={STATUS_PORT: "15520"})
    await until(lambda: world.told, "the port is forwarded")
    await world.ended("gone")
    assert world.api.forwards == []


async def test_a_command_is_not_sent_when_the_pod_has_changed_meanwhile(
    api: ApiServer, client: Client
) -> None:
    """It may have waited for its connection."""
    answers = iter([False, True])

    async def still() -> bool:
        return next(answers)

    api.put("pods", {"metadata": {"name": "job", "namespace": "training"}})
    pod, before = Key("training", "job", "u-1"), len(api.requests)
    with pytest.raises(LateError, match="nothing was sent: the pod has changed"):
        await execute(client, pod, ["true"], 5, still=still)
    assert len(api.requests) == before
    assert (await execute(client, pod, ["true"], 5, still=still)).well


@pytest.mark.parametrize("end", ["it leads no more", "it stops"])
async def test_of_many_that_wait_for_a_slot_none_is_read_once_it_is_not_due(end: str) -> None:
    """An API server in trouble, which is why a process leads no more, has enough to do."""
    held = asyncio.Event()

    async def fault(request: web.Request) -> None:
        if request.method == "GET" and "/pods/job-" in request.path:
            await held.wait()

    limits = replace(FAST, at_once=1, retries_at_once=1, slot=30, deadline=30)
    async with quitting(limits=limits) as world:

        def reads() -> int:
            return sum(r.startswith("GET") and "/pods/job-" in r for r in world.api.requests)

        world.api.faults += [fault] * 100
        for number in range(9):
            await world.pod(f"job-{number}")
        await until(lambda: len(world.controller.known) == 9 and reads() == 1, "one is read")
        stopped = asyncio.create_task(world.controller.stop(5)) if end == "it stops" else None
        if not stopped:
            world.controller.lead(False)
        await asyncio.sleep(0)
        held.set()
        await until(lambda: not world.controller._works, "nothing is under way")
        assert reads() == 1


# The quit controller, pods whose payload is held, and pods whose proxy is dead before it.

SLOW = replace(FAST, deadline=10.0)  # The proxy's answer may be late on a busy machine.
SOON = replace(SLOW, held_after=0.2)
ISTIOD = "no injector is live: istio-sidecar-injector: Service istio-system/istiod has no endpoint"


async def hold(world: QuitWorld, **more: Any) -> None:
    """A pod whose hook waits, as far as its status shows."""
    await world.pod("job", NEW, NEW, **while_held(**more))


def answering(world: QuitWorld, status: str) -> None:
    """Have the proxies of all pods answer this."""
    text = f"\x00HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"
    world.api.on_forward = sending(text.encode())


@pytest.mark.options(limits=SOON, istiod=ISTIOD)
async def test_a_payload_whose_proxy_is_not_ready_for_long_is_told_with_what_istiod_does(
    world: QuitWorld,
) -> None:
    """Once, by an Event with the code; it counts apart from what other containers keep."""
    answering(world, "503 Service Unavailable")
    await hold(world)
    (held,) = await until(lambda: world.troubled("unstarted"), "it is known")
    assert (held.by, held.code, held.lasting) == (("istio-proxy",), "IA0119", True)
    assert held.reason.startswith("the payload waits for istio-proxy since 08:16:29Z, until 08")
    assert held.reason.endswith(f"Z at most; the proxy is not ready; {ISTIOD}")
    assert f"{held.since:%H:%M:%S}" == "08:16:29"
    (event,) = await until(lambda: world.api.events, "the Event")
    assert (event["reason"], event["type"]) == ("PodNotStarted", "Warning")
    assert event["note"] == f"IA0119: {held.reason}"
    assert [world.count(f"istio_aux_{each}_pods") for each in ("held", "unstarted")] == [1, 0]
    await hold(world, annotations={"touched": "1"})
    await world.pod("job", RUNNING, RUNNING, **while_held(phase="Running"))
    await until(lambda: not world.troubled("unstarted"), "it has started")
    assert len(world.api.forwards) == 1


@pytest.mark.options(limits=SOON)
async def test_a_proxy_whose_envoy_does_not_listen_yet_is_not_ready(world: QuitWorld) -> None:
    """A node says so with many words about its network first."""
    world.api.on_forward = sending(b"\x01" + b"x" * 400 + b": connection refused")
    await hold(world)
    await until(lambda: world.troubled("unstarted"), "it is known")


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
@pytest.mark.options(limits=SOON)
async def test_a_payload_whose_image_is_pulled_for_long_is_no_finding(
    world: QuitWorld, status: str
) -> None:
    """Its status is the same. What the proxy does not say is not told either."""
    answering(world, status)
    await hold(world)
    await until(lambda: world.api.forwards, "its proxy is asked")
    await world.pod("marker", exited(0), others={"dind": RUNNING})
    await until(lambda: world.troubled("blocked"), "what came later is known")
    assert world.troubled("unstarted") == world.api.events == []


@pytest.mark.options(limits=SOON)
async def test_a_proxy_that_does_not_say_whether_it_is_ready_is_asked_again(
    world: QuitWorld,
) -> None:
    """Or the API server is busy."""
    answering(world, "404 Not Found")
    await hold(world)
    await until(lambda: world.api.forwards, "its proxy is asked")
    answering(world, "503 Service Unavailable")
    await until(lambda: world.troubled("unstarted"), "it is known", within=10)


@pytest.mark.options(limits=SLOW)
async def test_the_proxy_of_a_held_pod_that_is_deleted_is_told_to_exit_and_no_other(
    world: QuitWorld,
) -> None:
    """It counts for no time that a payload waited for."""

    async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await proxy_quits(socket, namespace, pod)
        killed = exited(137, at="2026-11-21T08:16:41Z")
        await world.pod(pod, killed, ENDED, **while_held(phase="Running", deleting=True))

    answering(world, "503 Service Unavailable")
    world.api.on_exec = free
    await hold(world)
    await world.pod("works", RUNNING, RUNNING, deleting=True)
    await until(lambda: world.controller.known, "they are known")
    assert world.api.execs == []
    await hold(world, deleting=True)
    await world.ended("exited")
    assert [pod for _, pod, *_ in world.api.execs] == ["job"]
    await until(lambda: "ProxyQuit" in world.reasons(), "the Event")
    [note] = [each["note"] for each in world.api.events if each["reason"] == "ProxyQuit"]
    assert note.startswith("the pod is being deleted, and its payload has never started; ")
    assert world.count("istio_aux_payload_exit_to_proxy_exit_seconds_count") == 0


@pytest.mark.options(limits=SLOW)
async def test_a_proxy_that_is_ready_is_left_to_a_payload_that_may_have_begun(
    world: QuitWorld,
) -> None:
    """The kubelet reports no container before it has pulled the image of the last one."""
    answering(world, "200 OK")
    await hold(world, deleting=True)
    await until(lambda: len(world.api.forwards) > 1, "it is asked again")
    assert world.api.execs == []
    answering(world, "503 Service Unavailable")
    await until(lambda: world.api.execs, "the proxy is told to exit")


async def test_the_proxy_of_a_held_pod_is_asked_once_however_long_its_answer_takes() -> None:
    """Only the read of the pod has to be fresh when the proxy is told to exit."""
    clock = Late()
    async with quitting(clock=clock, limits=SLOW) as world:

        async def slow(socket: web.WebSocketResponse, *names: str) -> None:
            clock.seconds += 1.6
            await sending(b"\x01connection refused")(socket, *names)

        world.api.on_forward = slow
        await hold(world, deleting=True)
        await until(lambda: world.api.execs or len(world.api.forwards) > 1, "it is told")
        assert len(world.api.forwards) == 1


# Pods whose proxy is dead while their payload may run: shown, told, deleted if it is wanted.


LOST_SOON = replace(FAST, lost_after=0.1)


async def torn(world: QuitWorld, **more: Any) -> None:
    """A pod whose proxy gave up waiting, so that its payload runs without a network."""
    await world.pod("job", main=RUNNING, proxy=ENDED, owners=[JOB], **more)


def gone(world: QuitWorld) -> bool:
    return world.api.get("pods", "training", "job") is None


@pytest.mark.options(limits=LOST_SOON)
async def test_a_dead_proxy_is_shown_at_once_and_recorded_once_it_is_confirmed(
    world: QuitWorld,
) -> None:
    """istio#45627, scuttle#34."""
    await torn(world)
    (lost,) = await until(lambda: world.troubled("lost"), "it is known")
    assert lost.code == "IA0103"
    assert lost.reason.startswith("istio-proxy exited 0")
    assert world.count("istio_aux_lost_pods") == 1
    assert world.api.events == []
    (event,) = await until(lambda: world.api.events, "the Event is there")
    assert (event["reason"], event["type"]) == ("ProxyLost", "Warning")
    assert event["note"] == f"IA0103: {lost.reason}"
    assert world.count('istio_aux_dead_proxies_total{action="reported"}') == 1
    assert not gone(world)
    assert world.told == []


@pytest.mark.options(limits=LOST_SOON, policy=DELETE)
async def test_a_pod_with_a_dead_proxy_is_deleted_as_it_was_seen(world: QuitWorld) -> None:
    """istio#15873: UID and resourceVersion are preconditions."""
    await torn(world)
    meta = (world.api.get("pods", "training", "job") or {})["metadata"]
    await until(lambda: len(world.api.events) == 2, "both Events are there")
    assert gone(world)
    wanted = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
    assert [each["preconditions"] for each in world.api.bodies_of("DELETE")] == [wanted]
    assert world.reasons() == ["ProxyLost", "DeadProxyPodDeleted"]
    assert world.count('istio_aux_dead_proxies_total{action="deleted"}') == 1


@pytest.mark.parametrize(
    ("code", "reason", "shown"),
    [
        (403, "Forbidden", "not deleted: 403 Forbidden: no"),
        (504, "Timeout", "not known whether it was deleted: 504 Timeout: no"),
    ],
)
@pytest.mark.options(limits=LOST_SOON, policy=DELETE)
async def test_a_deletion_that_failed_is_shown_and_tried_again(
    world: QuitWorld, code: int, reason: str, shown: str
) -> None:
    """After a server error it may have happened."""
    world.api.refuse(f"DELETE {POD}", code, reason, "no")
    await torn(world)
    failed = 'istio_aux_dead_proxies_total{action="delete-failed"}'
    await until(lambda: world.count(failed) >= 2, "it is tried again")
    (lost,) = world.troubled("lost")
    assert lost.reason.endswith(f"; {shown}")
    assert world.troubled("stuck") == []
    world.api.faults.clear()
    await until(lambda: gone(world), "it is deleted")


@pytest.mark.options(limits=LOST_SOON, policy=DELETE)
async def test_a_deletion_that_is_throttled_is_tried_again_when_the_api_server_says(
    world: QuitWorld,
) -> None:
    came = world.api.refuse(f"DELETE {POD}", 429, "TooManyRequests", times=1, after=1)
    await torn(world)
    await until(lambda: gone(world), "it is deleted")
    assert came[1] - came[0] >= 1
