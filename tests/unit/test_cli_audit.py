"""`istio-aux audit`: what it finds among pods."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from istio_aux.cli import cluster, render, report
from istio_aux.cli.cluster import Scope
from istio_aux.cli.render import Terminal
from istio_aux.cli.report import Audit, Finding
from istio_aux.model import selectors
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Policy
from unit.apiserver import ApiServer, refusal
from unit.asynchronous import driven
from unit.rules.pods import RUNNING, State, document, exited

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


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
    await api.put("pods", document({"main": exited(0)}, phase="Succeeded"))
    await put(api, "elsewhere", "other", main=exited(0), istio_proxy=RUNNING)


@driven
async def test_pods_that_are_stuck_blocked_or_lost_are_found() -> None:
    async with ApiServer() as api:
        await fill(api)
        found = await cluster.audit_pods(api.access(), Scope(), Policy())
        assert {request.split()[0] for request in api.requests} == {"GET"}, "nothing is changed"
    assert [(item.namespace, item.name, item.state, item.action) for item in found.findings] == [
        ("other", "elsewhere", "stuck", "quit"),
        ("training", "blocked", "blocked", "wait"),
        ("training", "lost", "lost", "report"),
        ("training", "stuck", "stuck", "quit"),
    ]
    assert found.pods == 6
    assert found.findings[1].by == ("vault",)
    assert "vault" in found.findings[1].reason
    assert found.findings[1].containers["vault"].finished is False


@pytest.mark.parametrize(
    ("namespace", "selector", "labels", "found", "reads"),
    [
        ("other", "", {}, Audit([], 1), ["/api/v1/namespaces/other/pods"]),
        (None, "mesh=on", {"mesh": "on"}, Audit([], 1, 1), ["/api/v1/pods"]),
        ("training", "mesh=on", {"mesh": "on"}, Audit([], 0, 0), []),
        (None, "mesh=on", {}, Audit([], 0, 0), []),
    ],
    ids=["one", "selected", "not selected", "none is selected"],
)
@driven
async def test_namespaces_can_be_named_or_selected_as_for_serve(
    namespace: str | None, selector: str, labels: dict[str, str], found: Audit, reads: list[str]
) -> None:
    """No pod is read in vain."""
    async with ApiServer() as api:
        await fill(api)
        await api.put("namespaces", {"metadata": {"name": "training"}})
        await api.put("namespaces", {"metadata": {"name": "other", "labels": labels}})
        scope = Scope(namespace=namespace, selector=selectors.parse(selector))
        audit = await cluster.audit_pods(api.access(), scope, Policy())
        assert [request for request in api.requests if "pods" in request] == [
            f"GET {path}" for path in reads
        ]
    assert [item.name for item in audit.findings] == ["elsewhere"] * found.pods
    assert (audit.pods, audit.namespaces) == (found.pods, found.namespaces)


@driven
async def test_a_pod_that_comes_twice_is_counted_once() -> None:
    """T28: the snapshot of a long list expires, and the list is begun again."""
    async with ApiServer() as api:
        for number in range(501):
            await put(api, f"job-{number}", main=exited(0), istio_proxy=RUNNING)

        async def expired(request: Any) -> Any:
            return refusal(410, "Expired") if "continue" in request.query else None

        api.faults.append(expired)
        found = await cluster.audit_pods(api.access(), Scope(), Policy())
    assert (found.pods, len(found.findings)) == (501, 501)


def judged(**states: State) -> Finding:
    body = document({key.replace("_", "-"): state for key, state in states.items()})
    found = report.proxy_finding(msgspec.convert(body, Pod), Policy(), None)
    assert found
    return found


EARLY, LATE = "2026-11-21T08:00:00Z", "2026-11-21T09:00:00Z"


@pytest.mark.parametrize(
    ("states", "hour"),
    [
        ({"a": exited(0, at=LATE), "b": exited(0, at=EARLY), "istio_proxy": RUNNING}, 9),
        ({"a": exited(0, at=EARLY), "b": RUNNING, "istio_proxy": RUNNING}, 8),
        ({"a": exited(0, at=LATE), "b": RUNNING, "istio_proxy": exited(1, at=EARLY)}, 8),
    ],
    ids=["stuck: the last payload container", "blocked: the finished one", "lost: the proxy"],
)
def test_a_finding_says_since_when(states: dict[str, State], hour: int) -> None:
    assert judged(**states).since == datetime(2026, 11, 21, hour, tzinfo=UTC)


def finding(state: report.State, **fields: Any) -> Finding:
    return msgspec.convert(
        {"namespace": "training", "name": "job", "uid": "u-1", "state": state,
         "since": NOON - timedelta(minutes=5), "action": "quit", "by": (), "containers": {},
         "reason": "every payload container is finished", **fields},
        Finding,
    )  # fmt: skip


def table(audit: Audit) -> str:
    return "\n".join(render.audit_text(audit, Terminal(), NOON))


TABLE = """\
NAMESPACE  NAME   STATE  AGE      REASON
training   job    stuck  5m       every payload container is finished
training   job-2  lost   unknown  every payload container is finished

