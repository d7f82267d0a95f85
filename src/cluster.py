"""The charm's only way to the Kubernetes API server.

Every function asks or writes and returns what came of it: a value, or a `Problem` that a status
can show. A refusal is for the user to mend, what passes by itself is waited for, and what neither
explains is raised.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
from lightkube import Client
from lightkube.codecs import AnyResource
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.models.authentication_v1 import TokenRequestSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

import kinds
from kinds import OWNED

# The workload outlives its charm by a day; the API server may grant less.
TOKEN_LIFE_SECONDS: Final = 24 * 60 * 60

# Answers that pass by themselves: the object is not there yet, its kind is being taken out (405),
# someone else wrote first, too many requests or storage that starts (429), and everything that is
# the server's own fault.
_PASSING: Final = frozenset({404, 405, 409, 429, 500, 502, 503, 504})
_REFUSALS: Final = frozenset({401, 403})
# What admission says of an object that a rule of somebody else forbids (apiserver
# plugin/webhook/errors, plugin/policy/validating). The code is the rule's choice.
_DENIED: Final = re.compile(r"denied (the )?request")

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Why something in the cluster could not be done.

    Attributes:
        reason: one line for the status.
        refused: the API server refused it, so the user has to grant the permission.
        wake: it is over soon, and nobody tells when, so the charm has to wake itself.
    """

    reason: str
    refused: bool = False
    wake: bool = False


def connect(transport: httpx2.BaseTransport | None = None, patience: float = 10.0) -> Client:
    """Return a client with the credentials of the charm's own pod.

    Args:
        transport: for tests.
        patience: seconds to wait for an answer.
    """
    timeout = httpx2.Timeout(patience)
    return Client(config=KubeConfig.from_env(), transport=transport, timeout=timeout)


def endpoint(client: Client) -> tuple[str, str]:
    """Return URL and PEM authority of the API server, as the charm itself reaches it."""
    cluster = client.config.cluster
    if cluster.certificate_auth_data:
        return cluster.server, base64.b64decode(cluster.certificate_auth_data).decode()
    if cluster.certificate_auth:
        return cluster.server, Path(client.config.abs_file(cluster.certificate_auth)).read_text()
    raise ConfigError(f"{cluster.server}: no certificate authority is configured")


def apply(client: Client, resources: Iterable[AnyResource], manager: str) -> Problem | None:
    """Write `resources` by server-side apply, in order; the first problem ends it.

    A kind of `kinds.NOT_EVERYWHERE` is left out where the API server does not know it.
    """
    for resource in resources:

        def write(resource: AnyResource = resource) -> None:
            try:
                client.apply(resource, field_manager=manager, force=True)
            except httpx2.HTTPStatusError as error:
                if not kinds.is_not_served(type(resource), error):
                    raise
                logger.info(
                    "%s %s: left out: this cluster does not serve the kind (%s does)",
                    resource.kind,
                    _name(resource),
                    kinds.NOT_EVERYWHERE[type(resource)],
                )

        if problem := attempt(f"{resource.kind} {_name(resource)}", write):
            return problem
    return None


def serves(
    client: Client, kind: type[Any], labels: Mapping[str, str], model: str
) -> bool | Problem:
    """Tell whether the API server knows `kind`, one of `kinds.NOT_EVERYWHERE`.

    It is asked for the owned objects of that kind: `labels` are theirs.
    """
    return attempt(kind.__name__, lambda: _labelled(client, kind, labels, model) is not None)


def differs(client: Client, wanted: AnyResource, model: str) -> bool | Problem:
    """Tell whether an object of the namespace `model` is missing, or not as `wanted`.

    Its labels and its spec are compared.
    """
    kind: type[Any] = type(wanted)

    def look() -> bool:
        try:
            found = _as_dict(client.get(kind, _name(wanted), namespace=model))
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return True
        goal = _as_dict(wanted)
        labels: dict[str, str] = found["metadata"].get("labels", {})
        return found.get("spec") != goal["spec"] or not (
            goal["metadata"]["labels"].items() <= labels.items()
        )

    return attempt(f"{wanted.kind} {_name(wanted)}", look)


def owned(
    client: Client, kind: type[Any], labels: Mapping[str, str], model: str
) -> list[AnyResource] | Problem | None:
    """Return the objects of `kind` with `labels`, None where the API server does not know it."""
    return attempt(kind.__name__, lambda: _labelled(client, kind, labels, model))


