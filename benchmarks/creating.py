"""What admission costs the creation of a pod, through the real API server, in each of its forms.

Each form has a namespace, and all exist at once. Nothing is switched between two blocks of pods, so
blocks are short, and what else the machine does affects all forms alike.
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
from lightkube import codecs
from lightkube.codecs import AnyResource
from lightkube.resources.core_v1 import Namespace, Pod

import manifests
from benchmarks import broken_hook, reviews
from benchmarks.admission_numbers import (
    ALONE,
    EMPTY,
    FORMS,
    NEITHER,
    POLICY,
    SMALL,
    TRIVIAL,
    WEBHOOK,
    Creations,
    Trouble,
)
from benchmarks.broken_hook import INAPPLICABLE, LABEL
from benchmarks.conversation import MeasurementError
from benchmarks.processes import cpu

NAME = "bench-admission"
KEY = "bench.istio-aux.io/form"
"""Label of the namespaces; its value names the form."""
LABELS = {
    NEITHER: "neither", EMPTY: "empty", TRIVIAL: "trivial", ALONE: "alone", POLICY: "policy",
    WEBHOOK: "webhook",
}  # fmt: skip

KILLED, STOPPED = "killed", "stopped"
ANSWERING = {"not-json": "answers garbage", "error-500": "answers 500"}
SILENT = {"blackholed": "blackholed", "mute": "takes the review, never answers"}
"""Ways of `broken_hook`, as the table names them: those that end at once, and those that do not."""

STARTED_WITH = "istio-aux.io/started-with"


def deploy(cluster: lab.Cluster, folder: Path) -> Workload:
    """Start the workload whose webhook is measured; it need not be ready yet."""
    workload = Workload(cluster, folder, name=NAME, model=NAME, selector=_selector(WEBHOOK))
    workload.deploy()
    workload.start()
    return workload


@contextmanager
def published(cluster: lab.Cluster, workload: Workload, folder: Path) -> Generator[Forms]:
    """All forms in force, each in a namespace of its own; gone after the block."""
    # The webhook is not called for what the policy changes, so it needs no process.
    policy = Workload(
        cluster, folder, name=f"{NAME}-policy", model=NAME, selector=_selector(POLICY),
        admission="policy",
    )  # fmt: skip
    alone = manifests.Values(
        f"{NAME}-alone", NAME, namespace_selectors=[{"matchLabels": {KEY: LABELS[ALONE]}}],
        admission="policy",
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        for form in FORMS:
            stack.enter_context(_namespace(cluster, _place(form), {KEY: LABELS[form]}))
        # The API server learns of policies in this order: when ours is in force, so are these.
        for objects in (
            _yardstick(EMPTY, ""),
            _yardstick(TRIVIAL, f"'{STARTED_WITH}': 'trivial'"),
            manifests.render_start_policy(alone),
        ):
            stack.enter_context(_applied(cluster, objects))
        for one, form in ((workload, WEBHOOK), (policy, POLICY)):
            one.publish()
            stack.callback(one.withdraw)
            one.await_admission(_place(form))
        yield Forms(cluster, workload)


def _selector(form: str) -> str:
    return f"{KEY}={LABELS[form]}"


def _yardstick(form: str, annotation: str) -> list[AnyResource]:
    """A policy that adds ``annotation``, CEL for an entry of a map, to pods that have none."""
    name = f"{NAME}-{LABELS[form]}"
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"],
    }  # fmt: skip
    operation = f"JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{{annotation}}}}}"
    expression = f"[{operation}]" if annotation else f"false ? [{operation}] : []"
    spec = {
        "matchConstraints": {
            "namespaceSelector": {"matchLabels": {KEY: LABELS[form]}},
            "resourceRules": [rule],
        },
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {"expression": expression},
            }
        ],
    }
    binding = {"policyName": name}
    return [
        codecs.from_dict({**head, "kind": "MutatingAdmissionPolicy", "spec": spec}),
        codecs.from_dict({**head, "kind": "MutatingAdmissionPolicyBinding", "spec": binding}),
    ]


@contextmanager
def _applied(cluster: lab.Cluster, objects: Sequence[AnyResource]) -> Generator[None]:
    with cluster.client() as client:
        for one in objects:
            client.create(one)
    yield
    with cluster.client() as client:
        for one in reversed(objects):
            assert one.metadata
            client.delete(type(one), str(one.metadata.name))


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
            if one.status != 201 or _changed(one) is (form in {NEITHER, EMPTY}):
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
        webhook, policy = _place(WEBHOOK), _place(POLICY)
        found: list[Trouble] = []
        with self._broken({**ANSWERING, **(SILENT if patience else {})}) as broken:
            if patience:
                self._workload.process.kill(signal.SIGSTOP)
                lasting = {STOPPED: webhook, **{SILENT[way]: broken[way] for way in SILENT}}
                found += self._at_once(each, lasting)
            for way, what in ANSWERING.items():
                found.append(_trouble(WEBHOOK, what, self._in_turn(broken[way], each)))
        self._workload.process.kill()
        self._workload.process.wait(10)
        found.append(_trouble(WEBHOOK, KILLED, self._in_turn(webhook, each)))
        found.append(_trouble(POLICY, KILLED, self._in_turn(policy, each)))
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
            _trouble(WEBHOOK, what, made[start * each : (start + 1) * each])
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
    return f"{NAME}-{LABELS[form]}"


@contextmanager
def _namespace(cluster: lab.Cluster, name: str, labels: dict[str, str]) -> Generator[None]:
    with cluster.client() as client:
        make_namespace(client, name, labels)
    yield
    with cluster.client() as client:
        client.delete(Namespace, name)


def _trouble(form: str, what: str, made: Sequence[Creation]) -> Trouble:
    if refused := [one for one in made if one.status != 201]:
        raise MeasurementError(f"{what}: {refused[0].status} {refused[0].body!r:.500}")
    seconds = _milliseconds(made)
    return Trouble(form=form, what=what, milliseconds=seconds, changed=sum(map(_changed, made)))


def _changed(made: Creation) -> bool:
    return STARTED_WITH in annotations_of(made.pod)


def _milliseconds(made: Sequence[Creation]) -> list[float]:
    return [one.seconds * 1e3 for one in made]
