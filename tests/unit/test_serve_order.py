"""What `istio-aux serve` does about the order of webhooks and the way pods are started."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from unit.apiserver import ApiServer
from unit.asynchronous import driven, until
from unit.core.pods import RUNNING, document
from unit.served import Served, serving
from unit.store import refusal

OURS = "istio-aux-kubeflow-istio-aux"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
GAUGE = "istio_aux_configurations_called_before_ours"
NEVER = {"matchLabels": {"istio.io/deactivated": "never-match"}}


async def put(api: ApiServer, name: str, **webhook: Any) -> None:
    """Create or replace a configuration with one of Istio's webhooks."""
    webhooks = [{"name": "namespace.sidecar-injector.istio.io", **webhook}]
    body = {"metadata": {"name": name}, "webhooks": webhooks}
    await api.put("mutatingwebhookconfigurations", body)


async def told(served: Served, *names: str) -> None:
    """Wait for a line in the log that names these configurations; status and metric agree."""
    await until(
        lambda: [line["before"] for line in served.events("order")][-1:] == [list(names)],
        f"it tells of {names or 'none'}",
        within=30,
    )
    assert (await served.status())["called-before-us"] == list(names)
    assert f"\n{GAUGE} {len(names)}.0\n" in (await served.ask("/metrics"))[1]


@driven
async def test_it_tells_what_is_called_before_it_and_when_that_is_over(tmp_path: Path) -> None:
    """T33: whatever the name; a configuration that comes after ours is nobody's concern."""
    async with ApiServer() as api:
        await put(api, "aaa")
        await put(api, "istio-sidecar-injector")
        async with serving(tmp_path, api, webhook_configuration=OURS) as served:
            await served.ready()
            await told(served, "aaa")
            await put(api, "asm-managed")
            await told(served, "aaa", "asm-managed")
            await put(api, "aaa", namespaceSelector=NEVER, objectSelector=NEVER)
            await told(served, "asm-managed")
            await api.remove("mutatingwebhookconfigurations", "", "asm-managed")
            await told(served)
    assert [line["level"] for line in served.events("order")] == ["warning"] * 3 + ["info"]


@driven
async def test_without_the_right_to_look_it_says_so_and_answers_reviews(tmp_path: Path) -> None:
    """T33: the order is not known then, and a rollout that brings the right is not held up."""
    message = 'mutatingwebhookconfigurations is forbidden: User "me" cannot watch'

    class Forbidding(ApiServer):
        async def _route(self, request: web.Request) -> web.StreamResponse:
            if request.path == CONFIGURATIONS:
                return refusal(403, "Forbidden", message)
            return await super()._route(request)

    async with Forbidding() as api, serving(tmp_path, api, webhook_configuration=OURS) as served:
        await served.ready()
        complaint = f"order: no complete list yet: {CONFIGURATIONS}: 403 Forbidden: {message}"
        async with asyncio.timeout(30):  # Nobody is unready for want of what else is followed.
            while await served.ask("/readyz") != (200, f"ok\n{complaint}\n"):
                pass
        status = await served.status()
        assert (status["ready"], status["missing"]) == (True, [complaint])
        assert status["called-before-us"] is None


@driven
async def test_it_is_not_ready_before_it_knows_the_order(tmp_path: Path) -> None:
    """An answer that does not come is no refusal."""

    class Failing(ApiServer):
        failing = True

        async def _route(self, request: web.Request) -> web.StreamResponse:
            if self.failing and request.path == CONFIGURATIONS:
                return refusal(500, "InternalError", "etcd is away")
            return await super()._route(request)

    async with Failing() as api, serving(tmp_path, api, webhook_configuration=OURS) as served:
        await until(lambda: served.events("watch"), "the list fails", within=30)
        code, text = await served.ask("/readyz")
        assert (code, "order: no complete list yet" in text) == (503, True)
        api.failing = False
        await served.ready()
        assert (await served.status())["called-before-us"] == []


@pytest.mark.parametrize(("mode", "patched"), [("hold", True), ("off", False)])
@driven
async def test_pods_are_started_as_the_settings_say(
    mode: str, patched: bool, tmp_path: Path
) -> None:
    pod = document({"main": RUNNING})
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "1", "operation": "CREATE", "object": pod},
    }
    async with ApiServer() as api, serving(tmp_path, api, start_mode=mode) as served:
        await served.ready()
        status = await served.status()
        assert (status["start-mode"], status["capability"]) == (mode, "unknown")
        assert status["called-before-us"] is None, "nobody asked for it to be checked"
        trust = ssl.create_default_context(cafile=str(served.crt))
        url = f"https://{served.addresses['webhook']}/mutate"
        post = {"json": review, "ssl": trust}
        async with aiohttp.ClientSession() as session, session.post(url, **post) as answer:
            assert ("patch" in (await answer.json())["response"]) is patched
