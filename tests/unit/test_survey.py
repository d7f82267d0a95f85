"""What `/status`, `/pods` and changes of namespaces cost where many pods hang, in steps."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
from istio_aux.model.answers import LONGEST
from istio_aux.model.documents import whole
from istio_aux.model.pod import Metadata, Pod
from istio_aux.model.selectors import parse_namespaces
from istio_aux.model.webhooks import Namespace
from istio_aux.settings import DEFAULTS
from istio_aux.wiring import Wiring
from msgspec.structs import replace
from unit.apiserver import ApiServer
from unit.repairing import mesh
from unit.rules.pods import RUNNING, document, exited
from unit.rules.unmeshed import raw
from unit.steps import steps

FEW, MANY = 500, 2_000
_pod = msgspec.json.Decoder(Pod)


@asynccontextmanager
async def wired(number: int) -> AsyncGenerator[Wiring]:
    """A leader that knows so many pods that a log shipper blocks, and as many without a sidecar."""
    settings = replace(DEFAULTS, namespace_selectors=parse_namespaces("team=a"), lease=None)
    blocked = document({"main": exited(0), "shipper": RUNNING, "istio-proxy": RUNNING})
    async with ApiServer() as api:
        made = Wiring(settings, api.access())
        labels = {"team": "a", "istio-injection": "enabled"}
        made._around.namespaces.apply(Namespace(metadata=Metadata(name="team", labels=labels)))
        for kind, body in (("blocked", blocked), ("bare", raw())):
            for index in range(number):
                name = f"{kind}-{index}"
                body["metadata"] |= {"name": name, "namespace": "team", "uid": name}
                pod = _pod.decode(json.dumps(body))
                made._quit.apply(pod)
                made._repair.store.apply(pod)
        made._repair.store.set_injectors(mesh())
        await made._repair.store.catch_up()
        yield made
        await made.hand_over(0)


def longest(work: Generator[None, None, object]) -> int:
    """The most lines that run before other tasks have a turn."""
    found, end = list[int](), object()
    ends = list[object]()
    while end not in ends:
        found.append(steps(lambda: ends.append(next(work, end))))
    return max(found)


@pytest.mark.parametrize("what", ["status", "pods", "metrics"])
async def test_other_tasks_have_a_turn_as_often_however_many_pods_there_are(what: str) -> None:
    async with wired(FEW) as few, wired(MANY) as many:
        assert longest(getattr(many, what)()) < longest(getattr(few, what)()) * 3 / 2


async def test_the_status_lists_the_oldest_pods_and_counts_all() -> None:
    async with wired(MANY) as process:
        status, (listed, _) = whole(process.status()), whole(process.pods())
    assert (len(status.blocked_pods), len(status.unmeshed_pods)) == (LONGEST, LONGEST)
    assert (len(listed), status.unmeshed_total) == (2 * MANY, MANY)
    assert status.blocked_total == 0, "none of them has been for long"


async def test_a_namespace_that_is_relabelled_costs_as_much_however_many_pods_others_have() -> None:
    async with wired(10) as few, wired(FEW) as many:
        assert cost_of_relabelling(many) == cost_of_relabelling(few)


def cost_of_relabelling(process: Wiring) -> int:
    """The lines that run for a namespace without pods, until it has been decided on."""

    def relabel() -> None:
        process._relabelled("other")
        decided = process._repair.store.catch_up()
        with suppress(StopIteration):
            while True:
                decided.send(None)

    return steps(relabel)
