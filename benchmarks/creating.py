"""What the webhook costs the creation of a pod, through the real API server.

Pods with and without it have a namespace each, and both exist at once. Nothing is switched between
two blocks of pods, so blocks are short, and what else the machine does affects both alike.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import lab
from lab import creation
from lab.creation import Creation
from lab.fixtures import make_namespace
from lab.meshed import annotations_of
from lab.workload import Workload
from lightkube.resources.core_v1 import Namespace, Pod

from benchmarks import broken_hook, reviews
from benchmarks.admission_numbers import FORMS, NEITHER, SMALL, WEBHOOK, Creations, Trouble
from benchmarks.broken_hook import INAPPLICABLE, LABEL
from benchmarks.conversation import MeasurementError
from benchmarks.processes import cpu

NAME = "bench-admission"
KEY = "bench.istio-aux.io/form"
"""Label of the namespaces; its value names the form."""

KILLED, STOPPED = "killed", "stopped"
ANSWERING = {"not-json": "answers garbage", "error-500": "answers 500"}
SILENT = {"blackholed": "blackholed", "mute": "takes the review, never answers"}
"""Ways of `broken_hook`, as the table names them: those that end at once, and those that do not."""

STARTED_WITH = "istio-aux.io/started-with"


def deploy(cluster: lab.Cluster, folder: Path) -> Workload:
    """Start the workload whose webhook is measured; it need not be ready yet."""
    workload = Workload(cluster, folder, name=NAME, model=NAME, selector=f"{KEY}={WEBHOOK}")
    workload.deploy()
    workload.start()
    return workload


@contextmanager
def published(cluster: lab.Cluster, workload: Workload) -> Generator[Forms]:
    """All forms in force, each in a namespace of its own; gone after the block."""
    with contextlib.ExitStack() as stack:
        for form in FORMS:
            stack.enter_context(_namespace(cluster, _place(form), {KEY: form}))
        workload.publish()
        stack.callback(workload.withdraw)
        workload.await_admission(_place(WEBHOOK))
        yield Forms(cluster, workload)


class Forms:
    """The namespaces; made by `published`."""

    def __init__(self, cluster: lab.Cluster, workload: Workload) -> None:
        self._cluster, self._workload = cluster, workload
        self._numbers = count()

    def create(self, form: str, count: int, *, dry_run: bool) -> Creations:
        """Create a block of so many pods, one after another.

        Raises MeasurementError when one was not treated as its form has it.
        """
        server = self._cluster.process("kube-apiserver").pid
        before = cpu(server)
        made = self._in_turn(_place(form), count, dry_run=dry_run)
        spent = cpu(server) - before
        for one in made:
            if one.status != 201 or _changed(one) is (form == NEITHER):
                raise MeasurementError(f"a pod of {form}: {one.status} {one.body!r:.500}")
        return Creations(
            form=form,
            dry_run=dry_run,
            milliseconds=_milliseconds(made),
            cpu=[spent / count * 1e3],
        )

    def troubles(self, each: int, *, patience: bool) -> list[Trouble]:
        """Create so many pods in each trouble; with ``patience`` also in those that last.

        The workload is dead in the end.
        """
        webhook = _place(WEBHOOK)
        found: list[Trouble] = []
        with self._broken({**ANSWERING, **(SILENT if patience else {})}) as broken:
            if patience:
                self._workload.process.kill(signal.SIGSTOP)
                lasting = {STOPPED: webhook, **{SILENT[way]: broken[way] for way in SILENT}}
                found += self._at_once(each, lasting)
            for way, what in ANSWERING.items():
                found.append(_trouble(what, self._in_turn(broken[way], each)))
        self._workload.process.kill()
        self._workload.process.wait(10)
        found.append(_trouble(KILLED, self._in_turn(webhook, each)))
        return found

    def _in_turn(self, namespace: str, count: int, *, dry_run: bool = False) -> list[Creation]:
        # One more before them, for the connection.
        pods = [self._pod(namespace) for _ in range(count + 1)]
        return creation.create(self._cluster, *pods, dry_run=dry_run, at_once=1)[1:]

    def _at_once(self, each: int, places: Mapping[str, str]) -> list[Trouble]:
        """Nothing is busy while the API server waits, so all may wait at the same time."""
        pods = [self._pod(namespace) for namespace in places.values() for _ in range(each)]
        made = creation.create(self._cluster, *pods)
        return [
            _trouble(what, made[start * each : (start + 1) * each])
            for start, what in enumerate(places)
        ]

    @contextmanager
    def _broken(self, ways: Mapping[str, str]) -> Generator[dict[str, str]]:
        """Webhooks that are broken in these ways, in force; yields their namespaces."""
        names = {way: f"{NAME}-{way}" for way in (*ways, INAPPLICABLE)}
        with contextlib.ExitStack() as stack:
            for way, name in names.items():
                stack.enter_context(_namespace(self._cluster, name, {LABEL: way}))
            stack.enter_context(broken_hook.broken_hooks(self._cluster, tuple(names)))
            last = self._pod(names[INAPPLICABLE])
            lab.until(
                lambda: creation.create(self._cluster, last, dry_run=True)[0].status != 201,
                timeout=30,
                what="the broken webhooks to be called",
            )
            yield names

    def _pod(self, namespace: str) -> Pod:
        """A new worker of a TFJob."""
        name = f"mnist-worker-{next(self._numbers)}"
        pod = Pod.from_dict(reviews.pod(SMALL, name, namespace))
        assert isinstance(pod, Pod)
        return pod


def _place(form: str) -> str:
    return f"{NAME}-{form}"


@contextmanager
def _namespace(cluster: lab.Cluster, name: str, labels: dict[str, str]) -> Generator[None]:
    with cluster.client() as client:
        make_namespace(client, name, labels)
    yield
    with cluster.client() as client:
        client.delete(Namespace, name)


def _trouble(what: str, made: Sequence[Creation]) -> Trouble:
    if refused := [one for one in made if one.status != 201]:
        raise MeasurementError(f"{what}: {refused[0].status} {refused[0].body!r:.500}")
    seconds = _milliseconds(made)
    return Trouble(what=what, milliseconds=seconds, changed=sum(map(_changed, made)))


def _changed(made: Creation) -> bool:
    return STARTED_WITH in annotations_of(made.pod)


def _milliseconds(made: Sequence[Creation]) -> list[float]:
    return [one.seconds * 1e3 for one in made]
