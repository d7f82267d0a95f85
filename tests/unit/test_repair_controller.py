"""The repair controller finds unmeshed pods, and restarts them where the policy says so."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from istio_aux.kube.objects import Key
from istio_aux.model import pod as pods
from istio_aux.model.policy import State
from unit.asynchronous import until
from unit.repairing import BARE, SIDECAR, Cluster, World, at_work, cluster, mesh
from unit.rules.mesh import DEFAULT, INJECT, ORIGINAL
from unit.rules.training import document
from unit.rules.unmeshed import JOB, REPLICAS, REPORT, STATEFUL, WITH_JOBS, raw
from unit.store import refusal
from unit.training import FAST, Kubeflow


async def test_report_sends_one_event_for_each_unmeshed_pod_and_evicts_none() -> None:
    """T41: Event, metric and status, which shows the oldest first."""
    async with cluster(policy=REPORT) as world:
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
        assert note.startswith("the pod has no sidecar and should have one: namespace.sidecar-inj")
        assert world.api.evictions == []
        shown = [(pod.name, pod.owner, pod.since.day) for pod in world.repair.unmeshed(2)]
        assert shown == [("web-b", "", 19), ("web-a", "ReplicaSet/web", 20)]


async def test_a_pod_gets_one_event_although_webhooks_are_renamed_and_the_leader_changes() -> None:
    """`istioctl install` moves the webhooks to a configuration of another name."""
    async with Cluster() as api:
        for marker in ("first-process", "second-process"):
            async with at_work(api, policy=REPORT, known=mesh(State.NO_ENDPOINT)) as world:
                await world.pod("web")
                await until(lambda: "web" in world.unmeshed, "it is found")
                for name in (DEFAULT, ORIGINAL, DEFAULT):
                    await rename(world, name)
                await world.pod(marker)
                await until(functools.partial(has_been_told, world, marker), "what came later is")
        assert [name for name, _ in world.events("NoSidecar")].count("web") == 1


async def test_the_event_has_the_lasting_reason_and_not_that_the_injector_is_away() -> None:
    """There is no second one; and a pod that may be restarted soon needs none."""
    async with cluster(known=mesh(State.NO_ENDPOINT)) as world:
        await world.pod("train", owner=JOB, restart="Never")
        await world.pod("web", owner_uid="another")
        await world.found("train", "web")
        world.repair.set_injectors(mesh())
        await until(lambda: world.api.evictions == ["web"], "it is live")
        ((pod, note),) = await until(lambda: world.events("NoSidecar"), "the owner is told")
        assert pod == "train"
        assert note.endswith("not restarted: it is a Job's, and restart-jobs is off")


async def rename(world: World, configuration: str) -> None:
    """Istio's webhooks are in a configuration of this name from now on."""
    world.repair.set_injectors(mesh(named=configuration))
    await until(lambda: f" of {configuration} " in world.unmeshed["web"], "that is seen")


def has_been_told(world: World, pod: str) -> bool:
    return pod in [name for name, _ in world.events("NoSidecar")]


async def test_an_eviction_is_for_the_newest_version_of_the_pod_and_no_other() -> None:
    """Also after changes that do not matter for the decision."""
    async with cluster(known=mesh(State.NO_ENDPOINT)) as world:
        for note in ("first", "second"):
            await world.pod("web", annotations={"note": note})
            await world.found("web")
        await world.pod("marker", SIDECAR)
        await world.known(2)
        version = (world.api.get("pods", "shop", "web") or {})["metadata"]["resourceVersion"]
        world.repair.set_injectors(mesh())
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


async def test_nothing_happens_before_the_injector_is_live() -> None:
    """T33, T34: Istio's webhooks refuse pods until then, so an eviction would cost a pod."""
    async with cluster(known=mesh(known=False)) as world:
        await world.pod("web")
        await until(lambda: world.repair.unknown == 1, "it is seen")
        assert world.unmeshed == {}
        world.repair.set_injectors(mesh(State.NO_ENDPOINT))
        await world.found("web")
        assert "not restarted: the injector is not live" in world.unmeshed["web"]
        assert world.repair.unknown == 0
        assert world.api.evictions == []
        world.repair.set_injectors(mesh())
        await world.found()
        assert world.api.evictions == ["web"]


