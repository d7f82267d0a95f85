"""The repair controller as a follower, while it stops, and what it knows whatever happened."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast

import pytest
from aiohttp import web
from hypothesis import given, settings, strategies as st
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError, LateError, UnreachableError
from istio_aux.kube.events import Events
from istio_aux.model.answers import Liveness
from istio_aux.model.applications import PodOptions, parse
from istio_aux.model.documents import run_now
from istio_aux.model.election import Replaced
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod, convert
from istio_aux.model.policy import RepairPolicy
from istio_aux.model.selectors import NamespaceSelectors, Selector, parse as parse_selector
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import Candidate
from istio_aux.repair.store import NotRestartedError
from istio_aux.telemetry import Telemetry
from msgspec.structs import replace
from unit.apiserver import ApiServer, refusal
from unit.controllers import (
    BARE,
    LIMITS,
    SIDECAR,
    Cluster,
    RepairWorld,
    mesh,
    repair_at_work,
    repairing,
)
from unit.process import Late, Led, until
from unit.rules.pods import INJECT, JOB, REPLICAS, REPORT, RESTART, STATEFUL, raw

# The repair controller as a follower, while it stops, and before all pods are listed.


@pytest.fixture
def world(options: dict[str, Any]) -> AbstractAsyncContextManager[RepairWorld]:
    return repairing(**options)


@pytest.mark.options(leading=False)
async def test_a_follower_knows_all_pods_and_evicts_none(world: RepairWorld) -> None:
    await world.pod("web")
    await world.found("web")
    assert world.count("istio_aux_unmeshed_pods") == 0
    assert (world.api.evictions, world.api.events) == ([], [])
    world.repair.lead(True)
    await world.found()
    world.repair.lead(True)  # Once more changes nothing.
    await world.pod("next", owner_uid="owner-2")
    await until(lambda: world.api.evictions == ["web", "next"], "it leads")


async def test_nothing_happens_before_all_pods_are_known() -> None:
    """A pod that is not listed yet would count as the replacement of another."""
    listed = asyncio.Event()
    async with repairing(listed=listed) as world:
        world.repair.store.set_applications(parse("shop/web")[0])
        await world.pod("web", labels={"app.kubernetes.io/name": "web"})
        await world.found("web")
        (said,) = world.repair.applications()
        assert (said.meshed, said.meshed_reason) == (None, "pods are not listed yet")
        await world.pod("marker", SIDECAR, owner=None)
        await world.known(2)
        assert (world.api.evictions, world.repair.finished) == ([], False)
        listed.set()
        await until(lambda: world.api.evictions == ["web"], "it is evicted")
        await until(lambda: world.repair.finished, "all is decided")


async def test_the_next_leader_knows_what_the_last_one_evicted() -> None:
    """It reads that in the Lease, also before it has listed the pods."""
    async with Cluster() as api:
        async with repair_at_work(api) as world:
            await evict_without_replacement(world)
            left = world.repair.failed, world.repair.replaced
        async with repair_at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            await world.pod("marker", owner_uid="another")
            await until(lambda: "marker" in world.api.evictions, "others go on")
            assert "web-0" not in world.api.evictions
            left = world.repair.failed, world.repair.replaced
            assert left[1]["shop/owner-1"].pod == "web-1", "it is left to the one after, too"
        async with repair_at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            api.injects = False
            await world.pod("web-1", owner=STATEFUL, uid="new", created="2026-11-24T08:00:00Z")
            await until(lambda: world.restarts("stopped") == 1, "it is no better")
            await until(lambda: not world.repair.replaced, "it is not under way any more")
            left = world.repair.failed, world.repair.replaced
        async with repair_at_work(api, leading=False) as world:
            world.repair.recall(*left)
            world.repair.lead(True)
            await until(lambda: "no sidecar" in world.unmeshed.get("web-1", ""), "it is known")
            assert world.restarts("stopped") == 0, "who saw that has told it"
            assert api.evictions.count("web-1") == 1


async def test_what_did_not_help_is_known_of_a_controller_whose_pods_all_went_and_came() -> None:
    """A watch that began again shows both before the new leader looks at the controller."""
    listed = asyncio.Event()
    async with repairing(listed=listed) as world:
        world.repair.recall({"shop/owner-1": datetime.now(UTC)}, {})
        await world.pod("web")
        await world.known(1)
        world.api.remove("pods", "shop", "web")
        await world.known(0)
        await world.pod("web", uid="again")
        await world.pod("marker", owner_uid="another")
        await world.known(2)
        listed.set()
        await until(lambda: "marker" in world.api.evictions, "others go on")
        await until(lambda: world.repair.finished, "all is decided")
        assert "web" not in world.api.evictions


async def test_what_is_about_to_be_done_is_stored_before_it_is_done() -> None:
    """An eviction of which the next leader may know nothing is not sent."""
    seen: list[tuple[list[str], list[str]]] = []

    async def store() -> None:
        seen.append((list(world.repair.replaced), list(world.api.evictions)))
        if len(seen) == 1:
            raise UnreachableError("no answer")

    async with repairing(store=store) as world:
        await world.pod("web")
        await until(lambda: world.restarts("evicted") == 1, "it is evicted")
        assert seen == [(["shop/owner-1"], [])] * 2
        assert world.restarts("refused") == 0


async def test_a_restart_does_not_rest_on_a_decision_that_is_out_of_date() -> None:
    """The injector is away right before the eviction is sent, and no pod was decided on again."""

    def leads() -> bool:
        if away:
            world.repair.store.set_injectors(mesh(Liveness.NO_ENDPOINT))
        return True

    away = True
    async with repairing(leads=leads) as world:
        await world.pod("web")
        await until(lambda: "not live" in world.unmeshed.get("web", ""), "it is decided again")
        assert world.api.evictions == []
        away = False
        world.repair.store.set_injectors(mesh())
        await until(lambda: world.api.evictions == ["web"], "it is back")


async def test_what_one_leader_forgot_to_say_is_not_forgotten() -> None:
    """Failures add up, what is replaced is a state, and an expired failure is dropped."""
    clock, now = Late(), datetime.now(UTC).replace(microsecond=0)
    one, two = Replaced("web-0", "u-1"), Replaced("web-1", "u-2")
    async with repairing(leading=False, clock=clock) as world:
        world.repair.recall({"shop/a": now}, {"shop/x": one})
        clock.seconds = 3600.0
        world.repair.recall({"shop/b": now, "shop/a": now - timedelta(hours=1)}, {"shop/y": two})
        assert world.repair.failed == {"shop/a": now, "shop/b": now}
        assert world.repair.replaced == {"shop/y": two}
        world.repair.recall({}, {"shop/x": one}, lost=True)
        assert world.repair.replaced == {"shop/x": one, "shop/y": two}
        world.repair.recall({}, {"shop/y": two})
        clock.seconds = 86_000.0
        world.repair.recall({"shop/a": now}, {})
        clock.seconds = 86_500.0
        world.repair.recall({}, {})
        assert list(world.repair.failed) == ["shop/b"]
        world.repair.recall({f"shop/{n}": now + timedelta(seconds=n) for n in range(500)}, {})
        assert list(world.repair.failed) == [f"shop/{n}" for n in range(400, 500)]


async def evict_without_replacement(world: RepairWorld) -> None:
    """A StatefulSet of two pods is without the second one."""
    world.api.replaces = False
    for name in ("web-0", "web-1"):
        world.api.put("pods", raw(BARE, name=name, uid=f"old-{name}", owner=STATEFUL))
    await until(lambda: world.api.evictions == ["web-1"], "one is evicted")
    await until(lambda: len(world.repair.store.pods) == 1, "it is gone")
    world.api.replaces = True


# How the repair controller handles evictions that are refused, late, lost or for another pod.


BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (429, "TooManyRequests", BUDGET),
        (500, "", "This pod has more than one PodDisruptionBudget"),
        (403, "Forbidden", "because it is being terminated"),
    ],
)
async def test_a_refused_eviction_is_shown_and_tried_again(
    world: RepairWorld, code: int, reason: str, message: str
) -> None:
    """A PodDisruptionBudget, several of them, a namespace that ends, a missing right."""
    world.api.answers = [ApiError(code, message, reason=reason) for _ in range(3)]
    await world.pod("web")
    await until(lambda: message in world.unmeshed.get("web", ""), "the refusal is shown")
    await until(lambda: world.restarts("evicted") == 1, "it is evicted in the end")
    assert world.restarts("refused") == 3
    told = await until(lambda: world.events("NoSidecar"), "the owner is told")
    assert len(told) == 1
    answer = f"{code} {reason}".rstrip()
    assert told[0][1].endswith(f"; not restarted yet: {answer}: {message}")


async def test_retry_after_is_honoured(world: RepairWorld) -> None:
    world.api.refuse("/eviction", 429, "TooManyRequests", BUDGET, times=1, after=280)
    await world.pod("web")
    await until(lambda: world.restarts("refused") == 1, "it is refused")
    for name in ("a", "b"):
        await world.pod(name, owner_uid=f"owner-{name}")
    await until(lambda: world.restarts("evicted") == 2, "the others are evicted")
    assert world.api.evictions == ["a", "b"]
    (waiting,) = [o for o in world.repair._active if o.reference.uid == "owner-1"]
    assert waiting.rollout.retry_at > asyncio.get_running_loop().time() + 200
    assert not world.repair.finished


async def test_a_pod_that_changed_meanwhile_is_decided_on_again(world: RepairWorld) -> None:
    """409: the watch brings the newer version."""
    world.api.answers = [
        ApiError(409, "Precondition failed: ResourceVersion", reason="Conflict"),
        ApiError(404, 'pods "web" not found', reason="NotFound"),
    ]
    await world.pod("web")
    await until(lambda: world.restarts("evicted") == 1, "it is evicted")
    assert world.api.evictions == ["web"] * 3
    assert world.restarts("refused") == 0
    assert world.events("NoSidecar") == []


def cut(request: web.Request) -> web.Response:
    """No answer comes."""
    assert request.transport
    request.transport.abort()
    return refusal(503)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (504, "Timeout", "request did not complete within requested timeout"),
        (500, "InternalError", "etcdserver: request timed out"),
        (0, "", "the connection ends"),
    ],
)
@pytest.mark.options(limits=replace(LIMITS, unconfirmed=20))
async def test_an_eviction_that_was_performed_despite_an_error_is_awaited(
    world: RepairWorld, code: int, reason: str, message: str
) -> None:
    """The next pod waits until the first one's replacement is Ready."""

    async def evict_and_fail(request: web.Request) -> web.StreamResponse | None:
        if not request.path.endswith("/first/eviction"):
            return None
        world.api.remove("pods", "shop", "first")
        return refusal(code, reason, message) if code else cut(request)

    world.api.faults.append(evict_and_fail)
    await world.pod("first")
    await world.pod("second")
    await until(lambda: world.api.get("pods", "shop", "first") is None, "the first goes")
    await world.pod("marker", owner_uid="owner-2")
    await until(lambda: "marker" in world.api.evictions, "other controllers go on")
    assert world.api.evictions == ["marker"]
    assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)
    await world.pod("replacement", SIDECAR)
    await until(lambda: world.api.evictions == ["marker", "second"], "the second is next")


