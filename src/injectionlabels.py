"""The option `inject-namespaces`: sets and removes Istio's label on namespaces.

The charm uses server-side apply with its own field manager and never forces, so it removes only
what it has set. An annotation marks the namespaces that it labelled. Nothing here creates
or deletes a namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

import httpx2
from lightkube import ApiError, Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import cluster
from cluster import Found, Problem, listed
from inputs import Inputs

# The label that the default revision's webhook selects (istio-discovery chart
# mutatingwebhook.yaml).
INJECTION: Final = "istio-injection"
ENABLED: Final = "enabled"
# The application that set the label, as model/application.
ANNOTATION: Final = "istio-aux.io/injection"

# A namespace with one of these asks Istio for something else.
_REVISION: Final = "istio.io/rev"
_AMBIENT: Final = ("istio.io/dataplane-mode", "ambient")

logger = logging.getLogger(__name__)


def ensure(client: Client, inputs: Inputs, *, live: bool) -> tuple[str, ...] | Problem:
    """Label the namespaces of the option when an injector is live; remove the label elsewhere.

    While no injector is live, labels that exist stay. Only the leader acts, with valid options.

    Returns:
        Namespaces that are not as they should be, each with the reason.
    """
    if not inputs.leader or inputs.config is None:
        return ()
    wanted, owner = inputs.config.namespaces, f"{inputs.model}/{inputs.app}"

    def act() -> tuple[str, ...]:
        present = {namespace.name: namespace for namespace in listed(client, Namespace)}
        trouble = [
            (name, f"label not removed: {why}")
            for name, namespace in present.items()
            if _is_stray(namespace, owner, wanted)
            and (why := _refusal(client, namespace, owner, enabled=False))
        ]
        trouble += [
            (name, _label(client, present[name], owner, live) if name in present else "not found")
            for name in wanted
        ]
        return tuple(f"{name}: {why}" for name, why in trouble if why)

    return cluster.attempt("Namespace", act)


def take_back(client: Client, model: str, app: str) -> None:
    """Remove every label that the application set. A refusal is logged only."""
    try:
        for namespace in listed(client, Namespace):
            if _is_stray(namespace, f"{model}/{app}"):
                _apply(client, namespace, f"{model}/{app}", enabled=False)
                logger.info("Namespace %s: label %s removed", namespace.name, INJECTION)
    except ApiError as error:
        if error.response.status_code not in {401, 403, 404}:
            raise
        logger.warning("Namespace: label %s: not removed: %s", INJECTION, error)


def _label(client: Client, namespace: Found, owner: str, live: bool) -> str:
    """Label `namespace`, or return why not."""
    labels = namespace.labels
    if labels.get(_AMBIENT[0]) == _AMBIENT[1]:
        return "is ambient"
    if _REVISION in labels:
        return f"has {_REVISION}={labels[_REVISION]}"
    if INJECTION in labels:
        # Somebody else's label serves as well, and stays theirs.
        return "" if labels[INJECTION] == ENABLED else f"has {INJECTION}={labels[INJECTION]}"
    if not live:
        return "waiting until Istio injects"
    if why := _refusal(client, namespace, owner, enabled=True):
        return why
    logger.info("Namespace %s: labelled %s=%s", namespace.name, INJECTION, ENABLED)
    return ""


def _is_stray(namespace: Found, owner: str, keep: Collection[str] = ()) -> bool:
    return namespace.annotations.get(ANNOTATION) == owner and namespace.name not in keep


def _refusal(client: Client, namespace: Found, owner: str, *, enabled: bool) -> str:
    """Call `_apply` and return why it was refused: a conflict, or somebody else's webhook."""
    try:
        _apply(client, namespace, owner, enabled=enabled)
    except httpx2.HTTPStatusError as error:
        return str(error).partition("\n")[0]
    return ""


def _apply(client: Client, namespace: Found, owner: str, *, enabled: bool) -> None:
    """Set or remove the label and the annotation of `owner`, which is the field manager."""
    ours = ObjectMeta(
        name=namespace.name,
        # With the UID, a namespace that is gone is a conflict. Without it, it would be created.
        uid=namespace.uid,
        labels={INJECTION: ENABLED} if enabled else None,
        annotations={ANNOTATION: owner} if enabled else None,
    )
    # Two names and a slash fit in 128 characters (apimachinery FieldManagerMaxLength).
    client.apply(Namespace(metadata=ours), field_manager=owner, force=False)
