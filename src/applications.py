"""Whose pods are to get a sidecar: `inject-applications`, `inject-namespaces` and who else asks.

Pure. What is wrong with an option is told by entry, and what would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

EXPECTED: Final = (
    "applications separated by commas, each as app, model/app, * for all of this model or model/*"
    " for all of another"
)
EVERY: Final = "*"
# In the workload's file: every pod of a namespace.
_ALL_PODS: Final = "**"

# Istio injects nothing there, whatever the labels (istio inject.go IgnoredNamespaces, which has
# Kubernetes' own and local-path-storage).
NEVER_INJECTED: Final = ("kube-node-lease", "kube-public", "kube-system", "local-path-storage")

# apimachinery pkg/util/validation: IsDNS1123Label. A model is a namespace, an application the value
# of its pods' label `app.kubernetes.io/name`; Juju's own rules are narrower, but for the length.
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Applications:
    """Applications of one model.

    Attributes:
        model: name of the model, which is the namespace of their pods.
        names: names of the applications, sorted; None for every application of the model.
    """

    model: str
    names: tuple[str, ...] | None


def parse_applications(text: str, model: str) -> tuple[Applications, ...]:
    """Return the applications that `text` names, one entry for each model, sorted.

    Args:
        text: entries as `EXPECTED` says, blanks around them allowed; nothing names nobody.
        model: the charm's own model, for entries that name none.

    Raises:
        ValueError: entries are of another form; the message is one line that names them.
    """
    found: list[Applications] = []
    wrong: list[str] = []
    for entry in _entries(text):
        where, slash, name = entry.rpartition("/")
        where = where if slash else model
        if _NAME.fullmatch(where) and (name == EVERY or _NAME.fullmatch(name)):
            found.append(Applications(where, None if name == EVERY else (name,)))
        else:
            wrong.append(entry)
    if wrong:
        raise ValueError(f"{_quoted(wrong)}: expected {EXPECTED}")
    if never := [asked.model for asked in found if asked.model in NEVER_INJECTED]:
        raise ValueError(f"{_quoted(never)}: expected models that Istio does not ignore")
    return union(found)


def union(applications: Iterable[Applications]) -> tuple[Applications, ...]:
    """Return the same applications with one entry for each model, sorted."""
    models: dict[str, tuple[str, ...] | None] = {}
    for asked in applications:
        before = models.get(asked.model, ())
        if asked.names is None or before is None:
            models[asked.model] = None
        else:
            models[asked.model] = tuple(sorted({*before, *asked.names}))
    return tuple(Applications(model, names) for model, names in sorted(models.items()))


def as_file(applications: Iterable[Applications], namespaces: Iterable[str] = ()) -> str:
    """Return the workload's applications file, which is never empty.

    Args:
        applications: whose pods ask for a sidecar.
        namespaces: all of whose pods have one by the namespace's label.
    """
    lines = [
        f"{asked.model}/{name}"
        for asked in applications
        for name in (asked.names if asked.names is not None else (EVERY,))
    ]
    lines += [f"{namespace}/{_ALL_PODS}" for namespace in namespaces]
    return "\n".join(["# Whose pods are to get a sidecar: model/application.", *lines, ""])


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the namespaces that `text` names, sorted.

    Args:
        text: names separated by commas; nothing names none.

    Raises:
        ValueError: entries are no names of namespaces, or of such that are never injected; the
            message is one line that names them.
    """
    entries = _entries(text)
    if wrong := [entry for entry in entries if not _NAME.fullmatch(entry)]:
        raise ValueError(f"{_quoted(wrong)}: expected names of namespaces separated by commas")
    if never := [entry for entry in entries if entry in NEVER_INJECTED]:
        raise ValueError(f"{_quoted(never)}: expected namespaces that Istio does not ignore")
    return tuple(sorted(set(entries)))


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _quoted(entries: Sequence[str]) -> str:
    return ", ".join(map(json.dumps, entries))
