"""`istio-aux audit`: what it finds and how it shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from istio_aux import audit
from unit.apiserver import ApiServer
from unit.asynchronous import driven
from unit.core.pods import RUNNING, State, document, exited


async def put(api: ApiServer, name: str, namespace: str = "training", **states: State) -> None:
    body: dict[str, Any] = document({key.replace("_", "-"): state for key, state in states.items()})
    body["metadata"] = {"name": name, "namespace": namespace}
    await api.put("pods", body)


async def fill(api: ApiServer) -> None:
    """One pod of each kind."""
    await put(api, "working", main=RUNNING, istio_proxy=RUNNING)
    await put(api, "stuck", main=exited(0), istio_proxy=RUNNING)
    await put(api, "blocked", main=exited(0), vault=RUNNING, istio_proxy=RUNNING)
    await put(api, "lost", main=RUNNING, istio_proxy=exited(0))
    await put(api, "plain", main=exited(0))
    await put(api, "elsewhere", "other", main=exited(0), istio_proxy=RUNNING)


@driven
async def test_pods_that_are_stuck_blocked_or_lost_are_found() -> None:
    async with ApiServer() as api:
        await fill(api)
        found = await audit.find(api.access(), None)
    assert [(item.namespace, item.name, item.state, item.action) for item in found] == [
        ("other", "elsewhere", "stuck", "quit"),
        ("training", "blocked", "blocked", "wait"),
        ("training", "lost", "lost", "report"),
        ("training", "stuck", "stuck", "quit"),
    ]
    assert "vault" in found[1].reason
    assert found[1].containers["vault"].finished is False


@driven
async def test_one_namespace_can_be_asked_for() -> None:
    async with ApiServer() as api:
        await fill(api)
        found = await audit.find(api.access(), "other")
        assert api.requests == ["GET /api/v1/namespaces/other/pods"]
    assert [item.name for item in found] == ["elsewhere"]


@driven
async def test_nothing_is_changed() -> None:
    async with ApiServer() as api:
        await fill(api)
        await audit.find(api.access(), None)
        assert {request.split()[0] for request in api.requests} == {"GET"}
        assert api.execs == []


@pytest.fixture
def finding() -> audit.Finding:
    return audit.Finding(
        namespace="training", name="job", uid="u-1", state="stuck", action="quit",
        reason="every payload container is finished", containers={},
    )  # fmt: skip


def test_a_table_has_a_line_for_each(finding: audit.Finding) -> None:
    assert audit.as_table([finding]).splitlines() == [
        "NAMESPACE  NAME  STATE  REASON",
        "training   job   stuck  every payload container is finished",
    ]


def test_an_empty_table_says_so() -> None:
    assert audit.as_table([]) == "no pod is stuck or blocked"


def test_json_is_one_object_a_line(finding: audit.Finding) -> None:
    lines = audit.as_json([finding, finding]).splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["job", "job"]
    assert audit.as_json([]) == ""
