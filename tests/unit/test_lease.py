"""A Lease: what to do about it, and several processes while others or the API server fail."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.errors import KubeError
from istio_aux.kube.lease import Lease
from istio_aux.model.answers import Liveness
from istio_aux.model.election import (
    ANNOTATION,
    FAILED,
    INJECTORS,
    LONGEST,
    NEWEST,
    REPLACED,
    Checkpoint,
    Hold,
    LeaseRecord,
    Observation,
    Replaced,
    Since,
    Standby,
    Step,
    decide,
    read_checkpoint,
)
from unit.apiserver import ApiServer, managed, refusal, status
from unit.process import background, until

# What to do about a Lease, and the checkpoint in it, which anybody may have changed.

ME, OTHER = "me", "other"
NOW = datetime(2026, 11, 22, 14, 0, 0, 250_000, tzinfo=UTC)


def held_by(holder: str | None, transitions: int | None = 4, **more: str) -> LeaseRecord:
    return LeaseRecord(
        holder_identity=holder, lease_duration_seconds=15, lease_transitions=transitions, **more
    )


def seen(record: LeaseRecord | None, since: float = 100.0, *, exists: bool = True) -> Observation:
    return Observation(record, since, exists=exists and record is not None)


MINE = held_by(ME)


def acquire(transitions: int, reason: str) -> Hold:
    return Hold(LeaseRecord(lease_transitions=transitions), reason)


@pytest.mark.parametrize(
    ("what", "observation", "now", "step"),
    [
        ("none was ever there", seen(None), 100, Hold(LeaseRecord(), "there was no lease")),
        ("it is mine", seen(MINE), 101, Hold(MINE, "the lease is held by this process")),
        ("it was mine and is deleted", seen(MINE, exists=False), 101,
         Hold(MINE, "the lease is held by this process")),
        ("it is another's", seen(held_by(OTHER)), 114.9,
         Standby(115, "the lease is held by other")),
        ("it was another's", seen(held_by(OTHER)), 115,
         acquire(5, "the lease of other has lapsed")),
        ("another's is deleted", seen(held_by(OTHER), exists=False), 101,
         Standby(115, "the lease is held by other")),
        ("it was released", seen(held_by("")), 100, acquire(5, "the lease was released")),
        ("somebody made an empty one", seen(LeaseRecord()), 100,
         acquire(1, "the lease was released")),
        ("it names 68 years", seen(LeaseRecord(OTHER, 2**31 - 1)), 159.9,
         Standby(160, "the lease is held by other")),
        ("it named 68 years", seen(LeaseRecord(OTHER, 2**31 - 1)), 160,
         acquire(1, "the lease of other has lapsed")),
        ("its count of transitions is full", seen(held_by("", 2**31 - 1)), 100,
         acquire(0, "the lease was released")),
    ],
)  # fmt: skip
def test_what_to_do(what: str, observation: Observation, now: float, step: Step) -> None:
    """The duration of ten seconds counts only for a record that names none."""
    assert decide(ME, observation, now, 10) == step, what


@pytest.mark.parametrize(
    ("record", "since"),
    [
        (held_by(OTHER, renew_time="08:02"), 110),
        (held_by(OTHER, renew_time="08:00"), 100),
        (None, 100),
    ],
    ids=["a renewal", "the same record seen again", "its deletion"],
)
def test_only_a_renewal_gives_the_holder_new_time(record: LeaseRecord | None, since: float) -> None:
    first = Observation().then(held_by(OTHER, renew_time="08:00"), 100)
    found = first.then(record, 110)
    assert (found.since, found.holder, found.exists) == (since, OTHER, record is not None)


def test_what_was_written_is_read_back() -> None:
    since = {"istio-revision-tag-default": Since(Liveness.LIVE, NOW)}
    replaced = Replaced("web-1", "u-2", 1e9, ("u-2", "u-3"))
    left = Checkpoint({"u-1": NOW}, since, {"shop/u-1": replaced})
    assert read_checkpoint(left.text()) == left
    assert read_checkpoint(Checkpoint().text()) == Checkpoint()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "so",
        "[]",
        '{"failed": {"u-1": 3}}',
        '{"failed": {"u-1": "2026-11-22T14:00:00"}}',
        '{"injectors": {"default": ["%s", "2026-11-22T14:00:00Z"]' % ("s" * 41) + "}}",
        '{"injectors": {"default": ["live"]}}',
        '{"failed": {"%s": "2026-11-22T14:00:00Z"}}' % ("u" * 254),
        '{"more": ' + "[" * 30_000 + "]" * 30_000 + "}",
        '{"failed": {"u-1": "2026-11-22T14:00:00Z"}}' + " " * LONGEST,
    ],
)
def test_nothing_is_remembered_of_a_text_that_is_not_ours(text: str) -> None:
    assert read_checkpoint(text) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            '{"failed":{"u-1":"2026-11-22T14:00:00Z"},"injectors":{}}',
            Checkpoint({"u-1": datetime(2026, 11, 22, 14, tzinfo=UTC)}),
        ),
        (
            '{"replaced":{"a/b":{"pod":"web-1","uid":"u-1","more":[1]}},"more":{"so":1}}',
            Checkpoint(replaced={"a/b": Replaced("web-1", "u-1")}),
        ),
    ],
    ids=["an older one", "a newer one"],
)
def test_versions_of_istio_aux_understand_each_other(text: str, left: Checkpoint) -> None:
    """A field that is missing has a default, and an unknown one is skipped."""
    assert read_checkpoint(text) == left


def test_what_is_left_is_bounded_by_what_an_api_server_stores() -> None:
    """A Lease that is too large could not be renewed: a UID that no API server gave is not left."""
    uids = tuple(f"{number:036}" for number in range(NEWEST))
    replaced = {f"{n:0128}": Replaced("p" * 253, uids[0], 1e9, uids) for n in range(200)}
    failed = {f"{number:0128}": NOW + timedelta(seconds=number) for number in range(1000)}
    states = {f"{number:0253}": Since(Liveness.NO_CA_BUNDLE, NOW) for number in range(1000)}
    text = Checkpoint({"u" * 129: NOW + timedelta(days=1)} | failed, states, replaced).text()
    assert len(text) < LONGEST
    left = read_checkpoint(text)
    assert left
    assert list(left.replaced) == list(replaced)[-REPLACED:]
    assert list(left.failed) == list(reversed(failed))[:FAILED]
    assert len(left.injectors) == INJECTORS


# Several processes and one Lease (kuma#10085): who leads while others or the API server fail.

QUICK = {"duration": 2.0, "deadline": 1.2, "retry": 0.05}
"""Lapses soon; a Lease counts in whole seconds."""

STEADY = {"duration": 60.0, "deadline": 40.0, "retry": 0.05}
"""Lapses in no test."""

LEASE = ("leases", "istio-aux", "istio-aux")


class Candidate:
    """A process that would lead. It checks that no other candidate of ``leaders`` does.

    Attributes:
        told: each time, whether it leads now.
        leaves: the text that it leaves to the next one, the last one recalled if that is empty.
        recalled, lost: the texts of the Lease that it was given, and whether they may lack some.
    """

    def __init__(self, client: Client, name: str, leaders: set[str], times: dict[str, Any]) -> None:
        self.name, self.told, self._leaders = name, list[bool](), leaders
        self.leaves, self.recalled, self.lost = "", list[str](), list[bool]()
        self.unfit = ""
        self.lease = Lease(
            client, "istio-aux", "istio-aux", name,
            checkpoint=self._checkpoint, recall=self._recall,
            unfit=lambda: self.unfit, **times,
        )  # fmt: skip
        self.lease.follow(self._changed)
        self.told.clear()
        self.task: asyncio.Task[None]

    def _checkpoint(self) -> str:
        return self.leaves or "".join(self.recalled[-1:])

    def _recall(self, text: str, lost: bool) -> bool:
        self.recalled.append(text)
        self.lost.append(lost)
        return bool(text) or not self.leaves

    def _changed(self, leads: bool) -> None:
        self.told.append(leads)
        (self._leaders.add if leads else self._leaders.discard)(self.name)
        assert len(self._leaders) <= 1, f"all of these lead: {self._leaders}"

    async def leads(self) -> None:
        await until(lambda: self.lease.held, f"{self.name} leads", within=30)

    async def die(self) -> None:
        """End without a release, as after kill -9."""
        self.task.cancel()
        await asyncio.wait([self.task])
        self._leaders.discard(self.name)


@asynccontextmanager
async def candidate(
    api: ApiServer,
    name: str = "one",
    leaders: set[str] | None = None,
    *,
    times: dict[str, float] = STEADY,
) -> AsyncGenerator[Candidate]:
    """A candidate at work; its requests carry its name, so that it can be cut off."""
    async with Client(dataclasses.replace(api.access(), token=lambda: name)) as client:
        one = Candidate(client, name, set() if leaders is None else leaders, times)
        async with background(one.lease.run()) as one.task:
            yield one


@asynccontextmanager
async def leader_and_other(
    api: ApiServer, *, times: dict[str, float] = STEADY
) -> AsyncGenerator[tuple[Candidate, Candidate]]:
    """Candidate ``one``, who leads, and candidate ``two``, who knows."""
    leaders: set[str] = set()
    async with candidate(api, "one", leaders, times=times) as one:
        await one.leads()
        async with candidate(api, "two", leaders, times=times) as two:
            await until(lambda: two.lease.holder == "one", "two knows", within=30)
            yield one, two


def spec(api: ApiServer) -> dict[str, Any]:
    return (api.get(*LEASE) or {}).get("spec", {})


async def renewed(api: ApiServer) -> None:
    """Wait until the holder has written again."""
    before = spec(api).get("renewTime")
    await until(lambda: spec(api).get("renewTime") != before, "it is renewed", within=30)


async def test_of_two_that_write_the_first_lease_at_once_one_leads_without_ado(
    api: ApiServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    both = asyncio.Barrier(2)

    async def none_yet(_request: web.Request) -> web.StreamResponse:
        await both.wait()
        return refusal(404, "NotFound", "istio-aux")

    leaders: set[str] = set()
    api.faults += [none_yet, none_yet]
    async with (
        candidate(api, "one", leaders) as one,
        candidate(api, "two", leaders) as two,
    ):
        await until(lambda: one.lease.holder and two.lease.holder, "both know", within=30)
        assert sum("POST" in request for request in api.requests) == 2
        assert {one.lease.holder} == {two.lease.holder} == leaders
    assert [line for line in caplog.records if line.levelname == "WARNING"] == []


async def test_what_the_holder_leaves_is_recalled_before_the_next_one_leads() -> None:
    """Others' metadata stays; managedFields, which may be deep, are not sent back."""
    async with ApiServer() as api, leader_and_other(api) as (one, two):
        one.leaves = "first"
        await until(lambda: two.recalled[-1:] == ["first"], "who follows is told", within=30)
        lease = api.get(*LEASE) or {}
        lease["metadata"] |= {"labels": {"more": "so"}, "managedFields": managed(9000)}
        lease["metadata"]["annotations"]["theirs"] = "too"
        api.put("leases", lease)
        one.leaves = "last"
        await until(lambda: two.recalled[-1:] == ["last"], "it is told again", within=30)
        before = len(two.recalled)
        assert one.told == [True], "it read the changed Lease again, and went on leading"
        one.task.cancel()
        await one.lease.release()
        await two.leads()
        assert set(two.recalled[before:]) == {"last"}, "who has none of its own loses nothing"
        metadata = (api.get(*LEASE) or {})["metadata"]
        assert metadata["labels"] == {"more": "so"}
        assert metadata["annotations"] == {"theirs": "too", ANNOTATION: "last"}
        sent = [each["metadata"].keys() for each in api.bodies_of("PUT")]
        assert {"labels", "resourceVersion"} <= sent[-1]
        assert "managedFields" not in set().union(*sent)


