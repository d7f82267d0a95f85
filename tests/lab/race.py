"""The deployment race as a scene for tests: two models, their pods, and what status reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube import Client
from lightkube.resources.apps_v1 import StatefulSet
from lightkube.resources.core_v1 import Pod

import lab
import lab.juju
from lab.meshed import has_sidecar, is_ready

MODEL, ELSEWHERE = "early", "elsewhere"
EARLY, LATE, ASKING = ("charm-a", "charm-b"), "charm-c", "asking"
UNMESHED = {*(f"{name}-0" for name in EARLY), f"{ASKING}-0"}
# Measured beside other work on 2 cores: all is repaired 10 s after the policy says so.
SOON = 100


@dataclass(frozen=True)
class Seen:
    """How things were at one moment.

    Attributes:
        pods: those of both models, by name without what a Deployment adds.
        stateful_sets: those of both models, without their status.
        status: the message of istio-aux in `juju status`.
        answer: what istio-aux answers the asking charm over their relation.
        asking: status and message of the asking charm.
    """

    pods: Mapping[str, Pod]
    stateful_sets: Mapping[str, Any]
    status: str
    answer: Mapping[str, str]
    asking: tuple[str, str]

    def meshed(self) -> set[str]:
        """The pods that have a sidecar."""
        return {name for name, pod in self.pods.items() if has_sidecar(pod)}

    def uids(self) -> dict[str, str]:
        """The pods' UIDs."""
        return {name: str(pod.metadata and pod.metadata.uid) for name, pod in self.pods.items()}


@dataclass(frozen=True)
class World:
    """Two models, related, and how to look at them.

    Attributes:
        client: of the cluster.
        istio_aux: our charm, in the model whose charms an administrator names.
        asking: the charm that asks, in the other one.
        relation: between them, as the asking charm sees it.
        offered: the same as istio-aux sees it.
    """

    client: Client
    istio_aux: lab.juju.App
    asking: lab.juju.App
    relation: lab.juju.Relation
    offered: lab.juju.Relation

    def look(self) -> Seen:
        """How things are now."""
        return Seen(
            pods={
                name_of(pod): pod
                for model in (MODEL, ELSEWHERE)
                for pod in self.client.list(Pod, namespace=model)
            },
            stateful_sets={
                str(found.metadata and found.metadata.name): written(found)
                for model in (MODEL, ELSEWHERE)
                for found in self.client.list(StatefulSet, namespace=model)
            },
            status=self.istio_aux.status()[1],
            answer=dict(self.relation.data(self.istio_aux.name)),
            asking=self.asking.status(),
        )

    def settle(self) -> None:
        """Return when neither model has anything to do."""
        # What one application writes is an event for the other, and so is the answer.
        for app in (self.istio_aux, self.asking, self.istio_aux, self.asking):
            app.settle(waiting=True)

    def await_pods(self, *names: str, meshed: bool = False) -> None:
        """Return when these pods are ready, with a sidecar if they are to be meshed."""

        def there() -> bool:
            seen = self.look()
            ready = {name for name, pod in seen.pods.items() if is_ready(pod)}
            return {*names} <= (ready & seen.meshed() if meshed else ready)

        lab.until(there, timeout=SOON, what=f"{', '.join(names)} to be there, meshed: {meshed}")

    def await_answer(self, **answer: str) -> Seen:
        """Return how things are once the asking charm has this answer, and shows it."""

        def shown() -> Seen | None:
            seen = self.look()
            given = answer.items() <= seen.answer.items()
            return seen if given and seen.asking[1] in {*seen.answer.values(), "meshed"} else None

        return lab.until(shown, timeout=SOON, what=f"the asking charm to get the answer {answer}")


def name_of(pod: Pod) -> str:
    assert pod.metadata
    return (pod.metadata.labels or {}).get("operator.juju.is/name") or str(pod.metadata.name)


def written(stateful_set: StatefulSet) -> tuple[Any, ...]:
    assert stateful_set.metadata
    managers = stateful_set.metadata.managedFields or []
    spec = stateful_set.spec and stateful_set.spec.to_dict()
    return (
        stateful_set.metadata.generation,
        spec,
        [m.to_dict() for m in managers if m.subresource != "status"],
    )
