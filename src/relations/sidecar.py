"""The relation `sidecar` (interface `istio_sidecar`): which charms ask for sidecars, and answers.

The library has the interface; this module decides what istio-aux grants and answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import ops
from charms.istio_aux.v0.sidecar import Mesh, SidecarProvider, SidecarRequest

from config import NEVER_INJECTED, Applications
from probe import Probe

ENDPOINT: Final = "sidecar"


@dataclass(frozen=True)
class Asked:
    """What one relation asks for."""

    relation_id: int
    application: Applications | None  # None if the request is refused.
    refusal: str = ""


def asked(charm: ops.CharmBase) -> tuple[Asked, ...]:
    """Return what all relations ask for."""
    found: list[Asked] = []
    for one in SidecarProvider(charm, ENDPOINT).requests():
        relation = charm.model.get_relation(ENDPOINT, one.relation_id)
        assert relation is not None  # The library has just found it.
        if request := one.request:
            application = Applications(request.model, (request.application,))
            refusal = _refusal(request, relation.app.name, charm.model.name)
        else:
            application, refusal = None, one.reason
        found.append(Asked(one.relation_id, None if refusal else application, refusal))
    return tuple(found)


def answer(charm: ops.CharmBase, asked: Iterable[Asked], probe: Probe | None) -> None:
    """Publish to each relation what the workload says; leader only.

    While the workload starts (`probe` is None), the earlier answer stays, so its restart changes
    nothing. Before the first answer, an unknown state is published as not live.
    """
    if not charm.unit.is_leader():
        return
    provider = SidecarProvider(charm, ENDPOINT)
    for one in asked:
        mesh = _mesh(one, probe)
        relation = charm.model.get_relation(ENDPOINT, one.relation_id)
        if mesh is None and relation and not relation.data[charm.app].get("live"):
            mesh = Mesh(live=False, reason="not known yet whether Istio injects")
        if mesh:
            provider.publish(one.relation_id, mesh)


def _mesh(asked: Asked, probe: Probe | None) -> Mesh | None:
    """Return the answer, None while it is unknown."""
    if asked.application is None:
        return Mesh(live=False, reason=asked.refusal)
    if probe is None:
        return None
    if why := probe.ignorance():
        return Mesh(live=False, reason=why)
    name = (asked.application.model, *(asked.application.names or ()))
    state = next((a for a in probe.applications if (a.model, a.name) == name), None)
    if state is None or not probe.injectors:
        return None
    return Mesh(
        # None, unknown, is published as not live.
        live=state.live is True,
        reason=state.live_reason,
        root_namespace=state.root_namespace or None,
        revision=state.revision or None,
        meshed=state.meshed,
        meshed_reason=state.meshed_reason,
    )


def _refusal(request: SidecarRequest, remote: str, model: str) -> str:
    """Return why `remote` may not ask for this, or the empty text.

    Juju shows the real name of the other side only within a model.
    """
    if request.model == model and request.application != remote:
        return f"{remote}: application {request.application}: expected its own name"
    if request.model in NEVER_INJECTED:
        return f"{remote}: model {request.model}: expected one that Istio does not ignore"
    return ""