async def test_a_replacement_without_a_sidecar_stops_the_restarts() -> None:
    """T41: also where the controller has no pod at all for a moment."""
    async with cluster() as world:
        world.api.injects = False
        await world.pod("web-0", owner=STATEFUL)
        await until(lambda: world.restarts("stopped") == 1, "it is given up")
        why = "web-0, made after web-0 was evicted, has no sidecar either"
        note = f"no further pod of StatefulSet/web is restarted: {why}"
        told = await until(lambda: world.events("RestartStopped"), "the owner is told")
        assert told == [("web-0", note)]
        assert world.unmeshed["web-0"].endswith(why)
        await until(lambda: world.repair.finished, "nothing is left to do")
        world.repair.lead(True)  # As before: that changes nothing.
        await world.pod("web-1", owner=STATEFUL)
        await world.found("web-0", "web-1")
        await world.pod("marker", SIDECAR, owner_uid="another")
        await world.known(3)
        assert world.api.evictions == ["web-0"]
        assert world.restarts("stopped") == 1


async def test_a_failed_restart_is_not_repeated_by_the_next_leader() -> None:
    """And told once."""
    async with Cluster() as api:
        async with at_work(api) as world:
            world.api.injects = False
            await world.pod("web-0", owner=STATEFUL)
            await until(lambda: world.restarts("stopped") == 1, "it is given up")
            world.api.injects = True
            await until(lambda: world.events("RestartStopped"), "the owner is told")
            failed, replaced = world.repair.failed, world.repair.replaced
        async with at_work(api, leading=False) as world:
            world.repair.recall(failed, replaced)
            world.repair.lead(True)
            await until(lambda: "no sidecar either" in world.unmeshed.get("web-0", ""), "so")
            await world.pod("marker", owner_uid="another")
            await until(lambda: "marker" in api.evictions, "other controllers go on")
            assert api.evictions == ["web-0", "marker"]
            assert world.restarts("stopped") == 0
            assert world.repair.failed == failed
        assert len(world.events("RestartStopped")) == 1


async def test_the_same_owner_uid_in_two_namespaces_means_two_owners() -> None:
    """Nobody checks that the UID in a pod's owner reference is that of its own namespace."""
    async with cluster() as world:
        world.api.replaces = False
        world.namespaces["other"] = world.namespaces["shop"]
        await world.pod("web", owner_uid="the-same")
        await world.pod("claims", namespace="other", owner_uid="the-same")
        await until(
            lambda: set(world.api.evictions) == {"web", "claims"}, "neither waits for the other"
        )


async def test_a_controller_whose_only_pod_was_replaced_is_still_one_controller() -> None:
    """Else each half of its pods would be restarted as if there were no others."""
    async with cluster(known=mesh(State.NO_ENDPOINT)) as world:
        for name in ("a", "b", "c"):
            world.repair.apply(pods.convert(raw(BARE, name=name, uid=name, owner=REPLICAS)))
            if name == "a":
                world.repair.set_injectors(mesh())
                await world.repair._store.catch_up()
                world.repair.delete(Key("shop", "a", "a"), None)
            if name == "b":
                await world.repair._observe_changed()
        owners = {stored.owner for stored in world.repair._store.pods.values()}
        assert owners == set(world.repair._store.owners.values())
        assert len(owners) == 1


# Pods of training jobs that have no sidecar: their Job is suspended and resumed.


class Injected(Kubeflow):
    """The same, where all pods but the first two get a sidecar."""

    async def put(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        if resource == "pods" and self._made > 2:
            body["spec"]["containers"].append({"name": "istio-proxy"})
        return await super().put(resource, body)


@asynccontextmanager
async def training() -> AsyncGenerator[World]:
    """A repair controller at work in a cluster with a TFJob of two pods."""
    async with Injected() as api:
        await api.put("tfjobs", document("Running"))
        await api.operate()
        more: dict[str, Any] = {"job_limits": FAST, "namespace": "training"}
        async with at_work(api, policy=WITH_JOBS, **more) as world:
            yield world


async def test_a_training_job_is_suspended_instead_of_evicting_its_pods() -> None:
    """T41: one restart is for all its pods."""
    async with training() as world:
        await until(lambda: world.restarts("resumed") == 1, "it is resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("suspended"), world.restarts("evicted")) == (1, 0)
        told = await until(lambda: world.events("RestartedForSidecar"), "its owner is told")
        assert len(told) == 1
        await until(lambda: not world.repair.suspended(), "nothing is under way")


async def test_a_suspension_that_ended_in_a_server_error_is_awaited() -> None:
    """It may have happened, and nobody has refused it."""

    async def perform_and_fail(request: web.Request) -> web.Response | None:
        if request.method != "PATCH":
            return None
        await world.api._route(request)
        return refusal(504, "Timeout", "request did not complete within requested timeout")

    async with training() as world:
        world.api.faults.append(perform_and_fail)
        await until(lambda: world.restarts("resumed") == 1, "it is suspended, and resumed")
        await until(lambda: not world.unmeshed, "all are meshed")
        assert (world.restarts("failed"), world.restarts("refused")) == (1, 0)