@pytest.mark.options(limits=replace(LIMITS, patience=0.1, unconfirmed=0.05))
async def test_a_controller_that_is_gone_is_forgotten(world: RepairWorld) -> None:
    """A Deployment's new revision, for example: its old ReplicaSet has no pods any more."""
    world.api.replaces = False
    await world.pod("web")
    await until(lambda: len(world.repair.store.pods) == 0 and world.api.evictions, "it is gone")
    repair = world.repair
    await until(lambda: not (repair.store.owners or repair._active), "its controller is forgotten")


@pytest.mark.options(policy=RepairPolicy())
async def test_an_unhandled_exception_stops_nothing(
    world: RepairWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await world.pod("web")
    await world.found("web")
    await world.relabel("shop", cast("dict[str, str]", "no labels"))
    await until(lambda: world.count("istio_aux_internal_errors_total"), "it is counted")
    assert "Traceback" in caplog.text
    await world.relabel("shop", {})
    await world.found()


# The pods of a controller, right before one of them is restarted, beside those that are stored.

LABELS = {"app": "web"}
USUAL: dict[str, Any] = {"owner": STATEFUL, "labels": LABELS}


async def compared(**changes: dict[str, Any] | None) -> str:
    """Why the pods of a StatefulSet are not those that are stored: web-0 and web-1.

    Meanwhile pods became like ``changes``; None: they are gone.
    """
    stored = {f"web_{n}": {**USUAL, "uid": f"old-web-{n}"} for n in (0, 1)}
    async with ApiServer() as api, Client(api.access()) as client:
        repair = RepairController(
            client, {}, Telemetry(), Events(client, "me"), policy=RESTART, leadership=Led()
        )
        for name, fields in stored.items():
            repair.store.apply(convert(raw(name=name.replace("_", "-"), **fields)))
        for name, fields in (stored | changes).items():
            if fields is not None:
                usual = stored.get(name, {**USUAL, "uid": name})
                body = raw(name=name.replace("_", "-"), **{**usual, **fields})
                del body["metadata"]["resourceVersion"]
                api.put("pods", body)
        (owner,) = repair.store.owners.values()
        why = ""
        try:
            await repair._compare(owner, {**LABELS, "controller-revision-hash": "1"})
        except NotRestartedError as error:
            why = f"{error}; changed: {error.changed}"
        return why.removesuffix("; changed: True")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"another": {"owner_uid": "another"}}, ""),
        ({"web_1": {"labels": {"another": "label"}}}, ""),
        ({"web_1": {"labels": LABELS | {"controller-revision-hash": "2"}}}, ""),
        ({"web_1": {"deleting": True}}, "web-1 of its controller is being deleted"),
        ({"web_2": {}}, "its controller has made web-2"),
        ({"web_1": {"uid": "new"}}, "its controller has made web-1"),
        ({"web_1": None}, "web-1 of its controller is gone"),
        ({"web_1": {"phase": "Succeeded"}}, "web-1 of its controller has finished"),
    ],
    ids=str,
)
async def test_what_the_watch_has_not_shown_yet_holds_a_restart(
    changes: dict[str, Any], why: str
) -> None:
    assert await compared(**changes) == why


