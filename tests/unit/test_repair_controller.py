"""The repair controller finds pods outside their mesh, and restarts them where it may."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from istio_aux.model.annotations import DATAPLANE
from istio_aux.model.answers import Liveness
from istio_aux.model.applications import Applications, PodOptions, parse
from istio_aux.model.documents import run_now
from istio_aux.model.findings import Code
from istio_aux.model.moment import Moment
from istio_aux.model.pod import convert
from istio_aux.model.selectors import parse_namespaces
from istio_aux.repair.reports import ApplicationMesh, follow_applications, oldest
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import AwaitCapture, Candidate, Captured, ReportUnmeshed
from istio_aux.repair.store import Captures, CniAgents
from msgspec import structs
from simulation.store import Path as Place, Stored
from unit.controllers import LIMITS, SIDECAR, Cluster, RepairWorld, mesh, repair_at_work, repairing
from unit.process import background, until
from unit.rules.pods import (
    CNI_READY,
    DEFAULT,
    INJECT,
    JOB,
    NAME,
    ORIGINAL,
    REPORT,
    STATEFUL,
    agent,
    ambient,
    cni,
)

# The repair controller finds unmeshed pods, and restarts them where the policy says so.


@pytest.fixture
def world(options: dict[str, Any]) -> AbstractAsyncContextManager[RepairWorld]:
    return repairing(**options)


@pytest.mark.options(policy=REPORT)
async def test_report_sends_one_event_for_each_unmeshed_pod_and_evicts_none(
    world: RepairWorld,
) -> None:
    """istio#15873: Event, metric and status, which shows the oldest first."""
    await world.pod("web-a", created="2026-11-20T08:16:29Z")
    await world.pod("web-b", owner=None, created="2026-11-19T08:16:29Z")
    await world.pod("fine", SIDECAR)
    await world.pod("out", labels={INJECT: "false"})
    await world.known(4)
    await world.found("web-a", "web-b")
    assert world.count("istio_aux_unmeshed_pods") == 2
    await until(lambda: len(world.events("NoSidecar")) == 2, "both owners are told")
    await world.pod("web-a", phase="Pending", created="2026-11-20T08:16:29Z")
    await world.pod("fine", SIDECAR, phase="Pending")
    await world.pod("last", created="2026-11-21T08:16:29Z")
    await until(lambda: len(world.events("NoSidecar")) == 3, "the last one's owner is told")
    assert [name for name, _ in world.events("NoSidecar")] == ["web-a", "web-b", "last"]
    (note, *_) = (note for _, note in world.events("NoSidecar"))
    assert note.startswith("IA0105: the pod has no sidecar and should have one: namespace.side")
    assert world.api.evictions == []
    shown = [
        (pod.name, pod.owner, pod.since and pod.since.day)
        for pod in run_now(world.repair.unmeshed(2))
    ]
    assert shown == [("web-b", "", 19), ("web-a", "ReplicaSet/web", 20)]
    assert {pod.code for pod in run_now(world.repair.unmeshed(2))} == {"IA0105"}


@pytest.mark.options(policy=REPORT)
async def test_a_pod_that_is_deleted_while_pods_are_listed_is_listed_no_more(
    world: RepairWorld,
) -> None:
    """Else it would be the oldest one: nothing is known of it."""
    await world.pod("web-a")
    await world.pod("web-b")
    await world.found("web-a", "web-b")
    listing = oldest(world.repair.store.find(Sidecar.MISSING))
    await world.pod("web-a", deleting=True)
    await until(lambda: [*world.unmeshed] == ["web-b"], "it is being deleted")
    assert [pod.name for pod in run_now(listing)] == ["web-b"]


async def test_a_pod_gets_one_event_although_webhooks_are_renamed_and_the_leader_changes() -> None:
    """`istioctl install` moves the webhooks to a configuration of another name."""
    async with Cluster() as api:
        for marker in ("first-process", "second-process"):
            async with repair_at_work(
                api, policy=REPORT, known=mesh(Liveness.NO_ENDPOINT)
            ) as world:
                await world.pod("web")
                await until(lambda: "web" in world.unmeshed, "it is found")
                for name in (DEFAULT, ORIGINAL, DEFAULT):
                    await rename(world, name)
                await world.pod(marker)
                await until(functools.partial(has_been_told, world, marker), "what came later is")
        assert [name for name, _ in world.events("NoSidecar")].count("web") == 1