def any_exists(client: Client, resources: Iterable[AnyResource]) -> bool | Problem:
    """Tell whether one of `resources`, none of which has a namespace, is there."""

    def look() -> bool:
        for resource in resources:
            try:
                client.get(type(resource), _name(resource))
            except ApiError as error:
                if error.response.status_code != 404:
                    raise
            else:
                return True
        return False

    return attempt("owned objects", look)


def prune(
    client: Client, labels: Mapping[str, str], model: str, keep: Collection[AnyResource]
) -> Problem | None:
    """Delete what carries `labels` and is not one of `keep`; an object that is gone is fine.

    A kind of Istio's that cannot be listed now stops nothing: the next event tries again.
    """
    kept = {(resource.kind, _name(resource)) for resource in keep}

    def delete_strays(kind: type[Any]) -> None:
        for found in _labelled(client, kind, labels, model) or ():
            name = _name(found)
            if (kind.__name__, name) not in kept:
                client.delete(kind, name, namespace=model)
                logger.info("%s %s: deleted", kind.__name__, name)

    for kind in OWNED:
        problem = attempt("owned objects", lambda kind=kind: delete_strays(kind))
        if problem and kind is not kinds.PeerAuthentication:
            return problem
        if problem:
            logger.warning("%s: %s", kind.__name__, problem.reason)
    return None


def delete_owned(client: Client, labels: Mapping[str, str], model: str, lease: str) -> None:
    """Delete all that carries `labels`, kind by kind in the order of `OWNED`, then the `lease`.

    What is gone is fine, and so is what may not be deleted any more: Juju may take the charm's
    permissions away before the last hook (lp:1941655).
    """
    for kind in (*OWNED, Lease):
        try:
            # The workload made its Lease, without labels, and may not make a new one by now.
            names = (
                [lease]
                if kind is Lease
                else [_name(found) for found in _labelled(client, kind, labels, model) or ()]
            )
            for name in names:
                client.delete(kind, name, namespace=model)
                logger.info("%s %s: deleted", kind.__name__, name)
        except ApiError as error:
            if error.response.status_code not in {401, 403, 404}:
                raise
            logger.warning("%s: not deleted: %s", kind.__name__, error)


def account_uid(client: Client, name: str, model: str) -> str | Problem:
    """Return the UID of a ServiceAccount."""

    def get() -> str:
        metadata = client.get(ServiceAccount, name, namespace=model).metadata
        return (metadata.uid if metadata else None) or ""

    return attempt(f"ServiceAccount {name}", get)


def request_token(client: Client, account: str, model: str) -> str | Problem:
    """Return a new bearer token of a ServiceAccount (TokenRequest API)."""

    def create() -> str:
        request = ServiceAccountToken(
            metadata=ObjectMeta(),  # lightkube looks for a namespace in it
            spec=TokenRequestSpec(audiences=[], expirationSeconds=TOKEN_LIFE_SECONDS),
        )
        status = client.create(request, account, namespace=model).status
        if status is None or not status.token:
            raise ValueError(f"ServiceAccount {account}: the API server answered without a token")
        logger.info("ServiceAccount %s: new token until %s", account, status.expirationTimestamp)
        return status.token

    return attempt(f"token for ServiceAccount {account}", create)


def attempt(what: str, action: Callable[[], T]) -> T | Problem:
    """Return what `action` returns, or the problem that it met with the API server."""
    try:
        return action()
    except httpx2.HTTPStatusError as error:  # lightkube's ApiError is one of these.
        code = error.response.status_code
        # What is not of the API server itself brings a second line of advice along.
        reason = f"{what}: {str(error).partition(chr(10))[0]}"
        denied = _DENIED.search(reason)
        if code in _REFUSALS and not denied:
            return Problem(reason, refused=True)
        if code in _PASSING or denied:
            return Problem(reason)
        raise
    except httpx2.TransportError as error:
        return Problem(f"{what}: Kubernetes API server: {error}")


def _labelled(
    client: Client, kind: type[Any], labels: Mapping[str, str], model: str
) -> list[AnyResource] | None:
    """Return the objects of `kind` that carry `labels`, None where the kind is not served."""
    try:
        # lightkube does not say what its label operators are operators of.
        return [*client.list(kind, namespace=model, labels=dict(labels))]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except httpx2.HTTPStatusError as error:
        if kinds.is_not_served(kind, error):
            return None
        raise


def _as_dict(resource: AnyResource) -> dict[str, Any]:
    return resource.to_dict()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps


def _name(resource: AnyResource) -> str:
    metadata = resource.metadata
    return (metadata.name if metadata else None) or ""
