"""The charm's access to the Kubernetes API server, and the kinds of object that the charm owns.

Functions raise a `ReconcileError` where the API server refuses a request or fails.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx2
import msgspec
from istio_aux.model.names import TOKEN_LIFE
from lightkube import Client
from lightkube.codecs import AnyResource
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import api_info
from lightkube.generic_resource import create_namespaced_resource  # pyright: ignore[reportUnknownVariableType]
from lightkube.models.authentication_v1 import TokenRequestSpec, TokenReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import admissionregistration_v1 as admission, rbac_authorization_v1 as rbac
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken

PeerAuthentication: Final = create_namespaced_resource(
    "security.istio.io",
    "v1",
    "PeerAuthentication",
    "peerauthentications",
)
AuthorizationPolicy: Final = create_namespaced_resource(
    "security.istio.io",
    "v1",
    "AuthorizationPolicy",
    "authorizationpolicies",
)

# The kinds that the application owns, in the order of deletion: the webhook first, and the policies
# that narrow the workload's account after its roles.
OWNED: Final[tuple[type[Any], ...]] = (
    admission.MutatingWebhookConfiguration,
    rbac.ClusterRoleBinding,
    rbac.ClusterRole,
    rbac.RoleBinding,
    rbac.Role,
    admission.ValidatingAdmissionPolicyBinding,
    admission.ValidatingAdmissionPolicy,
    ServiceAccount,
    PeerAuthentication,
    AuthorizationPolicy,
)
# The kinds that not every cluster serves, and what adds them.
NOT_EVERYWHERE: Final[dict[type[Any], str]] = {
    admission.ValidatingAdmissionPolicyBinding: "Kubernetes 1.30",
    admission.ValidatingAdmissionPolicy: "Kubernetes 1.30",
    PeerAuthentication: "Istio",
    AuthorizationPolicy: "Istio",
}

_REFUSALS: Final = frozenset({401, 403})
_NOT_ITS_ANSWER: Final = "not an answer of the Kubernetes API server"
# How the API server says that the charm lacks a right (apiserver responsewriters/errors.go
# forbiddenMessage, kubernetes rbac/validation/rule.go ConfirmNoEscalation). Quotas and webhooks
# forbid, too.
_LACKS_RIGHT: Final = re.compile(
    r'" cannot \S+ (?:resource|path) "|attempting to grant RBAC permissions'
)

# What libraries raise for a text that cannot be read: half a document, one of another shape, one
# that is nested too deeply.
UNREADABLE: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)

logger = logging.getLogger(__name__)


class ReconcileError(Exception):
    """Why a step of an event failed, in one line for the status.

    Attributes:
        code: the status code of the API server's answer; 0 if that is not the reason.
        refused: the charm lacks a permission, which the user has to grant. Anything else may pass.
        silent: the API server did not answer.
        taken: another installation has our objects, and the user has to remove one of both.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: int = 0,
        refused: bool = False,
        silent: bool = False,
        taken: bool = False,
    ) -> None:
        super().__init__(reason)
        self.taken = taken
        self.code = code
        self.refused = refused
        self.silent = silent


