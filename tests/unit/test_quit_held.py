"""The quit controller, pods whose payload is held, and pods whose proxy is dead before it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.policy import DeadProxy, QuitPolicy
from msgspec.structs import replace
from unit.apiserver import proxy_quits, sending
from unit.process import until
from unit.quitting import ENDED, FAST, JOB, World, cluster
from unit.rules.pods import RUNNING, exited, statuses
from unit.rules.test_hold import INIT, NEW, OURS, SET_UP

SLOW = replace(FAST, deadline=10.0)  # The proxy's answer may be late on a busy machine.
SOON = replace(SLOW, held_after=0.2)
ISTIOD = "no injector is live: istio-sidecar-injector: Service istio-system/istiod has no endpoint"
LEFT = "the pod is being deleted, and its payload has never started"


@pytest.fixture
def world(options: dict[str, Any]) -> AbstractAsyncContextManager[World]:
    return cluster(**options)


def fields(**more: Any) -> dict[str, Any]:
    return {
        "phase": "Pending",
        "details": {"istio-proxy": OURS},
        "spec": INIT,
        "status": {"initContainerStatuses": statuses(SET_UP)},
        **more,
    }


async def hold(world: World, **more: Any) -> None:
    """A pod whose hook waits, as far as its status shows."""
    await world.pod("job", NEW, NEW, **fields(**more))


def answering(world: World, status: str) -> None:
    """Have the proxies of all pods answer this."""
    text = f"\x00HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"
    world.api.on_forward = sending(text.encode())


@pytest.mark.options(limits=SOON, istiod=ISTIOD)
async def test_a_payload_whose_proxy_is_not_ready_for_long_is_told_with_what_istiod_does(
    world: World,
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
    await world.pod("job", RUNNING, RUNNING, **fields(phase="Running"))
    await until(lambda: not world.troubled("unstarted"), "it has started")
    assert len(world.api.forwards) == 1


@pytest.mark.options(limits=SOON)
async def test_a_proxy_whose_envoy_does_not_listen_yet_is_not_ready(world: World) -> None:
    """A node says so with many words about its network first."""
    world.api.on_forward = sending(b"\x01" + b"x" * 400 + b": connection refused")
    await hold(world)
    await until(lambda: world.troubled("unstarted"), "it is known")


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found"])
@pytest.mark.options(limits=SOON)
async def test_a_payload_whose_image_is_pulled_for_long_is_no_finding(
    world: World, status: str
) -> None:
    """Its status is the same. What the proxy does not say is not told either."""
    answering(world, status)
    await hold(world)
    await until(lambda: world.api.forwards, "its proxy is asked")
    await world.pod("marker", exited(0), others={"dind": RUNNING})
    await until(lambda: world.troubled("blocked"), "what came later is known")
    assert world.troubled("unstarted") == world.api.events == []


@pytest.mark.options(limits=SLOW)
async def test_the_proxy_of_a_held_pod_that_is_deleted_is_told_to_exit_and_no_other(
    world: World,
) -> None:
    """It counts for no time that a payload waited for."""

    async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
        await proxy_quits(socket, namespace, pod)
        killed = exited(137, at="2026-11-21T08:16:41Z")
        await world.pod(pod, killed, ENDED, **fields(phase="Running", deleting=True))

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
    assert note.startswith(f"{LEFT}; ")
    assert world.count("istio_aux_payload_exit_to_proxy_exit_seconds_count") == 0


@pytest.mark.options(limits=SLOW)
async def test_a_proxy_that_is_ready_is_left_to_a_payload_that_may_have_begun(world: World) -> None:
    """The kubelet reports no container before it has pulled the image of the last one."""
    answering(world, "200 OK")
    await hold(world, deleting=True)
    await until(lambda: len(world.api.forwards) > 1, "it is asked again")
    assert world.api.execs == []
    answering(world, "503 Service Unavailable")
    await until(lambda: world.api.execs, "the proxy is told to exit")


# Pods whose proxy is dead while their payload may run: shown, told, deleted if it is wanted.


LOST_SOON = replace(FAST, lost_after=0.1)
DELETE = QuitPolicy(dead_proxy=DeadProxy.DELETE)
POD = "/api/v1/namespaces/training/pods/job"


async def torn(world: World, **more: Any) -> None:
    """A pod whose proxy gave up waiting, so that its payload runs without a network."""
    await world.pod("job", main=RUNNING, proxy=ENDED, owners=[JOB], **more)


def gone(world: World) -> bool:
    return world.api.get("pods", "training", "job") is None


@pytest.mark.options(limits=LOST_SOON)
async def test_a_dead_proxy_is_shown_at_once_and_recorded_once_it_is_confirmed(
    world: World,
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
async def test_a_pod_with_a_dead_proxy_is_deleted_as_it_was_seen(world: World) -> None:
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
    world: World, code: int, reason: str, shown: str
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
    world: World,
) -> None:
    came = world.api.refuse(f"DELETE {POD}", 429, "TooManyRequests", times=1, after=1)
    await torn(world)
    await until(lambda: gone(world), "it is deleted")
    assert came[1] - came[0] >= 1