async def test_a_release_does_not_wait_for_an_api_server_that_answers_nothing() -> None:
    async with ApiServer() as api, candidate(api) as one:
        await one.leads()
        one.task.cancel()
        api.hang("")
        async with asyncio.timeout(10):
            await one.lease.release()
        assert one.told == [True, False]


@pytest.mark.parametrize("how", ["refuses connections", "is busy"])
async def test_an_outage_longer_than_the_deadline_ends_leading_until_it_is_over(how: str) -> None:
    async with ApiServer() as api, candidate(api, times=QUICK) as one:
        await one.leads()
        if how == "refuses connections":
            await api.stop()
        else:
            api.refuse("", 429, "TooManyRequests", "later", after=60)
        await until(lambda: one.told == [True, False], "it leads no more", within=30)
        api.faults.clear()
        if how == "refuses connections":
            await api.start()
        await one.leads()
        assert spec(api)["leaseTransitions"] == 0, "nobody else led"


async def test_a_busy_api_server_that_asks_for_long_is_asked_once_more_before_leading_ends() -> (
    None
):
    """A change of leader would cost it more requests."""
    times = {"duration": 6.0, "deadline": 5.0, "retry": 1.0}
    async with ApiServer() as api, candidate(api, times=times) as one:
        await one.leads()
        came = api.refuse("leases/istio-aux", 429, "TooManyRequests", "later", times=1, after=8)
        await until(lambda: len(came) > 1, "it is asked again", within=30)
        await renewed(api)
        assert one.told == [True]
        assert came[1] - came[0] > times["retry"] * 1.5, "later than usual"


