"""The webhook configuration is created once the units behind its Service answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx2
import pytest
from lab import ports
from lightkube import Client
from ops import testing

import cluster
import endpoints
import probe
import wake
from cluster import Problem

from .apiserver import ApiServer, endpoint
from .conftest import Unit, active

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


def looked(client: Client) -> endpoints.Endpoints:
    return endpoints.look(client, "istio-aux", "kubeflow", datetime.now(UTC))


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
        assert looked(client).problem is None


def test_a_unit_that_is_not_ready_says_what_is_missing(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with serving("127.0.0.2", port), serving("127.0.0.3", port, 503, "pods\nnamespaces\n"):
        problem = looked(client).problem

    assert problem == Problem("waiting for unit istio-aux/1: pods; namespaces")


def test_a_unit_that_does_not_answer_is_named_with_its_address(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [endpoint("istio-aux-10", "127.0.0.2")]

    problem = looked(client).problem

    assert problem is not None
    url = f"http://127.0.0.2:{port}/readyz"
    assert problem.reason.startswith(f"waiting for unit istio-aux/10: no answer at {url}: ")


def test_a_unit_that_hangs_counts_as_not_ready(
    client: Client, api: ApiServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT", 0.1)
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2")]

    with socket.create_server(("127.0.0.2", port)):
        problem = looked(client).problem

    assert problem is not None
    assert "timed out" in problem.reason


def test_one_address_of_a_unit_is_enough(client: Client, api: ApiServer, port: int) -> None:
    """A cluster of two families has an EndpointSlice for each."""
    api.endpoints = [endpoint("istio-aux-0", "::1"), endpoint("istio-aux-0", "127.0.0.2")]

    with serving("127.0.0.2", port):
        assert looked(client).problem is None


def test_a_unit_without_a_ready_endpoint_is_not_asked(
    client: Client, api: ApiServer, port: int
) -> None:
    api.endpoints = [
        endpoint("istio-aux-0", "127.0.0.2", ready=None),
        endpoint("istio-aux-1", "127.0.0.3", ready=False),
    ]

    with serving("127.0.0.2", port):
        assert looked(client).problem is None


@pytest.mark.parametrize("ends", [[], [endpoint("istio-aux-0", "127.0.0.2", ready=False)]])
def test_without_a_ready_endpoint_the_webhook_waits(
    client: Client, api: ApiServer, ends: list[dict[str, object]]
) -> None:
    api.endpoints = ends

    problem = looked(client).problem

    assert problem == Problem("waiting for a ready endpoint of Service istio-aux")


def test_the_webhook_comes_once_the_last_unit_answers(new_unit: Unit) -> None:
    new_unit.api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))
    new_unit.process.units["10.1.0.11"] = httpx2.Response(503, text="pods\n")

    assert new_unit.configure() == testing.WaitingStatus("waiting for unit istio-aux/1: pods")
    assert WEBHOOK not in new_unit.api.kinds()

    new_unit.process.units["10.1.0.11"] = httpx2.Response(200)
    status = new_unit.run(woken(new_unit))

    assert isinstance(status, testing.ActiveStatus)
    assert WEBHOOK in new_unit.api.kinds()


def woken(unit: Unit) -> object:
    """The event of the notice that Pebble's service `wake` sends."""
    notice = testing.Notice(wake.KEY)
    unit.change_container(notices=[notice])
    return unit.on.pebble_custom_notice(unit.container, notice)


SILENT = "unit istio-aux/1: no answer at http://10.1.0.11:8080/readyz: timed out"


def be_silent(unit: Unit, since: timedelta) -> None:
    """Have another unit that is ready for so long by its own check, and answers nobody else."""
    unit.api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))
    unit.api.add_pod("istio-aux-1", ready_since=datetime.now(UTC) - since)


def test_a_unit_that_never_answers_is_waited_for_without_a_hook_that_follows_the_hook(
    new_unit: Unit,
) -> None:
    """Pebble keeps the time; a notice at once would run hooks back to back."""
    be_silent(new_unit, timedelta(seconds=50))

    for event in (new_unit.on.config_changed, lambda: woken(new_unit), new_unit.on.update_status):
        # Set for each event: three of them may take over ten seconds on a slow machine.
        new_unit.api.add_pod("istio-aux-1", ready_since=datetime.now(UTC) - timedelta(seconds=50))
        assert new_unit.run(event()) == testing.WaitingStatus(f"waiting for {SILENT}")
        assert new_unit.own_notices == 0
        assert new_unit.wakes

    assert WEBHOOK not in new_unit.api.kinds()


def test_a_unit_that_is_ready_for_a_minute_and_does_not_answer_is_named_and_waited_for_no_more(
    new_unit: Unit,
) -> None:
    """A NetworkPolicy for port 8080, or STRICT mTLS between units, hinders no review."""
    be_silent(new_unit, timedelta(seconds=70))

    for _ in range(2):
        assert new_unit.configure() == active(f"; {SILENT}")
        assert WEBHOOK in new_unit.api.kinds()

    assert new_unit.wakes
    new_unit.process.units["10.1.0.11"] = httpx2.Response(200)
    assert new_unit.run(woken(new_unit)) == active()
    assert not new_unit.wakes


def test_a_webhook_that_exists_waits_for_nothing(unit: Unit) -> None:
    be_silent(unit, timedelta(0))

    assert unit.run() == active(f"; {SILENT}")
    assert WEBHOOK in unit.api.kinds()


def test_the_webhook_waits_until_juju_has_opened_the_port_of_the_service(new_unit: Unit) -> None:
    """Juju opens it after the hook; before that the Service has a port of Juju's."""
    new_unit.api.port = 65535

    status = new_unit.configure()

    assert status == testing.WaitingStatus("waiting for port 8443 of Service istio-aux")
    assert WEBHOOK not in new_unit.api.kinds()
    assert new_unit.wakes

    new_unit.api.port = 8443
    assert new_unit.run(woken(new_unit)) == active()
    assert WEBHOOK in new_unit.api.kinds()
    assert not new_unit.wakes
