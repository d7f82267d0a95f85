"""Candidates for one Lease, in this process, of which any can be killed or cut off."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from istio_aux.kube.client import Client
from istio_aux.kube.lease import Lease
from unit.apiserver import ApiServer
from unit.asynchronous import background, until

QUICK = {"duration": 2.0, "deadline": 1.2, "retry": 0.05}
"""Lapses soon; a Lease counts in whole seconds."""

STEADY = {"duration": 60.0, "deadline": 40.0, "retry": 0.05}
"""Lapses in no test."""

LEASE = ("leases", "istio-aux", "istio-aux")


class Candidate:
    """A process that would lead. It checks that no other candidate of ``leaders`` does.

    Attributes:
        told: each time, whether it leads now.
        leaves: the text that it leaves to the next one, the last one recalled if that is empty.
        recalled: the texts of the Lease that it was given.
    """

    def __init__(self, client: Client, name: str, leaders: set[str], times: dict[str, Any]) -> None:
        self.name, self.told, self._leaders = name, list[bool](), leaders
        self.leaves, self.recalled = "", list[str]()
        self.unfit = ""
        self.lease = Lease(
            client, "istio-aux", "istio-aux", name,
            changed=self._changed, checkpoint=self._checkpoint, recall=self.recalled.append,
            unfit=lambda: self.unfit, **times,
        )  # fmt: skip
        self.task: asyncio.Task[None]

    def _checkpoint(self) -> str:
        return self.leaves or "".join(self.recalled[-1:])

    def _changed(self, leads: bool) -> None:
        self.told.append(leads)
        (self._leaders.add if leads else self._leaders.discard)(self.name)
        assert len(self._leaders) <= 1, f"all of these lead: {self._leaders}"

    async def leads(self) -> None:
        await until(lambda: self.lease.held, f"{self.name} leads", within=30)

    async def die(self) -> None:
        """End without a release, as after kill -9."""
        self.task.cancel()
        await asyncio.wait([self.task])
        self._leaders.discard(self.name)


@asynccontextmanager
async def candidate(
    api: ApiServer,
    name: str = "one",
    leaders: set[str] | None = None,
    *,
    times: dict[str, float] = STEADY,
) -> AsyncGenerator[Candidate]:
    """A candidate at work; its requests carry its name, so that it can be cut off."""
    access = dataclasses.replace(api.access(), token=lambda: name)
    async with Client(access) as client:
        one = Candidate(client, name, set() if leaders is None else leaders, times)
        async with background(one.lease.run()) as one.task:
            yield one


@asynccontextmanager
async def leader_and_other(
    api: ApiServer, *, times: dict[str, float] = STEADY
) -> AsyncGenerator[tuple[Candidate, Candidate]]:
    """Candidate ``one``, who leads, and candidate ``two``, who knows."""
    leaders: set[str] = set()
    async with candidate(api, "one", leaders, times=times) as one:
        await one.leads()
        async with candidate(api, "two", leaders, times=times) as two:
            await until(lambda: two.lease.holder == "one", "two knows", within=30)
            yield one, two


def spec(api: ApiServer) -> dict[str, Any]:
    return (api.get(*LEASE) or {}).get("spec", {})


async def renewed(api: ApiServer) -> None:
    """Wait until the holder has written again."""
    before = spec(api).get("renewTime")
    await until(lambda: spec(api).get("renewTime") != before, "it is renewed", within=30)
