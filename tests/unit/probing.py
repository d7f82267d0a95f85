"""A prober with an API server beside it, for tests of the probe."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from istio_aux.injector.probe import Prober
from istio_aux.injector.probe_rules import Question
from istio_aux.injector.replica import ProbeAnswer
from istio_aux.kube.client import Client
from istio_aux.model.webhooks import Address, ClientConfig
from istio_aux.telemetry import PROBE_OUTCOMES, PROBE_WAYS, Telemetry
from unit.injecting import Cluster

PLAIN = Question("plain", {"istio.io/rev": "default"}, selected=True)
NOWHERE = Question("istio-system", {})


class Probing:
    """Probes an injector, and says what was counted."""

    def __init__(self, api: Cluster, client: Client) -> None:
        self.api = api
        self.telemetry = Telemetry()
        self._prober = Prober(client, self.telemetry)

    async def ask(self, target: ClientConfig, *ports: int, about: Question = PLAIN) -> ProbeAnswer:
        return await self.ask_at(target, [Address("127.0.0.1", p) for p in ports], about)

    async def ask_at(
        self, target: ClientConfig, addresses: list[Address], about: Question = PLAIN
    ) -> ProbeAnswer:
        async with self._prober.ask(target, addresses, about) as answer:
            return answer

    def counted(self) -> dict[tuple[str, str], float]:
        """How often which way had which outcome, without the zeros."""
        text = self.telemetry.render().decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        series = 'istio_aux_injector_probes_total{{outcome="{}",way="{}"}}'
        counts = {
            (way, outcome): float(values[series.format(outcome, way)])
            for way in PROBE_WAYS
            for outcome in PROBE_OUTCOMES
        }
        return {key: count for key, count in counts.items() if count}


@asynccontextmanager
async def probing() -> AsyncGenerator[Probing]:
    async with Cluster() as api, Client(api.access()) as client:
        yield Probing(api, client)
