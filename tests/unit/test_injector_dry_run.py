"""What is done about injectors that cannot be reached from here, and those behind a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.injector.rules import NOT_CHECKED
from istio_aux.model.webhooks import ClientConfig
from lab import ports
from unit.asynchronous import driven
from unit.injecting import Istiod
from unit.probing import NOWHERE, probing
from unit.store import refusal


@pytest.mark.parametrize("known", [True, False])
@driven
async def test_one_that_cannot_be_reached_is_asked_by_a_dry_run(
    known: bool, tmp_path: Path
) -> None:
    """Also where nothing says which port is the webhook's."""

    def inject(pod: dict[str, Any]) -> web.Response:
        containers = [{"name": "istio-proxy", "restartPolicy": "Always"}]
        spec = {**pod["spec"], "initContainers": containers}
        return web.json_response({**pod, "spec": spec}, status=201)

    async with probing() as prober:
        target = Istiod(tmp_path).target
        prober.api.dry_run = inject

        found = await prober.ask(target, *((ports.reserve(),) if known else ()))

        # It did not ask for a native sidecar: that is another question.
        assert (found.probe.injected, found.probe.native) == (True, NOT_CHECKED)
        assert found.connection is None
        assert prober.counted() == {("direct", "unreachable"): 1, ("dry-run", "injected"): 1}
        [pod] = prober.api.dry_runs
        assert pod["metadata"]["generateName"] == "istio-aux-probe-"
        assert prober.api.requests == ["POST /api/v1/namespaces/plain/pods"]


@pytest.mark.parametrize(
    ("answer", "asked", "why"),
    [
        (refusal(500, "InternalError", 'failed calling webhook "x": EOF'), True, "failed calling"),
        (refusal(400, "", "denied the request: no"), True, "denied the request: no"),
        (refusal(403, "Forbidden", "cannot create resource"), False, "cannot create resource"),
        (refusal(404, "NotFound", "namespace is gone"), False, "namespace is gone"),
    ],
)
@driven
async def test_the_api_servers_answer_to_a_dry_run_is_reported(
    answer: web.Response, asked: bool, why: str, tmp_path: Path
) -> None:
    """That it does not let us ask says nothing of the injector."""
    async with probing() as prober:
        prober.api.dry_run = lambda _pod: answer
        port = ports.reserve()

        found = await prober.ask(Istiod(tmp_path).target, port)

        assert (found.probe.injected, found.probe.reached) == (False, asked)
        assert why in found.probe.why
        assert f"cannot be asked directly: 127.0.0.1:{port}: Connection refused" in found.probe.why


@driven
async def test_without_a_namespace_for_a_dry_run_nothing_is_known(tmp_path: Path) -> None:
    async with probing() as prober:
        found = await prober.ask(Istiod(tmp_path).target, ports.reserve(), about=NOWHERE)

        assert (found.probe.injected, found.probe.reached) == (False, False)
        assert prober.api.requests == []


@driven
async def test_one_behind_a_url_is_asked_there(tmp_path: Path) -> None:
    async with probing() as prober, Istiod(tmp_path, "127.0.0.1") as istiod:
        url = f"https://127.0.0.1:{istiod.port}/inject/cluster/one?net=two"

        found = await prober.ask(ClientConfig(url=url, ca_bundle=istiod.bundle))

        assert found.probe.injected
        assert istiod.heads[0].startswith("POST /inject/cluster/one?net=two HTTP/1.1\r\n")


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "https://", "https://h:99999/", "nonsense"])
@driven
async def test_a_url_that_the_api_server_would_not_call_is_not_called(url: str) -> None:
    async with probing() as prober:
        found = await prober.ask(ClientConfig(url=url, ca_bundle="eA=="))

    assert found.probe.why.startswith(f'url "{url}": ')


@driven
async def test_whom_the_system_trusts_is_for_the_api_server_to_say(tmp_path: Path) -> None:
    """Without a caBundle it is its own system that counts, not ours."""
    async with probing() as prober, Istiod(tmp_path, "127.0.0.1") as istiod:
        prober.api.dry_run = lambda _pod: refusal(403, "Forbidden", "no")

        found = await prober.ask(ClientConfig(url=f"https://127.0.0.1:{istiod.port}/inject"))

        assert not found.probe.reached
        assert len(prober.api.dry_runs) == 1


@driven
async def test_dry_runs_wait_for_as_long_as_the_api_server_asks(tmp_path: Path) -> None:
    """An injector that is not live is asked every second."""
    async with probing() as prober:
        target = Istiod(tmp_path).target
        prober.api.dry_run = lambda _pod: refusal(
            429, "TooManyRequests", "slow down", headers={"Retry-After": "60"}
        )
        first = await prober.ask(target)
        second = await prober.ask(target)
        assert not first.probe.reached
        assert not second.probe.reached
        assert "slow down" in second.probe.why
        assert len(prober.api.dry_runs) == 1
