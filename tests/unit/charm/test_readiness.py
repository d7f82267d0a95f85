"""The webhook configuration is created once every ready unit answers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx2
import pytest
from lab import ports
from lightkube import Client
from ops import testing

import cluster
import objects
import probe
from cluster import Problem

from .apiserver import ApiServer, endpoint
from .conftest import Unit

WEBHOOK = "MutatingWebhookConfiguration"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The status port, one that nobody has at any local address."""
    port = ports.reserve()
    monkeypatch.setattr(probe, "STATUS_PORT", port)
    return port


@pytest.fixture
def api(new_unit: Unit) -> ApiServer:
    return new_unit.api


@pytest.fixture
def client(api: ApiServer) -> Iterator[Client]:
    with cluster.connect(httpx2.MockTransport(api.answer)) as client:
        yield client


@contextlib.contextmanager
def serving(address: str, port: int, code: int = 200, text: str = "ok\n") -> Iterator[None]:
    """A status port that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            pass

    with ThreadingHTTPServer((address, port), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_nothing_is_waited_for_when_every_unit_answers(
    client: Client, api: ApiServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directly: the model's proxy is for addresses outside the cluster."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with serving("127.0.0.2", port), serving("127.0.0.3", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


def test_a_unit_that_is_not_ready_says_what_is_missing(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with serving("127.0.0.2", port), serving("127.0.0.3", port, 503, "pods\nnamespaces\n"):
        problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem == Problem("waiting for unit istio-aux/1: pods; namespaces", wake=True)


def test_a_unit_that_does_not_answer_is_named_with_its_address(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [endpoint("istio-aux-10", "127.0.0.2")]

    problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem is not None
    assert problem.wake
    url = f"http://127.0.0.2:{port}/readyz"
    assert problem.reason.startswith(f"waiting for unit istio-aux/10: no answer at {url}: ")


def test_a_unit_that_hangs_counts_as_not_ready(
    client: Client, api: ApiServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT", 0.1)
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2")]

    with socket.create_server(("127.0.0.2", port)):
        problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem is not None
    assert "timed out" in problem.reason


def test_one_address_of_a_unit_is_enough(client: Client, api: ApiServer, port: int) -> None:
    """A cluster of two families has an EndpointSlice for each."""
    api.endpoints = [endpoint("istio-aux-0", "::1"), endpoint("istio-aux-0", "127.0.0.2")]

    with serving("127.0.0.2", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


def test_a_unit_without_a_ready_endpoint_is_not_asked(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [
        endpoint("istio-aux-0", "127.0.0.2", ready=None),
        endpoint("istio-aux-1", "127.0.0.3", ready=False),
    ]

    with serving("127.0.0.2", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


@pytest.mark.parametrize("ends", [[], [endpoint("istio-aux-0", "127.0.0.2", ready=False)]])
def test_without_a_ready_endpoint_the_webhook_waits(
    client: Client, api: ApiServer, ends: list[dict[str, object]]
) -> None:
    api.endpoints = ends

    problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem == Problem("waiting for a ready endpoint of Service istio-aux", wake=True)


def test_the_webhook_comes_once_the_last_unit_answers(new_unit: Unit) -> None:
    new_unit.api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))
    new_unit.process.units["10.1.0.11"] = httpx2.Response(503, text="pods\n")

    assert new_unit.configure() == testing.WaitingStatus("waiting for unit istio-aux/1: pods")
    [notice] = new_unit.container.notices
    assert WEBHOOK not in new_unit.api.kinds()

    new_unit.process.units["10.1.0.11"] = httpx2.Response(200)
    status = new_unit.run(new_unit.on.pebble_custom_notice(new_unit.container, notice))

    assert isinstance(status, testing.ActiveStatus)
    assert WEBHOOK in new_unit.api.kinds()
    assert [notice.occurrences for notice in new_unit.container.notices] == [1]


def test_a_webhook_that_exists_waits_for_nothing(unit: Unit) -> None:
    unit.api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))

    assert isinstance(unit.run(), testing.ActiveStatus)
    assert WEBHOOK in unit.api.kinds()