@pytest.mark.options(known=mesh(Liveness.NO_ENDPOINT))
async def test_the_event_has_the_lasting_reason_and_not_that_the_injector_is_away(
    world: RepairWorld,
) -> None:
    """There is no second one; and a pod that may be restarted soon needs none."""
    await world.pod("train", owner=JOB, restart="Never")
    await world.pod("web", owner_uid="another")
    await world.found("train", "web")
    world.repair.store.set_injectors(mesh())
    await until(lambda: world.api.evictions == ["web"], "it is live")
    ((pod, note),) = await until(lambda: world.events("NoSidecar"), "the owner is told")
    assert pod == "train"
    assert note.endswith("as `kubectl replace --force -f` does")


async def rename(world: RepairWorld, configuration: str) -> None:
    """Istio's webhooks are in a configuration of this name from now on."""
    world.repair.store.set_injectors(mesh(named=configuration))
    await until(lambda: f" of {configuration} " in world.unmeshed["web"], "that is seen")


def has_been_told(world: RepairWorld, pod: str) -> bool:
    return pod in [name for name, _ in world.events("NoSidecar")]


@pytest.mark.options(known=mesh(Liveness.NO_ENDPOINT))
async def test_an_eviction_is_for_the_newest_version_of_the_pod_and_no_other(
    world: RepairWorld,
) -> None:
    """Also after changes that do not matter for the decision. Before the injector is live there is
    none: Istio's webhooks refuse pods until then, so it would cost a pod (istio#43074).
    """
    for note in ("first", "second"):
        await world.pod("web", annotations={"note": note})
        await world.found("web")
    body = dict(world.api.get("pods", "shop", "web") or {})
    world.api.put("pods", {**body, "status": {**body["status"], "podIP": "10.0.0.1"}})
    await world.pod("marker", SIDECAR)
    await world.known(2)
    version = (world.api.get("pods", "shop", "web") or {})["metadata"]["resourceVersion"]
    world.repair.store.set_injectors(mesh())
    await world.found()
    assert world.api.bodies == [
        {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": "shop", "name": "web"},
            "deleteOptions": {"preconditions": {"uid": "old-web", "resourceVersion": version}},
        }
    ]
    (told,) = await until(lambda: world.events("RestartedForSidecar"), "the owner is told")
    assert "restarted, so that it gets a sidecar: the pod has no sidecar" in told[1]


# Applications that ask for sidecars, and the file that names them.

WEB = {NAME: "web"}


def said(world: RepairWorld) -> ApplicationMesh:
    """Of the only application that asks by name."""
    (found,) = world.repair.applications()
    return found


def ask(world: RepairWorld, text: str = "bank/web") -> None:
    """In a namespace of which Istio injects only pods that ask for it."""
    world.namespaces.setdefault("bank", {})
    world.repair.store.set_applications(parse(text)[0])


async def test_an_application_is_restarted_once_a_new_pod_would_get_its_sidecar(
    world: RepairWorld,
) -> None:
    """Our own admission is in force a moment later than this process leads."""
    ask(world)
    world.api.injects = False
    await world.pod("web-0", namespace="bank", labels=WEB, owner=STATEFUL)
    await world.pod("other", labels={NAME: "other"}, owner_uid="owner-2")
    why = "a new pod would get no sidecar: it gives no sidecar to a pod that asks for one"
    await until(lambda: why in world.unmeshed.get("web-0", ""), "it waits")
    # Of those that only Istio is asked about it is known that the injector is live.
    await until(lambda: world.restarts("stopped") == 1, "the other one is tried")
    assert world.api.evictions == ["other"]
    world.api.injects = True
    await until(lambda: said(world).meshed, "it is meshed")
    assert world.api.evictions == ["other", "web-0"]
    assert world.api.dry_runs
    assert all(pod["metadata"]["labels"] == WEB for pod in world.api.dry_runs)


