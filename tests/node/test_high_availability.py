"""Units come, go and change while pods are created: none is refused, and none is missed.

The story of two units is played by day, with 10 creations a second, and a longer one at night, with
25. `tox run -e node -- tests/node/test_high_availability.py --creations 100` makes more.
The webhook alone changes the pods: whatever it misses is created unchanged. No unit is killed
here: until Kubernetes takes one out of the Service, reviews still go there.
"""

from __future__ import annotations

import secrets
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
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

# The long story takes 4 minutes, 12 beside much else.
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Scene:
    """What happens to an application, and how many of its units serve afterwards."""

    name: str
    units: int
    play: Callable[[lab.juju.App, Path], object]  # With the next revision of the charm.


UPGRADE = Scene("the next revision", 2, lambda app, upgrade: app.refresh(upgrade))
# The unit that leads is also the one that goes, and the last two units go with the application.
BY_DAY = (
    UPGRADE,
    Scene("another leader", 2, lambda app, _: app.elect(1)),
    Scene("1 unit", 1, lambda app, _: app.scale(1)),
)
BY_NIGHT = (
    Scene("3 units", 3, lambda app, _: app.scale(3)),
    Scene("another leader", 3, lambda app, _: app.elect(2)),
    Scene("a new pod", 3, lambda app, _: app.replace_pod(2)),
    Scene("2 units", 2, lambda app, _: app.scale(2)),
    UPGRADE,
)


@dataclass
class Story:
    """What was seen of an application while pods were created all the time."""

    scenes: Sequence[Scene]
    # Pods by the scene in which they were made, with at least one unit; and those that were made
    # while there was no unit yet, or none any more.
    made: dict[str, list[Creation]] = field(default_factory=dict[str, list[Creation]])
    meanwhile: list[Creation] = field(default_factory=list[Creation])
    # What the charm owned before and after the upgrade.
    kinds: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    # How many units were behind the Service after each scene.
    serving: dict[str, int] = field(default_factory=dict[str, int])
    # What the charm owned whenever there was no unit any more.
    left: list[set[str]] = field(default_factory=list[set[str]])


def next_revision(charm: Path, folder: Path) -> Path:
    """Other content, the same code."""
    copy = Path(shutil.copy(charm, folder / charm.name))
    with zipfile.ZipFile(copy, "a") as archive:
        archive.writestr("revision", "2")
    return copy


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(BY_DAY, id="by-day"),
        pytest.param(BY_NIGHT, id="by-night", marks=pytest.mark.nightly("a story of two units")),
    ],
)
def story(
    request: pytest.FixtureRequest, cluster: lab.Cluster, client: Client, charm: Path
) -> Iterator[Story]:
    """The first units, the scenes, and the end of the last unit; at night it goes twice."""
    selected = f"available-{secrets.token_hex(3)}"
    make_namespace(client, selected, {"test": selected})
    config = {"namespace-selectors": f"test={selected}"}
    pod = meshed.nameless(selected, sidecar=None)
    rate = int(str(request.config.getoption("--creations")))
    told = Story(request.param)
    long = told.scenes is BY_NIGHT

    def creating() -> Stream:
        return Stream(cluster, pod, rate=rate, dry_run=True)

    with lab.juju.Model(cluster, f"{selected}-model") as model:
        with creating() as stream:
            app = model.deploy(charm, trust=True, config=config, units=1 if long else 2)
            await_changes(app, stream)
        told.meanwhile += stream.creations
        play(client, app, next_revision(charm, model.folder), creating, told)
        with creating() as stream:
            if long:
                app.scale(0)
                told.left.append(owned(client, app))
                app.scale(1)
                await_changes(app, stream)
            app.remove()
            stream.await_more(10)
        told.meanwhile += stream.creations
        told.left.append(owned(client, app))
        yield told
    client.delete(Namespace, selected)


def play(
    client: Client, app: lab.juju.App, upgrade: Path, creating: Callable[[], Stream], told: Story
) -> None:
    with creating() as stream:
        for scene in told.scenes:
            seen = len(stream.creations)
            told.kinds[f"before {scene.name}"] = owned(client, app)
            scene.play(app, upgrade)
            app.settle()
            stream.await_more(10)
            told.made[scene.name] = stream.creations[seen:]
            told.serving[scene.name] = len(serving(client, app))
        told.kinds["at the end"] = owned(client, app)


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
    assert story.serving == {scene.name: scene.units for scene in story.scenes}
    assert story.serving


def test_both_revisions_own_the_same(story: Story) -> None:
    assert story.kinds[f"before {UPGRADE.name}"] == story.kinds["at the end"]
    assert "MutatingWebhookConfiguration" in story.kinds["at the end"]


def test_nothing_of_ours_is_left_without_a_unit(story: Story) -> None:
    assert story.left == [set()] * (2 if story.scenes is BY_NIGHT else 1)
