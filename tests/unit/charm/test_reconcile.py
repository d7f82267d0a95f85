"""What a unit owns in the cluster, when its workload restarts, and what its webhook waits for."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx2
import pytest
from lab import ports
from ops import pebble, testing

import cluster
import probe
import workload

from .apiserver import ApiServer, endpoint
from .conftest import Unit, active

WEBHOOK = "MutatingWebhookConfiguration"

# The objects that do not wait for the workload.
STANDING = [
    "ClusterRole",
    "ClusterRoleBinding",
    "PeerAuthentication",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    *2 * ["ValidatingAdmissionPolicy"],
    *2 * ["ValidatingAdmissionPolicyBinding"],
]


def test_changed_settings_restart_the_workload(unit: Unit) -> None:
    before = unit.container.plan.services["istio-aux"].environment

    unit.configure(log_level="debug")

    assert unit.container.plan.services["istio-aux"].environment != before


def test_a_starting_workload_wakes_the_charm_until_it_is_ready(new_unit: Unit) -> None:
    new_unit.process.missing = ["the list of pods", "the list of namespaces"]

    assert new_unit.configure() == testing.WaitingStatus(
        "workload: the list of pods; the list of namespaces"
    )
    assert WEBHOOK not in new_unit.api.kinds()
    assert new_unit.wakes

    new_unit.process.missing = []

    assert new_unit.run() == active()
    assert WEBHOOK in new_unit.api.kinds()
    assert not new_unit.wakes


def fail_checks(unit: Unit) -> None:
    """Have every check of the container down."""
    down = pebble.CheckStatus.DOWN
    checks = {
        dataclasses.replace(check, status=down, failures=check.threshold)
        for check in unit.container.check_infos
    }
    unit.change_container(check_infos=checks)


def test_a_failed_check_does_not_wake_the_charm_because_its_recovery_will(unit: Unit) -> None:
    unit.process.running = False
    fail_checks(unit)

    assert isinstance(unit.run(), testing.WaitingStatus)
    assert not unit.wakes


def test_the_webhook_waits_while_the_service_does_not_lead_to_this_unit(unit: Unit) -> None:
    (path,) = [p for p, o in unit.api.objects.items() if o["kind"] == WEBHOOK]
    del unit.api.objects[path]
    fail_checks(unit)

    unit.run()

    assert WEBHOOK not in unit.api.kinds()


def test_the_webhook_stays_while_this_unit_restarts(unit: Unit) -> None:
    unit.process.running = False

    unit.run()

    assert WEBHOOK in unit.api.kinds()


def test_a_follower_runs_its_workload_and_leaves_the_cluster_to_the_leader(unit: Unit) -> None:
    unit.api.calls.clear()
    for path in list(unit.etc.glob("t*")):
        path.rename(f"{path}-of-the-leader")

    assert unit.follow(unit.on.pebble_ready(unit.container)) == active()
    assert "tls/tls.crt" in unit.files
    assert not [call for call in unit.api.writes if not call.endswith("/token")]


def test_the_charm_waits_for_pebble(new_unit: Unit) -> None:
    new_unit.change_container(can_connect=False)

    assert new_unit.run(new_unit.on.install()) == testing.WaitingStatus(
        "waiting for Pebble in container istio-aux"
    )
    assert new_unit.api.kinds() == STANDING


@contextlib.contextmanager
def serving(address: str, port: int) -> Iterator[None]:
    """A status port of a unit that is ready."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

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


@pytest.mark.usefixtures("new_unit")
def test_units_are_reached_directly_and_one_that_hangs_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model's proxy is for addresses outside the cluster."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    port = ports.reserve()
    monkeypatch.setattr(probe, "STATUS_PORT", port)
    monkeypatch.setattr(probe, "_TIMEOUT", 0.5)
    api = ApiServer()
    api.endpoints = [endpoint("istio-aux-0", "127.0.0.2"), endpoint("istio-aux-1", "127.0.0.3")]

    with (
        serving("127.0.0.2", port),
        socket.create_server(("127.0.0.3", port)),
        cluster.connect(httpx2.MockTransport(api.answer)) as client,
    ):
        found = probe.look(client, "istio-aux", "kubeflow", datetime.now(UTC))

    (silent,) = found.silent
    assert silent.startswith(f"unit istio-aux/1: no answer at http://127.0.0.3:{port}/readyz: ")
    assert "timed out" in silent


NOBODY = testing.WaitingStatus("waiting for a ready endpoint of Service istio-aux")


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([("istio-aux-0", "::1", True), ("istio-aux-0", "10.1.0.10", True)], active()),
        ([("istio-aux-0", "10.1.0.10", None), ("istio-aux-1", "10.1.0.11", False)], active()),
        ([("istio-aux-0", "10.1.0.10", False)], NOBODY),
        ([], NOBODY),
    ],
    ids=["one address of two answers", "another unit is not ready", "none is ready", "no endpoint"],
)
def test_the_webhook_waits_for_ready_endpoints_only(
    ends: list[tuple[str, str, bool | None]], status: Any, new_unit: Unit
) -> None:
    """A cluster of two families has an EndpointSlice for each."""
    new_unit.api.endpoints = [endpoint(pod, at, ready=ready) for pod, at, ready in ends]

    assert new_unit.configure() == status
    assert (WEBHOOK in new_unit.api.kinds()) is (status == active())


def test_the_webhook_comes_once_the_last_unit_answers(new_unit: Unit) -> None:
    new_unit.api.endpoints.append(endpoint("istio-aux-1", "10.1.0.11"))
    new_unit.process.units["10.1.0.11"] = httpx2.Response(503, text="pods\nleases\n")

    assert new_unit.configure() == testing.WaitingStatus(
        "waiting for unit istio-aux/1: pods; leases"
    )
    assert WEBHOOK not in new_unit.api.kinds()

    new_unit.process.units["10.1.0.11"] = httpx2.Response(200)
    status = new_unit.run(woken(new_unit))

    assert isinstance(status, testing.ActiveStatus)
    assert WEBHOOK in new_unit.api.kinds()


def woken(unit: Unit) -> object:
    """The event of the notice that Pebble's service `wake` sends."""
    notice = testing.Notice(workload.WAKE_KEY)
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


@pytest.mark.parametrize("kind", ["ClusterRole", "MutatingWebhookConfiguration", "Role"])
@pytest.mark.parametrize("how", ["emptied", "deleted", "without its labels"])
def test_what_somebody_does_to_an_object_is_undone_by_the_next_event(
    kind: str, how: str, unit: Unit
) -> None:
    before = dict(unit.api.objects)
    path = next(path for path, each in before.items() if each["kind"] == kind)
    named = {key: before[path][key] for key in ("apiVersion", "kind", "metadata")}
    metadata = {k: v for k, v in named["metadata"].items() if k != "labels"}
    changed = {"emptied": named, "without its labels": {**before[path], "metadata": metadata}}
    if how == "deleted":
        del unit.api.objects[path]
    else:
        unit.api.objects[path] = changed[how]

    unit.run()

    uid = {"uid": unit.api.objects[path]["metadata"]["uid"]}
    whole = {**before[path], "metadata": before[path]["metadata"] | uid}
    assert unit.api.objects[path] == whole
