"""The charm's access to the Kubernetes API server, and the kinds of object that the charm owns.

Functions return a value, or a `Problem` for the status: a refusal that the user must fix, or a
failure that passes. Anything else is raised.
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
from istio_aux.model.names import TOKEN_LIFE
from lightkube import Client, operators
from lightkube.codecs import AnyResource
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.generic_resource import create_namespaced_resource  # pyright: ignore[reportUnknownVariableType]
from lightkube.models.authentication_v1 import TokenRequestSpec, TokenReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingAdmissionPolicy,
    MutatingAdmissionPolicyBinding,
    MutatingWebhookConfiguration,
    ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding,
)
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace, ServiceAccount, ServiceAccountToken
from lightkube.resources.rbac_authorization_v1 import (
    ClusterRole,
    ClusterRoleBinding,
    Role,
    RoleBinding,
)

PeerAuthentication: Final = create_namespaced_resource(
    "security.istio.io", "v1", "PeerAuthentication", "peerauthentications"
)
AuthorizationPolicy: Final = create_namespaced_resource(
    "security.istio.io", "v1", "AuthorizationPolicy", "authorizationpolicies"
)

# The kinds that the application owns, as a ClusterRole names them, in the order of deletion:
# first what changes new pods (see `objects.withdraw`), and policies that narrow the workload's
# account after its roles.
_ADMISSION, _RBAC = "admissionregistration.k8s.io", "rbac.authorization.k8s.io"
OWNED: Final[dict[type[Any], tuple[str, str]]] = {
    MutatingWebhookConfiguration: (_ADMISSION, "mutatingwebhookconfigurations"),
    MutatingAdmissionPolicyBinding: (_ADMISSION, "mutatingadmissionpolicybindings"),
    MutatingAdmissionPolicy: (_ADMISSION, "mutatingadmissionpolicies"),
    ClusterRoleBinding: (_RBAC, "clusterrolebindings"),
    ClusterRole: (_RBAC, "clusterroles"),
    RoleBinding: (_RBAC, "rolebindings"),
    Role: (_RBAC, "roles"),
    ValidatingAdmissionPolicyBinding: (_ADMISSION, "validatingadmissionpolicybindings"),
    ValidatingAdmissionPolicy: (_ADMISSION, "validatingadmissionpolicies"),
    ServiceAccount: ("", "serviceaccounts"),
    PeerAuthentication: ("security.istio.io", "peerauthentications"),
    AuthorizationPolicy: ("security.istio.io", "authorizationpolicies"),
}
CHANGING_PODS: Final = tuple(OWNED)[:3]
NAMESPACED: Final = frozenset(
    {RoleBinding, Role, ServiceAccount, PeerAuthentication, AuthorizationPolicy}
)
# The kinds that not every cluster serves, and what adds them.
NOT_EVERYWHERE: Final[dict[type[Any], str]] = {
    ValidatingAdmissionPolicyBinding: "Kubernetes 1.30",
    ValidatingAdmissionPolicy: "Kubernetes 1.30",
    MutatingAdmissionPolicyBinding: "Kubernetes 1.36",
    MutatingAdmissionPolicy: "Kubernetes 1.36",
    PeerAuthentication: "Istio",
    AuthorizationPolicy: "Istio",
}

# Answers that pass: the object does not exist yet, its kind is being removed (405), a conflict,
# throttling or starting storage (429), and errors of the server.
_PASSING: Final = frozenset({404, 405, 409, 429, 500, 502, 503, 504})
_REFUSALS: Final = frozenset({401, 403})
# The message of a webhook or policy that refuses an object (apiserver plugin/webhook/errors,
# plugin/policy/validating). Its status code is the rule's choice.
_DENIED: Final = re.compile(r"denied (the )?request")

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Problem:
    """Why an operation in the cluster failed; the reason is one line for the status."""

    reason: str
    refused: bool = False  # The charm lacks a permission, which the user has to grant.


@dataclass(frozen=True)
class Found:
    """The metadata of an object that others own."""

    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def connect(transport: httpx2.BaseTransport | None = None, patience: float = 10.0) -> Client:
    """Return a client with the charm's own credentials; `patience` is its timeout in seconds."""
    timeout = httpx2.Timeout(patience)
    return Client(config=KubeConfig.from_env(), transport=transport, timeout=timeout)


