"""What finished pods keep: counted once, by bounded labels, and as `audit` counts it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from istio_aux.cli.installation import Installation
from istio_aux.model.policy import QuitMode, QuitPolicy
from istio_aux.quit.recorder import RESOURCES
from istio_aux.settings import DEFAULTS
from msgspec.structs import replace
from unit.quitting import FAST, cluster, freeing
from unit.rules.pods import RUNNING, exited
from unit.screens import audited
from unit.test_quit_controller import settled

HELD = {"nvidia.com/gpu": "7", "nvidia.com/mig-1g.5gb": "1", "cpu": "500m", "memory": "1Gi"}
KEPT = "istio_aux_kept_resource_seconds_total"


def details(requests: dict[str, str]) -> dict[str, Any]:
    return {"main": {"resources": {"requests": requests}}}


async def test_what_a_freed_pod_kept_is_counted_without_a_series_for_what_tenants_name() -> None:
    """Its proxy exited one second after its payload."""
    async with cluster() as world:
        before = world.telemetry.render().count(b"resource=")
        await world.pod("job", details=details(HELD))
        await world.ended("exited")
        kept = {each: world.count(f'{KEPT}{{resource="{each}"}}') for each in RESOURCES}
        assert kept == {"gpu": 8, "cpu": 0.5, "memory": 2**30}
        assert world.telemetry.render().count(b"resource=") == before


async def test_a_process_that_led_when_it_told_the_proxy_and_leads_no_more_counts_nothing() -> None:
    """Another process may have told the proxy meanwhile, and count the pod."""
    leads = [True]

    def still() -> bool:
        if not leads[0]:
            world.controller.lead(False)
        return leads[0]

    async with cluster(leads=still, limits=replace(FAST, confirm=20.0)) as world:

        async def free(socket: web.WebSocketResponse, namespace: str, pod: str) -> None:
            leads[0] = False
            await freeing(world)(socket, namespace, pod)

        world.api.on_exec = free
        await world.pod("job", details=details(HELD))
        await world.ended("exited")
        assert world.count(KEPT) == 0


async def test_only_the_leader_shows_what_finished_pods_keep_now_and_by_what() -> None:
    def kept(by: str) -> float:
        series = f'istio_aux_kept_resources{{by="{by}",resource="gpu"}}'
        return world.count(series)

    async with cluster(mode=QuitMode.DRY_RUN, policy=QuitPolicy(grace=3600)) as world:
        await world.select("other", selected=False)
        at_once = {"istio-aux.io/quit-grace": "0"}
        await world.pod("done", details=details(HELD), annotations=at_once)
        just_now = exited(0, at=datetime.now(UTC).isoformat())
        await world.pod("waits", main=just_now, details=details(HELD))
        await world.pod("works", main=RUNNING, details=details(HELD))
        gpu = details({"amd.com/gpu": "1"})
        await world.pod("blocked", others={"vault": RUNNING}, details=gpu)
        await world.pod("native", others={"vault": RUNNING}, details=gpu, native=True)
        await world.pod("not-selected", namespace="other", details=gpu, annotations=at_once)
        await settled(world, pods=6)
        assert (kept("istio-proxy"), kept("other")) == (8, 2)
        told = replace(DEFAULTS, quit=QuitMode.DRY_RUN, quit_policy=QuitPolicy(grace=3600))
        audit = await audited(world.api, config=Installation(settings=told))
        ours = [each for each in audit.findings if not each.left_out and each.requests]
        gpus = [sum(e.requests.gpus for e in ours if e.requests and bool(e.by) is other)
                for other in (False, True)]  # fmt: skip
        assert gpus == [8, 2], "as `audit` counts them"
        world.controller.lead(False)
        assert (kept("istio-proxy"), kept("other")) == (0, 0)
