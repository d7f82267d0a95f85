"""The webhook configuration comes when every unit that is ready answers."""

from __future__ import annotations

import contextlib
import dataclasses
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
import workload
from charm import IstioAuxCharm
from cluster import Problem

from .apiserver import ApiServer, endpoint
from .conftest import Workload

Context = testing.Context[IstioAuxCharm]

WEBHOOK = "MutatingWebhookConfiguration"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The status port, one that nobody has at any local address."""
    port = ports.reserve()
    monkeypatch.setattr(probe, "STATUS_PORT", port)
    return port


@pytest.fixture
def client(ctx: Context, api: ApiServer) -> Iterator[Client]:
    with cluster.connect(httpx2.MockTransport(api.answer)) as client:
        yield client


@contextlib.contextmanager
def unit(address: str, port: int, code: int = 200, text: str = "ok\n") -> Iterator[None]:
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


def test_nobody_is_waited_for_when_every_unit_answers(
    client: Client, api: ApiServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directly: a proxy of the model is for what is far away."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with unit("127.0.0.2", port), unit("127.0.0.3", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


def test_a_unit_that_is_not_ready_says_what_is_missing(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with unit("127.0.0.2", port), unit("127.0.0.3", port, 503, "pods\nnamespaces\n"):
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


def test_a_unit_that_hangs_is_not_waited_for_long(
    client: Client, api: ApiServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT", 0.1)
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2")]

    with socket.create_server(("127.0.0.2", port)):
        problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem is not None
    assert "timed out" in problem.reason


def test_of_the_addresses_of_a_unit_one_is_enough(
    client: Client, api: ApiServer, port: int
) -> None:
    """A cluster of two families has an EndpointSlice for each."""
    api.endpoints = [endpoint("istio-aux-0", "::1"), endpoint("istio-aux-0", "127.0.0.2")]

    with unit("127.0.0.2", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


def test_a_unit_that_is_not_ready_to_the_cluster_is_not_asked(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [
        endpoint("istio-aux-0", "127.0.0.2", ready=None),
        endpoint("istio-aux-1", "127.0.0.3", ready=False),
    ]

    with unit("127.0.0.2", port):
        assert objects.unready(client, "istio-aux", "kubeflow") is None


@pytest.mark.parametrize("ends", [[], [endpoint("istio-aux-0", "127.0.0.2", ready=False)]])
def test_without_a_ready_unit_nobody_could_be_called(
    client: Client, api: ApiServer, ends: list[dict[str, object]]
) -> None:
    api.endpoints = ends

    problem = objects.unready(client, "istio-aux", "kubeflow")

    assert problem == Problem("waiting for a ready endpoint of Service istio-aux", wake=True)


def test_the_webhook_comes_once_the_last_unit_answers(
    ctx: Context, fresh: testing.State, api: ApiServer, process: Workload
) -> None:
    api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))
    process.units["10.1.0.11"] = httpx2.Response(503, text="pods\n")
    with ctx(ctx.on.config_changed(), fresh) as manager:
        waiting = manager.run()
        pebble = manager.charm.unit.get_container(workload.CONTAINER).pebble
        (key,) = [notice.key for notice in pebble.get_notices()]

    assert waiting.unit_status == testing.WaitingStatus("waiting for unit istio-aux/1: pods")
    assert WEBHOOK not in api.kinds()

    process.units["10.1.0.11"] = httpx2.Response(200)
    notice = testing.Notice(key)
    container = dataclasses.replace(waiting.get_container("istio-aux"), notices=[notice])
    woken = ctx.on.pebble_custom_notice(container, notice)
    with ctx(woken, dataclasses.replace(waiting, containers={container})) as manager:
        ready = manager.run()
        pebble = manager.charm.unit.get_container(workload.CONTAINER).pebble
        again = [notice.occurrences for notice in pebble.get_notices()]

    assert isinstance(ready.unit_status, testing.ActiveStatus)
    assert WEBHOOK in api.kinds()
    assert again == [1]


def test_a_webhook_that_is_there_waits_for_nobody(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))

    out = ctx.run(ctx.on.update_status(), settled)

    assert isinstance(out.unit_status, testing.ActiveStatus)
    assert WEBHOOK in api.kinds()