class Found(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of an object."""

    name: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    namespace: str = ""


def connect(transport: httpx2.BaseTransport | None = None, patience: float = 10.0) -> Client:
    """Return a client with the charm's own credentials; `patience` is its timeout in seconds."""
    timeout = httpx2.Timeout(patience)
    # The model's proxy is for what lies outside of the cluster.
    config = KubeConfig.from_env()
    return Client(config=config, transport=transport, timeout=timeout, trust_env=False)


def namespace() -> str:
    """Return the model's namespace, which for a controller's model has another name."""
    config = KubeConfig.from_env().get()
    assert config is not None  # lightkube raises an error instead.
    return config.namespace


def endpoint(client: Client) -> tuple[str, str]:
    """Return URL and PEM authority of the API server, as the charm itself reaches it."""
    cluster = client.config.cluster
    assert cluster.certificate_auth  # Every pod has its file.
    return cluster.server, Path(client.config.abs_file(cluster.certificate_auth)).read_text()


@contextlib.contextmanager
def attempt(what: str) -> Generator[None]:
    """Raise a `ReconcileError` about `what` if the API server refuses a request or fails."""
    try:
        yield
    except (httpx2.HTTPError, *UNREADABLE) as error:
        raise _explained(what, error) from error


def _explained(what: str, error: BaseException) -> ReconcileError:
    refusal: BaseException | None = error
    # lightkube reads the body of each refusal as JSON, and raises another error if it is not.
    while refusal and not isinstance(refusal, httpx2.HTTPStatusError):
        refusal = refusal.__context__
    # The second line, if any, is advice from the HTTP library.
    said = str(refusal or error).partition("\n")[0] or type(error).__name__
    code = refusal.response.status_code if refusal else 0
    of = "Kubernetes API server"
    if not (refusal or isinstance(error, httpx2.HTTPError)):
        logger.info("%s", what, exc_info=error)  # It may be an error of our own.
        of = _NOT_ITS_ANSWER
    elif code in _REFUSALS and not isinstance(refusal, ApiError):  # A proxy's page.
        of = _NOT_ITS_ANSWER
    refused = code == 403 and bool(_LACKS_RIGHT.search(said))
    silent = isinstance(error, httpx2.TransportError)
    return ReconcileError(
        f"{what}: {of}: {said}",
        code=code,
        refused=refused,
        silent=silent,
    )


@contextlib.contextmanager
def tolerating_refusals(left: list[str], what: str) -> Generator[None]:
    """Go on with a removal when the API server refuses a request, or the object is gone.

    Juju may remove the charm's permissions before the last hook (lp:1941655). If the request is
    refused, `what` is added to `left`.
    """
    try:
        yield
    except ReconcileError as error:
        if error.code in _REFUSALS:
            logger.warning("%s", error)
            left.append(what)
        elif error.code != 404:
            raise


def apply(client: Client, resources: Iterable[AnyResource], manager: str) -> None:
    """Write `resources` by server-side apply, up to the first that fails.

    Resources of a kind that the API server does not serve are skipped.
    """
    for resource in resources:
        kind = type(resource)
        name = f"{resource.kind} {_name(resource)}"
        try:
            with attempt(name):
                written = client.apply(resource, field_manager=manager, force=True)
                if _name(written) != _name(resource):
                    raise ValueError("no name")
        except ReconcileError as error:
            if not _is_not_served(kind, error):
                raise
            logger.info("%s: skipped: only %s serves the kind", name, NOT_EVERYWHERE[kind])


def stands(client: Client, wanted: AnyResource, model: str) -> bool:
    """Tell whether the object is there with the spec and the labels of `wanted`."""
    kind: type[Any] = type(wanted)
    try:
        with attempt(f"{wanted.kind} {_name(wanted)}"):
            stored = _as_dict(client.get(kind, _name(wanted), namespace=model))
            labels: dict[str, str] = stored["metadata"].get("labels", {})
    except ReconcileError as error:
        if error.code != 404:
            raise
        return False
    goal = _as_dict(wanted)
    labelled = goal["metadata"]["labels"].items() <= labels.items()
    return labelled and stored.get("spec") == goal["spec"]


def prune(
    client: Client,
    labels: Mapping[str, str],
    model: str,
    keep: Collection[AnyResource],
) -> None:
    """Delete the application's objects, which have its `labels`, but those in `keep`."""
    for kind in OWNED:
        try:
            delete(client, kind, labels, model, keep)
        except ReconcileError as error:
            # Istio's kinds cannot always be listed. The next event tries again.
            if NOT_EVERYWHERE.get(kind) != "Istio":
                raise
            logger.warning("%s", error)


def is_helms(labels: Mapping[str, str]) -> bool:
    """Tell whether an object with these labels belongs to a Helm release."""
    return labels.get("app.kubernetes.io/managed-by") == "Helm"


def delete(
    client: Client,
    kind: type[Any],
    labels: Mapping[str, str],
    model: str,
    keep: Collection[AnyResource] = (),
) -> bool:
    """Delete the application's objects of a kind but those in `keep`; tell whether it had any."""
    # By the name of the kind: lightkube may have several classes of a kind.
    kept = {_name(each) for each in keep if each.kind == kind.__name__}
    strays = [
        each.name
        for each in owned(client, kind, labels, model) or ()
        if each.name not in kept and not is_helms(each.labels)
    ]
    for name in strays:
        with attempt(f"{kind.__name__} {name}"):
            client.delete(kind, name, namespace=model)
        logger.info("%s %s: deleted", kind.__name__, name)
    return bool(strays)


def owned(
    client: Client,
    kind: type[Any],
    labels: Mapping[str, Any],
    model: str,
) -> list[Found] | None:
    """Return the objects of a kind with these labels; None if the kind is not served."""
    try:
        return [*listed(client, kind, labels, namespace=model)]
    except ReconcileError as error:
        if not _is_not_served(kind, error):
            raise
        return None


def listed(
    client: Client,
    kind: type[Any],
    labels: Mapping[str, Any] = MappingProxyType({}),
    namespace: str | None = None,
) -> Iterator[Found]:
    """Yield objects with these labels."""
    with attempt(api_info(kind).resource.kind):
        for each in client.list(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps
            kind, namespace=namespace, labels=dict(labels)
        ):
            yield msgspec.convert(_as_dict(each)["metadata"], Found)


def accepts(
    client: Client,
    token: str,
    account: str,
    model: str,
) -> bool:
    """Tell whether the API server takes `token` for one of this ServiceAccount (TokenReview API).

    It refuses a token whose account was deleted since, or that was signed with another key.
    """
    with attempt(f"TokenReview for ServiceAccount {account}"):
        answer = client.create(TokenReview(spec=TokenReviewSpec(token=token))).status
    user = answer.user if answer and answer.authenticated else None
    return user is not None and user.username == f"system:serviceaccount:{model}:{account}"


def request_token(client: Client, account: str, model: str) -> str:
    """Return a new bearer token of a ServiceAccount (TokenRequest API)."""
    request = ServiceAccountToken(
        metadata=ObjectMeta(),  # lightkube reads its namespace
        spec=TokenRequestSpec(audiences=[], expirationSeconds=TOKEN_LIFE),
    )
    with attempt(f"token for ServiceAccount {account}"):
        status = client.create(request, account, namespace=model).status
        if not (status and status.token):
            raise ValueError("no token")
    logger.info("ServiceAccount %s: new token until %s", account, status.expirationTimestamp)
    return status.token


def _as_dict(resource: AnyResource) -> dict[str, Any]:
    return resource.to_dict()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  lightkube's untyped maps


def _name(resource: AnyResource) -> str:
    metadata = resource.metadata
    return (metadata.name if metadata else None) or ""


def _is_not_served(kind: type[Any], error: ReconcileError) -> bool:
    return kind in NOT_EVERYWHERE and error.code == 404
