"""Relations as the charm at each end sees them."""

from __future__ import annotations

from charmlibs.interfaces.istio_sidecar import Mesh, SidecarRequest
from ops import testing

_INTERFACE = "istio_sidecar"
LIVE = Mesh(live=True, reason="istio-sidecar-injector live", meshed=True)
"""A mesh in which each pod of the application has its sidecar."""


def relation_for_requirer(
    endpoint: str, *, mesh: Mesh = LIVE, response: bool = True
) -> testing.Relation:
    """Return the relation as the asking charm sees it.

    Args:
        endpoint: name of the charm's endpoint.
        mesh: what istio-aux answers.
        response: whether it has answered; a new relation is empty.
    """
    databag = mesh.to_databag() if response else {}
    return testing.Relation(
        endpoint,
        interface=_INTERFACE,
        remote_app_name="istio-aux",
        remote_app_data={key: value for key, value in databag.items() if value},
    )


def relation_for_provider(
    endpoint: str, *, application: str = "asker", model: str = "asking", response: bool = True
) -> testing.Relation:
    """Return the relation as istio-aux sees it.

    Args:
        endpoint: name of the charm's endpoint.
        application: the application that asks.
        model: its model.
        response: whether it has asked; a new relation is empty.
    """
    request = SidecarRequest(application, model)
    return testing.Relation(
        endpoint,
        interface=_INTERFACE,
        remote_app_name=application,
        remote_app_data=request.to_databag() if response else {},
    )
