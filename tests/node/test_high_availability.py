"""Units come, go and change while pods are created: none is refused, and none is missed.

The webhook alone changes the pods: whatever it misses is created unchanged. No unit is killed
here: until Kubernetes takes one out of the Service, reviews still go there.
"""

from __future__ import annotations

import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lab.juju
import pytest
from lab import meshed
from lab.creation import Creation, Stream
from lab.fixtures import make_namespace, owned, serving
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

pytestmark = pytest.mark.nightly("unit/charm/test_certificates.py; test_charm_lifecycle.py")
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


def test_no_pod_is_refused_or_unchanged_whatever_happens_to_the_units(story: Story) -> None:
    """istio#26380."""
    assert {scene: found for scene, made in story.made.items() if (found := refused(made))} == {}
    unchanged = {
        scene: f"{missed} of {len(made)}"
        for scene, made in story.made.items()
        if (missed := sum(not is_changed(each) for each in made))
    }
    assert unchanged == {}


def test_no_pod_is_refused_while_the_last_unit_goes_and_the_first_one_comes(story: Story) -> None:
    """istio#26380: and nobody to ask."""
    assert story.meanwhile
    assert refused(story.meanwhile) == set()


def test_every_unit_serves(story: Story) -> None:
    assert story.serving == {scene.name: scene.units for scene in SCENES}


def test_both_revisions_own_the_same(story: Story) -> None:
    assert story.kinds[f"before {UPGRADE.name}"] == story.kinds["at the end"]
    assert "MutatingWebhookConfiguration" in story.kinds["at the end"]


def test_nothing_of_ours_is_left_without_a_unit(story: Story) -> None:
    assert story.left == set()
