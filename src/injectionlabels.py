"""The option `inject-namespaces`: Istio's label on namespaces, set and taken back.

Server-side apply keeps the account of who set what: the charm has a field manager of its own for
this, never forces, and what it takes back is what nobody else has set too. By an annotation it
finds again the namespaces that it labelled. Nothing here makes or deletes a namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

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
        _take_back(client, present.values(), owner, keep=wanted)
        trouble = [
            (name, _label(client, present[name], owner, live) if name in present else "not found")
            for name in wanted
        ]
        return tuple(f"{name}: {why}" for name, why in trouble if why)

    return cluster.attempt("Namespace", act)


def take_back(client: Client, model: str, app: str) -> None:
    """Take back every label that the application set; a refusal comes too late to be mended."""
    try:
        _take_back(client, listed(client, Namespace), f"{model}/{app}")
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
    try:
        _apply(client, namespace, owner, {INJECTION: ENABLED}, {ANNOTATION: owner})
    except ApiError as error:
        # Somebody was faster, with the label or the namespace, or has rules that forbid it.
        if error.response.status_code not in {403, 404, 409, 422}:
            raise
        return str(error).partition("\n")[0]
    logger.info("Namespace %s: labelled %s=%s", namespace.name, INJECTION, ENABLED)
    return ""


def _take_back(
    client: Client, present: Iterable[Found], owner: str, keep: Collection[str] = ()
) -> None:
    for namespace in present:
        if namespace.annotations.get(ANNOTATION) == owner and namespace.name not in keep:
            _apply(client, namespace, owner, {}, {})
            logger.info("Namespace %s: label %s taken back", namespace.name, INJECTION)


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