@pytest.mark.options(policy=REPORT)
async def test_an_application_is_meshed_when_each_of_its_pods_is(world: RepairWorld) -> None:
    ask(world)
    await until(lambda: said(world).meshed_reason == "it has no pod that runs", "nothing")
    assert said(world).meshed is None
    await world.pod("web-0", SIDECAR, namespace="bank", labels=WEB, phase="Pending")
    await world.known(1)
    assert said(world).meshed is None
    await world.pod("web-0", SIDECAR, namespace="bank", labels=WEB)
    await until(lambda: said(world).meshed, "it is meshed")
    assert said(world).meshed_reason == "1 of 1 pods have a sidecar"
    for number in range(1, 6):
        await world.pod(f"web-{number}", namespace="bank", labels=WEB)
    await world.pod("web-6", namespace="bank", labels=WEB, deleting=True)
    await world.known(7)
    assert said(world).meshed is False
    assert said(world).meshed_reason == "without a sidecar: web-1, web-2, web-3 and 2 more"


async def test_no_pod_is_restarted_in_a_namespace_that_is_being_deleted() -> None:
    """The API server would refuse the new one."""
    terminating = {"bank"}
    async with repairing(terminating=terminating) as world:
        ask(world)
        await world.pod("web-0", namespace="bank", labels=WEB)
        await world.known(1)
        await until(lambda: world.repair.finished, "it is decided")
        assert (world.unmeshed, world.api.evictions) == ({}, [])
        assert said(world).live_reason == "namespace bank is being deleted, and takes no new pods"
        terminating.clear()
        world.repair.store.invalidate("bank")
        await until(lambda: world.api.evictions == ["web-0"], "it is restarted")


@pytest.mark.options(known=mesh(known=False))
async def test_an_application_is_live_when_a_new_pod_of_it_would_get_a_sidecar(
    world: RepairWorld,
) -> None:
    ask(world)
    assert (said(world).live, said(world).revision) == (None, "")
    world.repair.store.set_injectors(mesh(Liveness.NO_ENDPOINT))
    assert (said(world).live, said(world).live_reason) == (False, "so")
    world.repair.store.set_injectors(mesh())
    found = said(world)
    assert (found.live, found.live_reason) == (True, "so")
    assert (found.revision, found.root_namespace) == ("default", "istio-system")


async def test_changes_of_the_file_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may come, change and go; a bad line is told once, and one that cannot be read is kept."""
    path, told = tmp_path / "applications", list[Applications]()
    async with background(follow_applications(path, told.append, 0.01)):
        path.write_text("shop/web\nnonsense\n")
        await until(lambda: len(told) == 1, "it is read")
        path.write_text("shop/web\n# The same.\n")
        await asyncio.sleep(0.1)
        path.unlink()
        path.mkdir()
        await until(lambda: len(caplog.records) == 2, "it cannot be read")
        path.rmdir()
        await until(lambda: len(told) == 2, "it is gone")
    web, nothing = parse("shop/web")[0], Applications()
    assert told == [web, nothing]
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith(
        'applications: line 2: "nonsense": expected model/app, model/* for all its applications,'
        " or namespace/** for all pods"
    )
    assert "Is a directory" in second


# Pods that Istio's CNI should have captured: which are named, and which are replaced.


class Mesh(Cluster):
    """Controllers' new pods are captured, or not: ``injects``.

    Attributes:
        late: what happens right before an eviction arrives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: Callable[[], None] = lambda: None

    def evict(self, to: Place, eviction: dict[str, Any]) -> Stored:
        self.late()
        return super().evict(to, eviction)

    def replacement(self, gone: dict[str, Any]) -> None:
        super().replacement(gone)
        name = f"new-{self._made}"
        self.put("pods", ambient("enabled" if self.injects else "", name=name, uid=name))

    def agents(self, *ready: str, namespace: str = "istio-system") -> None:
        """These pods of Istio's are ready on the node, and the others are not."""
        for name in ("istio-cni", "ztunnel"):
            pod = agent(name, ready=name in ready)
            pod["metadata"]["namespace"] = namespace
            self.put("pods", pod)


