"""Applications and namespaces whose pods get a sidecar because somebody asked for it.

The file that names them has one entry a line: ``model/app``, ``model/*`` for all applications of a
model, or ``namespace/**`` for all pods of a namespace that Istio injects; ``#`` starts a comment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec
from msgspec import structs

from istio_aux.core.injection import IGNORED
from istio_aux.core.pod import Metadata, Pod
from istio_aux.core.policy import Application
from istio_aux.core.start import INJECT, plan_label

LABEL = "app.kubernetes.io/name"  # Label that Juju gives all pods of an application.
EVERY = "*"  # Stands for all applications of a model.
ALL_PODS = "**"  # Stands for all pods of a namespace.

# apimachinery pkg/util/validation: IsDNS1123Label. A model is a namespace.
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


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
        """Whether pods have their sidecar because of the file.

        Such pods are held and have their proxy quit in all namespaces.
        """
        asked = namespace in self.namespaces or self.asks(namespace, application)
        return asked and namespace not in IGNORED

    def places(self) -> frozenset[str]:
        """The namespaces of all pods that are covered."""
        return self.models | self.namespaces | {each.namespace for each in self.named}

    def judged(self, pod: Pod) -> Pod:
        """The pod as admission would make it now: with Istio's label if its application asks.

        Returns the same object if admission would not change it.
        """
        asks = self.asks(pod.metadata.namespace, pod.labels.get(LABEL, ""))
        if not asks or not plan_label(pod).ops:
            return pod
        metadata = structs.replace(pod.metadata, labels=asking(pod.labels))
        return structs.replace(pod, metadata=metadata)


def new_pod(application: Application) -> Pod:
    """The next pod of the application, as far as its labels are known."""
    labels = asking({LABEL: application.name})
    return Pod(metadata=Metadata(namespace=application.namespace, labels=labels))


def asking(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels with the one that asks Istio for a sidecar."""
    return {**labels, INJECT: "true"}


def parse(text: str) -> tuple[Applications, tuple[str, ...]]:
    """Read the file; returns its content, and a line about each invalid entry."""
    named, models = set[Application](), set[str]()
    namespaces, problems = set[str](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.partition("#")[0].strip()
        model, slash, name = entry.partition("/")
        if not entry:
            continue
        wild = name in {EVERY, ALL_PODS}
        if not (slash and _NAME.fullmatch(model) and (wild or _NAME.fullmatch(name))):
            expected = (
                f"expected model/app, model/{EVERY} for all its applications,"
                f" or namespace/{ALL_PODS} for all pods"
            )
            problems.append(f"line {number}: {json.dumps(entry)}: {expected}")
        elif name == EVERY:
            models.add(model)
        elif name == ALL_PODS:
            namespaces.add(model)
        else:
            named.add(Application(model, name))
    found = Applications(frozenset(named), frozenset(models), frozenset(namespaces))
    return found, tuple(problems)
