"""The quit controller: who is freed, when and how, what is told of it, and who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, strategies as st
from istio_aux.judge.installation import Installation
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy
from istio_aux.quit.attempt import QuitLimits
from istio_aux.quit.controller import KUBELET_KNOWN
from istio_aux.quit.recorder import RESOURCES
from istio_aux.settings import DEFAULTS
from istio_aux.tasks import REMEMBERED, Slots
from msgspec.structs import replace
from unit.controllers import ENDED, FAST, JOB, QuitWorld, freeing, quitting
from unit.process import Late, VirtualLoop, until
from unit.rules.pods import RUNNING, State, exited
from unit.screens import audited

# The quit controller: who is freed, how, how often, what is told of it, and who leads.

EXEC = ("pilot-agent", "request", "--debug-port=15020", "POST", "quitquitquit")
READ = "GET /api/v1/namespaces/training/pods/job"


@pytest.fixture
def world(options: dict[str, Any]) -> AbstractAsyncContextManager[QuitWorld]:
    return quitting(**options)


async def settled(world: QuitWorld, pods: int = 1) -> None:
    """Wait until a pod that came later than so many others is known."""
    await world.pod("marker", main=RUNNING)
    await until(lambda: len(world.controller.known) == pods + 1, "all pods are known")


def tasks() -> list[str]:
    """The names of the controller's tasks."""
    names = [task.get_name() for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("quit ")]


@pytest.mark.options(limits=replace(FAST, confirm=20.0))
async def test_a_finished_pod_is_read_and_freed_once_and_that_is_recorded(world: QuitWorld) -> None:
    """The watch shows its exit.

    istio.io#5073, istio#11659, uds-core#972.
    """
    await world.pod("job")
    await world.ended("exited")
    await until(lambda: len(world.controller.known) == 0, "the pod is forgotten")
    assert world.api.execs == [("training", "job", "istio-proxy", EXEC)]
    assert world.api.requests.count(READ) == 1
    (event,) = await until(lambda: world.api.events, "the Event is there")
    assert (event["reason"], event["type"]) == ("ProxyQuit", "Normal")
    assert "istio-proxy exited with 0, 1 s after the payload" in event["note"]
    assert world.count("istio_aux_quit_attempts_total") == 1
    assert world.count("istio_aux_payload_exit_to_proxy_exit_seconds_count") == 1


