"""Pods that Istio's CNI should have captured: which are named, and which are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from istio_aux.model.annotations import DATAPLANE, INJECT
from istio_aux.model.applications import PodOptions
from istio_aux.model.findings import Code
from istio_aux.model.moment import Moment
from istio_aux.model.pod import convert
from istio_aux.model.selectors import parse_namespaces
from istio_aux.repair.rollout import Sidecar
from istio_aux.repair.rules import AwaitCapture, Candidate, Captured, ReportUnmeshed
from istio_aux.repair.store import Captures, CniAgents
from msgspec import structs
from simulation.store import Path, Stored
from unit.process import until
from unit.repairing import LIMITS, Cluster, World, at_work
from unit.rules.pods import CNI_READY, REPORT, agent, ambient, cni


class Mesh(Cluster):
    """Controllers' new pods are captured, or not: ``injects``.

    Attributes:
        late: what happens right before an eviction arrives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.late: Callable[[], None] = lambda: None

    def evict(self, to: Path, eviction: dict[str, Any]) -> Stored:
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
async def mesh(
    *agents: str, config: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[tuple[World, Mesh]]:
    """A cluster whose namespace is in an ambient mesh, where pods settle at once."""
    limits = structs.replace(LIMITS, settled=0.05)
    options = {
        "options": PodOptions(namespaces=parse_namespaces(f"{DATAPLANE}=ambient")),
        **options,
    }
    async with Mesh() as api, at_work(api, limits=limits, **options) as world:
        api.put("configmaps", config or cni())
        api.agents(*(agents or ("istio-cni", "ztunnel")))
        await world.relabel("istio-system", {})
        await world.relabel("shop", {DATAPLANE: "ambient"})
        await until(lambda: world.repair.store.cni.configs, "the settings of the CNI are known")
        yield world, api


def put(world: World, name: str, redirection: str = "", **fields: Any) -> None:
    world.api.put("pods", ambient(redirection, name=name, uid=f"old-{name}", **fields))


async def test_pods_that_are_left_out_are_named_and_no_others() -> None:
    """istio#61182: by Event, metric and status. No pod is asked."""
    async with mesh(policy=REPORT) as (world, _):
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
    async with mesh(policy=REPORT) as (world, _):
        await world.relabel("shop", {})
        put(world, "out", labels={INJECT: "false"})
        put(world, "well", "enabled", labels={INJECT: "false"})
        await world.known(4)
        await world.relabel("shop", {DATAPLANE: "ambient"})
        await world.found("out")


async def test_a_pod_is_replaced_while_cni_and_ztunnel_of_its_node_are_ready() -> None:
    async with mesh("istio-cni") as (world, api):
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
    async with mesh("ztunnel") as (world, api):
        put(world, "waits")
        await until(lambda: world.repair.store.count(Sidecar.UNKNOWN) == 1, "that is not known")
        assert world.unmeshed == {}
        api.agents("istio-cni", "ztunnel")
        await until(lambda: api.evictions == ["waits"], "the agent is back, and left it out")


async def test_a_fault_while_the_settings_of_the_agent_are_read_has_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with mesh(policy=REPORT) as (world, _):
        monkeypatch.setattr("istio_aux.repair.controller.read_cni", None)
        world.repair.store.cni.unread.set()
        await until(lambda: world.count("istio_aux_internal_errors_total"), "it is counted")
    assert "TypeError: 'NoneType' object is not callable" in caplog.text


async def test_a_pod_that_is_captured_right_before_its_eviction_stays() -> None:
    """What the eviction rests on is older than the pod."""
    async with mesh() as (world, api):
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

    async with mesh(store=exclude) as (world, api):
        put(world, "out")
        await saved.wait()
        await until(lambda: not world.unmeshed and world.repair.finished, "it is left alone")
        assert api.evictions == []


async def test_without_its_settings_pods_are_only_reported() -> None:
    async with mesh(config=cni(AMBIENT_ENABLEMENT_SELECTOR="- podSelector: 1")) as (world, api):
        put(world, "out")
        why = "not known which pods istio-cni captures: ConfigMap istio-system/istio-cni-config: "
        await until(lambda: why in world.unmeshed.get("out", ""), "it is reported")
        assert api.evictions == []


async def test_pods_of_tenants_are_no_agents() -> None:
    """A tenant may give a pod the agent's label."""
    async with mesh("ztunnel") as (world, api):
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
    async with mesh(policy=REPORT) as (world, api):
        put(world, "out")
        await world.found("out")
        api.remove("pods", "shop", "out")
        for name in ("istio-cni", "ztunnel"):
            api.remove("pods", "istio-system", name)
        await until(lambda: not world.repair.store.pods, "all are gone")
        store = world.repair.store
        assert (store.captures.until, store.cni.namespaces) == (None, set())
        assert store.captures.due() == []
