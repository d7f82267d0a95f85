"""The packed charm from deployment to removal: trust, readiness, removal by force."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from pathlib import Path

import lab.juju
import pytest
from istio_aux.model.annotations import STARTED_WITH
from lab import meshed
from lab.fixtures import ROOT, has_webhook, owned
from lab.juju.container import Bind, Image, of_workload
from lightkube import Client
from lightkube.resources.core_v1 import Namespace, Pod

CONTAINER = "istio-aux"
CONFIG = {"namespace-selectors": "test=deserted"}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without which the workload does not start."""
    return tmp_path_factory.mktemp("gated") / "gate" / "open"


@pytest.fixture(scope="module")
def app(cluster: lab.Cluster, charm: Path, gate: Path) -> Iterator[lab.juju.App]:
    """Deployed in a controller's model, whose namespace has another name; not settled."""
    namespace = f"controller-{secrets.token_hex(3)}"
    with lab.juju.Model(cluster, "controller", namespace=namespace) as model:
        images = {CONTAINER: gated(gate)}
        yield model.deploy(charm, trust=False, images=images, config=CONFIG)


def test_without_trust_it_is_blocked_until_trust_is_granted(
    client: Client, app: lab.juju.App
) -> None:
    app.settle()
    status, message = app.status()
    assert (status, "juju trust istio-aux" in message) == ("blocked", True), message
    assert owned(client, app) == set()

    app.trust()

    lab.until(lambda: app.status()[0] != "blocked", what="the charm to see its rights")
    assert owned(client, app)


def test_the_webhook_configuration_waits_for_the_workload(
    client: Client, app: lab.juju.App, gate: Path
) -> None:
    lab.until(lambda: "workload" in app.status()[1], what="the charm to wait for its workload")
    app.settle(waiting=True)
    assert app.status()[0] == "waiting"
    assert not has_webhook(client, app)
    gate.touch()
    lab.until(
        lambda: has_webhook(client, app) and app.status()[0] == "active",
        what="the webhook configuration and the active status",
    )


def test_a_model_that_goes_by_force_leaves_nothing_and_refuses_no_pod(
    client: Client, app: lab.juju.App, namespace: str
) -> None:
    """No hook of the charm runs: neither for the application, which still stands, nor later."""
    model = app.model
    assert has_webhook(client, app)
    client.patch(Namespace, namespace, {"metadata": {"labels": {"test": "deserted"}}})
    pod = meshed.nameless(namespace, sidecar=None)
    lab.until(lambda: is_changed(client.create(pod, dry_run=True)), what="pods to be changed")

    app.remove(force=True)

    assert has_webhook(client, app)
    lab.until(
        lambda: not is_changed(client.create(pod, dry_run=True)),
        what="pods to be created unchanged",
    )

    model.destroy()

    lab.until(lambda: not owned(client, app), what="nothing to be left")


def is_changed(pod: Pod) -> bool:
    return STARTED_WITH in meshed.annotations_of(pod)


def gated(gate: Path) -> Image:
    """The workload's image, whose program starts only once the gate is open."""
    image = of_workload(ROOT / "workload")
    gate.parent.mkdir()
    folder = gate.parents[1] / "bin"
    folder.mkdir()
    script = folder / "istio-aux"
    wait = f"while [ ! -e /gate/{gate.name} ]; do sleep 0.1; done"
    script.write_text(f'#!/bin/sh\n{wait}\nPATH={image.path}\nexec istio-aux "$@"\n')
    script.chmod(0o755)
    binds = (Bind(gate.parent, "/gate"), Bind(folder, "/gated"))
    return dataclasses.replace(image, binds=(*image.binds, *binds), path=f"/gated:{image.path}")
