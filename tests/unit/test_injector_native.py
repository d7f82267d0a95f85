"""Whether sidecars can be native on request, found out through the whole chain of webhooks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector import probe
from istio_aux.injector.probe import check_native
from istio_aux.injector.probe_rules import Question
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.model.policy import Capability
from lab.istio import World
from unit.asynchronous import until
from unit.injecting import ENABLED, QUICK, Cluster, Istiod, chain, watching
from unit.store import refusal

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
ON_REQUEST: World = "on request"
Later = Callable[[dict[str, Any]], web.Response | None]


def drops(pod: dict[str, Any]) -> web.Response | None:
    """A webhook after Istio's that knows init containers only as they were before 1.28."""
    for container in pod["spec"].get("initContainers", []):
        container.pop("restartPolicy", None)
    return None


def drops_and_is_refused(pod: dict[str, Any]) -> web.Response | None:
    """The same, as the API server then takes it: such a container may have no probes and hooks."""
    if not is_native(pod):
        return None
    why = "spec.initContainers[1].startupProbe: Forbidden: may not be set for init containers"
    return refusal(422, "Invalid", f'Pod "istio-aux-probe-" is invalid: {why}')


def denies(pod: dict[str, Any]) -> web.Response | None:
    """A policy that refuses native sidecars."""
    return refusal(403, "Forbidden", "denied by policy: no sidecars") if is_native(pod) else None


def forbidden(_pod: dict[str, Any]) -> web.Response:
    """The account may create no pods, as on Kubernetes before 1.30."""
    return refusal(403, "Forbidden", 'pods is forbidden: cannot create resource "pods"')


def is_native(pod: dict[str, Any]) -> bool:
    return "istio-proxy" in {c["name"] for c in pod["spec"].get("initContainers", [])}


def asked_in(*namespaces: str) -> list[Question]:
    return [Question(name, {}, selected=True) for name in namespaces]


@pytest.mark.parametrize(
    ("world", "later", "capability", "why"),
    [
        ("default", (), N, "native on request"),
        ("never", (), C, "Istio makes no native sidecars"),
        ("default", (drops,), C, "a webhook after Istio's removes restartPolicy"),
        ("on request", (drops_and_is_refused,), C, "startupProbe: Forbidden"),
        ("on request", (denies,), C, "denied by policy: no sidecars"),
        ("on request", (forbidden,), U, "cannot create resource"),
    ],
)
async def test_the_whole_chain_of_webhooks_decides(
    world: World, later: tuple[Later, ...], capability: Capability, why: str
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(world, *later)

        found = await check_native(client, asked_in("team"))

    assert found.capability is capability
    assert why in found.why


@pytest.mark.parametrize(
    ("version", "kubelets", "capability"),
    [
        ("v1.32.2", ["v1.20.0"], N),
        ("v1.31.4", ["v1.31.4", "v1.28.2"], C),
    ],
)
async def test_below_1_32_the_nodes_are_looked_at(
    version: str, kubelets: list[str], capability: Capability
) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.version, api.kubelets = version, kubelets
        api.dry_run = chain(ON_REQUEST)

        assert (await check_native(client, asked_in("team"))).capability is capability

        assert ("GET /api/v1/nodes" in api.requests) is (version < "v1.32")


async def test_where_nodes_may_not_be_listed_nothing_is_known() -> None:
    async with Cluster() as api, Client(api.access()) as client:
        api.version = "v1.30.1"
        api.refuse("/nodes", 403, "Forbidden", "nodes is forbidden")

        found = await check_native(client, asked_in("team"))

    assert found.capability is U
    assert "nodes is forbidden" in found.why


async def test_a_namespace_that_refuses_any_pod_shows_nothing_and_the_next_one_is_asked() -> None:
    def quota(pod: dict[str, Any]) -> web.Response | None:
        full = pod["metadata"]["namespace"] == "full"
        return refusal(403, "Forbidden", "exceeded quota: pods") if full else None

    async with Cluster() as api, Client(api.access()) as client:
        api.dry_run = chain(ON_REQUEST, quota)

        assert (await check_native(client, asked_in("full", "team"))).capability is N
        only = await check_native(client, asked_in("full"))

    assert only.capability is U
    assert "no dry run is possible in namespace full: 403 Forbidden: exceeded quota" in only.why


async def test_without_a_namespace_nothing_is_known() -> None:
    async with Cluster() as api, Client(api.access()) as client:
        found = await check_native(client, [])

    assert found.capability is U
    assert "there is no namespace" in found.why


@pytest.mark.parametrize("code", [401, 429])
async def test_an_api_server_that_is_busy_once_is_no_answer(code: int) -> None:
    async with Cluster() as api, Client(api.access()) as client:
        answers = iter([refusal(code, "", "later")])
        answer = chain(ON_REQUEST)
        api.dry_run = lambda pod: next(answers, None) or answer(pod)

        with pytest.raises(ApiError):
            await check_native(client, asked_in("team"))


async def live(api: Cluster, istiod: Istiod) -> None:
    """Let there be an Istio that makes native sidecars on request, and a namespace for it."""
    istiod.native = ON_REQUEST
    await api.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
    await api.configure(bundle=istiod.bundle)
    await api.publish(istiod.port)


async def test_an_api_server_that_gives_no_answer_changes_nothing_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster() as api, Istiod(tmp_path) as istiod:
        often = type(QUICK)(live=0.05, other=0.05)
        async with watching(api, rhythm=often) as watcher:
            api.dry_run = chain(ON_REQUEST)
            await live(api, istiod)
            await until(lambda: watcher.control_planes.native.capability is N, "it is native")

            api.dry_run = lambda _pod: refusal(429, "TooManyRequests", "later")
            before = len(api.dry_runs)
            await until(lambda: len(api.dry_runs) > before + 3, "it was asked again")
            assert watcher.control_planes.native.capability is N

            monkeypatch.setattr(probe, "KEPT", 0.0)
            await until(
                lambda: watcher.control_planes.native.capability is U, "it is not known any more"
            )
            assert "429 TooManyRequests: later" in watcher.control_planes.native.why


async def test_what_sidecars_can_be_is_logged_when_it_changes_and_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not when there is no injector any more."""
    caplog.set_level(logging.INFO, "istio_aux.injector")
    async with Cluster() as api, Istiod(tmp_path) as istiod, watching(api) as watcher:
        api.dry_run = chain(ON_REQUEST)
        await live(api, istiod)
        await until(lambda: watcher.control_planes.native.capability is N, "it is native")
        await api.remove("mutatingwebhookconfigurations", "", NAME)
        await until(lambda: watcher.control_planes.native.capability is U, "it is not known")
    lines = [vars(each) for each in caplog.records if vars(each).get("event") == "capability"]
    shown = ["start: native: istio-sidecar-injector: sidecars are native on request"]
    assert [line["message"] for line in lines] == shown
