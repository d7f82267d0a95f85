"""What `istio-aux serve` says of Istio's injectors and of pods without a sidecar, and to whom."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from istio_aux.injector.order import CONFIGURATIONS
from istio_aux.notices import KEY
from unit.asynchronous import driven, until
from unit.core.pods import RUNNING, document
from unit.injecting import ENABLED, Cluster, Istiod, chain
from unit.pebble import Pebble
from unit.served import Served, serving
from unit.store import refusal

NAMESPACE = "shop"


async def fill(api: Cluster) -> None:
    """Istio whose istiod is away, and a pod that asks for a sidecar and has none."""
    await api.configure(bundle=None)
    await api.put("namespaces", {"metadata": {"name": NAMESPACE, "labels": ENABLED}})
    await start(api, "web-0", labels={"sidecar.istio.io/inject": "true"})


async def start(api: Cluster, name: str, **fields: Any) -> None:
    """A pod of a StatefulSet, without a sidecar."""
    owner = ("apps/v1", "StatefulSet")
    pod = document({"main": RUNNING}, restart="Always", owner=owner, **fields)
    pod["metadata"] |= {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
    pod["metadata"]["ownerReferences"][0] |= {"name": "web", "uid": "uid-web"}
    await api.put("pods", pod)


async def status(served: Served, says: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a `/status` that says so; returns all of it."""
    await served.listening()
    async with asyncio.timeout(30):
        while not says(now := await served.status()):
            pass
    return now


@driven
async def test_without_istio_it_knows_that_there_is_none(tmp_path: Path) -> None:
    async with Cluster() as api, serving(tmp_path, api) as served:
        await served.ready()
        said = await status(served, lambda now: now["injector-live"] is False)
        assert [found["state"] for found in said["injectors"]] == ["absent"]
        assert (said["race"], said["unmeshed-total"], said["applications"]) == ("report", 0, [])
        assert '\nistio_aux_injectors{state="absent"} 1.0\n' in (await served.ask("/metrics"))[1]


@driven
async def test_it_tells_of_pods_that_should_have_a_sidecar_whatever_becomes_of_istio(
    tmp_path: Path,
) -> None:
    async with Cluster() as api:
        await fill(api)
        async with serving(tmp_path, api) as served:
            said = await status(served, lambda now: now["unmeshed-total"] == 1)
            (pod,) = said["unmeshed-pods"]
            assert (pod["namespace"], pod["name"], pod["owner"]) == (
                NAMESPACE, "web-0", "StatefulSet/web",
            )  # fmt: skip
            assert "istio-sidecar-injector selects it" in pod["reason"]
            metrics = (await served.ask("/metrics"))[1]
            assert "\nistio_aux_unmeshed_pods 1.0\n" in metrics
            await api.remove("pods", NAMESPACE, "web-0")
            await status(served, lambda now: now["unmeshed-pods"] == [])


@driven
async def test_pods_are_started_natively_once_the_injector_has_shown_that_it_can(
    tmp_path: Path,
) -> None:
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1", "operation": "CREATE", "object": document({"main": RUNNING})},
    }
    async with Cluster() as api, Istiod(tmp_path) as istiod:
        istiod.native = "on request"
        api.dry_run = chain("on request")
        await fill(api)
        async with serving(tmp_path, api) as served:
            said = await status(served, lambda now: now["injector-live"] is False)
            assert said["capability"] == "unknown"
            await api.configure(bundle=istiod.bundle)
            await api.publish(istiod.port)
            said = await status(served, lambda now: now["capability"] == "native")
            assert said["capability-why"] == (
                "istio-sidecar-injector: sidecars are native on request"
            )
            trust = ssl.create_default_context(cafile=str(served.crt))
            url = f"https://{served.addresses['webhook']}/mutate"
            post = {"json": review, "ssl": trust}
            async with aiohttp.ClientSession() as session, session.post(url, **post) as answer:
                patch = base64.b64decode((await answer.json())["response"]["patch"])
            assert b'"istio-aux.io/started-with":"native"' in patch


@driven
async def test_an_application_that_asks_is_followed_without_a_restart(tmp_path: Path) -> None:
    asking = tmp_path / "applications"
    asking.write_text("# nobody yet\n")
    async with Cluster() as api:
        await fill(api)
        async with serving(tmp_path, api, applications=str(asking)) as served:
            said = await status(served, lambda now: now["unmeshed-total"] == 1)
            assert said["applications"] == []
            await start(api, "db-0", labels={"app.kubernetes.io/name": "db"})
            asking.write_text(f"{NAMESPACE}/db\n")
            said = await status(served, lambda now: now["unmeshed-total"] == 2)
            (found,) = said["applications"]
            assert (found["namespace"], found["name"]) == (NAMESPACE, "db")
            assert (found["live"], found["meshed"]) == (False, False)


@driven
async def test_what_admission_does_not_need_keeps_nobody_from_being_ready(tmp_path: Path) -> None:
    """Neither a list of all pods that is refused, nor one of configurations that is slow."""

    class Unwilling(Cluster):
        async def _route(self, request: web.Request) -> web.StreamResponse:
            if "!=Succeeded" in request.query.get("fieldSelector", ""):
                return refusal(403, "Forbidden", "not for you")
            if request.path == CONFIGURATIONS:
                return refusal(504, "Timeout", "etcd is slow")
            return await super()._route(request)

    async with Unwilling() as api, serving(tmp_path, api) as served:
        await served.ready()
        line = "all pods: no complete list yet: /api/v1/pods: 403 Forbidden: not for you"
        said = await status(served, lambda now: line in now["missing"])
        assert (said["ready"], said["injector-live"], said["injectors"]) == (True, None, [])
        assert any(line.startswith("injectors: no complete list yet") for line in said["missing"])


@driven
async def test_pebble_is_told_whenever_there_is_something_else_to_show(tmp_path: Path) -> None:
    async with Pebble() as pebble, Cluster() as api:
        await pebble.start()
        async with serving(tmp_path, api, pebble_socket=str(pebble.socket)) as served:
            await status(served, lambda now: now["injector-live"] is False)
            await fill(api)
            await status(served, lambda now: now["unmeshed-total"] == 1)
            before = pebble.occurrences[KEY]
            await api.remove("pods", NAMESPACE, "web-0")
            await until(lambda: pebble.occurrences[KEY] > before, "it is told", within=30)
