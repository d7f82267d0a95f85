"""The option `inject-namespaces`: Istio's label on namespaces, set and taken back.

Server-side apply keeps the account of who set what: the charm has a field manager of its own for
this, never forces, and what it takes back is what nobody else has set too. By an annotation it
finds again the namespaces that it labelled. Nothing here makes or deletes a namespace.
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
from cluster import Problem
from found import Found, listed
from inputs import Inputs

# Of all labels of a namespace the one that the default revision's webhook selects
# (istio-discovery chart mutatingwebhook.yaml).
INJECTION: Final = "istio-injection"
ENABLED: Final = "enabled"
# Who set it, as model/application.
ANNOTATION: Final = "istio-aux.io/injection"

# Whoever has set one of these wants something else of Istio.
_REVISION: Final = "istio.io/rev"
_AMBIENT: Final = ("istio.io/dataplane-mode", "ambient")

logger = logging.getLogger(__name__)


def ensure(client: Client, inputs: Inputs, *, live: bool) -> tuple[str, ...] | Problem:
    """Label the namespaces of the option once an injector is live; take the label from others.

    Args:
        client: of the API server.
        inputs: the leader's; with others, and without valid options, nothing is done.
        live: an injector is. What is labelled already stays so when it is not.

    Returns:
        What is to be said of namespaces that are not labelled, each with its name.
    """
    if not inputs.leader or inputs.config is None:
        return ()
    wanted, owner = inputs.config.inject_namespaces, f"{inputs.model}/{inputs.app}"

    def act() -> tuple[str, ...]:
        present = {namespace.name: namespace for namespace in listed(client, Namespace)}
        trouble = [
            (name, f"label not taken back: {why}")
            for name, namespace in present.items()
            if _is_stray(namespace, owner, wanted)
            and (why := _refusal(client, namespace, owner, {}, {}))
        ]
        trouble += [
            (name, _label(client, present[name], owner, live) if name in present else "not found")
            for name in wanted
        ]
        return tuple(f"{name}: {why}" for name, why in trouble if why)

    return cluster.attempt("Namespace", act)


def take_back(client: Client, model: str, app: str) -> None:
    """Take back every label that the application set; a refusal comes too late to be mended."""
    try:
        for namespace in listed(client, Namespace):
            if _is_stray(namespace, f"{model}/{app}"):
                _apply(client, namespace, f"{model}/{app}", {}, {})
                logger.info("Namespace %s: label %s taken back", namespace.name, INJECTION)
    except ApiError as error:
        if error.response.status_code not in {401, 403, 404}:
            raise
        logger.warning("Namespace: label %s: not taken back: %s", INJECTION, error)


def _label(client: Client, namespace: Found, owner: str, live: bool) -> str:
    """Label `namespace`, or return why not."""
    labels = namespace.labels
    if labels.get(_AMBIENT[0]) == _AMBIENT[1]:
        return "is ambient"
    if _REVISION in labels:
        return f"has {_REVISION}={labels[_REVISION]}"
    if INJECTION in labels:
        # What it has by somebody else's doing is as good, and stays theirs.
        return "" if labels[INJECTION] == ENABLED else f"has {INJECTION}={labels[INJECTION]}"
    if not live:
        return "waits until Istio injects"
    if why := _refusal(client, namespace, owner, {INJECTION: ENABLED}, {ANNOTATION: owner}):
        return why
    logger.info("Namespace %s: labelled %s=%s", namespace.name, INJECTION, ENABLED)
    return ""


def _is_stray(namespace: Found, owner: str, keep: Collection[str] = ()) -> bool:
    return namespace.annotations.get(ANNOTATION) == owner and namespace.name not in keep


def _refusal(
    client: Client,
    namespace: Found,
    owner: str,
    labels: dict[str, str],
    annotations: dict[str, str],
) -> str:
    """`_apply`; return why it was refused, or nothing.

    Somebody was faster, with the label or the namespace, or has rules that forbid it, or a webhook
    that does not answer. That is no reason to leave out the other namespaces.
    """
    try:
        _apply(client, namespace, owner, labels, annotations)
    except httpx2.HTTPStatusError as error:
        return str(error).partition("\n")[0]
    return ""


def _apply(
    client: Client,
    namespace: Found,
    owner: str,
    labels: dict[str, str],
    annotations: dict[str, str],
) -> None:
    """Make these all that the field manager of `owner` has set in `namespace`."""
    ours = ObjectMeta(
        name=namespace.name,
        # With it, one that has gone meanwhile is a conflict; without, it would be made.
        uid=namespace.uid,
        labels=labels or None,
        annotations=annotations or None,
    )
    # A field manager may have 128 characters (apimachinery FieldManagerMaxLength), which two names
    # and a slash do not exceed.
    client.apply(Namespace(metadata=ours), field_manager=owner, force=False)
