"""The packed charm, dispatched by the stand-in for Juju, on a real API server and Pebble.

From deployment to removal: trust, readiness, removal by force. Units come, go and change while pods
are created: none is refused, and none is missed. There the webhook alone changes the pods: whatever
it misses is created unchanged. No unit is killed meanwhile: until Kubernetes takes one out of the
Service, reviews still go there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lab.istio
import lab.juju
import pytest
from istio_aux.model.annotations import STARTED_WITH
from lab import meshed
from lab.creation import Creation, Stream
from lab.fixtures import ROOT, evicts, has_webhook, list_stuck, make_namespace, owned, serving
from lab.juju.container import Bind, Container, Image, of_workload
from lab.juju.unit import Unit
from lightkube import Client
from lightkube.resources.core_v1 import Namespace, Pod

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


CONFIG = {"namespace-selectors": "test=deserted"}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file without which the workload does not start."""
    return tmp_path_factory.mktemp("gated") / "gate" / "open"


@pytest.fixture(scope="module")
def app(cluster: lab.Cluster, charm: Path, gate: Path) -> Iterator[lab.juju.App]:
    """Deployed in a controller's model, whose namespace has another name; not settled."""
    with lab.juju.Model(
        cluster, "controller", namespace=f"controller-{secrets.token_hex(3)}"
    ) as model:
        yield model.deploy(charm, trust=False, images={CONTAINER: gated(gate)}, config=CONFIG)


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
    lab.until(lambda: changed(client.create(pod, dry_run=True)), what="pods to be changed")

    app.remove(force=True)

    assert has_webhook(client, app)
    lab.until(
        lambda: not changed(client.create(pod, dry_run=True)),
        what="pods to be created unchanged",
    )

    model.destroy()

    lab.until(lambda: not owned(client, app), what="nothing to be left")


def changed(pod: Pod) -> bool:
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


UNITS = pytest.mark.nightly("unit/charm/test_certificates.py; the deployment")
RATE = 25  # Creations a second.


@dataclass(frozen=True)
class Scene:
    """What happens to an application, and how many of its units serve afterwards."""

    name: str
    units: int
    play: Callable[[lab.juju.App, Path], object]  # With the next revision of the charm.


UPGRADE = Scene("the next revision", 2, lambda app, upgrade: app.refresh(upgrade))
# The unit that leads is also the one that goes.
SCENES = (
    UPGRADE,
    Scene("another leader", 2, lambda app, _: app.elect(1)),
    Scene("1 unit", 1, lambda app, _: app.scale(1)),
    Scene("another unit", 2, lambda app, _: app.scale(2)),
)


@dataclass
class Story:
    """What was seen of an application while pods were created all the time."""

    # Pods by the scene in which they were made, with at least one unit; and those that were made
    # while there was no unit yet, or none any more.
    made: dict[str, list[Creation]] = field(default_factory=dict[str, list[Creation]])
    meanwhile: list[Creation] = field(default_factory=list[Creation])
    # What the charm owned before and after the upgrade.
    kinds: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    # How many units were behind the Service after each scene.
    serving: dict[str, int] = field(default_factory=dict[str, int])
    # What the charm owned when there was no unit any more.
    left: set[str] = field(default_factory=set[str])


def next_revision(charm: Path, folder: Path) -> Path:
    """Other content, the same code."""
    copy = Path(shutil.copy(charm, folder / charm.name))
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("revision", "2")
    return copy


@pytest.fixture(scope="module")
def story(cluster: lab.Cluster, client: Client, charm: Path) -> Iterator[Story]:
    """The first units, the scenes, and the end of the last units."""
    selected = f"available-{secrets.token_hex(3)}"
    make_namespace(client, selected, {"test": selected})
    config = {"namespace-selectors": f"test={selected}"}
    pod = meshed.nameless(selected, sidecar=None)
    told = Story()

    def creating() -> Stream:
        return Stream(cluster, pod, rate=RATE, dry_run=True)

    with lab.juju.Model(cluster, f"{selected}-model") as model:
        with creating() as stream:
            app = model.deploy(charm, trust=True, config=config, units=2)
            await_changes(app, stream)
        told.meanwhile += stream.creations
        play(client, app, next_revision(charm, model.folder), creating, told)
        with creating() as stream:
            app.remove()
            stream.await_more(10)
        told.meanwhile += stream.creations
        told.left = owned(client, app)
        yield told
    client.delete(Namespace, selected)


def play(
    client: Client, app: lab.juju.App, upgrade: Path, creating: Callable[[], Stream], told: Story
) -> None:
    with creating() as stream:
        for scene in SCENES:
            seen = len(stream.creations)
            told.kinds[f"before {scene.name}"] = owned(client, app)
            scene.play(app, upgrade)
            app.settle()
            stream.await_more(10)
            told.made[scene.name] = stream.creations[seen:]
            told.serving[scene.name] = len(serving(client, app))
        told.kinds["at the end"] = owned(client, app)


def await_changes(app: lab.juju.App, stream: Stream) -> None:
    app.settle()
    lab.until(
        lambda: all(map(is_changed, stream.await_more(5))),
        what=f"pods to be changed: {app.status()}",
    )


def is_changed(made: Creation) -> bool:
    return b"istio-aux.io/started-with" in made.body


def refused(made: list[Creation]) -> set[bytes]:
    return {each.body for each in made if each.status != 201}


@UNITS
def test_no_pod_is_refused_or_unchanged_whatever_happens_to_the_units(story: Story) -> None:
    """istio#26380."""
    assert {scene: found for scene, made in story.made.items() if (found := refused(made))} == {}
    unchanged = {
        scene: f"{missed} of {len(made)}"
        for scene, made in story.made.items()
        if (missed := sum(not is_changed(each) for each in made))
    }
    assert unchanged == {}


@UNITS
def test_no_pod_is_refused_while_the_last_unit_goes_and_the_first_one_comes(story: Story) -> None:
    """istio#26380: and nobody to ask."""
    assert story.meanwhile
    assert refused(story.meanwhile) == set()


@UNITS
def test_every_unit_serves(story: Story) -> None:
    assert story.serving == {scene.name: scene.units for scene in SCENES}


@UNITS
def test_both_revisions_own_the_same(story: Story) -> None:
    assert story.kinds[f"before {UPGRADE.name}"] == story.kinds["at the end"]
    assert "MutatingWebhookConfiguration" in story.kinds["at the end"]


@UNITS
def test_nothing_of_ours_is_left_without_a_unit(story: Story) -> None:
    assert story.left == set()
