"""Applications and namespaces whose pods get a sidecar on request.

The file that names them has one entry a line: ``model/app``, ``model/*`` for all applications of a
model, or ``namespace/**`` for all pods of a namespace that Istio injects; ``#`` starts a comment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from istio_aux.model.annotations import Source, text_label
from istio_aux.model.names import IGNORED
from istio_aux.model.selectors import DNS_LABEL, NamespaceSelectors, Selector

LABEL = "app.kubernetes.io/name"  # Label that Juju gives all pods of an application.
_application = text_label(LABEL)
EVERY = "*"  # Stands for all applications of a model.
ALL_PODS = "**"  # Stands for all pods of a namespace.


class Application(msgspec.Struct, frozen=True):
    """A Juju application: its model's namespace and the ``app.kubernetes.io/name`` of its pods.

    As an entry of the file its name may be `EVERY` or `ALL_PODS`.
    """

    namespace: str
    name: str


class Applications(msgspec.Struct, frozen=True):
    """The content of the file."""

    named: frozenset[Application] = frozenset()

    def asks(self, namespace: str, application: str) -> bool:
        """Whether the application, the value of a pod's `LABEL`, asks for sidecars."""
        entries = {Application(namespace, application), Application(namespace, EVERY)}
        return bool(application) and not entries.isdisjoint(self.named)

    def covers(self, namespace: str, application: str) -> bool:
        """Whether the file gives pods their sidecar: such pods count in every namespace."""
        # All pods of such a namespace get it by a label that the charm sets.
        every = Application(namespace, ALL_PODS) in self.named
        return (every or self.asks(namespace, application)) and namespace not in IGNORED


class PodOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that choose pods, by their labels and those of their namespace."""

    namespaces: NamespaceSelectors = NamespaceSelectors()
    pods: Selector = Selector()
    inject: Selector | None = None

    def injects(self, labels: Mapping[str, str]) -> bool:
        """Whether the option ``inject-selector`` matches a pod with these labels."""
        return self.inject is not None and self.inject.matches(labels)

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
    problems = list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        model, _, name = entry.partition("/")
        wild = name in {EVERY, ALL_PODS}
        if DNS_LABEL.fullmatch(model) and (wild or DNS_LABEL.fullmatch(name)):
            named.add(Application(model, name))
        elif entry:
            problems.append(
                f"line {number}: {json.dumps(entry)}: expected model/app, model/{EVERY} for all"
                f" its applications, or namespace/{ALL_PODS} for all pods"
            )
    return Applications(frozenset(named)), tuple(problems)
