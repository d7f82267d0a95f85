"""Units come, go and change while pods are created: none is refused, and none is missed.

25 creations a second, or `tox run -e node -- tests/node/test_high_availability.py --creations 100`.
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

import lab
import lab.juju
import pytest
from lab import meshed
from lab.creation import Creation, Stream
from lab.deployed import owned, serving
from lab.fixtures import make_namespace
from lightkube import Client
from lightkube.resources.core_v1 import Namespace

# The story takes 2 minutes, 12 beside much else.
pytestmark = pytest.mark.timeout(1800)


@dataclass
class Story:
    """What was seen of an application while pods were created all the time."""

    # Pods by the scene in which they were made, with at least one unit; and those that were made
    # while the last unit went, and another one came.
    made: dict[str, list[Creation]] = field(default_factory=dict[str, list[Creation]])
    meanwhile: list[Creation] = field(default_factory=list[Creation])
    # What the charm owned before and after the upgrade, and without a unit.
    kinds: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    # How many units were behind the Service after each scene.
    serving: dict[str, int] = field(default_factory=dict[str, int])
    # After the removal.
    left: set[str] = field(default_factory=set[str])


def next_revision(charm: Path, folder: Path) -> Path:
    """Other content, the same code."""
    copy = Path(shutil.copy(charm, folder / charm.name))
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("revision", "2")
    return copy


@pytest.fixture(scope="module")
def story(
    request: pytest.FixtureRequest, cluster: lab.Cluster, client: Client, charm: Path
) -> Iterator[Story]:
    """3 units, another leader, a new pod, 2 units, the next revision, none, 1, none."""
    selected = f"available-{secrets.token_hex(3)}"
    make_namespace(client, selected, {"test": selected})
    config = {
        "admission": "webhook",
        "namespace-selectors": f"test={selected}",
    }
    pod = meshed.nameless(selected, sidecar=None)
    rate = int(str(request.config.getoption("--creations")))

    def creating() -> Stream:
        return Stream(cluster, pod, rate=rate, dry_run=True)

    with lab.juju.Model(cluster, f"{selected}-model") as model:
        app = model.deploy(charm, trust=True, config=config)
        with creating() as stream:
            await_changes(app, stream)
        yield play(client, app, next_revision(charm, model.folder), creating)
    client.delete(Namespace, selected)


def play(client: Client, app: lab.juju.App, upgrade: Path, creating: Callable[[], Stream]) -> Story:
    story = Story()
    scenes = {
        "3 units": lambda: app.scale(3),
        "another leader": lambda: app.elect(2),
        "a new pod": lambda: app.replace_pod(2),
        "2 units": lambda: app.scale(2),
        "the next revision": lambda: app.refresh(upgrade),
    }
    with creating() as stream:
        for name, scene in scenes.items():
            seen = len(stream.creations)
            story.kinds[f"before {name}"] = owned(client, app)
            scene()
            app.settle()
            stream.await_more(10)
            story.made[name] = stream.creations[seen:]
            story.serving[name] = len(serving(client, app))
        story.kinds["at the end"] = owned(client, app)
    with creating() as stream:
        app.scale(0)
        story.kinds["without a unit"] = owned(client, app)
        app.scale(1)
        await_changes(app, stream)
        app.remove()
        stream.await_more(10)
    story.meanwhile, story.left = stream.creations, owned(client, app)
    return story


def await_changes(app: lab.juju.App, stream: Stream) -> None:
    """Return once pods are changed."""
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
    """T37."""
    assert {scene: found for scene, made in story.made.items() if (found := refused(made))} == {}
    unchanged = {
        scene: f"{missed} of {len(made)}"
        for scene, made in story.made.items()
        if (missed := sum(not is_changed(each) for each in made))
    }
    assert unchanged == {}


def test_no_pod_is_refused_while_the_last_unit_goes_and_the_first_one_comes(story: Story) -> None:
    """T37: and nobody to ask."""
    assert story.meanwhile
    assert refused(story.meanwhile) == set()


def test_every_unit_serves(story: Story) -> None:
    three = {"3 units", "another leader", "a new pod"}
    assert story.serving == {name: 3 if name in three else 2 for name in story.made}
    assert "2 units" in story.made


def test_both_revisions_own_the_same(story: Story) -> None:
    assert story.kinds["before the next revision"] == story.kinds["at the end"]
    assert "MutatingWebhookConfiguration" in story.kinds["at the end"]


def test_nothing_of_ours_is_left_without_a_unit(story: Story) -> None:
    assert story.kinds["without a unit"] == set()
    assert story.left == set()
