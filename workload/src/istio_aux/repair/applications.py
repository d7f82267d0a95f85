"""Say of each application that asked for sidecars whether it has them, and would get them.

Pure: what is known of its pods and of Istio's injectors in, `ApplicationMesh` out.
"""

from __future__ import annotations

from collections.abc import Sequence

from istio_aux.core.applications import EVERY, new_pod
from istio_aux.core.pacing import Mesh
from istio_aux.core.policy import Application
from istio_aux.repair.findings import ApplicationMesh
from istio_aux.repair.ledger import Ledger
from istio_aux.repair.record import Record

NAMED = 3
"""Pods that a reason names; the others are counted."""


def applications(ledger: Ledger, unknown: str = "") -> list[ApplicationMesh]:
    """What is to be said of each application that is named, and of all of a model, sorted.

    ``unknown`` says why nothing can be said of pods; empty if it can.
    """
    models = ledger.applications.models
    every = {Application(model, EVERY) for model in models}
    asking = sorted(ledger.applications.named | every, key=lambda each: (each.namespace, each.name))
    pods: dict[tuple[str, str], list[Record]] = {(each.namespace, each.name): [] for each in asking}
    names = {each.name for each in asking}
    # Most pods of a cluster are of no application that asks, and this is asked often.
    for record in ledger.all():
        namespace, name = record.key.namespace, record.application
        if not name or record.member.deleting:
            continue
        if name in names:
            pods.get((namespace, name), []).append(record)
        if namespace in models:
            pods[namespace, EVERY].append(record)
    return [_mesh(ledger, each, pods[each.namespace, each.name], unknown) for each in asking]


def _mesh(
    ledger: Ledger, asking: Application, pods: Sequence[Record], unknown: str
) -> ApplicationMesh:
    found = ledger.expect(new_pod(asking))
    live = found.expected
    reason = found.reason
    if live:
        live = ledger.mesh.live(found.configuration)
        reason = next(
            (
                each.why
                for each in ledger.mesh.injectors
                if each.configuration == found.configuration
            ),
            "its injector is not among those that are followed",
        )
    root = (
        hook.control_plane.namespace
        for hook in ledger.mesh.hooks
        if (hook.configuration, hook.webhook) == (found.configuration, found.webhook)
    )
    meshed, why = (None, unknown) if unknown else _meshed(pods)
    return ApplicationMesh(
        namespace=asking.namespace,
        name=asking.name,
        live=live,
        live_reason=reason,
        revision=found.revision,
        root_namespace=next(root, ""),
        meshed=meshed,
        meshed_reason=why,
    )


def _meshed(pods: Sequence[Record]) -> tuple[bool | None, str]:
    """Whether each pod has a sidecar; of pods that are on their way out it does not matter."""
    without = sorted(pod.key.name for pod in pods if pod.member.mesh is not Mesh.MESHED)
    if without:
        more = f" and {len(without) - NAMED} more" if len(without) > NAMED else ""
        return False, f"without a sidecar: {', '.join(without[:NAMED])}{more}"
    if not any(pod.running for pod in pods):
        return None, "it has no pod that runs"
    return True, f"{len(pods)} of {len(pods)} pods have a sidecar"
