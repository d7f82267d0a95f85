"""Pods that Istio's CNI should have captured: which are named, which are asked, which replaced."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from istio_aux.model.annotations import DATAPLANE, INJECT
from istio_aux.model.applications import PodOptions
from istio_aux.model.selectors import parse_namespaces
from istio_aux.repair.rollout import Sidecar
from msgspec import structs
from unit.asynchronous import until
from unit.repairing import LIMITS, SIDECAR, Cluster, World, at_work
from unit.rules.unmeshed import REPORT, ambient, raw

ANSWERS = {
    "listens": b"\x00\x15\x03\x01\x00\x02\x02\x32",  # An alert of TLS, as ztunnel's server sends.
    "refuses": b"\x01error forwarding port 15008: dial tcp4 127.0.0.1:15008: connection refused",
    "fails": b"\x01error forwarding port 15008: network namespace is closed",
}


class Mesh(Cluster):
    """Controllers' new pods are captured, or not: ``injects``."""

    def replacement(self, gone: dict[str, Any]) -> None:
        super().replacement(gone)
        name = f"new-{self._made}"
        self.put("pods", ambient("enabled" if self.injects else "", name=name, uid=name))

    def agents(self, *names: str) -> None:
        """These pods of Istio's are ready on the node, and the others are not."""
        for name, label in (("istio-cni", "k8s-app"), ("ztunnel", "app")):
            value = {"istio-cni": "istio-cni-node"}.get(name, name)
            pod = raw(
                SIDECAR, name=name, uid=name, namespace="istio-system", ready=name in names,
                labels={label: value}, spec={"nodeName": "node-1"},
            )  # fmt: skip
            self.put("pods", pod)

    async def says(self, socket: web.WebSocketResponse, _namespace: str, pod: str) -> None:
        await socket.send_bytes(ANSWERS[pod.partition("-")[0]])


@asynccontextmanager
async def mesh(**options: Any) -> AsyncGenerator[tuple[World, Mesh]]:
    """A cluster whose namespace is in an ambient mesh, where pods settle at once."""
    limits = structs.replace(LIMITS, settled=0.05)
    options = {
        "options": PodOptions(namespaces=parse_namespaces(f"{DATAPLANE}=ambient")),
        **options,
    }
    async with Mesh() as api, at_work(api, limits=limits, **options) as world:
        api.on_forward = api.says
        await world.relabel("shop", {DATAPLANE: "ambient"})
        yield world, api


def put(world: World, name: str, redirection: str = "", **fields: Any) -> None:
    world.api.put("pods", ambient(redirection, name=name, uid=f"old-{name}", **fields))


async def test_pods_that_are_left_out_are_named_and_no_others() -> None:
    """istio#61182: by Event, metric and status."""
    async with mesh(policy=REPORT) as (world, _):
        put(world, "out")
        put(world, "well", "enabled")
        put(world, "starting", address="")
        put(world, "half", "pending")
        await world.found("out", "half")
        await until(lambda: len(world.events("OutsideMesh")) == 2, "their owners are told")
        put(world, "half", "enabled")
        await world.found("out")
        assert world.count("istio_aux_unmeshed_pods") == 1
        assert world.repair.store.count(Sidecar.UNKNOWN) == 0
        assert world.api.forwards == [], "no pod is asked whose annotation says it"
        await world.relabel("shop", {})
        await world.found()


async def test_a_pod_that_refuses_a_sidecar_is_found_when_its_namespace_becomes_ambient() -> None:
    """Documents of Kubeflow tell users to refuse one. Before, nothing is kept of such a pod."""
    async with mesh(policy=REPORT) as (world, _):
        await world.relabel("shop", {})
        put(world, "out", labels={INJECT: "false"})
        put(world, "well", "enabled", labels={INJECT: "false"})
        await world.known(2)
        assert [pod.bare for pod in world.repair.store.pods.values()] == [None, None]
        await world.relabel("shop", {DATAPLANE: "ambient"})
        await world.found("out")


async def test_a_pod_whose_annotation_may_lie_is_asked_once() -> None:
    """istio#55968: that of a pod whose node was started again. No answer is not "outside"."""
    async with mesh(policy=REPORT) as (world, _):
        for name in ANSWERS:
            put(world, name, "enabled", renewed=True)
        await world.found("refuses")
        await until(lambda: len(world.api.forwards) == len(ANSWERS), "all are asked")
        await until(lambda: world.repair.store.count(Sidecar.UNKNOWN) == 1, "one is not known")
        put(world, "fails", "enabled", renewed=True, labels={"changed": "yes"})
        put(world, "refuses-too", "enabled", renewed=True)
        await world.found("refuses", "refuses-too")
        asked = [pod for _, pod, port, _ in world.api.forwards if port == 15008]
        assert sorted(asked) == ["fails", "listens", "refuses", "refuses-too"]


async def test_a_pod_is_replaced_while_cni_and_ztunnel_of_its_node_are_ready() -> None:
    async with mesh() as (world, api):
        api.agents("istio-cni")
        put(world, "out")
        why = "not ready on node node-1: ztunnel"
        await until(lambda: why in world.unmeshed.get("out", ""), "its node is not ready")
        assert world.api.evictions == []
        api.agents("istio-cni", "ztunnel")
        await until(lambda: world.restarts("evicted") == 1, "it is replaced")
        await world.found()
        ((pod, note),) = await until(lambda: world.events("RestartedForSidecar"), "that is told")
        assert (pod, note.partition(":")[0]) == ("out", "restarted, so that it is captured")
