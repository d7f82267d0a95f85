"""Watches that feed several handlers, when a watch is dead, and tasks that never end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from istio_aux.injector.injection import Hook
from istio_aux.kube.client import Client
from istio_aux.kube.clock import TIMING, Timing, system_clock
from istio_aux.kube.errors import KubeError
from istio_aux.kube.lease import Lease, own_identity
from istio_aux.model.answers import LONGEST, Sidecars
from istio_aux.model.applications import parse
from istio_aux.model.documents import run_now
from istio_aux.model.election import Checkpoint, Replaced, Since, read_checkpoint
from istio_aux.model.moment import Clock
from istio_aux.model.pod import Metadata, Pod
from istio_aux.model.policy import QuitMode, RacePolicy, RepairPolicy
from istio_aux.model.resources import Requests
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import Namespace
from istio_aux.quit import rules
from istio_aux.settings import DEFAULTS
from istio_aux.tasks import endless_task
from istio_aux.telemetry import Telemetry
from istio_aux.watches import LEADING, Watches
from istio_aux.wiring import Wiring
from msgspec.structs import replace
from unit.apiserver import ApiServer, Seen
from unit.controllers import SIDECAR, mesh
from unit.istiod import BUNDLE, Cluster, chain
from unit.process import Late, background, steps, until
from unit.rules.pods import ENABLED, HOOKS, IN_AMBIENT, RUNNING, document, exited, raw


async def test_an_exception_of_one_handler_stops_no_other(api: ApiServer, client: Client) -> None:
    telemetry = Telemetry()
    for name in ("bad", "good"):
        api.put("namespaces", {"metadata": {"name": name}})
    first, second = Seen(trips="bad"), Seen()
    watches = Watches(client, telemetry)
    watches.add("namespaces", "/api/v1/namespaces", Namespace, first, second)
    (work,) = watches.work().values()
    async with background(work()):
        await until(lambda: watches.ready, "all is seen")
        assert (first.names, second.names) == ({"good"}, {"bad", "good"})
        api.remove("namespaces", "", "bad")
        await until(lambda: second.names == {"good"}, "it is gone")
    assert b"\nistio_aux_internal_errors_total 2.0\n" in telemetry.render()


async def test_a_watch_that_is_dead_for_long_makes_unready_and_unfit_until_it_lives(
    api: ApiServer,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch that was alive once does not make its old data valid."""
    assert LEADING - 30 >= TIMING.silence >= 60 * 1.5, "a bookmark is a minute away; a new try 30 s"
    monkeypatch.setattr("istio_aux.watches.LEADING", 1.0)
    monkeypatch.setattr("istio_aux.watches.READY", 2.0)
    watches = Watches(client, Telemetry())
    watches.add("pods", "/api/v1/pods", Namespace, Seen())
    (work,) = watches.work().values()
    async with background(work()):
        await until(lambda: watches.ready, "all is seen")
        assert (watches.dead(), watches.missing()) == ("", {})
        await api.stop()
        why = await until(watches.dead, "it is dead")
        assert why.startswith("watch pods: nothing heard for 0 min")
        assert watches.ready, "for some time, an API server may be away"
        await until(lambda: not watches.ready, "it is dead for long")
        assert "Cannot connect" in watches.missing()["pods"]
        await api.start()
        await until(lambda: watches.ready and not watches.dead(), "it lives")


async def test_rights_are_known_to_be_missing_once_every_collection_is_answered(
    api: ApiServer, client: Client
) -> None:
    """Until then, a command would name only the first right that is missing."""
    answers = asyncio.Event()
    api.before("pods", answers.wait)
    for each in ("namespaces", "pods"):
        api.refuse(each, 403, "Forbidden", "forbidden")
    watches = Watches(client, Telemetry())
    first = watches.add("namespaces", "/api/v1/namespaces", Namespace, Seen())
    watches.add("pods", "/api/v1/pods", Namespace, Seen())
    async with AsyncExitStack() as stack:
        for work in watches.work().values():
            await stack.enter_async_context(background(work()))
        await until(lambda: first.refused, "the first one to be refused")
        assert not watches.refused
        answers.set()
        await until(lambda: watches.refused, "the other one to be refused")


OURS = {"team": "a"}


@asynccontextmanager
async def at_work(
    api: ApiServer, clock: Clock = system_clock, **options: Any
) -> AsyncGenerator[Wiring]:
    """All that `serve` runs but the webhook."""
    settings = replace(DEFAULTS, namespace_selectors=parse_namespaces("team=a"), **options)
    async with AsyncExitStack() as stack:
        wired = Wiring(settings, api.access(), clock=clock)
        await stack.enter_async_context(wired.client)
        for work in wired.work().values():
            await stack.enter_async_context(background(work()))
        yield wired
        await wired.hand_over(0)


