"""The relation `sidecar` (interface `istio_sidecar`): which charms ask for sidecars, and answers.

The library has the interface; this module decides what istio-aux grants and answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import ops
from charmlibs.interfaces.istio_sidecar import Asked, Mesh, SidecarProvider, SidecarRequest
from istio_aux.model.names import IGNORED

from cluster import Found
from config import Applications
from probe import Answer

ENDPOINT: Final = "sidecar"

# How Juju marks the Namespace of a model. Before version 2 of Juju's labels, the UUID is only an
# annotation (juju caas/kubernetes/provider createNamespace).
_MODEL_ID: Final = "model.juju.is/id"
_MODEL_NAME: Final = "model.juju.is/name"


@dataclass(frozen=True)
class Requester:
    """The application at the other end of a relation; unknown until it is granted or refused."""

    relation: ops.Relation
    request: SidecarRequest | None  # None if it cannot be read, which is refused.
    refusal: str = ""
    application: Applications | None = None  # Its model is the namespace.
    remote_model: str = ""  # UUID of its model if it is not ours.

    def refuse(self, why: str) -> Requester:
        """Return the requester with the reason why it gets nothing."""
        return dataclasses.replace(self, refusal=f"{self.relation.app.name}: {why}")

    def grant(self, request: SidecarRequest, namespace: str) -> Requester:
        """Return the requester with its application in the `namespace` of its model."""
        if namespace in IGNORED:
            return self.refuse(f"model {namespace}: expected one that Istio does not ignore")
        return dataclasses.replace(
            self, application=Applications(namespace, (request.application,))
        )

    def verify(self, namespaces: Iterable[Found]) -> Requester:
        """Return the requester with its request from another model granted or refused.

        Its charm may write any model into its databag, so the namespace must have the UUID that
        Juju gives for its model. (Juju hides the name of an application in another model.)
        """
        request = self.request
        if self.application or self.refusal or not request:
            return self
        # The namespace of a controller's model has the model's name as a label only.
        own = {
            each.name
            for each in namespaces
            if (each.labels.get(_MODEL_ID) or each.annotations.get(_MODEL_ID)) == self.remote_model
            and request.model in {each.name, each.labels.get(_MODEL_NAME)}
        }
        if request.model in own:
            return self.grant(request, request.model)
        if len(own) == 1:
            return self.grant(request, own.pop())
        expected = f"expected its own model, whose namespace has the label {_MODEL_ID}"
        return self.refuse(f"model {request.model}: {expected}")


def requesters(charm: ops.CharmBase, namespace: str) -> tuple[Requester, ...]:
    """Return the request of each relation; those from other models still need `verify`."""
    return tuple(
        _requester(charm.model, each, namespace)
        for each in SidecarProvider(charm, ENDPOINT).requests()
    )


def _requester(model: ops.Model, asked: Asked, namespace: str) -> Requester:
    relation = asked.relation
    request = asked.request
    this = Requester(relation, request, asked.reason)
    if request is None:
        return this
    try:
        uuid = relation.remote_model.uuid
    except ops.ModelError as error:
        why = str(error).partition("\n")[0]
        return this.refuse(f"its model is not known: {why}")
    if uuid != model.uuid:
        return dataclasses.replace(this, remote_model=uuid)
    if request.model not in {model.name, namespace}:
        return this.refuse(f"model {request.model}: expected its own model, {model.name}")
    if request.application != relation.app.name:
        return this.refuse(f"application {request.application}: expected its own name")
    return this.grant(request, namespace)


def answer(
    charm: ops.CharmBase,
    requesters: Iterable[Requester],
    said: Answer | None,
) -> None:
    """Publish to each relation what the workload `said`; leader only.

    While the workload starts (None), the earlier answer stays, so its restart changes nothing.
    Before the first answer, an unknown state is published as not live.
    """
    if not charm.unit.is_leader():
        return
    provider = SidecarProvider(charm, ENDPOINT)
    for one in requesters:
        mesh = _mesh(one, said)
        if mesh is None and not one.relation.data[charm.app].get("live"):
            mesh = Mesh(live=False, reason="not known yet whether Istio injects")
        if mesh:
            provider.publish(one.relation, mesh)


def _mesh(requester: Requester, said: Answer | None) -> Mesh | None:
    if requester.refusal:
        return Mesh(live=False, reason=requester.refusal)
    if requester.application is None or said is None:
        return None
    if said.missing or not said.status:
        return Mesh(live=False, reason=f"workload: {said.missing}")
    name = (requester.application.model, *requester.application.names)
    state = next((a for a in said.status.applications if (a.namespace, a.name) == name), None)
    if state is None or not said.status.injectors:
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