def namespace() -> str:
    """Return the namespace that the charm runs in, which is its model's.

    It has the name of the model, but that of a controller's model is `controller-<controller>`
    (juju NamespaceForModel).
    """
    config = KubeConfig.from_env().get()
    if config is None:
        raise ConfigError("no credentials for the Kubernetes API server")
    return config.namespace


def endpoint(client: Client) -> tuple[str, str]:
    """Return URL and PEM authority of the API server, as the charm itself reaches it."""
    cluster = client.config.cluster
    if cluster.certificate_auth_data:
        return cluster.server, base64.b64decode(cluster.certificate_auth_data).decode()
    if cluster.certificate_auth:
        return cluster.server, Path(client.config.abs_file(cluster.certificate_auth)).read_text()
    raise ConfigError(f"{cluster.server}: no certificate authority is configured")


def apply(client: Client, resources: Iterable[AnyResource], manager: str) -> Problem | None:
    """Write `resources` by server-side apply, in order, up to the first problem.

    Resources of a kind that the API server does not serve are skipped.
    """
    for resource in resources:

        def write(resource: AnyResource = resource) -> None:
            try:
                client.apply(resource, field_manager=manager, force=True)
            except httpx2.HTTPStatusError as error:
                if not _is_not_served(type(resource), error):
                    raise
                logger.info(
                    "%s %s: skipped: the cluster does not serve the kind (%s does)",
                    resource.kind,
                    _name(resource),
                    NOT_EVERYWHERE[type(resource)],
                )

        if problem := attempt(f"{resource.kind} {_name(resource)}", write):
            return problem
    return None


def differs(client: Client, wanted: AnyResource, model: str) -> bool | Problem:
    """Tell whether the object is missing or has other labels or another spec than `wanted`."""
    kind: type[Any] = type(wanted)

    def look() -> bool:
        try:
            stored = _as_dict(client.get(kind, _name(wanted), namespace=model))
        except httpx2.HTTPStatusError as error:
            if error.response.status_code != 404:
                raise
            return True
        goal = _as_dict(wanted)
        labels: dict[str, str] = stored["metadata"].get("labels", {})
        return stored.get("spec") != goal["spec"] or not (
            goal["metadata"]["labels"].items() <= labels.items()
        )

    return attempt(f"{wanted.kind} {_name(wanted)}", look)


def owned(
    client: Client, kind: type[Any], labels: Mapping[str, str], model: str
) -> list[AnyResource] | Problem | None:
    """Return the objects of `kind` with `labels`, None where the API server does not serve it."""
    return attempt(kind.__name__, lambda: _labelled(client, kind, labels, model))


def any_exists(client: Client, resources: Iterable[AnyResource]) -> bool | Problem:
    """Tell whether one of these cluster-scoped `resources` exists."""

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
    """Delete objects that have `labels` and are not in `keep`.

    If Istio's kind cannot be listed now, the next event tries again.
    """
    kept = {(resource.kind, _name(resource)) for resource in keep}

    def delete_strays(kind: type[Any]) -> None:
        for owned in _labelled(client, kind, labels, model) or ():
            name = _name(owned)
            if (kind.__name__, name) not in kept:
                client.delete(kind, name, namespace=model)
                logger.info("%s %s: deleted", kind.__name__, name)

    for kind in OWNED:
        problem = attempt("owned objects", lambda kind=kind: delete_strays(kind))
        if problem and NOT_EVERYWHERE.get(kind) != "Istio":
            return problem
        if problem:
            logger.warning("%s: %s", kind.__name__, problem.reason)
    return None


