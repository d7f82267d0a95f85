"""The relation `sidecar` (interface `istio_sidecar`): which charms ask for sidecars, and answers.

The library has the interface; this module decides what istio-aux grants and answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import ops
from charms.istio_aux.v0.sidecar import Mesh, SidecarProvider, SidecarRequest
from istio_aux.model.names import IGNORED

from cluster import Found
from config import Applications
from probe import Probe

ENDPOINT: Final = "sidecar"

# How Juju marks the Namespace of a model. Models whose labels are of an older version than 2 have
# the UUID as an annotation only (juju caas/kubernetes/provider createNamespace).
_MODEL_ID: Final = "model.juju.is/id"
_MODEL_NAME: Final = "model.juju.is/name"


@dataclass(frozen=True)
class Requester:
    """The application at the other end of one relation, and what it requests.

    `application` and `refusal` are both empty while it is unknown whose request it is.
    """

    relation_id: int
    application: Applications | None  # Its model is the namespace.
    refusal: str = ""
    remote: str = ""  # The application at the other end, as Juju shows it.
    remote_model: str = ""  # UUID of its model.
    request: SidecarRequest | None = None


def requesters(charm: ops.CharmBase, namespace: str) -> tuple[Requester, ...]:
    """Return what all relations ask for; requests from other models need `verified`.

    `namespace` is that of this model.
    """
    asking: list[Requester] = []
    for one in SidecarProvider(charm, ENDPOINT).requests():
        relation = charm.model.get_relation(ENDPOINT, one.relation_id)
        assert relation is not None  # The library has just found it.
        remote, request = relation.app.name, one.request
        if request is None:
            asking.append(Requester(one.relation_id, None, one.reason))
            continue
        try:
            uuid = relation.remote_model.uuid
        except ops.ModelError as error:
            refusal = f"{remote}: its model is not known: {str(error).partition(chr(10))[0]}"
            asking.append(Requester(one.relation_id, None, refusal))
            continue
        this = Requester(one.relation_id, None, "", remote, uuid, request)
        if uuid == charm.model.uuid:
            this = _of_this_model(this, request, charm.model.name, namespace)
        asking.append(this)
    return tuple(asking)


def verified(requesters: Iterable[Requester], namespaces: Iterable[Found]) -> tuple[Requester, ...]:
    """Return `requesters` with each request from another model granted or refused.

    An application may ask for itself, in the namespace of its own model. Its charm may write any
    model into its databag, so the namespace must have the UUID that Juju gives for its model. (Juju
    hides the name of an application in another model, so the name is not verified.)
    """
    by_name = {namespace.name: namespace for namespace in namespaces}
    return tuple(
        one
        if one.application or one.refusal or one.request is None
        else _of_another_model(one, one.request, by_name)
        for one in requesters
    )


def answer(charm: ops.CharmBase, requesters: Iterable[Requester], probe: Probe | None) -> None:
    """Publish to each relation what the workload says; leader only.

    While the workload starts (`probe` is None), the earlier answer stays, so its restart changes
    nothing. Before the first answer, an unknown state is published as not live.
    """
    if not charm.unit.is_leader():
        return
    provider = SidecarProvider(charm, ENDPOINT)
    for one in requesters:
        mesh = _mesh(one, probe)
        relation = charm.model.get_relation(ENDPOINT, one.relation_id)
        if mesh is None and relation and not relation.data[charm.app].get("live"):
            mesh = Mesh(live=False, reason="not known yet whether Istio injects")
        if mesh:
            provider.publish(one.relation_id, mesh)


def _mesh(requester: Requester, probe: Probe | None) -> Mesh | None:
    """Return the answer, None while it is unknown."""
    if requester.refusal:
        return Mesh(live=False, reason=requester.refusal)
    if requester.application is None or probe is None:
        return None
    if why := probe.reason_unknown():
        return Mesh(live=False, reason=why)
    name = (requester.application.model, *(requester.application.names or ()))
    state = next((a for a in probe.applications if (a.namespace, a.name) == name), None)
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


def _of_this_model(
    requester: Requester, request: SidecarRequest, model: str, namespace: str
) -> Requester:
    if request.model not in {model, namespace}:
        return _refused(requester, f"model {request.model}: expected its own model, {model}")
    if request.application != requester.remote:
        return _refused(requester, f"application {request.application}: expected its own name")
    return _granted(requester, request, namespace)


def _of_another_model(
    requester: Requester, request: SidecarRequest, namespaces: Mapping[str, Found]
) -> Requester:
    claimed = namespaces.get(request.model)
    if claimed and _model_id(claimed) == requester.remote_model:
        return _granted(requester, request, claimed.name)
    # The namespace of a controller's model does not have the model's name.
    others = [
        namespace.name
        for namespace in namespaces.values()
        if _model_id(namespace) == requester.remote_model
        and namespace.labels.get(_MODEL_NAME) == request.model
    ]
    if len(others) == 1:
        return _granted(requester, request, others[0])
    if claimed and not _model_id(claimed):
        return _refused(
            requester, f"model {request.model}: not known: its namespace has no label {_MODEL_ID}"
        )
    why = "expected its own model" if claimed else "not known: it has no namespace in this cluster"
    return _refused(requester, f"model {request.model}: {why}")


def _granted(requester: Requester, request: SidecarRequest, namespace: str) -> Requester:
    if namespace in IGNORED:
        return _refused(requester, f"model {namespace}: expected one that Istio does not ignore")
    application = Applications(namespace, (request.application,))
    return dataclasses.replace(requester, application=application)


def _refused(requester: Requester, why: str) -> Requester:
    return dataclasses.replace(requester, refusal=f"{requester.remote}: {why}")


def _model_id(namespace: Found) -> str:
    """Return the UUID of the model that the namespace belongs to, empty if that is unknown."""
    return namespace.labels.get(_MODEL_ID) or namespace.annotations.get(_MODEL_ID) or ""
