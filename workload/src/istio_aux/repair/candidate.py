"""A pod as rules and rollout see it.

Decisions use only these fields, and of a pod that may lack its sidecar only these are stored.
"""

from __future__ import annotations

from msgspec import structs

from istio_aux.model import kept, owners
from istio_aux.model.annotations import redirection
from istio_aux.model.pod import Key, OwnerReference, Pod, Struct, interned, shared
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.selectors import LONGEST_NAME

_WORD = 16  # Characters of a phase or of INJECT that are stored: known values have nine at most.
# The condition of a pod with a network (KEP-3085, on since Kubernetes 1.29).
_NETWORK = "PodReadyToStartContainers"
# Values of `REDIRECTION` once ztunnel has taken the pod, and while the pod's traffic is led to a
# ztunnel that has not.
CAPTURED, HALF_CAPTURED = "enabled", "pending"
RENEWED = 60.0  # Seconds within which a pod that starts on its node gets its first network.
_NO_KEY = Key("", "", "")


class Candidate(Struct, frozen=True):
    """All that repair reads of a pod."""

    key: Key = _NO_KEY
    version: str = ""
    created: float = 0.0  # Seconds since 1970.
    owner: OwnerReference | None = None  # The pod's controller.
    injection: InjectionRequest = InjectionRequest()
    phase: str = ""
    ready: bool = False
    too_much: int = 0  # Bytes of its names and labels, if they are too many to store.
    names_proxy: bool = False
    deleting: bool = False  # Whether it has a deletionTimestamp.
    deleted: float = 0.0  # When its deletion began; 0 if that is not known.
    node: str = ""
    redirection: str = ""  # Value of `REDIRECTION`: `enabled`, `pending`, or empty.
    # When the pod got its network, in seconds since 1970; 0: it has no address.
    addressed: float = 0.0
    renewed: bool = (
        False  # Whether its network may be the second, and `redirection` from the first.
    )

    @classmethod
    def of(cls, pod: Pod) -> Candidate:
        """Read a pod."""
        meta = pod.metadata
        injection = InjectionRequest.of(pod)
        if owner := owners.controller(meta):  # Thousands of owners differ only in name and uid.
            owner = interned(
                structs.replace(
                    owner, api_version=shared(owner.api_version), kind=shared(owner.kind)
                )
            )
        created = meta.creation_timestamp
        ends = meta.deletion_timestamp
        grace = meta.deletion_grace_period_seconds
        said = kept.size((meta.key, pod.spec.node_name, owner, pod.labels))
        started = pod.status.start_time
        captured = shared(redirection.get(meta) or "")
        made = [
            condition.last_transition_time
            for condition in pod.status.conditions or ()
            if condition.type == _NETWORK
        ]
        got = next(filter(None, (*made, started, created)), None)
        network = got.timestamp() if got else 1.0
        if injection.annotation:
            injection = structs.replace(injection, annotation=injection.annotation[:_WORD])
        return cls(
            key=meta.key,
            version=meta.resource_version,
            created=created.timestamp() if created else 0.0,
            owner=owner,
            injection=injection,
            too_much=said if said > kept.MOST else 0,
            phase=shared((pod.status.phase or "")[:_WORD]),
            ready=pod.ready,
            names_proxy=pod.names_proxy,
            deleting=ends is not None,
            # Right before a pod is gone its grace period is 0 and its deletionTimestamp moves to
            # the present (apiserver rest.BeforeDelete), which does not say when the deletion began.
            deleted=ends.timestamp() - grace if ends and grace else 0.0,
            node=shared((pod.spec.node_name or "")[:LONGEST_NAME]),
            redirection=captured,
            addressed=network if pod.status.pod_ip else 0.0,
            renewed=captured == CAPTURED
            and network > (started.timestamp() if started else network) + RENEWED,
        )

    @classmethod
    def sibling(cls, pod: Pod) -> Candidate:
        """Read only the fields by which pods of one controller are compared, and no containers."""
        return cls(
            key=pod.metadata.key,
            owner=owners.controller(pod.metadata),
            deleting=pod.metadata.deletion_timestamp is not None,
        )

    @property
    def ended(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def controller(self) -> owners.PodController:
        """The controller that makes another pod in its place, if there is one."""
        return owners.controls(self.owner, self.key.name)
