"""Evict one pod, only as it was seen, and say what came of it.

Only the request and the reading of its answer may live here (k8s@1.36 eviction.go).
"""

from __future__ import annotations

import msgspec

from istio_aux.core.repair import Restart
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.resources import Key


class Evicted(msgspec.Struct, frozen=True):
    """The pod is on its way out."""


class Superseded(msgspec.Struct, frozen=True):
    """The pod is gone, or not as it was when it was decided on."""

    reason: str


class Refused(msgspec.Struct, frozen=True):
    """The pod stays for now; ``asked`` is for how many seconds the API server wants peace."""

    reason: str
    asked: float = 0.0


_SEVERAL = "more than one PodDisruptionBudget"
"""In the message of the only 500 that says that nothing was evicted; it has no reason."""

Outcome = Evicted | Superseded | Refused


async def evict(client: Client, pod: Key, restart: Restart) -> Outcome:
    """Evict ``pod`` if it still is what ``restart`` was decided on.

    429 means that a PodDisruptionBudget does not allow it now; in a namespace that is terminated,
    or without the right, it is 403.

    Raises:
        KubeError: no answer, or a server error: it is not known what became of the pod.
    """
    try:
        await actions.evict(client, pod, restart.resource_version)
    except ApiError as error:
        if error.code in {404, 409}:
            return Superseded(str(error))
        if error.unknown and _SEVERAL not in str(error):
            raise
        return Refused(str(error), error.retry_after or 0.0)
    return Evicted()
