"""The packed charm, dispatched by the stand-in for Juju, on a real API server and Pebble."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

import lab.istio
import lab.juju
from lab.fixtures import evicts, has_webhook, list_stuck, serving
from lab.juju.container import Container
from lab.juju.unit import Unit
from lightkube import Client

import cluster as of_charm
import manifests

CONTAINER = "istio-aux"


def container(app: lab.juju.App) -> Container:
    return app.leader.containers[CONTAINER]


def test_trust_that_comes_after_its_event_is_found_by_the_charm_itself(
    client: Client, istio_aux: lab.juju.App
) -> None:
    """juju#12883. While the rights were gone, the workload went on."""
    pid = container(istio_aux).service_pid("istio-aux")
    istio_aux.trust(granted=False)
    istio_aux.settle()
    status, message = istio_aux.status()
    assert (status, "juju trust" in message) == ("blocked", True), message
    assert has_webhook(client, istio_aux)
    assert container(istio_aux).service_pid("istio-aux") == pid

    istio_aux.trust(late=True)

    assert istio_aux.leader.history[-1].event == "config-changed"
    # The charm looks again within a minute.
    lab.until(
        lambda: istio_aux.status()[0] == "active", timeout=600, what="the charm to look again"
    )


def versions(client: Client, app: lab.juju.App) -> dict[str, str]:
    labels: Any = manifests.labels(app.name, app.model.name)
    return {
        f"{kind.__name__} {each.metadata.name}": each.metadata.resourceVersion
        for kind in of_charm.OWNED
        if of_charm.owned(client, kind, labels, app.model.name)  # Istio's are not served.
        for each in client.list(kind, namespace=app.model.name, labels=labels)
    }


def test_an_event_that_has_nothing_to_change_leaves_every_object_as_it_is(
    client: Client, istio_aux: lab.juju.App
) -> None:
    istio_aux.settle()
    before = versions(client, istio_aux)

    istio_aux.run("update-status")

    assert len(before) > 10
    assert versions(client, istio_aux) == before
    assert "image is of revision" not in istio_aux.status()[1], "the charm and its image agree"


def test_a_workload_that_hangs_leaves_the_service_until_it_answers_again(
    client: Client, istio_aux: lab.juju.App
) -> None:
    unit = istio_aux.leader
    pid = container(istio_aux).service_pid("istio-aux")
    assert pid
    seen = len(unit.history)
    os.kill(pid, signal.SIGSTOP)
    try:
        lab.until(lambda: not serving(client, istio_aux), what="the unit to leave")
    finally:
        # Pebble restarts a workload that hangs for 40 s, as it may on a busy machine.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    lab.until(lambda: serving(client, istio_aux) == {unit.address}, what="it to return")
    for outcome in ("failed", "recovered"):
        lab.until(lambda end=outcome: heard(unit, seen, end), what=f"the check-{outcome} event")
    istio_aux.settle()
    assert istio_aux.status()[0] == "active", istio_aux.status()


def heard(unit: Unit, seen: int, outcome: str) -> bool:
    """Whether an event said so of one of the unit's checks, after so many that were seen."""
    told = [o.event for o in unit.history[seen:] if "-pebble-check-" in o.event]
    return any(event.endswith(outcome) for event in told)


def test_every_action_answers_and_restarts_need_a_right_only_while_they_run(
    client: Client, istio_aux: lab.juju.App, istio: lab.istio.Istio
) -> None:
    """With the real command line in the workload's container, and the account of the workload."""
    stuck = list_stuck(istio_aux)
    checked = istio_aux.action("run-check").results["results"]
    planned = istio_aux.action("restart-unmeshed").results["results"]
    done = istio_aux.action("restart-unmeshed", namespace="default", **{"dry-run": False}).results

    assert (stuck["total"], stuck["next"]) == ("0", "")
    found = {each["check"]: each["result"] for each in json.loads(checked["json"])}
    for check in ("units", "rights", "injector", "webhook order", "lease"):
        assert found[check] == "ok", checked["findings"]
    assert planned["would-restart"] == "0"
    assert (done["failed"], done["results"]["restarted"]) == (None, "0")
    assert not evicts(client, istio_aux)
