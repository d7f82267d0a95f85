"""The scenes: the same job in three profiles of Kubeflow, of which one has opted out of istio-aux.

In the third one Istio makes sidecars native on request, and `start-mode: auto` asks for them. What
istio-aux promises are checks of what happened: each is kept or broken, with the reason. `Steps` are
what is printed meanwhile: one line a step, with the seconds since the start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
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
from rich.console import Console

from demo.story import JobStory, PodStory, linger, watch


class Steps:
    """Prints steps as they are done; several threads may."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(width=100, highlight=False)
        self._start = time.monotonic()
        self._lock = threading.Lock()

    def done(self, what: str) -> None:
        with self._lock:
            seconds = time.monotonic() - self._start
            self._console.print(f"{seconds:7.1f} s  {what}", markup=False, soft_wrap=True)


def narrator(steps: Steps) -> Callable[[JobStory], None]:
    """Prints what a story has become since it was last told, however often that is."""
    said = set[tuple[str, str]]()

    def tell(story: JobStory) -> None:
        for about, what, words in _facts(story):
            if (about, what) not in said:
                said.add((about, what))
                steps.done(f"{story.namespace}: {words}")

    return tell


def _facts(story: JobStory) -> Iterator[tuple[str, str, str]]:
    job = f"{story.kind} {story.name}"
    yield job, "created", f"{job} created, {story.workers} workers"
    for pod in story.pods:
        for what, words in _pod_facts(pod):
            yield pod.name, what, f"{pod.name}: {words}"
    if story.succeeded:
        yield job, "succeeded", f"{job} {story.condition}"


def _pod_facts(pod: PodStory) -> Iterator[tuple[str, str]]:
    if pod.failed_tries:
        code = pod.failed_tries[0].exit_code
        early = ", its proxy is not ready yet" if pod.proxy_ready is None else ""
        yield "failed", f"payload fails with exit code {code}{early}"
    if pod.last_try and pod.last_try.succeeded:
        yield "done", "payload done"
    if pod.proxy_run and pod.proxy_run.finished:
        yield "exited", f"proxy exits with {pod.proxy_run.exit_code}"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the promise; `why` states the facts it was judged by."""

    name: str
    kept: bool
    why: str


@dataclass(frozen=True, slots=True)
class Performance:
    """The job without and with istio-aux, and a status to show.

    `native` is the job once Istio makes sidecars native on request.
    `worlds` has one row for each kind of Istio: how a pod of the second namespace is started there,
    and one for a pod that was there before its istiod.
    """

    without: JobStory
    helped: JobStory
    native: JobStory
    status: str
    worlds: tuple[Check, ...] = ()

    @property
    def jobs(self) -> tuple[JobStory, JobStory, JobStory]:
        return self.without, self.helped, self.native


def judge(without: JobStory, *helped: JobStory) -> tuple[Check, ...]:
    """Judge the same job in a namespace without istio-aux and in others with it."""
    rules = (_succeeded, _workers_succeeded, _first_try, _after_proxy, _proxy_exit)
    checks = [rule(job) for job in helped for rule in rules]
    return (_not_succeeded(without), _sidecar_to_blame(without), *checks)


def _not_succeeded(job: JobStory) -> Check:
    state = job.condition or "not over"
    return Check(
        f"{job.setting}, the {job.kind} does not succeed",
        bool(job.pods) and not job.succeeded,
        f"{job.namespace}/{job.name} is {state} after {job.seconds(job.until):.0f} s",
    )


def _sidecar_to_blame(job: JobStory) -> Check:
    """A job that never ran at all does not succeed either, and would prove nothing."""

    def one(pod: PodStory) -> tuple[bool, str]:
        run = pod.last_try
        ended = run is not None and run.finished is not None
        payload = f"payload exit code {run.exit_code}" if run and ended else "payload not over"
        return pod.hangs, f"{payload}, pod {pod.result}"

    return _each(f"{job.setting}, every payload ends and its proxy runs on", job, one)


def _succeeded(job: JobStory) -> Check:
    return Check(
        f"{job.setting}, the {job.kind} succeeds",
        job.succeeded,
        f"{job.namespace}/{job.name} is {job.condition or 'not over'}",
    )


def _workers_succeeded(job: JobStory) -> Check:
    return _each(
        f"{job.setting}, all {job.workers} workers succeed",
        job,
        lambda pod: (pod.phase == "Succeeded", pod.result),
    )


def _first_try(job: JobStory) -> Check:
    def one(pod: PodStory) -> tuple[bool, str]:
        codes = [run.exit_code for run in pod.payload]
        return codes == [0], f"exit codes {codes}"

    return _each(f"{job.setting}, every payload runs once and exits 0", job, one)


def _after_proxy(job: JobStory) -> Check:
    return _each(f"{job.setting}, no payload starts before its proxy is ready", job, _started_after)


def _started_after(pod: PodStory) -> tuple[bool, str]:
    """Compare in whole seconds, as Kubernetes reports them, and by the payload's first logged line.

    Either alone proves that the payload came too early; a start within the proxy's own second is
    settled by the log.
    """
    if not pod.payload or pod.proxy_ready is None:
        return False, "payload or proxy never started" if not pod.payload else "proxy never ready"
    started, ready = pod.payload[0].started, pod.proxy_ready
    spoke_early = pod.first_word is not None and pod.first_word < ready
    kept = started.replace(microsecond=0) >= ready.replace(microsecond=0) and not spoke_early
    gap = (started - ready).total_seconds()
    # The API's whole second of the start may lie before a ready time that the log gives exactly.
    if kept and gap < 0:
        return True, "in the same second"
    return kept, f"{abs(gap):.1f} s {'after' if gap >= 0 else 'before'} it"


def _proxy_exit(job: JobStory) -> Check:
    def one(pod: PodStory) -> tuple[bool, str]:
        run = pod.proxy_run
        if run is None:
            return False, "no proxy"
        if run.finished is None:
            return False, "still running"
        return run.exit_code == 0, f"exit code {run.exit_code}"

    return _each(f"{job.setting}, every proxy exits 0", job, one)


def _each(name: str, job: JobStory, one: Callable[[PodStory], tuple[bool, str]]) -> Check:
    """One check over all pods; `one` says whether a pod keeps it, and the fact it goes by."""
    verdicts = [(pod.name, *one(pod)) for pod in job.pods]
    missing = job.workers - len(verdicts)
    facts = [f"{pod}: {why}" for pod, _, why in verdicts]
    if missing > 0:
        facts.append(f"{missing} of {job.workers} pods were never seen")
    return Check(name, missing <= 0 and all(kept for _, kept, _ in verdicts), "; ".join(facts))


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
