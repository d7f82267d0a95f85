"""Kubernetes Events on a pod: what is sent, and that nothing depends on it."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from istio_aux.kube import events
from istio_aux.kube.client import Client
from istio_aux.kube.clock import Timing
from istio_aux.kube.events import Events
from istio_aux.kube.objects import Key
from unit.apiserver import ApiServer
from unit.process import background, until

POD = Key("training", "job", "u-1")


@asynccontextmanager
async def recording(
    api: ApiServer, event: float = 0.001, source: str = ""
) -> AsyncGenerator[Events]:
    async with Client(api.access()) as client:
        recorder = Events(client, "host", source=source, timing=Timing(event=event))
        async with background(recorder.run()):
            yield recorder


@pytest.fixture
def recorder(api: ApiServer) -> AbstractAsyncContextManager[Events]:
    return recording(api)


def tell(recorder: Events, note: str = "it exited") -> None:
    recorder.emit(POD, "Normal", reason="ProxyQuit", action="Quit", note=note)


async def test_an_event_is_about_the_pod_and_says_who_did_what(
    api: ApiServer, recorder: Events
) -> None:
    tell(recorder)
    await until(lambda: api.events, "the Event is there")
    assert api.requests == ["POST /apis/events.k8s.io/v1/namespaces/training/events"]
    (event,) = api.events
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": "training", "name": "job", "uid": "u-1"}
    assert event.items() >= {
        "regarding": pod, "type": "Normal", "reason": "ProxyQuit", "action": "Quit",
        "note": "it exited", "reportingController": "istio-aux.io/istio-aux",
        "reportingInstance": "host",
    }.items()  # fmt: skip
    assert event["metadata"]["name"].startswith("job.")


async def test_an_event_that_a_pod_gets_once_has_the_same_name_in_every_process(
    api: ApiServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Across restarts and leaders of an application: one that exists already is no error."""
    other = Key("training", "job", "u-2")
    for note, source in (("first", "a/aux"), ("second", "a/aux"), ("third", "b/aux")):
        async with recording(api, source=source) as recorder:
            for pod in (POD, other):
                recorder.emit(
                    pod, "Warning", reason="NoSidecar", action="Report", note=note, once=True
                )
            tell(recorder, f"after the {note}")
            await until(functools.partial(noted, api, f"after the {note}"), "all are sent")
    assert [event["note"] for event in api.events] == [
        "first", "first", "after the first", "after the second", "third", "third",
        "after the third",
    ]  # fmt: skip
    assert not [record for record in caplog.records if record.name == events.__name__]


def noted(api: ApiServer, note: str) -> bool:
    """Whether there is an Event with this note."""
    return note in [event["note"] for event in api.events]


async def test_name_and_note_of_an_event_are_such_as_the_api_server_takes(
    api: ApiServer, recorder: Events
) -> None:
    """A pod's may be as long as an Event's, and end in a dash where it is cut."""
    pod = Key("training", f"{'a-' * 126}a", "u-1")
    for once in (True, False):
        note = "ü" * 2000
        recorder.emit(pod, "Warning", reason="NoSidecar", action="Report", note=note, once=once)
    await until(lambda: len(api.events) == 2, "both are there")
    for event in api.events:
        name = event["metadata"]["name"]
        assert len(name) <= 253
        assert len(event["note"].encode()) == events.NOTE
        assert re.fullmatch(
            r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name
        )


async def test_a_flood_of_events_is_thinned_to_a_burst_and_a_rate() -> None:
    async with (
        ApiServer() as api,
        Client(api.access()) as client,
        recording(api, event=1000) as recorder,
    ):
        for _ in range(5 * events.WAITING):
            tell(recorder)
        await until(lambda: len(api.events) >= events.BURST, "the burst is through")
        for _ in range(20):  # Time enough for further Events.
            await client.get("/api/v1/pods")
        assert len(api.events) == events.BURST


