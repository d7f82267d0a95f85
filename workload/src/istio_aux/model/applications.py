"""Applications and namespaces whose pods get a sidecar on request.

The file that names them has one entry a line: ``model/app``, ``model/*`` for all applications of a
model, or ``namespace/**`` for all pods of a namespace that Istio injects; ``#`` starts a comment.
"""

from __future__ import annotations

import json

import msgspec

from istio_aux.model.annotations import Source, text_label
from istio_aux.model.names import IGNORED
from istio_aux.model.selectors import DNS_LABEL, NamespaceSelectors, Selector

LABEL = "app.kubernetes.io/name"  # Label that Juju gives all pods of an application.
_application = text_label(LABEL)
EVERY = "*"  # Stands for all applications of a model.
ALL_PODS = "**"  # Stands for all pods of a namespace.


class Application(msgspec.Struct, frozen=True):
    """A Juju application: its model's namespace and the ``app.kubernetes.io/name`` of its pods."""

    namespace: str
    name: str


class Applications(msgspec.Struct, frozen=True):
    """The content of the file."""

    named: frozenset[Application] = frozenset()
    models: frozenset[str] = frozenset()  # Namespaces all of whose applications ask.
    # Namespaces all of whose pods get a sidecar by a label that the charm sets.
    namespaces: frozenset[str] = frozenset()

    def asks(self, namespace: str, application: str) -> bool:
        """Whether the application, the value of a pod's `LABEL`, asks for sidecars."""
        if not application:
            return False
        return namespace in self.models or Application(namespace, application) in self.named

    def covers(self, namespace: str, application: str) -> bool:
        """Whether the file gives pods their sidecar: such pods count in every namespace."""
        requested = namespace in self.namespaces or self.asks(namespace, application)
        return requested and namespace not in IGNORED


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that choose pods, by their labels and those of their namespace."""

    namespaces: NamespaceSelectors = NamespaceSelectors()
    pods: Selector = Selector()
    inject: Selector | None = None

    def left_out(
        self, namespace: str, *, selected: bool, chosen: bool, covered: bool
    ) -> str | None:
        """Why a pod of ``namespace`` is left alone; None: it is looked after.

        ``selected``: `namespaces` match its namespace. ``chosen``: `pods` match its labels.
        ``covered``: istio-aux gave it its sidecar (`Applications.covers`), which is enough.
        """
        if covered:
            return None
        if not selected:
            return f"namespace {namespace} is not selected"
        return None if chosen else self.pods.mismatch


def application_of(pod: Source) -> str:
    """The application of a pod, by its metadata or labels; empty if it names none."""
    return _application.get(pod) or ""


def parse(text: str) -> tuple[Applications, tuple[str, ...]]:
    """Read the file; returns its content, and a line about each invalid entry."""
    named = set[Application]()
    models = set[str]()
    namespaces = set[str]()
    problems = list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        model, slash, name = entry.partition("/")
        if not entry:
            continue
        wild = name in {EVERY, ALL_PODS}
        if not (slash and DNS_LABEL.fullmatch(model) and (wild or DNS_LABEL.fullmatch(name))):
            problems.append(
                f"line {number}: {json.dumps(entry)}: expected model/app, model/{EVERY} for all"
                f" its applications, or namespace/{ALL_PODS} for all pods"
            )
        elif name == EVERY:
            models.add(model)
        elif name == ALL_PODS:
            namespaces.add(model)
        else:
            named.add(Application(model, name))
    return Applications(frozenset(named), frozenset(models), frozenset(namespaces)), tuple(problems)