def delete_owned(
    client: Client,
    labels: Mapping[str, str],
    model: str,
    kinds: Iterable[type[Any]],
    lease: str = "",
) -> bool:
    """Delete the objects of `kinds` that have `labels`, in this order, then the `lease`.

    A refusal is logged only: Juju may remove the charm's permissions before the last hook
    (lp:1941655).

    Returns:
        Whether anything was deleted.
    """
    deleted = False
    # The workload created its Lease, without labels, and can no longer create another.
    for kind in (*kinds, *([Lease] if lease else [])):
        try:
            names = (
                [lease]
                if kind is Lease
                else [_name(owned) for owned in _labelled(client, kind, labels, model) or ()]
            )
            for name in names:
                client.delete(kind, name, namespace=model)
                deleted = True
                logger.info("%s %s: deleted", kind.__name__, name)
        except ApiError as error:
            if error.response.status_code not in {401, 403, 404}:
                raise
            logger.warning("%s: not deleted: %s", kind.__name__, error)
    return deleted


def listed(client: Client, kind: type[Any], label: str | None = None) -> list[Found]:
    """Return all objects of a cluster-scoped `kind`, or those that have `label`.

    Raises:
        httpx2.HTTPError: the API server did not answer or refused.
    """
    labels: dict[str, Any] = {label: operators.exists()} if label else {}
    objects = client.list(kind, labels=labels)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps
    metadata: list[dict[str, Any]] = [each.to_dict()["metadata"] for each in objects]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps
    return [
        Found(one["name"], one["uid"], one.get("labels", {}), one.get("annotations", {}))
        for one in metadata
    ]


def namespace_uid(client: Client, name: str) -> str | Problem:
    """Return the UID of a Namespace."""

    def get() -> str:
        metadata = client.get(Namespace, name).metadata
        return (metadata.uid if metadata else None) or ""

    return attempt(f"Namespace {name}", get)


def accepts(client: Client, token: str, account: str, model: str) -> bool | Problem:
    """Tell whether the API server takes `token` for one of this ServiceAccount (TokenReview API).

    It does not if the token expired, if the account was deleted since, even if another one has its
    name, or if the API server signs with another key by now.
    """
    review = TokenReview(spec=TokenReviewSpec(token=token))

    def ask() -> bool:
        answer = client.create(review).status
        if answer is None or not answer.authenticated or answer.user is None:
            return False
        return answer.user.username == f"system:serviceaccount:{model}:{account}"

    return attempt(f"TokenReview for ServiceAccount {account}", ask) if token else False


def request_token(client: Client, account: str, model: str) -> str | Problem:
    """Return a new bearer token of a ServiceAccount (TokenRequest API)."""

    def create() -> str:
        request = ServiceAccountToken(
            metadata=ObjectMeta(),  # lightkube reads its namespace
            spec=TokenRequestSpec(audiences=[], expirationSeconds=TOKEN_LIFE),
        )
        status = client.create(request, account, namespace=model).status
        if status is None or not status.token:
            raise ValueError(f"ServiceAccount {account}: the API server answered without a token")
        logger.info("ServiceAccount %s: new token until %s", account, status.expirationTimestamp)
        return status.token

    return attempt(f"token for ServiceAccount {account}", create)


def attempt(what: str, action: Callable[[], T]) -> T | Problem:
    """Return what `action` returns, or why the API server did not do it."""
    try:
        return action()
    except httpx2.HTTPStatusError as error:  # lightkube's ApiError is one of these.
        code = error.response.status_code
        # The second line, if any, is advice from the HTTP library.
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
    try:
        # lightkube's label operators are untyped.
        return [*client.list(kind, namespace=model, labels=dict(labels))]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except httpx2.HTTPStatusError as error:
        if _is_not_served(kind, error):
            return None
        raise


def _as_dict(resource: AnyResource) -> dict[str, Any]:
    return resource.to_dict()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps


def _name(resource: AnyResource) -> str:
    metadata = resource.metadata
    return (metadata.name if metadata else None) or ""


def _is_not_served(kind: type[Any], error: httpx2.HTTPStatusError) -> bool:
    return kind in NOT_EVERYWHERE and error.response.status_code == 404