1 pod is held by istio-proxy since 2026-11-21 11:55Z; the requests of 1 cannot be read

selected namespaces: 3; pods: 812; stuck: 1, blocked: 0, lost: 1, unmeshed: 0"""


def test_a_table_has_a_line_for_each_and_a_summary() -> None:
    """What is not known does not count as healthy."""
    found = [finding("stuck"), finding("lost", name="job-2", since=None)]
    assert table(Audit(found, 812, 3)) == TABLE
    assert table(Audit([], 7)) == "pods: 7; stuck: 0, blocked: 0, lost: 0, unmeshed: 0"
    shown = table(Audit([finding("unmeshed")], 7, None, 3, ("forbidden",)))
    assert shown.endswith("lost: 0, unmeshed: 1 (unknown: 3)")


def output(answer: Any, kind: str) -> bytes:
    stream = io.TextIOWrapper(io.BytesIO())
    render.show(stream, answer, kind)
    stream.seek(0)
    return stream.buffer.read()


def test_json_is_one_object_a_line() -> None:
    """Its names are a contract."""
    shown = output(Audit([finding("stuck"), finding("blocked", by=("a",))], 2), "json")
    first, second = map(msgspec.json.decode, shown.splitlines())
    assert first == {
        "namespace": "training", "name": "job", "uid": "u-1", "state": "stuck",
        "since": "2026-11-21T11:55:00Z", "action": "quit", "by": [], "containers": {},
        "reason": "every payload container is finished", "configuration": "", "requests": None,
        "fix": "",
    }  # fmt: skip
    assert second["by"] == ["a"]


def test_holders_are_shown_alone_and_in_json() -> None:
    """Their names are a contract."""
    held = finding("blocked", by=("vault",), requests={"gpus": 8}, fix="set x: false")
    shown = Audit([held, finding("lost")], 2).holders()
    text = "1 pod is held by vault since 2026-11-21 11:55Z: 8 GPUs; set x: false"
    assert output(shown, "table").decode() == f"{text}\n"
    assert msgspec.json.decode(output(shown, "json")) == {
        "by": ["vault"], "pods": 1, "since": "2026-11-21T11:55:00Z", "requests": {"gpus": 8},
        "fix": "set x: false", "text": text,
    }  # fmt: skip


def test_of_many_holders_the_first_are_shown() -> None:
    """Tenants name their containers."""
    found = [finding("blocked", by=(f"c{number}",), requests={}) for number in range(99)]
    lines = table(Audit(found, 99)).splitlines()
    assert sum("is held by" in line for line in lines) == 20
    assert "and 79 more holders" in lines


@pytest.mark.parametrize(
    ("seconds", "age"),
    [
        (-3, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (700, "11m"), (10799, "179m"),
        (10800, "3h"), (11000, "3h3m"), (30000, "8h"), (172799, "47h"), (172800, "2d"),
        (180000, "2d2h"), (691200, "8d"), (700000000, "8101d"),
    ],
)  # fmt: skip
def test_ages_are_written_as_kubectl_writes_them(seconds: int, age: str) -> None:
    assert render.age(NOON - timedelta(seconds=seconds), NOON) == age