async def test_a_deletion_that_the_watch_shows_during_the_last_list_holds_a_restart(
    world: RepairWorld,
) -> None:
    lists = "GET /api/v1/namespaces/shop/pods"

    async def delete_another(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/shop/pods") or world.api.requests.count(lists) < 2:
            return None
        answer = await world.api._route(request)
        await world.pod("meshed", SIDECAR, deleting=True)
        pods = world.repair.store.pods.values()
        await until(lambda: any(pod.deleting for pod in pods), "the watch has shown it")
        return cast("web.Response", answer)

    world.api.faults.append(delete_another)
    await world.pod("meshed", SIDECAR, ready=True)
    await world.pod("web")
    await until(lambda: "is being deleted" in str(world.unmeshed), "it waits for that")
    assert world.api.evictions == []


async def test_no_restart_rests_on_an_answer_that_came_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("istio_aux.kube.actions.FRESH", 0.0)
    with pytest.raises(LateError):
        await compared()


# The repair controller's knowledge depends on the present state alone, not on its history.

SPACES = ("shop", "bank")
INJECTIONS = ({}, {"istio-injection": "enabled"}, {"istio-injection": "disabled"})
MESHES = (mesh(), mesh(Liveness.REFUSED), mesh(known=False))
CLIENT = Client(Access("https://127.0.0.1:1", ssl.create_default_context(), lambda: ""))


class Told:
    """A controller that is told of changes, and how things are."""

    def __init__(self, random: Random) -> None:
        self.random, self.version = random, 0
        self.policy = random.choice([REPORT, RESTART, RESTART])
        web = parse_selector("app.kubernetes.io/name=web")
        injected = parse_selector("istio-injection=enabled")
        self.options = PodOptions(
            namespaces=NamespaceSelectors(random.choice([(Selector(),), (injected, web)])),
            pods=random.choice([Selector(), web]),
            inject=random.choice([None, web]),
        )
        self.namespaces: dict[str, dict[str, str]] = {}
        self.pods: dict[str, Pod] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.mesh, self.file = MESHES[2], ""
        self.repair = self.newcomer()

    def newcomer(self) -> RepairController:
        """A controller that knows namespaces and nothing else, and does nothing."""
        telemetry, events = Telemetry(), Events(CLIENT, "host")
        return RepairController(
            CLIENT, self.namespaces, telemetry, events, policy=self.policy, options=self.options,
            clock=lambda: Moment(0.0, 0.0), leadership=Led(),
        )  # fmt: skip

    def happen(self) -> None:
        """Something is different."""
        choose = self.random.choice
        match self.random.randrange(7):
            case 0:
                self.mesh = choose(MESHES)
                self.repair.store.set_injectors(self.mesh)
            case 1:
                namespace = choose(SPACES)
                self.namespaces[namespace] = dict(choose(INJECTIONS))
                self.repair.store.invalidate(namespace)
            case 2:
                self.file = choose(["", "bank/web", "bank/*\nshop/db"])
                self.repair.store.set_applications(parse(self.file)[0])
            case 3 if self.pods:
                pod = self.pods.pop(choose(sorted(self.pods)))
                self.repair.store.delete(pod.metadata.key, pod)
            case _:
                self.apply(self.pod(choose(SPACES), self.random.randrange(6)))

    def apply(self, pod: Pod) -> None:
        self.pods[pod.metadata.uid] = pod
        self.repair.store.apply(pod)

    def pod(self, namespace: str, number: int) -> Pod:
        choose = self.random.choice
        self.version += 1
        owner = choose([REPLICAS, STATEFUL, JOB, None])
        new: dict[str, Any] = {
            "owner": (owner, f"{owner} {self.random.randrange(2)}"),
            "labels": {
                "app.kubernetes.io/name": choose(["web", "db"]),
                **choose([{}, {INJECT: "true"}]),
            },
            "annotations": choose([{}, {INJECT: "false"}]),
            "phase": choose(["Pending", "Running", "Unknown"]),
            "ready": choose([True, False]),
            "deleting": choose([True, False, False]),
        }
        # Mostly one thing changes.
        known = self.details.setdefault(f"{namespace}-{number}", new)
        changed = choose(sorted(new))
        known[changed] = new[changed]
        details = {name: value for name, value in known.items() if name != "owner"}
        owner, owner_uid = known["owner"]
        # A pod keeps its spec (k8s@1.36 validation.go ValidatePodUpdate).
        return convert(
            raw(
                SIDECAR if number % 3 == 0 else BARE, name=f"web-{number}", namespace=namespace,
                uid=f"{namespace}-{number}", version=str(self.version),
                owner=owner, owner_uid=owner_uid, spec={"hostNetwork": number == 5}, **details,
            )
        )  # fmt: skip


def known(repair: RepairController) -> tuple[Any, ...]:
    """All that a controller knows, without the order in which it learned it."""
    asyncio.run(repair.store.catch_up())
    owners = {
        uid: (str(owner), sorted((r.key, r.replica) for r in owner.pods))
        for uid, owner in repair.store.owners.items()
    }
    said = {
        (pod.namespace, pod.name): (pod.owner, pod.reason) for pod in run_now(repair.unmeshed())
    }
    return (
        said,
        repair.store.count(Sidecar.UNKNOWN),
        len(repair.store.pods),
        owners,
        repair.applications(),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_process_that_saw_all_changes_knows_what_a_new_one_finds(seed: int) -> None:
    """istio#15873: level, not edge: also what is kept of a pod is enough to decide on it again."""
    world = Told(Random(seed))
    for _ in range(30):
        world.happen()
    newcomer = world.newcomer()
    for pod in world.pods.values():
        newcomer.store.apply(pod)
    newcomer.store.set_applications(parse(world.file)[0])
    newcomer.store.set_injectors(world.mesh)
    assert known(world.repair) == known(newcomer)
    whole = {pod.metadata.key: Candidate.of(pod) for pod in world.pods.values()}
    for key, stored in world.repair.store.pods.items():
        assert stored.candidate in (None, whole[key])
