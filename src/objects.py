"""What the leader does in the cluster for an event and for a removal, and in which order.

Functions raise `cluster.ReconcileError`; if a removal raises it, Juju retries the hook.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from istio_aux import settings
from istio_aux.model import selectors
from istio_aux.model.annotations import DATAPLANE, INJECTION
from istio_aux.model.names import SETTINGS, WEBHOOK_PORT
from istio_aux.model.text import listed
from istio_aux.model.webhooks import REVISION
from lightkube import Client, operators
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources import admissionregistration_v1 as admission
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Namespace
from lightkube.resources.discovery_v1 import EndpointSlice

import cluster
import manifests
from cluster import UNREADABLE, Found, ReconcileError, attempt
from inputs import Inputs
from probe import Transport

# Client timeout of writes that Istio's validating webhook checks. An istiod that hangs takes the
# 10 s of its configuration (istio-discovery chart validatingwebhookconfiguration.yaml).
_VALIDATOR_PATIENCE: Final = 3.0
# The application that set Istio's label of a namespace, as model/application.
INJECTED_BY: Final = "istio-aux.io/injection"

# Seconds until API servers know that a webhook is gone. Measured: 0.33 s at most, on 2 busy cores.
WEBHOOK_GONE: Final = 1.0

_SHOWN: Final = 3  # Namespaces that the status names.

logger = logging.getLogger(__name__)


def resolve(client: Client, inputs: Inputs) -> Inputs:
    """Return `inputs` with what the cluster says."""
    unknown = any(not (one.application or one.refusal) for one in inputs.requesters)
    if not (inputs.leader or unknown):
        return inputs
    namespaces = tuple(cluster.listed(client, Namespace))
    inputs = dataclasses.replace(
        inputs,
        namespaces=namespaces,
        requesters=tuple(one.verify(namespaces) for one in inputs.requesters),
    )
    if not inputs.leader:
        return inputs
    webhooks = [*cluster.listed(client, admission.MutatingWebhookConfiguration)]
    revisions = {each.labels[REVISION] for each in webhooks if REVISION in each.labels}
    ours = manifests.webhook_configuration(inputs.app, inputs.model)
    labelled = {manifests.OWNER: operators.exists()}
    policies = cluster.owned(client, admission.ValidatingAdmissionPolicy, labelled, inputs.model)
    _refuse_others(inputs, [*webhooks, *(policies or ())])
    others = [each for each in webhooks if each.name != ours]
    return dataclasses.replace(
        inputs,
        revisions=tuple(sorted(revisions)),
        has_webhook=any(each.name == ours for each in webhooks),
        dry_runs=policies is not None,
        shared=tuple(_shared(inputs, others, namespaces)),
    )


def _shared(inputs: Inputs, others: Iterable[Found], namespaces: Iterable[Found]) -> Iterator[str]:
    """Yield which namespaces of ours another installation selects, too; as `check` judges."""
    ours = inputs.config.options if inputs.config else {}
    for each in others:
        try:
            theirs, _ = settings.read_published(each.annotations.get(SETTINGS, ""))
            mine = msgspec.structs.replace(
                settings.DEFAULTS,
                namespace_selectors=selectors.parse_namespaces(str(ours["namespace-selectors"])),
                pod_selector=selectors.parse(str(ours["pod-selector"])),
            )
        except UNREADABLE:
            continue
        both = (mine, theirs)
        if names := [it.name for it in namespaces if settings.overlapping(both, it.labels)]:
            yield f"{each.name} selects {listed(names, most=_SHOWN)}, too"


def _refuse_others(inputs: Inputs, there: Iterable[Found]) -> None:
    """Raise if another installation has an object of our name, which is never overwritten."""
    ours = manifests.labels(inputs.app, inputs.model)
    name, me = manifests.webhook_configuration(inputs.app, inputs.model), manifests.owner(ours)
    for each in there:
        labelled = manifests.OWNER in each.labels
        if each.name == name and labelled and (other := manifests.owner(each.labels)) != me:
            raise ReconcileError(
                f"{name} belongs to the {other}: remove that, or this {me}", taken=True
            )


def ensure(client: Client, inputs: Inputs) -> None:
    """Apply what needs no workload, and the webhook configuration if it exists already."""
    if values := inputs.values():
        standing = manifests.render_access(values)
        if inputs.has_webhook:
            standing += manifests.render_webhook(values)
        cluster.apply(client, standing, inputs.app)


@contextlib.contextmanager
def evicting(client: Client, inputs: Inputs) -> Generator[None]:
    """Grant the workload evictions inside the context; leader only. Its other hooks wait for this.

    If this process is killed meanwhile, the next event takes the right away.
    """
    inputs = resolve(client, inputs)
    values = inputs.values()
    if values is None:
        raise ReconcileError(inputs.invalid or "waiting for the leader's certificate authority")
    try:
        granted = dataclasses.replace(values, repairs=True)
        cluster.apply(client, manifests.render_access(granted), inputs.app)
        yield
    finally:
        try:
            cluster.apply(client, manifests.render_access(values), inputs.app)
        except ReconcileError as error:
            logger.warning("%s: the next event takes the right to evict away", error)


def complete(client: Client, inputs: Inputs) -> None:
    """Create the webhook configuration, or, once it exists, delete objects that are not wanted.

    Call it when this unit serves. The configuration waits for the Service: without a workload, each
    new pod costs a call that fails.
    """
    values = inputs.values()
    if values is None:
        return
    if inputs.has_webhook:
        cluster.prune(
            client,
            manifests.labels(inputs.app, inputs.model),
            inputs.model,
            keep=manifests.render(values),
        )
    elif waits := awaited(client, inputs):
        raise ReconcileError(f"waiting for {waits} of Service {inputs.app}")
    else:
        cluster.apply(client, manifests.render_webhook(values), inputs.app)


def awaited(client: Client, inputs: Inputs) -> str:
    """Return what the Service still lacks, or the empty text."""
    with attempt(f"EndpointSlices of Service {inputs.app}"):
        labels = {"kubernetes.io/service-name": inputs.app}
        # lightkube's label operators are untyped.
        listing = client.list(  # pyright: ignore[reportUnknownMemberType]
            EndpointSlice, namespace=inputs.model, labels=dict[str, Any](labels)
        )
        slices = [*listing]
    ends = [end for part in slices for end in part.endpoints or ()]
    # None means True (discovery/v1 EndpointConditions).
    if not any(end.conditions is None or end.conditions.ready is not False for end in ends):
        return "a ready endpoint"
    # Juju opens the port after the hook that asks for it.
    ports = {port.port for part in slices for port in part.ports or ()}
    return "" if WEBHOOK_PORT in ports else f"port {WEBHOOK_PORT}"


def admit_api_server(inputs: Inputs, transport: Transport = None) -> str:
    """Let the API server reach a workload whose own pods are in a mesh; leader only.

    Istio's validating webhook checks each write of these objects, so a write fails while istiod is
    away. An object that is right already is not written, and the next event tries again.

    Returns:
        Which object was not applied and why, in one line, or the empty text.
    """
    values = inputs.values()
    if values is None:
        return ""
    try:
        with cluster.connect(transport, patience=_VALIDATOR_PATIENCE) as client:
            for wanted in manifests.render_mesh(values):
                if not cluster.stands(client, wanted, inputs.model):
                    cluster.apply(client, [wanted], inputs.app)
    except ReconcileError as error:
        logger.warning("%s: not applied", error)
        return str(error)
    return ""


def label_namespaces(client: Client, inputs: Inputs, *, live: bool) -> tuple[str, ...]:
    """Set Istio's label on `inject-namespaces` when an injector is live; remove it elsewhere.

    The charm removes only what it has set: an annotation marks the namespaces that it labelled, and
    server-side apply never forces. Only the leader acts, and not without a configuration.

    Returns:
        Namespaces that are not as they should be, each with the reason.
    """
    if not inputs.leader or inputs.config is None:
        return ()
    wanted = inputs.config.namespaces
    owner = f"{inputs.model}/{inputs.app}"
    missing = {*wanted} - {namespace.name for namespace in inputs.namespaces}
    reasons = [f"{name}: not found" for name in sorted(missing)]
    for namespace in inputs.namespaces:
        name = namespace.name
        enabled = namespace.name in wanted
        if enabled and (why := _obstacle(namespace.labels, live=live)):
            reasons.append(f"{name}: {why}")
        elif _is_stray(namespace, owner, wanted) or (enabled and INJECTION not in namespace.labels):
            try:
                _label(client, namespace, owner, enabled=enabled)
            except ReconcileError as error:  # A conflict, or another operator's webhook.
                reasons.append(str(error))
    return tuple(reasons)


def _obstacle(labels: Mapping[str, str], *, live: bool) -> str:
    # A label that another client has set works as well, and stays that client's.
    if labels.get(DATAPLANE) == "ambient":
        return "is ambient"
    for key in (REVISION, INJECTION):
        if (key in labels) and (key, labels[key]) != (INJECTION, "enabled"):
            return f"has {key}={labels[key]}"
    return "" if live or INJECTION in labels else "waiting until Istio injects"


def _is_stray(namespace: Found, owner: str, keep: Collection[str] = ()) -> bool:
    return namespace.annotations.get(INJECTED_BY) == owner and namespace.name not in keep


def _label(
    client: Client,
    namespace: Found,
    owner: str,
    *,
    enabled: bool,
) -> None:
    """Set or remove the label and the annotation of `owner`, which is the field manager."""
    ours = ObjectMeta(
        name=namespace.name,
        # Without the UID, a namespace that is gone would be created.
        uid=namespace.uid,
        labels={INJECTION: "enabled"} if enabled else None,
        annotations={INJECTED_BY: owner} if enabled else None,
    )
    with attempt(namespace.name if enabled else f"{namespace.name}: label not removed"):
        # Two names and a slash fit in 128 characters (apimachinery FieldManagerMaxLength).
        client.apply(Namespace(metadata=ours), field_manager=owner, force=False)
    done = "set" if enabled else "removed"
    logger.info("Namespace %s: label %s %s", namespace.name, INJECTION, done)


def remove(client: Client, app: str) -> list[str]:
    """Delete what the application owns, and revert its labels.

    This may fail and begin again at any point.

    Returns:
        Kinds of objects that it leaves, because the API server does not let it see or delete them.
    """
    model = cluster.namespace()
    left = list[str]()
    # The webhook goes first: calls of it would fail. The rest may take as long as pods take to end.
    if _delete(client, app, model, cluster.OWNED[:1], []):
        # Nothing shows when every API server has seen that, and no event follows the last hook.
        time.sleep(WEBHOOK_GONE)
    # The workload's account loses its roles, then the policies that narrow them go.
    _delete(client, app, model, cluster.OWNED, left)
    # The workload created the Lease, without labels. It has lost the right to create another.
    with cluster.tolerating_refusals(left, "Lease"), attempt("Lease"):
        client.delete(Lease, app, namespace=model)
    with cluster.tolerating_refusals(left, "the labels of namespaces"):
        for namespace in cluster.listed(client, Namespace):
            if _is_stray(namespace, f"{model}/{app}"):
                _label(client, namespace, f"{model}/{app}", enabled=False)
    return left


def _delete(
    client: Client,
    app: str,
    model: str,
    kinds: Iterable[type[Any]],
    left: list[str],
) -> bool:
    labels = manifests.labels(app, model)
    deleted = False
    for kind in kinds:
        with cluster.tolerating_refusals(left, kind.__name__):
            deleted |= cluster.delete(client, kind, labels, model)
    return deleted
