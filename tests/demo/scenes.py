"""The scenes: the same job in three profiles of Kubeflow, of which one has opted out of istio-aux.

In the third one Istio makes sidecars native on request, and `start-mode: auto` asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab.istio
import yaml
from lab import tools
from lab.istio import EXPECTED, Shape
from lab.upstream import PROFILE
from lab.workloads import RESOURCES
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from demo.promise import Check
from demo.steps import Steps, narrator
from demo.story import JobStory
from demo.watching import linger, watch

KUBERNETES = tools.VERSION.removeprefix("v")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True, slots=True)
class Scene:
    """A namespace, its labels, and whether istio-aux looks after it."""

    namespace: str
    helped: bool

    @property
    def labels(self) -> dict[str, str]:
        """Those of a profile, which istio-aux looks after unless it is told not to."""
        return PROFILE if self.helped else {**PROFILE, "io.datastrophic/istio-aux": "disabled"}


WITHOUT = Scene("without", helped=False)
WITH = Scene("with", helped=True)
NATIVE = Scene("native", helped=True)

ASSUMED = (
    "Istio makes no native sidecars unless it is asked, as on Kubernetes 1.32 and before; "
    "in the third job it makes them on request"
)
"""What the first two jobs depend on: beside a native sidecar nothing hangs and nothing is early."""


def play(scene: Scene, manifest: Path, client: Client, kubeconfig: Path, steps: Steps) -> JobStory:
    """Make the namespace, create the job as it stands in its file, and watch it to its end."""
    client.apply(
        Namespace(metadata=ObjectMeta(name=scene.namespace, labels=scene.labels)),
        field_manager="demo",
    )
    document = example(manifest, scene.namespace)
    resource = RESOURCES[document["kind"]]
    job = resource.from_dict(document)
    story = watch(kubeconfig, resource, job, helped=scene.helped, tell=narrator(steps))
    if not story.succeeded:
        state = story.condition or "not over"
        patience = linger(helped=scene.helped)
        since = f"{patience:.0f} s after its payloads ended" if _hangs(story) else "to the end"
        steps.done(f"{scene.namespace}: {story.kind} {story.name} still {state} {since}")
    return story


def example(manifest: Path, namespace: str) -> dict[str, Any]:
    document = yaml.safe_load(manifest.read_text())
    document["metadata"]["namespace"] = namespace
    return document


def _hangs(story: JobStory) -> bool:
    return bool(story.pods) and all(pod.hangs for pod in story.pods)


SAID = {
    "never": "where Istio makes no native sidecars, a pod is held",
    "on request": "where Istio makes them on request, a pod gets one",
    "default": "where Istio makes them by default, a pod gets one",
}

Made = Callable[[lab.istio.World], tuple[Shape, str]]
"""Makes a pod in that world; returns its shape, and how it ended."""

Become = Callable[[lab.istio.Istio, lab.istio.World, str], object]
"""See `lab.istio.become`."""


def play_worlds(
    istio: lab.istio.Istio,
    namespace: str,
    made: Made,
    native: Callable[[], JobStory],
    steps: Steps,
    *,
    among: Iterable[lab.istio.World] = EXPECTED,
    become: Become = lab.istio.become,
) -> tuple[JobStory, tuple[Check, ...]]:
    """Let Istio be each of these worlds, and make a pod in it; `native` plays in one of them.

    The first world is the one in which Istio is installed.
    """
    rows: list[Check] = []
    stories: list[JobStory] = []
    for world in among:
        become(istio, world, namespace)
        shape, why = made(world)
        sidecar = "a native sidecar" if shape.native else "a classic sidecar"
        start = f"started with {shape.started_with}" if shape.started_with else "left to Istio"
        why = f"{sidecar}, {start}, {why}"
        steps.done(f"{namespace}: Istio {world}: {why}")
        rows.append(Check(f"with istio-aux, {SAID[world]}", shape == EXPECTED[world], why))
        if world == "on request":
            stories.append(native())
    [story] = stories
    return story, tuple(rows)
