"""The relation `sidecar` (interface `istio_sidecar`): who asks for sidecars, and what each is told.

The library speaks the interface; here is what istio-aux grants, and when it knows an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import ops
from charms.istio_aux.v0.sidecar import Mesh, SidecarProvider, SidecarRequest

from applications import NEVER_INJECTED, Applications
from probe import Probe

ENDPOINT: Final = "sidecar"


@dataclass(frozen=True)
class Asked:
    """What is asked for in one relation.

    Attributes:
        relation_id: which relation.
        application: who gets sidecars by it, None when it is not granted.
        refusal: why not, else nothing; one line.
    """

    relation_id: int
    application: Applications | None
    refusal: str = ""


def asked(charm: ops.CharmBase) -> tuple[Asked, ...]:
    """Return what all relations ask for; every unit may look."""
    found: list[Asked] = []
    for one in SidecarProvider(charm, ENDPOINT).requests():
        relation = charm.model.get_relation(ENDPOINT, one.relation_id)
        assert relation is not None  # The provider has just found it.
        if request := one.request:
            application = Applications(request.model, (request.application,))
            refusal = _refusal(request, relation.app.name, charm.model.name)
        else:
            application, refusal = None, one.reason
        found.append(Asked(one.relation_id, None if refusal else application, refusal))
    return tuple(found)


def answer(charm: ops.CharmBase, asked: Iterable[Asked], probe: Probe | None) -> None:
    """Tell each relation what the workload says; only the leader does.

    What was told stays while the workload starts and has not looked at everything once, so that
    its restart is no news to anybody. Before the first word, what is not known is not live.

    Args:
        charm: the charm that answers.
        asked: what stands in the relations.
        probe: what the workload said about itself, None while it starts.
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
    """Return what to tell, None while there is nothing to tell yet."""
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
        # Neither a healthy injector nor a broken one, when it cannot be asked.
        live=state.live is True,
        reason=state.live_reason,
        root_namespace=state.root_namespace or None,
        revision=state.revision or None,
        meshed=state.meshed,
        meshed_reason=state.meshed_reason,
    )


def _refusal(request: SidecarRequest, remote: str, model: str) -> str:
    """Return why `remote` may not ask for this, the empty text if it may.

    Across models the relation does not tell who is on the other side; in our own model it does.
    """
    if request.model == model and request.application != remote:
        return f"{remote}: application {request.application}: expected its own name"
    if request.model in NEVER_INJECTED:
        return f"{remote}: model {request.model}: expected one that Istio does not ignore"
    return ""