async def test_a_lease_that_somebody_deletes_is_written_again_by_its_holder() -> None:
    async with ApiServer() as api, leader_and_other(api) as (one, two):
        for _ in range(3):
            api.remove(*LEASE)
            await until(lambda: spec(api), "it is there again")
            assert spec(api)["holderIdentity"] == "one"
        assert (one.told, two.told) == ([True], [])


@pytest.mark.parametrize("text", [None, "nothing"], ids=["says nothing", "was deleted"])
async def test_what_is_known_is_written_back_to_a_lease_that(text: str | None) -> None:
    """By a process that stands by: the new holder may have seen nothing of it, and is told."""
    leaders = set[str]()
    async with ApiServer() as api, candidate(api, "one", leaders) as one:
        await one.leads()
        one.leaves = "known"
        await renewed(api)
        if text:
            api.remove(*LEASE)
        metadata = {"namespace": "istio-aux", "name": "istio-aux"}
        api.put("leases", {
            "metadata": {**metadata, "annotations": {ANNOTATION: text} if text else {}},
            "spec": {"holderIdentity": "three", "leaseDurationSeconds": 60},
        })  # fmt: skip
        await until(lambda: one.told == [True, False], "it leads no more", within=30)
        assert one.lost[-1] == bool(text)
        async with candidate(api, "three", leaders) as three:
            await until(lambda: "known" in three.recalled, "it is told", within=30)