@pytest.mark.parametrize(
    ("root", "state", "asked"), [("istio-system", "live", ["ours"]), ("kubeflow", "absent", [])]
)
async def test_the_settings_say_which_istio_counts_and_where_it_is_asked_first(
    root: str, state: str, asked: list[str]
) -> None:
    """In our namespaces: elsewhere another webhook may change what is native."""
    async with Cluster() as api:
        api.dry_run = chain("on request")
        api.put("namespaces", {"metadata": {"name": "ours", "labels": {**ENABLED, **OURS}}})
        api.lead()
        vendor = {"url": "https://127.0.0.1:1/inject", "caBundle": BUNDLE}
        where = {"matchLabels": {"mesh": "vendor"}}
        api.configure("vendor", bundle=None, clientConfig=vendor, namespaceSelector=where)
        async with at_work(api, root_namespace=root) as wired:
            await until(lambda: wired._injectors.control_planes.known, "it is known")
            await until(lambda: len(api.dry_runs) >= len(asked), "dry runs have asked")
            assert [each.state for each in run_now(wired.status()).injectors] == [state]
        assert {pod["metadata"]["namespace"] for pod in api.dry_runs} == set(asked)


async def test_a_pod_that_does_not_go_is_held_from_five_minutes_past_its_grace_period_on() -> None:
    """istio.io#16748. No event of the watch says that it is late."""
    clock = Late()
    deleted = datetime.now(UTC) + timedelta(seconds=30)
    async with ApiServer() as api, at_work(api, clock) as wired:
        api.put("namespaces", {"metadata": {"name": "training", "labels": OURS}})
        ended = {"main": exited(0), "istio-proxy": exited(0)}
        details = {"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}
        api.put("pods", document(ended, deleting=True, gone_by=deleted.isoformat(),
                                 spec={"nodeName": "n1"}, details=details))  # fmt: skip
        await until(lambda: wired._quit.known, "it is known")
        assert run_now(wired.status()).blocked_pods == [], "each pod takes its time"
        clock.seconds = 30 + rules.TERMINATING_FOR
        status, (pods, _) = run_now(wired.status()), run_now(wired.pods())
        text = wired.telemetry.render().decode()
    [pod], [held], [shown] = status.blocked_pods, status.holders, pods
    assert (pod.code, status.blocked_total, shown.code) == ("IA0125", 1, "IA0125")
    assert shown.reason.endswith("every container has ended; the node does not finish")
    assert (held.by, held.requests) == (("node n1",), Requests(gpus=8))
    assert '\nistio_aux_kept_resources{by="other",resource="gpu"} 8.0\n' in text


async def test_the_first_500_selected_namespaces_are_named_and_all_are_counted(
    api: ApiServer,
) -> None:
    wired = Wiring(replace(DEFAULTS, namespace_selectors=parse_namespaces("")), api.access())
    for number in range(501):
        wired._mesh_watch.namespaces.apply(Namespace(metadata=Metadata(name=f"team-{number:03}")))
    status = run_now(wired.status())
    assert (status.selected_namespaces[-1], status.selected_total) == ("team-499", 501)


async def test_a_new_pod_is_left_to_an_ambient_mesh_where_istio_does_not_inject_it(
    api: ApiServer,
) -> None:
    """Its namespace's labels, which a review has not, come from the watch."""
    wired = Wiring(DEFAULTS, api.access())
    found = {"both": IN_AMBIENT | ENABLED, "alone": IN_AMBIENT, "in": ENABLED}
    for name, given in found.items():
        wired._mesh_watch.namespaces.apply(Namespace(metadata=Metadata(name=name, labels=given)))

    def left(namespace: str, **labels: str) -> str:
        return wired.webhook._excluded(Pod(metadata=Metadata(namespace=namespace, labels=labels)))

    assert left("alone") == "", "the injectors are not known yet"
    wired._injectors.control_planes = mesh()
    assert left("alone") == 'namespace label istio.io/dataplane-mode: "ambient"'
    assert left("new", **IN_AMBIENT) == 'label istio.io/dataplane-mode: "ambient"'
    asking = {**IN_AMBIENT, "sidecar.istio.io/inject": "true"}
    assert [left("both"), left("in", **IN_AMBIENT), left("alone", **asking)] == [""] * 3

    class Unread(tuple[Hook, ...]):
        """Webhooks, of which a cluster may have many: no other pod's review looks at them."""

        def __iter__(self) -> Iterator[Hook]:
            raise AssertionError("they are looked at")

    wired._injectors.control_planes = replace(mesh(), hooks=Unread(HOOKS))
    assert left("in") == ""
    with pytest.raises(AssertionError, match="looked at"):
        left("alone")


async def test_a_new_pod_starts_by_what_its_namespace_allows() -> None:
    """Of a namespace nothing is known before all quotas are listed."""
    async with ApiServer() as api:
        wired = Wiring(DEFAULTS, api.access())
        assert wired._start_of(Pod(metadata=Metadata(namespace="team"))).limits is None
    async with ApiServer() as api, at_work(api) as wired:
        about = {"namespace": "team", "name": "small", "uid": "1"}
        api.put("resourcequotas", {"metadata": about, "status": {"hard": {"limits.cpu": "1"}}})

        def limits(namespace: str) -> list[str] | None:
            found = wired._start_of(Pod(metadata=Metadata(namespace=namespace))).limits
            return None if found is None else [each.name for each in found]

        await until(lambda: limits("team") == ["ResourceQuota small"], "it is listed")
        assert limits("other") == []


async def test_the_pods_that_have_a_sidecar_are_counted_by_namespace() -> None:
    """Beside a payload: gateways, waypoints and ztunnel are proxies, too. No count is not 0."""
    proxy = {"istio-proxy": RUNNING}
    found = {
        "a job": raw(SIDECAR, namespace="team-a", restart="Never"),
        "a server": raw(SIDECAR, namespace="team-a"),
        "a native one": raw(sidecars=proxy, namespace="team-b"),
        "a gateway": raw(proxy, namespace="team-a"),
        "none": raw(namespace="team-a"),
        "not selected": raw(SIDECAR, namespace="shop"),
        "an application": raw(SIDECAR, namespace="shop", labels={"app.kubernetes.io/name": "db"}),
    }
    async with ApiServer() as api, at_work(api) as wired:
        assert run_now(wired.status()).sidecars is None, "nothing is listed yet"
        for number, pod in enumerate(found.values()):
            metadata = pod["metadata"] | {"name": f"pod-{number}", "uid": f"uid-{number}"}
            api.put("pods", pod | {"metadata": metadata})
        for name, labels in {"team-a": OURS, "team-b": OURS, "shop": {}}.items():
            api.put("namespaces", {"metadata": {"name": name, "labels": labels}})
        wired._ask(parse("shop/db")[0])
        expected = Sidecars(4, 3, {"team-a": 2, "shop": 1, "team-b": 1})
        await until(lambda: run_now(wired.status()).sidecars == expected, "they are counted")
        assert "\nistio_aux_pods_with_sidecar 4.0\n" in wired.telemetry.render().decode()
        api.remove("pods", "team-b", "pod-2")
        expected = Sidecars(3, 2, {"team-a": 2, "shop": 1})
        await until(lambda: run_now(wired.status()).sidecars == expected, "it is gone")
    off = replace(DEFAULTS.repair_policy, race=RacePolicy.NONE)
    async with ApiServer() as api, at_work(api, repair_policy=off) as wired:
        await until(lambda: not wired._watches.missing(), "all is listed")
        assert run_now(wired.status()).sidecars is None
        assert "\nistio_aux_pods_with_sidecar NaN\n" in wired.telemetry.render().decode()


async def test_the_namespaces_that_an_ambient_mesh_has_alone_are_counted(api: ApiServer) -> None:
    """Where Istio injects, injection wins; while that is not known, it may."""
    wired = Wiring(replace(DEFAULTS, namespace_selectors=parse_namespaces("")), api.access())
    for name, given in {
        "a": IN_AMBIENT,
        "b": IN_AMBIENT,
        "c": IN_AMBIENT | ENABLED,
        "d": {},
    }.items():
        wired._mesh_watch.namespaces.apply(Namespace(metadata=Metadata(name=name, labels=given)))
    assert run_now(wired.status()).ambient_total == 0
    wired._injectors.control_planes = replace(mesh(), injectors=())
    assert run_now(wired.status()).ambient_total == 2


async def test_whoever_writes_asks_the_lease_first(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name that a restart keeps. A checkpoint that cannot be read says nothing."""
    no_pods = {"quit": QuitMode.DISABLED, "repair_policy": RepairPolicy(race=RacePolicy.NONE)}
    settings = replace(DEFAULTS, lease=("istio-aux", "istio-aux"), **no_pods)
    wired = Wiring(settings, api.access())
    monkeypatch.setattr("istio_aux.watches.LEADING", 0.0)
    lease = wired._leadership
    assert isinstance(lease, Lease)
    assert lease._unfit() == "watch namespaces: nothing heard for 0 min"
    assert lease._identity == own_identity(8443)
    assert [each._leadership for each in (wired._quit, wired._repair)] == [lease] * 2
    assert not lease.leads()
    with pytest.raises(KubeError):
        await lease.save()
    now = datetime.now(UTC)
    injectors, replaced = {"istio": Since("live", now)}, {"shop/b": Replaced("web-0", "u-1")}
    wired._recall(Checkpoint({"shop/a": now}, injectors, replaced).text(), False)
    wired._recall("no checkpoint", False)
    assert read_checkpoint(wired._checkpoint()) == Checkpoint({"shop/a": now}, injectors, replaced)
    alone = Wiring(replace(settings, lease=None), api.access())
    assert alone._leadership.leads()
    await alone._leadership.save()


async def test_an_endless_task_survives_unhandled_exceptions() -> None:
    reported: list[str] = []

    async def work() -> None:
        if not reported:
            raise RecursionError("too deep")
        if len(reported) > 1:
            await asyncio.sleep(60)

    def failed(name: str, error: BaseException | None) -> None:
        reported.append(f"{name}: {error!r}")

    async with background(endless_task("watch", work, failed, Timing(restart=(0.02, 0.1)))):
        await until(lambda: len(reported) == 2, "it has run again")
    assert reported == ["watch: RecursionError('too deep')", "watch: None"]


# What `/status`, `/pods` and changes of namespaces cost where many pods hang, in steps.


FEW, MANY = 500, 2_000


@asynccontextmanager
async def wired(number: int) -> AsyncGenerator[Wiring]:
    """A leader that knows so many pods that a log shipper blocks, and as many without a sidecar."""
    settings = replace(DEFAULTS, namespace_selectors=parse_namespaces("team=a"), lease=None)
    blocked = document({"main": exited(0), "shipper": RUNNING, "istio-proxy": RUNNING})
    async with ApiServer() as api:
        made = Wiring(settings, api.access())
        labels = {"team": "a", "istio-injection": "enabled"}
        made._mesh_watch.namespaces.apply(Namespace(metadata=Metadata(name="team", labels=labels)))
        for kind, body in (("blocked", blocked), ("bare", raw())):
            for index in range(number):
                name = f"{kind}-{index}"
                body["metadata"] |= {"name": name, "namespace": "team", "uid": name}
                pod = msgspec.json.decode(json.dumps(body), type=Pod)
                made._quit.apply(pod)
                made._repair.store.apply(pod)
        made._repair.store.set_injectors(mesh())
        await made._repair.store.catch_up()
        yield made
        await made.hand_over(0)


def longest(work: Generator[None, None, object]) -> int:
    """The most lines that run before other tasks have a turn."""
    found, end = list[int](), object()
    ends = list[object]()
    while end not in ends:
        found.append(steps(lambda: ends.append(next(work, end))))
    return max(found)


@pytest.mark.parametrize("what", ["status", "pods", "metrics"])
async def test_other_tasks_have_a_turn_as_often_however_many_pods_there_are(what: str) -> None:
    async with wired(FEW) as few, wired(MANY) as many:
        assert longest(getattr(many, what)()) < longest(getattr(few, what)()) * 3 / 2


async def test_the_status_lists_the_oldest_pods_and_counts_all() -> None:
    async with wired(MANY) as process:
        status, (listed, _) = run_now(process.status()), run_now(process.pods())
    assert (len(status.blocked_pods), len(status.unmeshed_pods)) == (LONGEST, LONGEST)
    assert (len(listed), status.unmeshed_total) == (2 * MANY, MANY)
    assert status.blocked_total == 0, "none of them has been for long"


async def test_a_namespace_that_is_relabelled_costs_as_much_however_many_pods_others_have() -> None:
    async with wired(10) as few, wired(FEW) as many:
        assert cost_of_relabelling(many) == cost_of_relabelling(few)


def cost_of_relabelling(process: Wiring) -> int:
    """The lines that run for a namespace without pods, until it has been decided on."""

    def relabel() -> None:
        process._relabelled("other")
        decided = process._repair.store.catch_up()
        with suppress(StopIteration):
            while True:
                decided.send(None)

    return steps(relabel)
