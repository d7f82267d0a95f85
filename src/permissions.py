"""Which permissions the charm needs, and whether it has them. Each event checks that first."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lightkube import ApiError, Client
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

import cluster
from cluster import Problem

# Seconds. Everybody may ask (ClusterRole system:basic-user), but an API server that has just
# started knows no roles yet.
_PAUSES: Final = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Permission:
    """One permission, spelled as in a ClusterRole."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def needed(model: str, *, leader: bool) -> tuple[Permission, ...]:
    """Return what a unit needs; the leader also writes the owned objects."""
    every_unit = (
        Permission("create", "authentication.k8s.io", "tokenreviews"),
        Permission("create", "", "serviceaccounts/token", model),
        # To know whose model a request over the relation `sidecar` comes from.
        Permission("list", "", "namespaces"),
    )
    if not leader:
        return every_unit
    every_leader = (
        *every_unit,
        Permission("get", "", "namespaces"),
        Permission("patch", "", "namespaces"),
        Permission("list", "discovery.k8s.io", "endpointslices", model),
        Permission("get", "", "pods", model),
    )
    return every_leader + tuple(
        Permission(verb, group, resource, model if kind in cluster.NAMESPACED else "")
        for kind, (group, resource) in cluster.OWNED.items()
        for verb in ("get", "list", "create", "patch", "delete")
    )


def missing(client: Client, wanted: Iterable[Permission]) -> Problem | None:
    """Return the first of `wanted` that the charm does not have, None if it has all."""

    def ask() -> Permission | None:
        # `juju trust` grants everything, so one request is enough.
        if _allowed(client, Permission("*", "*", "*")):
            return None
        return next((p for p in wanted if not _allowed(client, p)), None)

    outcome = cluster.attempt("permissions", ask)
    return Problem(str(outcome), refused=True) if isinstance(outcome, Permission) else outcome


def _allowed(client: Client, permission: Permission) -> bool:
    resource, _, subresource = permission.resource.partition("/")
    review = SelfSubjectAccessReview(
        spec=SelfSubjectAccessReviewSpec(
            resourceAttributes=ResourceAttributes(
                verb=permission.verb,
                group=permission.group,
                resource=resource,
                subresource=subresource or None,
                namespace=permission.namespace or None,
            )
        )
    )
    answer = _review(client, review)
    return answer.status is not None and answer.status.allowed


def _review(client: Client, review: SelfSubjectAccessReview) -> SelfSubjectAccessReview:
    for pause in _PAUSES:
        try:
            return client.create(review)
        except ApiError as error:
            if error.response.status_code != 403:
                raise
            time.sleep(pause)
    return client.create(review)