@pytest.mark.parametrize(
    ("code", "body", "complaint"),
    [
        (403, status(403, "Forbidden", "no right"), "403 Forbidden: no right"),
        (200, {"spec": {"leaseDurationSeconds": "long"}},
         "the answer is no Lease: Expected `int | null`, got `str`"),
    ],
)  # fmt: skip
async def test_an_obstacle_is_logged_once_and_the_lease_is_tried_again(
    api: ApiServer,
    code: int,
    body: dict[str, Any],
    complaint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=code)

    api.always(answer)
    async with candidate(api) as one:
        await until(lambda: len(api.requests) > 3, "it is tried again", within=30)
        api.faults.clear()
        await one.leads()
    (told,) = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert told.startswith(f"lease istio-aux/istio-aux: {complaint}")


SEES_NONE = "watch pods: nothing heard for 2 min"
RELEASED = {"duration": 60.0, "deadline": 59.5, "retry": 0.05}
"""Lapses in no test, and lets a holder that steps down release the Lease after half a second."""


async def test_who_sees_no_pods_any_more_releases_the_lease_to_one_who_does() -> None:
    async with ApiServer() as api, leader_and_other(api, times=RELEASED) as (one, two):
        one.unfit = SEES_NONE
        await two.leads()
        assert one.told == [True, False]
        two.unfit, one.unfit = SEES_NONE, ""
        await one.leads()
        assert (one.told, two.told) == ([True, False, True], [True, False])