@asynccontextmanager
async def ambient_mesh(
    *agents: str, config: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[RepairWorld, Mesh]]:
    """A cluster whose namespace is in an ambient mesh, where pods settle at once."""
    limits = structs.replace(LIMITS, settled=0.05)
    options = {
        "options": PodOptions(namespaces=parse_namespaces(f"{DATAPLANE}=ambient")),
        **options,
    }
    async with Mesh() as api, repair_at_work(api, limits=limits, **options) as world:
        api.put("configmaps", config or cni())
        api.agents(*(agents or ("istio-cni", "ztunnel")))
        await world.relabel("istio-system", {})
        await world.relabel("shop", {DATAPLANE: "ambient"})
        await until(lambda: world.repair.store.cni.configs, "the settings of the CNI are known")
        yield world, api


def put(world: RepairWorld, name: str, redirection: str = "", **fields: Any) -> None:
    world.api.put("pods", ambient(redirection, name=name, uid=f"old-{name}", **fields))


async def test_pods_that_are_left_out_are_named_and_no_others() -> None:
    """istio#61182: by Event, metric and status. No pod is asked."""
    async with ambient_mesh(policy=REPORT) as (world, _):
        put(world, "out")
        put(world, "well", "enabled")
        put(world, "booted", "enabled", renewed=True)
        put(world, "starting", address="")
        put(world, "half", "pending")
        await world.found("out", "half")
        await until(lambda: len(world.events("OutsideMesh")) == 2, "their owners are told")
        told = dict(world.events("OutsideMesh"))
        assert "IA0106" in told["out"]
        assert "IA0126" in told["half"]
        put(world, "half", "enabled")
        await world.found("out")
        assert world.count("istio_aux_unmeshed_pods") == 1
        assert world.repair.store.count(Sidecar.UNKNOWN) == 0
        assert world.api.forwards == []
        await world.relabel("shop", {})
        await world.found()


async def test_a_pod_that_refuses_a_sidecar_is_found_when_its_namespace_becomes_ambient() -> None:
    """Documents of Kubeflow tell users to refuse one."""
    async with ambient_mesh(policy=REPORT) as (world, _):
        await world.relabel("shop", {})
        put(world, "out", labels={INJECT: "false"})
        put(world, "well", "enabled", labels={INJECT: "false"})
        await world.known(4)
        await world.relabel("shop", {DATAPLANE: "ambient"})
        await world.found("out")


async def test_a_pod_is_replaced_while_cni_and_ztunnel_of_its_node_are_ready() -> None:
    async with ambient_mesh("istio-cni") as (world, api):
        put(world, "out")
        why = "not ready on node node-1: ztunnel"
        await until(lambda: why in world.unmeshed.get("out", ""), "its node is not ready")
        assert world.api.evictions == []
        api.agents("istio-cni", "ztunnel")
        await until(lambda: world.restarts("evicted") == 1, "it is replaced")
        await world.found()
        ((pod, note),) = await until(lambda: world.events("RestartedForSidecar"), "that is told")
        assert (pod, note.partition(":")[0]) == ("out", "restarted, so that it is captured")


async def test_while_the_agent_is_away_it_is_not_known_what_it_will_capture() -> None:
    async with ambient_mesh("ztunnel") as (world, api):
        put(world, "waits")
        await until(lambda: world.repair.store.count(Sidecar.UNKNOWN) == 1, "that is not known")
        assert world.unmeshed == {}
        api.agents("istio-cni", "ztunnel")
        await until(lambda: api.evictions == ["waits"], "the agent is back, and left it out")


async def test_a_fault_while_the_settings_of_the_agent_are_read_has_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ambient_mesh(policy=REPORT) as (world, _):
        monkeypatch.setattr("istio_aux.repair.controller.read_cni", None)
        world.repair.store.cni.unread.set()
        await until(lambda: world.count("istio_aux_internal_errors_total"), "it is counted")
    assert "TypeError: 'NoneType' object is not callable" in caplog.text