@pytest.mark.options(leading=False)
async def test_one_line_is_logged_for_a_decision_that_changes_and_none_for_the_same(
    world: QuitWorld,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the process that leads."""
    caplog.set_level("INFO")

    def lines() -> list[dict[str, Any]]:
        return [vars(record) for record in caplog.records if hasattr(record, "pod")]

    for attempt in range(3):
        await world.pod("job", main=RUNNING, annotations={"touched": str(attempt)})
    await until(lambda: len(world.controller.known) == 1, "the pod is known")
    assert (world.told, lines()) == ([], [])
    for leading in (True, False, True):
        world.controller.lead(leading)
        assert [line["reason"] for line in lines()] == ["not finished: main (running)"]
    await world.pod("job")
    await world.ended("exited")
    assert [(line["event"], line.get("action"), line.get("outcome")) for line in lines()] == [
        ("decision", "wait", None),
        ("decision", "quit", None),
        ("quit", None, "exited"),
    ]


# Who acts.


@pytest.mark.options(mode=QuitMode.DRY_RUN)
async def test_a_dry_run_tells_once_and_does_nothing(
    world: QuitWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def would_quit(pods: int) -> None:
        await until(lambda: world.count("istio_aux_would_quit_pods") == pods, "it is noticed")

    await world.pod("job")
    await until(lambda: world.api.events, "it is told")
    await world.pod("job", annotations={"touched": "once"})
    await settled(world)
    await would_quit(1)
    await world.pod("job", main=RUNNING)
    await would_quit(0)
    await world.pod("job")
    await until(lambda: world.api.requests.count(READ) == 2 and not tasks(), "it is over")
    for selected in (False, True):
        await world.select("training", selected=selected)
        await would_quit(int(selected))
    assert world.told == []
    assert world.reasons() == ["ProxyQuitDryRun"]
    assert world.troubled("stuck") == []
    actions = [vars(record).get("action") for record in caplog.records if "job" in record.message]
    assert actions == ["would quit", "wait", "would quit"]


@pytest.mark.parametrize("what", ["finished", "torn"])
async def test_a_process_that_was_frozen_reads_the_clock_right_before_it_acts(what: str) -> None:
    """Its Lease has lapsed, and nobody has told it yet. `Lease.leads` does then."""

    def leads() -> bool:
        world.controller.lead(lasts)
        return lasts

    lasts = False
    policy, limits = QuitPolicy(dead_proxy=DeadProxy.DELETE), replace(FAST, lost_after=0.1)
    async with quitting(leads=leads, limits=limits, policy=policy) as world:
        torn = {"main": RUNNING, "proxy": ENDED, "owners": [JOB]}
        await world.pod("job", **(torn if what == "torn" else {}))
        await until(lambda: not (world.controller._scope.leading or tasks()), "it has asked")
        assert READ in world.api.requests
        assert world.told == []
        assert world.api.get("pods", "training", "job")
        lasts = True
        world.controller.lead(True)
        await until(
            lambda: world.told or not world.api.get("pods", "training", "job"), "it leads again"
        )


# Pods that a container keeps from completing.

SOON = replace(FAST, blocked_after=0.2, lost_after=0.1)


async def kept(world: QuitWorld, name: str = "job") -> None:
    """A pod whose database proxy nobody ends."""
    await world.pod(name, others={"cloud-sql-proxy": RUNNING})


@pytest.mark.options(limits=SOON)
async def test_a_blocked_pod_says_by_whom_at_once_and_tells_its_owner_later_and_once(
    world: QuitWorld,
) -> None:
    """A pod that is blocked again, or seen again, gets no second Event.

    kubernetes#25908, uds-core#972.
    """
    await kept(world)
    (blocked,) = await until(lambda: world.troubled("blocked"), "it is known")
    assert (blocked.by, blocked.code) == (("cloud-sql-proxy",), "IA0102")
    assert world.count("istio_aux_blocked_pods") == 1
    assert world.api.events == []
    (event,) = await until(lambda: world.api.events, "the Event is there")
    assert (event["reason"], event["type"]) == ("ProxyQuitBlocked", "Normal")
    assert "cloud-sql-proxy" in event["note"]
    await world.pod("job", main=RUNNING, others={"cloud-sql-proxy": RUNNING})
    await until(lambda: world.troubled("blocked") == [], "it is not blocked any more")
    await kept(world)
    await until(lambda: world.troubled("blocked"), "it is blocked again")
    world.controller.lead(False)
    world.controller.lead(True)
    await kept(world, "marker")
    await until(lambda: len(world.api.events) == 2, "what came later is told")
    assert world.api.events[-1]["regarding"]["name"] == "marker"
    assert world.told == []


@pytest.mark.options(limits=replace(SOON, unstarted_after=1, blocked_after=1))
async def test_a_native_proxy_that_holds_its_pod_for_long_is_named_and_else_nothing_is_kept(
    world: QuitWorld,
) -> None:
    """A pod that is well costs neither memory nor a request; one that starts or ends, no task.

    istio#51883, istio#36534.
    """
    starts: State = {"waiting": {"reason": "PodInitializing"}}
    holding: list[tuple[State, str, str]] = [
        (starts, "Pending", "unstarted"),
        (exited(0), "Running", "blocked"),
    ]
    told = list[tuple[str, ...]]()
    for main, phase, trouble in holding:
        await world.pod("job", main, RUNNING, native=True, phase=phase)
        await until(lambda: world.controller.known, "it is known")
        assert tasks() == []
        held, *_ = await until(partial(world.troubled, trouble), "it lasts")
        assert (held.by, held.lasting) == (("istio-proxy",), True)
        assert world.count(f"istio_aux_{trouble}_pods") == 1
        await until(lambda: len(world.api.events) > len(told), "its Event is there")
        event = world.api.events[-1]
        told.append((event["reason"], event["type"], event["note"]))
        await world.pod("job", RUNNING, RUNNING, native=True)
        await until(lambda: not world.controller.known, "it is forgotten")
    assert len(world.api.events) == len(told)
    assert told[0] == (
        "PodNotStarted",
        "Warning",
        "IA0104: the payload has not started: istio-proxy (running, not ready)",
    )
    assert told[1][:2] == ("PodHeld", "Normal")
    assert told[1][2].startswith("IA0102: the pod is kept by istio-proxy: istio-proxy is a na")
    assert [request for request in world.api.requests if "/pods/" in request] == []


WHY = "the payload ends the proxy itself: scuttle"
NOTED = {"main": RUNNING, "annotations": {"istio-aux.io/not-native": WHY}}
CUT_OFF = {
    "main": RUNNING,
    "deleting": True,
    "gone_by": "2100-01-01T00:00:00Z",
    "grace": 120,
}
KEPT_BY_NODE = "IA0125: the pod is kept by node unknown: the pod is being deleted since "


@pytest.mark.parametrize(
    ("told", "quiet", "reason", "begin", "end"),
    [
        (NOTED, [{"native": True}], "HeldNotNative", "IA0110: ", f"native: {WHY}"),
        (
            CUT_OFF,
            [{"main": exited(0)}, {"native": True}, {"grace": 30}],
            "NetworkLost",
            "IA0108: deleted, and not finished: main (running); a classic proxy exits 5 s",
            "",
        ),
        (
            {"proxy": ENDED, "deleting": True},
            [],
            "PodHeld",
            KEPT_BY_NODE,
            "; the node does not finish",
        ),
        ({"proxy": ENDED, "deleting": True, "native": True}, [], "PodHeld", KEPT_BY_NODE, ""),
    ],
    ids=[
        "it is held although it could be native",
        "it loses the network while it is deleted",
        "it does not go",
        "it does not go and its proxy is native",
    ],
)
async def test_what_happens_to_a_pod_is_told_once_and_not_of_others(
    world: QuitWorld,
    *,
    told: dict[str, Any],
    quiet: list[dict[str, Any]],
    reason: str,
    begin: str,
    end: str,
) -> None:
    """istio#7136. Where a native proxy is of an older Istio, the request had no effect."""
    for number, change in enumerate(quiet):
        await world.pod(f"quiet-{number}", **told | change)
    for _ in range(2):
        await world.pod("job", **told)
    await until(lambda: world.api.events, "the Event is there")
    await world.pod("marker", **told)
    await until(lambda: len(world.api.events) == 2, "what came later is told")

    assert [event["regarding"]["name"] for event in world.api.events] == ["job", "marker"]
    assert world.reasons() == [reason] * 2
    note = world.api.events[0]["note"]
    assert (note[: len(begin)], note.endswith(end)) == (begin, True)
    assert world.api.execs == []


async def test_a_native_proxy_that_had_too_little_time_is_told_and_no_other_pod_is_read(
    world: QuitWorld,
) -> None:
    """The watch shows no exit code of a pod that has ended, and most proxies have enough time."""
    short = {"terminationGracePeriodSeconds": 0}
    for phase, main, proxy in (
        ("Running", RUNNING, RUNNING),
        ("Succeeded", ENDED, exited(137)),
    ):
        for name, spec in (("job", short), ("well", {})):
            await world.pod(name, main, proxy, native=True, phase=phase, spec=spec)
        await settled(world, 0)
    (event,) = await until(lambda: world.api.events, "the Event")

    assert (event["reason"], event["regarding"]["name"]) == ("ProxyKilled", "job")
    assert event["note"].startswith("IA0109: istio-proxy was killed")
    assert event["note"].endswith("Seconds was 0: 5 is enough")
    assert [request for request in world.api.requests if "/pods/" in request] == [READ]


# What finished pods keep: counted once, by bounded labels, and as `audit` counts it.


HELD = {"nvidia.com/gpu": "7", "nvidia.com/mig-1g.5gb": "1", "cpu": "500m", "memory": "1Gi"}
KEPT = "istio_aux_kept_resource_seconds_total"


def details(requests: dict[str, str]) -> dict[str, Any]:
    return {"main": {"resources": {"requests": requests}}}


async def test_what_a_freed_pod_kept_is_counted_without_a_series_for_what_tenants_name(
    world: QuitWorld,
) -> None:
    """Its proxy exited one second after its payload."""
    before = world.telemetry.render().count(b"resource=")
    await world.pod("job", details=details(HELD))
    await world.ended("exited")
    kept = {each: world.count(f'{KEPT}{{resource="{each}"}}') for each in RESOURCES}
    assert kept == {"gpu": 8, "cpu": 0.5, "memory": 2**30}
    assert world.telemetry.render().count(b"resource=") == before


async def test_a_process_that_led_when_it_told_the_proxy_and_leads_no_more_counts_nothing() -> None:
    """Another process may have told the proxy meanwhile, and count the pod."""
    leads = [True]

    def still() -> bool:
        if not leads[0]:
            world.controller.lead(False)
        return leads[0]

    async with quitting(leads=still, limits=replace(FAST, confirm=20.0)) as world:

        async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            leads[0] = False
            await freeing(world)(socket, namespace, pod)

        world.api.on_exec = free
        await world.pod("job", details=details(HELD))
        await world.ended("exited")
        assert world.count(KEPT) == 0


@pytest.mark.options(mode=QuitMode.DRY_RUN, policy=QuitPolicy(grace=3600))
async def test_only_the_leader_shows_what_finished_pods_keep_now_and_by_what(
    world: QuitWorld,
) -> None:
    def kept(by: str) -> float:
        return world.count(f'istio_aux_kept_resources{{by="{by}",resource="gpu"}}')

    await world.select("other", selected=False)
    at_once = {"istio-aux.io/quit-grace": "0"}
    await world.pod("done", details=details(HELD), annotations=at_once)
    just_now = exited(0, at=datetime.now(UTC).isoformat())
    await world.pod("waits", main=just_now, details=details(HELD))
    await world.pod("works", main=RUNNING, details=details(HELD))
    gpu = details({"amd.com/gpu": "1"})
    await world.pod("blocked", others={"vault": RUNNING}, details=gpu)
    await world.pod("native", others={"vault": RUNNING}, details=gpu, native=True)
    await world.pod("not-selected", namespace="other", details=gpu, annotations=at_once)
    await settled(world, pods=6)
    assert (kept("istio-proxy"), kept("other")) == (8, 2)
    told = replace(DEFAULTS, quit=QuitMode.DRY_RUN, quit_policy=QuitPolicy(grace=3600))
    audit = await audited(world.api, config=Installation(settings=told))
    ours = [each for each in audit.findings if not each.left_out and each.requests]
    gpus = [sum(e.requests.gpus for e in ours if e.requests and bool(e.by) is other)
            for other in (False, True)]  # fmt: skip
    assert gpus == [8, 2], "as `audit` counts them"
    world.controller.lead(False)
    assert (kept("istio-proxy"), kept("other")) == (0, 0)


# Restart policies of single containers, which kubelets up to 1.34 ignore (KEP-5307).


async def own_policy(world: QuitWorld, name: str = "job", code: int = 1) -> None:
    """A pod whose kubelet starts ``main`` again, unless it obeys the policy of the container."""
    await world.pod(
        name, main=exited(code), restart="OnFailure", spec={"nodeName": "node-1"},
        details={"main": {"restartPolicy": "Never"}},
    )  # fmt: skip


async def runs(world: QuitWorld, version: str) -> None:
    """The node has a kubelet of this version."""
    status = {"nodeInfo": {"kubeletVersion": version}}
    world.api.put("nodes", {"metadata": {"name": "node-1"}, "status": status})


async def test_a_container_that_its_kubelet_does_not_restart_is_finished(world: QuitWorld) -> None:
    """The node is read for each attempt, and again if it could not be read."""
    reads = world.api.refuse("/api/v1/nodes/node-1", 403, "Forbidden", "nodes: no access", times=1)
    await runs(world, "v1.35.0")
    await world.pod("plain", spec={"nodeName": "node-1"})
    await world.ended("exited")
    assert reads == []
    await own_policy(world)
    await world.ended("exited", 2)
    await own_policy(world, "other")
    await world.ended("exited", 3)
    assert len(reads) == 3
    (failed,) = [each for each in world.api.events if each["reason"] == "ProxyQuitFailed"]
    assert "nodes: no access" in failed["note"]


async def test_a_pod_that_waits_for_an_old_kubelet_is_freed_once_that_is_upgraded() -> None:
    """Nothing of the pod changes, so the next list has to show it."""
    clock = Late()
    async with quitting(clock=clock) as world:
        await runs(world, "v1.33.0")
        await own_policy(world)
        await world.ended("superseded")
        await own_policy(world, "other")
        await until(lambda: len(world.controller.known) == 2, "the watch has shown it")
        assert world.told == []
        await runs(world, "v1.35.0")
        clock.seconds += KUBELET_KNOWN
        world.api.forget_history()
        await world.api.cut()
        await world.ended("exited", 2)


# Who has a slot for an attempt, and when, among nodes and namespaces that hang.

LIMITS = QuitLimits()
PROMPT = 0.1  # Seconds of an attempt that is answered.
PROMISED = 10.0
"""Seconds until a pod of a namespace and on a node that answer is attempted."""


@dataclass(frozen=True)
class Finished:
    """A pod that has to be attempted from a time on."""

    at: float
    namespace: str
    node: str


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The work, which has a loop of its own."""

    def run() -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(work())

    return run


def waits(pods: Sequence[Finished], hang: frozenset[str]) -> dict[Finished, float]:
    """The longest wait of pods that answer, by pod; the names in ``hang`` do not answer."""
    found = {pod: 0.0 for pod in pods if not {pod.namespace, pod.node} & hang}

    async def play() -> None:
        slots, clock = Slots(LIMITS.at_once, LIMITS.slot), asyncio.get_running_loop().time

        async def attempt(pod: Finished) -> None:
            await asyncio.sleep(pod.at)
            asked = clock()
            async with slots.take(pod.namespace, pod.node) as slot:
                waited = clock() - asked
                slot.give_back_after(LIMITS.slot, LIMITS.deadline)
                if pod in found:
                    found[pod] = max(waited, found[pod])
                await asyncio.sleep(PROMPT if pod in found else LIMITS.deadline)

        tasks = [(pod, asyncio.create_task(attempt(pod))) for pod in pods]
        await asyncio.gather(*(task for pod, task in tasks if pod in found))

    in_virtual_time(play)()
    return found


@pytest.mark.parametrize("number", [1, 4, 24, 100])
def test_namespaces_that_hang_delay_no_other_one(number: int) -> None:
    """However many they are, and with 100 pods each, on the same node."""
    honest = Finished(20, "team", "node")
    hung = [Finished(0, f"hung-{index}", "node") for index in range(number)] * 100
    assert waits([*hung, honest], frozenset(pod.namespace for pod in hung))[honest] <= LIMITS.slot


GOOD, BAD = [f"good-{index}" for index in range(6)], [f"bad-{index}" for index in range(24)]
NODES, HUNG = [f"node-{index}" for index in range(4)], [f"hung-{index}" for index in range(4)]
TIMES = st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0, 30.0])
ANSWER = st.builds(Finished, TIMES, st.sampled_from(GOOD), st.sampled_from(NODES))
HANG = st.one_of(
    st.builds(Finished, TIMES, st.sampled_from(BAD), st.sampled_from(NODES + HUNG)),
    st.builds(Finished, TIMES, st.sampled_from(GOOD), st.sampled_from(HUNG)),
)


@given(
    st.lists(ANSWER, min_size=1, max_size=40),
    st.lists(st.tuples(HANG, st.sampled_from([1, 30, 110])), max_size=12),
)
def test_a_pod_that_answers_is_attempted_in_the_promised_time_whatever_hangs(
    answer: list[Finished], hang: list[tuple[Finished, int]]
) -> None:
    others = [pod for pod, number in hang for _ in range(number)]
    assert max(waits([*others, *answer], frozenset(BAD + HUNG)).values()) <= PROMISED


@in_virtual_time
async def test_those_that_stop_waiting_leave_nothing() -> None:
    """Whether they are stopped before or after it is their turn."""
    slots = Slots(1, LIMITS.slot)

    async def attempt() -> None:
        async with slots.take("team", "node"):
            await asyncio.sleep(10)

    tasks = [asyncio.create_task(attempt()) for _ in range(4)]
    await asyncio.sleep(1)
    tasks[2].cancel()  # It waits.
    tasks[0].cancel()  # Its slot goes to the next one ...
    await asyncio.sleep(0)
    tasks[1].cancel()  # ... which is stopped before it knows.
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results[:3]] == [asyncio.CancelledError] * 3
    assert results[3] is None
    assert vars(slots) == vars(Slots(1, LIMITS.slot))


@in_virtual_time
async def test_what_namespaces_have_used_is_bounded_while_one_of_them_hangs() -> None:
    slots = Slots(50, LIMITS.slot)
    async with slots.take("hung", "node"):
        for number in range(3 * REMEMBERED):
            async with slots.take(f"team-{number}", "node"):
                pass
        assert len(slots._used) <= REMEMBERED


@in_virtual_time
async def test_a_node_has_half_of_the_slots_and_a_namespace_a_quarter() -> None:
    slots, held = Slots(24, LIMITS.slot), list[tuple[str, str]]()

    async def attempt(namespace: str, node: str) -> None:
        async with slots.take(namespace, node):
            held.append((namespace, node))
            await asyncio.sleep(100)

    pods = [(f"n-{index % 3}", "node") for index in range(60)] + [("n-0", "other")] * 10
    pods += [("n-9", "")] * 10
    tasks = [asyncio.create_task(attempt(*pod)) for pod in pods]
    await asyncio.sleep(1)
    assert sum(node == "node" for _, node in held) == 12
    assert [sum(space == f"n-{index}" for space, _ in held) for index in (0, 1, 2, 9)] == [
        6, 4, 4, 6,
    ]  # fmt: skip
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