async def test_who_sees_no_pods_leads_on_while_nobody_else_sees_any() -> None:
    """Pods that it saw before are still freed."""
    async with ApiServer() as api, leader_and_other(api, times=QUICK) as (one, two):
        two.unfit = one.unfit = SEES_NONE
        for _ in range(2 * round(QUICK["duration"] / QUICK["retry"])):
            await renewed(api)
        assert (one.told, two.told) == ([True], [])
        one.leaves = "last"
        two.unfit = ""
        await two.leads()
        assert two.recalled[-1] == "last"


async def test_a_lease_that_nobody_holds_is_taken_by_one_who_sees_no_pods_if_nobody_else_does():
    async with ApiServer() as api, leader_and_other(api, times=QUICK) as (one, two):
        two.unfit = SEES_NONE
        one.task.cancel()
        await one.lease.release()
        await two.leads()


async def test_what_is_saved_is_in_the_lease_before_anything_else_happens() -> None:
    """What is there already is not written again, and several that save at once write once."""
    async with ApiServer() as api, candidate(api, times={**STEADY, "retry": 30.0}) as one:
        await one.leads()
        one.leaves = "now"
        before = len(api.requests)
        await asyncio.gather(*(one.lease.save() for _ in range(5)))
        assert (api.get(*LEASE) or {})["metadata"]["annotations"] == {ANNOTATION: "now"}
        assert len(api.requests) == before + 1


@pytest.mark.parametrize("how", ["another wrote", "answers nothing"])
async def test_what_could_not_be_saved_is_an_error(how: str) -> None:
    """Whoever wants to act on it does not."""
    times = {"duration": 60.0, "deadline": 1.0, "retry": 0.9}
    async with ApiServer() as api, candidate(api, times=times) as one:
        await one.leads()
        one.leaves = "now"
        if how == "another wrote":
            api.put("leases", api.get(*LEASE) or {})
        else:
            api.hang("")
        with pytest.raises(KubeError):
            await one.lease.save()
        assert (api.get(*LEASE) or {})["metadata"]["annotations"] == {ANNOTATION: ""}


async def test_who_was_frozen_notices_at_the_first_question_that_its_time_is_over() -> None:
    """No task has run since, and another may lead already."""
    async with ApiServer() as api, candidate(api, times=QUICK) as one:
        await one.leads()
        assert one.lease.leads()
        time.sleep(QUICK["deadline"] + 0.1)  # noqa: ASYNC251  (as when its node is suspended)
        assert not one.lease.leads()
        assert one.told == [True, False]
        with pytest.raises(KubeError, match="does not lead"):
            await one.lease.save()
        await one.leads()


async def test_a_process_with_an_unhandled_exception_no_longer_leads(
    api: ApiServer, client: Client
) -> None:
    """Others may: the error is likely to come again, and nobody could tell what was led."""
    told: list[bool] = []

    def changed(leads: bool) -> None:
        told.append(leads)
        if leads:
            raise RuntimeError("nobody foresaw this")

    lease = Lease(client, "istio-aux", "istio-aux", "one")
    lease.follow(changed)
    with pytest.raises(RuntimeError, match="nobody foresaw this"):
        await lease.run()
    assert (lease.held, told) == (False, [False, True, False])