async def test_a_warning_overtakes_what_is_a_matter_of_course(
    api: ApiServer, client: Client
) -> None:
    """A thousand pods that are freed at a start do not hide the one that lost its proxy.

    istio#45627.
    """
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for _ in range(2 * events.WAITING):
        tell(recorder)
    for note in ("first", "second"):
        recorder.emit(POD, "Warning", reason="ProxyLost", action="Quit", note=note)
    async with background(recorder.run()):
        await until(lambda: len(api.events) > 2, "some are there")
    assert [event["note"] for event in api.events[:3]] == ["first", "second", "it exited"]


async def test_namespaces_with_thousands_of_events_hold_up_those_of_no_other_one(
    api: ApiServer, client: Client
) -> None:
    """They have an equal share of it, and take no places in the queue from others."""
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for index in range(3 * events.WAITING):
        warn(recorder, f"crowd-{index % 2}", f"{index}")
    for number in range(3):
        warn(recorder, "quiet", f"quiet-{number}")
    recorder.emit(
        Key("calm", "job", "u-1"), "Normal", reason="ProxyQuit", action="Quit", note="calm"
    )
    async with background(recorder.run()):
        await until(lambda: len(api.events) >= 30, "some are there")
    told = [event["note"] for event in api.events[:30]]
    assert [note for note in told if "quiet" in note] == ["quiet-0", "quiet-1", "quiet-2"]
    assert told[:4] == ["0", "1", "quiet-0", "calm"]


async def test_a_tenant_with_many_namespaces_delays_the_first_event_of_no_other_one(
    api: ApiServer, client: Client
) -> None:
    """Also one that every pod may have, and that comes while warnings are sent all the time."""
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for index in range(1500):
        warn(recorder, f"crowd-{index % 150}", "crowd")
    async with background(recorder.run()):
        await until(lambda: len(api.events) > 200, "each has had a turn")
        recorder.emit(POD, "Normal", reason="ProxyQuit", action="Quit", note="calm", mass=True)
        before = len(api.events)
        await until(lambda: noted(api, "calm"), "it is there")
    told = [event["note"] for event in api.events]
    assert told.index("calm") <= before + 3


def warn(recorder: Events, namespace: str, note: str) -> None:
    """Queue a Warning about a pod of this namespace."""
    pod = Key(namespace, "job", "u-1")
    recorder.emit(pod, "Warning", reason="ProxyLost", action="Quit", note=note)


async def test_of_namespaces_that_come_without_end_only_the_last_ones_are_kept(
    api: ApiServer, client: Client
) -> None:
    recorder = Events(client, "host")
    for index in range(5 * events.WAITING):
        warn(recorder, f"new-{index}", "new")
    assert len(recorder._waiting) == events.WAITING
    assert len(recorder._turns) <= 2 * events.WAITING


async def test_events_about_many_pods_are_dropped_first(api: ApiServer, client: Client) -> None:
    recorder = Events(client, "host", timing=Timing(event=0.001))
    for _ in range(2 * events.WAITING):
        recorder.emit(POD, "Warning", reason="NoSidecar", action="Report", note="mass", mass=True)
    tell(recorder)
    async with background(recorder.run()):
        await recorder.sent(60)
    told = [event["note"] for event in api.events]
    assert told == ["it exited"] + ["mass"] * (events.WAITING - 1)


async def test_a_refused_event_is_logged_once_and_the_next_is_sent(
    api: ApiServer,
    recorder: Events,
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.refuse("/events", 403, "Forbidden", "events is forbidden", times=2)
    for _ in range(3):
        tell(recorder)
    await until(lambda: api.events, "the third is there")
    logged = [r.getMessage() for r in caplog.records if r.name == events.__name__]
    assert logged == ["Event not sent: 403 Forbidden: events is forbidden"]


async def test_an_event_that_is_throttled_is_sent_when_the_api_server_says(
    api: ApiServer, recorder: Events
) -> None:
    came = api.refuse("/events", 429, "TooManyRequests", "slow down", times=1, after=1)
    tell(recorder, "first")
    tell(recorder, "second")
    await until(lambda: len(api.events) == 2, "both are there")
    assert came[1] - came[0] >= 1
    assert [event["note"] for event in api.events] == ["first", "second"]
