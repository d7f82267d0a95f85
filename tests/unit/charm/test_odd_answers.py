"""What is no answer of an API server fails no hook (decision 0006): a proxy's page, half a body.

Such answers come while a load balancer, a proxy or the API server itself starts or stops.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube.resources.core_v1 import Namespace
from ops import testing
from unit.apiserver import kubeconfig

import cluster

from .conftest import Unit
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
    name = f"{policy['metadata']['name']}-old"
    left = {**policy, "metadata": {**policy["metadata"], "name": name}}
    unit.api.objects[f"{path.rpartition('/')[0]}/{name}"] = left


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
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("", 0)) as free:
        closed = free.getsockname()[1]
        free.close()
        server = {"server": f"https://127.0.0.1:{closed}"}
        kubeconfig(tmp_path, cluster=server, user={"token": "charm"}, context={})
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        proxy.setblocking(False)
        with cluster.connect() as client, pytest.raises(httpx2.ConnectError):
            client.get(Namespace, "default")
        with pytest.raises(BlockingIOError):
            proxy.accept()
