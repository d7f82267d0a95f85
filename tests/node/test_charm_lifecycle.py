"""The packed charm from deployment to removal: trust, readiness, removal by force."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator
from pathlib import Path

import lab
import lab.juju
import pytest
from istio_aux.model.annotations import STARTED_WITH
from lab import meshed
from lab.deployed import ROOT, has_webhook, owned
from lab.juju.image import Image, of_workload
from lab.juju.root import Bind
from lightkube import Client
from lightkube.resources.core_v1 import Namespace, Pod

CONTAINER = "istio-aux"
BY_WEBHOOK = {"admission": "webhook", "namespace-selectors": "test=deserted"}


@pytest.fixture(scope="module")
def app(cluster: lab.Cluster, charm: Path) -> Iterator[lab.juju.App]:
    """Deployed in a controller's model, whose namespace has another name; not settled."""
    namespace = f"controller-{secrets.token_hex(3)}"
    with lab.juju.Model(cluster, "controller", namespace=namespace) as model:
        yield model.deploy(charm, trust=False)


def test_without_trust_it_is_blocked_until_trust_is_granted(
    client: Client, app: lab.juju.App
) -> None:
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
    client: Client, charm: Path, app: lab.juju.App, tmp_path: Path
) -> None:
    """Of an application that was removed, and is deployed again."""
    model, name = app.model, app.name
    assert name not in model.apps
    app = model.deploy(charm, trust=True, images={CONTAINER: gated(tmp_path)}, config=BY_WEBHOOK)
    lab.until(lambda: "workload" in app.status()[1], what="the charm to wait for its workload")
    app.settle(waiting=True)
    assert app.status()[0] == "waiting"
    assert not has_webhook(client, app)
    (tmp_path / "gate" / "open").touch()
    lab.until(
        lambda: has_webhook(client, app) and app.status()[0] == "active",
        what="the webhook configuration and the active status",
    )


def test_a_model_that_goes_by_force_leaves_nothing_and_refuses_no_pod(
    client: Client, app: lab.juju.App, namespace: str
) -> None:
    """No hook of the charm runs: neither for the application, which still stands, nor later."""
    model = app.model
    app = model.apps[app.name]
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
    assert pod.metadata
    return STARTED_WITH in (pod.metadata.annotations or {})


def gated(folder: Path) -> Image:
    """The workload's image, whose program starts only once the file `gate/open` exists."""
    image = of_workload(ROOT / "workload")
    (folder / "gate").mkdir()
    (folder / "bin").mkdir()
    script = folder / "bin" / "istio-aux"
    wait = "while [ ! -e /gate/open ]; do sleep 0.1; done"
    script.write_text(f'#!/bin/sh\n{wait}\nPATH={image.path}\nexec istio-aux "$@"\n')
    script.chmod(0o755)
    binds = (Bind(folder / "gate", "/gate"), Bind(folder / "bin", "/gated"))
    return dataclasses.replace(image, binds=(*image.binds, *binds), path=f"/gated:{image.path}")
