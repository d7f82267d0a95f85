"""The packed charm from deployment to removal: trust, readiness, several units, the last one."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab
import lab.juju
import pytest
from lab import meshed
from lab.deployed import ROOT, has_webhook, owned, serving
from lab.juju.image import Image, of_workload
from lab.juju.root import Bind
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Namespace

CONTAINER = "istio-aux"
# The workload is up within a second of its start, and its check within two periods of 3 s.
SOON = 100
CAN_REFUSE_PODS = {
    "admission": "webhook",
    "failure-policy": "Fail",
    "namespace-selector": "test=refused",
}


@dataclass(frozen=True)
class Apps:
    """The charm in two models."""

    untrusted: lab.juju.App
    twice: lab.juju.App


@pytest.fixture(scope="module")
def apps(cluster: lab.Cluster, charm: Path) -> Iterator[Apps]:
    """Both deployed at once, and not settled: that is what takes its time."""
    with contextlib.ExitStack() as stack:

        def deploy(name: str, *, namespace: str = "", **options: Any) -> lab.juju.App:
            model = lab.juju.Model(cluster, name, namespace=namespace)
            return stack.enter_context(model).deploy(charm, **options)

        yield Apps(
            untrusted=deploy(f"model-{secrets.token_hex(3)}", trust=False),
            # The model of a controller does not have the name of its namespace.
            twice=deploy(
                "controller",
                namespace=f"controller-{secrets.token_hex(3)}",
                trust=True,
                units=2,
                # Pods of these namespaces are no other application's business.
                config={"admission": "webhook", "namespace-selector": "test=twice"},
            ),
        )


def test_without_trust_it_is_blocked_until_trust_is_granted(client: Client, apps: Apps) -> None:
    app = apps.untrusted
    app.model.force_labels()
    app.settle()
    status, message = app.status()
    assert (status, "juju trust istio-aux" in message) == ("blocked", True), message
    assert owned(client, app) == set()
    app.trust()
    app.settle()
    assert app.status()[0] == "active", app.status()
    app.remove()
    assert owned(client, app) == set()


def test_the_webhook_configuration_waits_for_the_workload(
    client: Client, charm: Path, apps: Apps, tmp_path: Path
) -> None:
    """Of an application that was removed, and is deployed again."""
    model, name = apps.untrusted.model, apps.untrusted.name
    assert name not in model.apps
    app = model.deploy(
        charm, trust=True, images={CONTAINER: gated(tmp_path)}, config=CAN_REFUSE_PODS
    )
    app.settle()
    assert app.status()[0] == "waiting"
    assert not has_webhook(client, app)
    (tmp_path / "gate" / "open").touch()
    lab.until(
        lambda: has_webhook(client, app) and app.status()[0] == "active",
        timeout=SOON,
        what="the webhook configuration and the active status",
    )


def test_a_model_that_goes_by_force_leaves_nothing_and_refuses_no_pod(
    client: Client, apps: Apps, namespace: str
) -> None:
    """No hook of the charm runs: neither for the application, which still stands, nor later."""
    model = apps.untrusted.model
    app = model.apps[apps.untrusted.name]
    assert has_webhook(client, app)
    client.patch(Namespace, namespace, {"metadata": {"labels": {"test": "refused"}}})

    app.remove(force=True)

    assert has_webhook(client, app)
    lab.until(
        lambda: "failed calling webhook" in answer(client, namespace),
        timeout=SOON,
        what="pods to be refused",
    )

    model.destroy()

    lab.until(
        lambda: (owned(client, app), answer(client, namespace)) == (set(), ""),
        timeout=SOON,
        what="nothing to be left and pods to be created",
    )


def answer(client: Client, namespace: str) -> str:
    """What the API server says about a new pod; nothing if it is created."""
    try:
        client.create(meshed.nameless(namespace, sidecar=None), dry_run=True)
    except ApiError as error:
        return str(error)
    return ""


def test_the_webhook_alone_changes_pods_where_it_is_asked_for(
    client: Client, apps: Apps, namespace: str
) -> None:
    apps.twice.settle()
    client.patch(Namespace, namespace, {"metadata": {"labels": {"test": "twice"}}})
    pod = meshed.nameless(namespace, sidecar=None)

    lab.until(
        lambda: "started-with" in str(client.create(pod, dry_run=True)),
        timeout=SOON,
        what="the webhook to change pods",
    )
    assert "MutatingAdmissionPolicy" not in owned(client, apps.twice)


def test_units_run_their_hooks_at_the_same_time(apps: Apps) -> None:
    apps.twice.settle()
    first, second = (unit.history for unit in apps.twice.units)
    assert any(a.began < b.ended and b.began < a.ended for a in first for b in second)


def test_every_unit_serves_and_only_the_last_takes_the_objects_away(
    client: Client, apps: Apps
) -> None:
    app = apps.twice
    app.settle()
    assert [unit.ready() for unit in app.units] == [True, True]
    assert serving(client, app) == {unit.address for unit in app.units}
    workload = app.units[0].containers[CONTAINER].service_pid("istio-aux")
    assert workload
    app.remove_unit(0)
    app.settle()
    assert not Path("/proc", str(workload)).exists()
    assert app.leader.name == "istio-aux/1"
    assert app.status()[0] == "active", app.status()
    assert has_webhook(client, app)
    app.remove()
    assert owned(client, app) == set()


def gated(folder: Path) -> Image:
    """The workload's image, whose program starts only once the file `gate/open` exists."""
    image = of_workload(ROOT / "workload")
    program = image.path.partition(":")[0] + "/istio-aux"
    (folder / "gate").mkdir()
    (folder / "bin").mkdir()
    script = folder / "bin" / "istio-aux"
    wait = "while [ ! -e /gate/open ]; do sleep 0.1; done"
    script.write_text(f'#!/bin/sh\n{wait}\nexec {program} "$@"\n')
    script.chmod(0o755)
    binds = (Bind(folder / "gate", "/gate"), Bind(folder / "bin", "/gated"))
    return dataclasses.replace(image, binds=(*image.binds, *binds), path=f"/gated:{image.path}")
