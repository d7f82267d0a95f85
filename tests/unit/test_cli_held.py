"""`audit` and `explain` of pods whose payload is held, and of those whose hold gave up."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from istio_aux.cli import cluster
from unit.apiserver import ApiServer
from unit.rules.pods import State, exited
from unit.rules.test_hold import NEW
from unit.screens import ask, audited, put_pod, run
from unit.test_quit_held import fields

__all__ = ["ask", "run"]

ISTIOD = {
    "name": "namespace.sidecar-injector.istio.io",
    "clientConfig": {
        "service": {"namespace": "istio-system", "name": "istiod"},
        "caBundle": "Y",
        "url": None,
    },
    "rules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    ],
}
AWAY = "istio-sidecar-injector: its caBundle holds no certificate that can be read"
WAITS = "the payload waits for istio-proxy since 08:16:29Z, until 08:21:29Z at most"


def held(api: ApiServer, answer: str) -> None:
    async def says(socket: web.WebSocketResponse, *_: str) -> None:
        await socket.send_bytes(f"\x00HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())

    api.on_forward = says
    metadata = {"name": "istio-sidecar-injector", "labels": {"istio.io/rev": "default"}}
    body = {"metadata": metadata, "webhooks": [ISTIOD]}
    api.put("mutatingwebhookconfigurations", body)


@pytest.mark.parametrize(
    ("answer", "word", "says"),
    [
        ("503 Service Unavailable", "UNSTARTED", f"{WAITS}; the proxy is not ready; {AWAY}"),
        ("200 OK", "WAIT", f"{WAITS}; the proxy is ready"),
        ("404 Not Found", "WAIT", f"{WAITS}; not known whether the proxy is ready"),
    ],
)
async def test_a_held_payload_is_a_finding_if_its_proxy_says_that_it_is_not_ready(
    ask: Any, answer: str, word: str, says: str
) -> None:
    """Else the kubelet may pull an image: the status is the same."""
    async with ApiServer() as api:
        held(api, answer)
        await put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **fields())
        explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
        found = await audited(api)
    assert f"  {word}" in explained.out
    assert says in explained.out
    finding = [(each.state, each.code, each.reason) for each in found.findings]
    assert finding == ([("unstarted", "IA0119", says)] if word == "UNSTARTED" else [])


async def test_of_many_held_pods_the_first_are_asked_and_nothing_is_said_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "ASKED", 2)
    async with ApiServer() as api:
        held(api, "503 Service Unavailable")
        for number in range(3):
            await put_pod(api, f"job-{number}", {"istio-proxy": NEW, "main": NEW}, **fields())
        found = await audited(api)
    assert len(found.findings) == len(api.forwards) == 2


async def test_a_held_pod_that_is_deleted_does_not_need_its_proxy(ask: Any) -> None:
    async with ApiServer() as api:
        await put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **fields(deleting=True))
        explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
        freed = await ask(api, "quit", "-n", "training", "pod/job", columns=None)
    assert "its payload has never started: the hook of istio-proxy keeps it" in explained.out
    assert "may still need" not in explained.out
    assert "would-free" in freed.out


LATE: State = {"running": {"startedAt": "2026-11-21T08:16:30Z"}}
HOOK = 'Exec lifecycle hook ([pilot-agent wait]) for Container "istio-proxy" failed'


@pytest.mark.parametrize("uid", ["u-job", "u-another"])
async def test_of_a_hold_that_gave_up_the_reason_has_what_the_kubelet_says(
    ask: Any, uid: str
) -> None:
    """istio#45627: an Event, if the caller may read it. Without it the status alone shows it."""
    event = {
        "metadata": {"name": "e", "namespace": "training"},
        "involvedObject": {"kind": "Pod", "namespace": "training", "name": "job", "uid": uid},
        "type": "Warning",
        "reason": "FailedPostStartHook",
        "message": HOOK,
        "lastTimestamp": "2026-11-21T08:16:29Z",
    }
    async with ApiServer() as api:
        api.put("events", event)
        await put_pod(api, "job", {"istio-proxy": exited(0), "main": LATE})
        explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    assert "has had no network from the start" in explained.out
    assert (f"FailedPostStartHook: {HOOK}" in explained.out) is (uid == "u-job")
