"""What is no answer of an API server or of Pebble fails no hook (decision 0006).

A proxy's page, half a body: such answers come while a load balancer, a proxy or the API server
itself starts or stops. And a Pebble hangs, closes or answers nonsense, at any request.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest
from lab.nightly import NIGHTLY
from lightkube.resources.core_v1 import Namespace
from ops import pebble, testing
from scenario import mocking
from unit.apiserver import kubeconfig

import cluster

from .conftest import Unit, active
from .test_cos import URL, loki
from .test_reconcile import PATH


def undecodable() -> httpx2.Response:
    """It says that it is compressed, and is not."""
    said = {"content-encoding": "gzip", "content-type": "application/json"}
    return httpx2.Response(200, headers=said, stream=httpx2.ByteStream(b"{}"))


ODD: dict[str, Callable[[], httpx2.Response]] = {
    "HTML": lambda: httpx2.Response(200, html="<html><title>Log in</title></html>"),
    "nothing": lambda: httpx2.Response(200),
    "half of it": lambda: httpx2.Response(200, content=b'{"kind": "List", "items": [{"metad'),
    "null": lambda: httpx2.Response(200, json={"items": None, "metadata": None, "status": None}),
    "302 without an address": lambda: httpx2.Response(302),
    "a redirect": lambda: httpx2.Response(307, headers={"location": "https://login.corp/"}),
    "undecodable": undecodable,
}


def leave_policy(unit: Unit) -> None:
    """An earlier revision of the charm has left a policy."""
    path = next(path for path in unit.api.objects if "/validatingadmissionpolicies/" in path)
    policy = unit.api.objects[path]
    old = {"name": f"{policy['metadata']['name']}-old"}
    unit.api.objects[f"{path}-old"] = {**policy, "metadata": policy["metadata"] | old}


# A request of each kind that an event makes, and what makes the event do it.
REQUESTS: dict[str, Callable[[Unit], Any]] = {
    "create tokenreviews": lambda _: None,
    "create serviceaccounts/token": lambda unit: (unit.etc / "token").unlink(),
    "list namespaces": lambda _: None,
    "list endpointslices": lambda unit: unit.api.objects.clear(),
    "list peerauthentications": lambda _: None,
    "get peerauthentications": lambda _: None,
    "patch peerauthentications": lambda unit: unit.api.objects.pop(PATH),
    "patch clusterroles": lambda _: None,
    "delete validatingadmissionpolicies": leave_policy,
}
# What an event leaves to the next one: objects that are not wanted any more.
BY_THE_NEXT_EVENT = {"list peerauthentications", "delete validatingadmissionpolicies"}


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_odd_answer_is_waited_for_and_fails_no_hook(request_: str, unit: Unit) -> None:
    REQUESTS[request_](unit)
    asked = list[str]()

    def answer(odd: str) -> httpx2.Response:
        asked.append(odd)
        return ODD[odd]()

    for odd in ODD:
        unit.api.answers[request_] = partial(answer, odd)
        status = unit.run(config={})
        assert isinstance(status, testing.WaitingStatus | testing.ActiveStatus), odd
        assert unit.wakes or "not applied" in status.message or request_ in BY_THE_NEXT_EVENT, odd

    assert {*asked} == {*ODD}, "an event did not ask"
    unit.api.answers.clear()
    for _ in range(3):
        unit.run()
    assert isinstance(unit.state.unit_status, testing.ActiveStatus)


def test_the_proxy_of_the_model_is_not_asked_for_the_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Juju sets it in the hook's environment, and it may not know the cluster."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        server = {"server": "https://127.0.0.1:1"}  # Nobody listens there.
        kubeconfig(tmp_path, cluster=server, user={"token": "charm"}, context={})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        proxy.setblocking(False)
        with cluster.connect() as client, pytest.raises(httpx2.ConnectError):
            client.get(Namespace, "default")
        with pytest.raises(BlockingIOError):
            proxy.accept()


_CHANGE = pebble.Change.from_dict(
    {"id": "3", "kind": "replan", "summary": "", "status": "Error", "ready": True,
     "spawn-time": "2026-11-21T08:00:00Z"}
)  # fmt: skip
# What a client of Pebble raises (ops.pebble.Client, http.client, socket).
KINDS: dict[str, Callable[[], Exception]] = {
    "it hangs": lambda: TimeoutError("timed out"),
    "it closes the connection": lambda: RemoteDisconnected("closed without response"),
    "half an answer": lambda: IncompleteRead(b"{"),
    "a reset": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "no socket": lambda: pebble.ConnectionError("no socket"),
    "500": lambda: pebble.APIError({}, 500, "Internal Server Error", "it panics"),
    "no JSON": lambda: pebble.ProtocolError("expected JSON"),
    "a change that takes long": lambda: pebble.TimeoutError("timed out waiting for change 3"),
    "a change that failed": lambda: pebble.ChangeError("it does not start", _CHANGE),
}
METHODS = (
    "get_system_info", "get_plan", "get_services", "get_checks", "add_layer", "replan_services",
    "restart_services", "stop_services", "pull", "push",
)  # fmt: skip
EVENTS: dict[str, Callable[[Unit], Any]] = {
    "install": lambda unit: unit.run(unit.on.install()),
    "pebble-ready": lambda unit: unit.run(unit.on.pebble_ready(unit.container)),
    "config-changed": lambda unit: unit.configure(quit_grace=7),
    "update-status": lambda unit: unit.run(),
    "a related Loki": lambda unit: unit.relate(loki({0: URL})),
    "remove": lambda unit: unit.run(unit.on.remove()),
}


@contextmanager
def failing(at: int, error: Callable[[], Exception]) -> Iterator[list[str]]:
    """Let the request of this number fail; yields the names of all requests."""
    sent = list[str]()

    def instead(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent.append(name)
            if len(sent) == at:
                raise error()
            return method(*args, **kwargs)

        return call

    kind = mocking._MockPebbleClient
    with patch.multiple(kind, **{name: instead(name, getattr(kind, name)) for name in METHODS}):
        yield sent


@pytest.mark.parametrize("event", EVENTS)
def test_no_request_to_pebble_that_fails_fails_a_hook(event: str, unit: Unit) -> None:
    """The status says what is so, and the next event goes on. By day each request fails once."""
    before = unit.state
    with failing(0, Exception) as sent:
        EVENTS[event](unit)
    assert sent
    for number, name in enumerate(sent, 1):
        kinds = [*KINDS]
        for kind in kinds if NIGHTLY else [kinds[number % len(kinds)]]:
            unit.state = before
            with failing(number, KINDS[kind]):
                status = EVENTS[event](unit)
            assert status.name in {"waiting", "active", "maintenance"}, f"{name}, {kind}: {status}"
    unit.state = before
    unit.run()
    assert unit.run() == active()
