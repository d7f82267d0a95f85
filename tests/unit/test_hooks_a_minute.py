"""How often the workload wakes its charm while Jobs come and go: the real wiring.

A minute is one second here, for the notices as for the pods.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from istio_aux.model.selectors import parse
from istio_aux.notices import Notices, Pace
from istio_aux.quit.state import QuitLimits
from istio_aux.settings import Settings
from istio_aux.status import Shown
from istio_aux.wiring import Wiring
from unit.apiserver import ApiServer
from unit.asynchronous import background, driven, until
from unit.noticing import Pebble
from unit.rules.pods import RUNNING, State, document, exited

PACE = Pace(gap=2 / 60, minute=1.0)


@asynccontextmanager
async def wired(api: ApiServer, blocked_after: float) -> AsyncGenerator[Wiring]:
    """The workload's watches and controllers, with one selected namespace."""
    settings = Settings(
        tls_certificate=Path("tls.crt"), tls_key=Path("tls.key"),
        namespace_selector=parse("team=a"), quit_limits=QuitLimits(blocked_after=blocked_after),
    )  # fmt: skip
    await api.put("namespaces", {"metadata": {"name": "training", "labels": {"team": "a"}}})
    async with AsyncExitStack() as stack:
        found = Wiring(settings, api.access())
        await stack.enter_async_context(found.client)
        for work in found.work().values():
            await stack.enter_async_context(background(work()))
        await until(lambda: found.status().selected_namespaces, "the namespace is selected")
        await until(lambda: found.status().injectors, "it is known that there is no injector")
        yield found
        await found.hand_over(0)


async def report(api: ApiServer, name: str, upload: State) -> None:
    """Report a pod whose payload is finished, but for a container that uploads the results."""
    pod = document({"main": exited(0), "upload": upload, "istio-proxy": RUNNING})
    pod["metadata"].update(name=name, namespace="training")
    pod["metadata"].pop("uid", None)
    await api.put("pods", pod)


@driven
async def test_jobs_whose_containers_end_apart_run_at_most_six_hooks_a_minute() -> None:
    """50 Jobs a second for three minutes, each of them blocked for longer than its patience."""
    loop, number = asyncio.get_running_loop(), itertools.count()
    async with ApiServer() as api, wired(api, blocked_after=0.0) as workload, Pebble() as pebble:
        await pebble.start()
        notices = Notices(pebble.socket, lambda: Shown.of(workload.status()), look=0.01, pace=PACE)
        async with background(notices.run()):
            begin = loop.time()
            while loop.time() < begin + 3:
                each = next(number)
                await report(api, f"job-{each}", RUNNING)
                await asyncio.sleep(0.02)
                # Not all of them, so that their number changes all the time.
                if each % 3:
                    await report(api, f"job-{each}", exited(0))
            minutes = math.ceil(loop.time() - begin)
    assert 1 < len(pebble.times) <= 6 * minutes