async def test_a_pod_that_is_captured_right_before_its_eviction_stays() -> None:
    """What the eviction rests on is older than the pod."""
    async with ambient_mesh() as (world, api):
        api.late = lambda: put(world, "late", "enabled")
        put(world, "late")
        await until(lambda: api.evictions, "it is to be evicted")
        await world.found()
        await until(lambda: world.repair.finished, "all is decided")
        assert (world.restarts("evicted"), api.evictions) == (0, ["late"])
        assert api.find("pods", "shop", "late")


async def test_settings_are_read_again_right_before_an_eviction() -> None:
    """An admin has excluded the namespace since."""
    saved = asyncio.Event()

    async def exclude() -> None:
        api.put("configmaps", cni(EXCLUDE_NAMESPACES="shop"))
        saved.set()

    async with ambient_mesh(store=exclude) as (world, api):
        put(world, "out")
        await saved.wait()
        await until(lambda: not world.unmeshed and world.repair.finished, "it is left alone")
        assert api.evictions == []


async def test_without_its_settings_pods_are_only_reported() -> None:
    async with ambient_mesh(config=cni(AMBIENT_ENABLEMENT_SELECTOR="- podSelector: 1")) as (
        world,
        api,
    ):
        put(world, "out")
        why = "not known which pods istio-cni captures: ConfigMap istio-system/istio-cni-config: "
        await until(lambda: why in world.unmeshed.get("out", ""), "it is reported")
        assert api.evictions == []


async def test_pods_of_tenants_are_no_agents() -> None:
    """A tenant may give a pod the agent's label."""
    async with ambient_mesh("ztunnel") as (world, api):
        forged = agent()
        forged["metadata"] |= {"namespace": "shop", "name": "forged", "uid": "forged"}
        api.put("pods", forged)
        put(world, "out")
        await until(lambda: world.repair.store.count(Sidecar.UNKNOWN) == 1, "that is not known")
        await world.relabel("elsewhere", {})
        api.agents("istio-cni", "ztunnel", namespace="elsewhere")
        api.put("pods", agent())
        await until(lambda: world.repair.finished, "nor if two namespaces have agents")
        assert world.repair.store.count(Sidecar.UNKNOWN) == 1
        assert (world.unmeshed, api.evictions) == ({}, [])


def test_a_new_agent_wakes_the_reader_of_its_settings() -> None:
    cni = CniAgents(lambda _: False, lambda _: None)
    cni.apply(convert(agent()))
    assert cni.unread.is_set()


def test_the_time_of_a_pod_begins_again_if_its_agent_was_away_or_its_network_is_new() -> None:
    """A watch may show only how it ended."""
    now = 100.0
    captures = Captures(lambda: Moment(now, 0), settled=30)
    pod, outside = Candidate.of(convert(ambient(""))), ReportUnmeshed("so", Code.OUTSIDE)
    assert captures.decided(pod, CNI_READY, AwaitCapture("so"))
    now = 130.0
    assert captures.settled(pod, CNI_READY)
    assert not captures.decided(pod, CNI_READY, outside), "its time goes on"
    for other, by in (
        (pod, structs.replace(CNI_READY, ready_since=2.0)),
        (structs.replace(pod, addressed=2.0), CNI_READY),
        (structs.replace(pod, redirection="pending"), CNI_READY),
    ):
        assert not captures.settled(other, by)
    assert not captures.decided(pod, CNI_READY, Captured("so"))
    assert (captures.settled(pod, CNI_READY), captures.until) == (False, None)


async def test_nothing_is_kept_of_pods_and_agents_that_are_gone() -> None:
    async with ambient_mesh(policy=REPORT) as (world, api):
        put(world, "out")
        await world.found("out")
        api.remove("pods", "shop", "out")
        for name in ("istio-cni", "ztunnel"):
            api.remove("pods", "istio-system", name)
        await until(lambda: not world.repair.store.pods, "all are gone")
        store = world.repair.store
        assert (store.captures.until, store.cni.namespaces) == (None, set())
        assert store.captures.due() == []
