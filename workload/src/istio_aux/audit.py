"""Look once, change nothing: which pods wait for their proxy to exit, lost it, or never had it.

Only the reading and the judging may live here; the judgements are those of the controllers. How the
result looks is the business of `audit_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Literal

import msgspec

from istio_aux.core import quit as quitting
from istio_aux.core import repair
from istio_aux.core.applications import Applications
from istio_aux.core.injection import Expectation
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy, RepairPolicy
from istio_aux.core.selectors import Selector
from istio_aux.core.webhooks import Namespace
from istio_aux.injector.survey import survey
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.lists import Lister
from istio_aux.kube.reader import Reader
from istio_aux.kube.resources import Key
from istio_aux.quit.controller import PODS
from istio_aux.repair.controller import FIELDS

State = Literal["stuck", "blocked", "lost", "unmeshed"]

_NAMESPACES = actions.collection("v1", "namespaces")
_REPORT = RepairPolicy()
"""That unmeshed pods are looked for, and nothing is done about them."""
NAMED = 3
"""Pods that cannot be read and are named; the others are counted."""
_namespace = Reader(Namespace, "namespace")


class Finding(msgspec.Struct, frozen=True):
    """One pod that a person should know of; as JSON, the names are a contract.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod.
        state: ``stuck``: only the proxy keeps it; ``blocked``: some payload containers are
            finished, others are not, or an annotation cannot be understood; ``lost``: the proxy is
            gone before the payload; ``unmeshed``: there should be a proxy, and there is none.
        since: when it came to this, as the kubelet says: when the last of the finished payload
            containers ended, or the proxy if the pod is lost; None if it does not say. An unmeshed
            pod has been so since it was created.
        action: what `serve` would do with it in a selected namespace.
        reason: why.
        by: what a blocked pod waits for: containers, or an annotation that cannot be understood.
        containers: each container's verdict, by name; empty for an unmeshed pod.
        configuration: the webhook configuration that selects an unmeshed pod, else empty.
    """

    namespace: str
    name: str
    uid: str
    state: State
    since: datetime | None
    action: str
    reason: str
    by: tuple[str, ...]
    containers: dict[str, quitting.ContainerVerdict]
    configuration: str = ""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods to look at: those of one namespace, of namespaces with certain labels, or all.

    Attributes:
        applications: whose pods should have a sidecar although they do not ask for it themselves.
    """

    namespace: str | None = None
    selector: Selector = Selector()
    applications: Applications = Applications()


class Audit(msgspec.Struct, frozen=True):
    """What was found among how many pods, and in how many namespaces if they were selected.

    Attributes:
        unknown: how many pods have no sidecar while it is not known whether they should have one,
            or cannot be read.
        gaps: why that is not known, one line each.
    """

    findings: list[Finding]
    looked_at: int
    namespaces: int | None = None
    unknown: int = 0
    gaps: tuple[str, ...] = ()


async def look(
    access: Access,
    scope: Scope,
    policy: Policy,
    read: Callable[[int], None] = lambda _count: None,
) -> Audit:
    """Read the pods that are not over, and judge each of them as of now.

    ``read`` is called with the number of pods read so far whenever there are more to come. The
    total is not known: the API server counts what remains only without a field selector
    (meta/v1 ListMeta.remainingItemCount).

    Raises:
        KubeError: the API server refuses, or does not answer. What it refuses of that which is
            needed for unmeshed pods alone is among the gaps instead.
    """
    findings, now = list[Finding](), datetime.now(UTC)
    path = PODS if scope.namespace is None else actions.collection("v1", "pods", scope.namespace)
    async with Client(access, patient=True) as client:
        labels, gaps = await _namespaces(client, scope)
        selects = bool(scope.selector.requirements)
        if selects and not labels:
            return Audit([], 0, 0)
        mesh = await survey(client)
        gaps += mesh.gaps
        seen, unknown, unreadable = set[str](), dict[str, int](), dict[Key, str]()
        async for page in Lister(client, path, Pod).pages({"fieldSelector": FIELDS}):
            for lost in page.unreadable:
                if not selects or lost.key.namespace in labels:
                    unreadable[lost.key] = f"cannot read pod {lost}"
            for pod in page.items:
                namespace = pod.metadata.namespace
                # A list that had to be begun again shows pods twice.
                if (selects and namespace not in labels) or pod.metadata.uid in seen:
                    continue
                seen.add(pod.metadata.uid)
                expectation = mesh.expected(scope.applications.judged(pod), labels.get(namespace))
                match repair.decide(pod, expectation, _REPORT, live=None):
                    case repair.Report(unmeshed=True, reason=reason):
                        findings.append(_unmeshed(pod, expectation, reason))
                    case repair.Report():
                        unknown[expectation.reason] = unknown.get(expectation.reason, 0) + 1
                    case _ if pod.status.phase == "Running":  # No other pod is quit's to look at.
                        findings += filter(None, [judge(pod, policy, now)])
                    case _:
                        pass
            if page.metadata.next:
                read(len(seen))
    findings.sort(key=lambda found: (found.namespace, found.name))
    return Audit(
        findings,
        len(seen),
        len(labels) if selects else None,
        sum(unknown.values()) + len(unreadable),
        (*_first(unreadable.values()), *unknown, *(gaps if unknown else ())),
    )


def _first(gaps: Collection[str]) -> Iterator[str]:
    yield from islice(gaps, NAMED)
    if len(gaps) > NAMED:
        yield f"and {len(gaps) - NAMED} more"


def judge(pod: Pod, policy: Policy, now: datetime | None) -> Finding | None:
    """The finding on the proxy of one pod, or None when all is as it should be."""
    decision = quitting.decide(pod, policy, now)
    state, by = _state(decision)
    if state is None:
        return None
    return Finding(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        state=state,
        since=quitting.since(pod, decision),
        action=str(decision.__struct_config__.tag),
        reason=decision.reason,
        by=by,
        containers=dict(decision.containers),
    )


def _unmeshed(pod: Pod, expectation: Expectation, reason: str) -> Finding:
    return Finding(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        state="unmeshed",
        since=pod.metadata.creation_timestamp,
        action="report",
        reason=reason,
        by=(),
        containers={},
        configuration=expectation.configuration,
    )


async def _namespaces(
    client: Client, scope: Scope
) -> tuple[dict[str, Mapping[str, str]], tuple[str, ...]]:
    """The labels of the namespaces in scope, by name, and why some are not known.

    Raises:
        KubeError: they cannot be had, and without them it is not known which are selected.
    """
    if scope.selector.requirements:
        params = {"labelSelector": str(scope.selector)}
        if scope.namespace is not None:
            params["fieldSelector"] = f"metadata.name={scope.namespace}"
        return await _labels(client, params), ()
    try:
        if scope.namespace is None:
            return await _labels(client, {}), ()
        # Who has rights in one namespace may read it, and may not list any.
        body = await client.get(f"{_NAMESPACES}/{actions.namespace_name(scope.namespace)}")
        return {scope.namespace: _namespace.read(body).labels}, ()
    except ApiError as error:
        return {}, (f"{_NAMESPACES}: {error}",)


async def _labels(client: Client, params: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    pages = Lister(client, _NAMESPACES, Namespace).pages(params)
    return {item.metadata.name: item.labels async for page in pages for item in page.items}


def _state(decision: quitting.Action) -> tuple[State | None, tuple[str, ...]]:
    match decision:
        case quitting.Quit():
            return "stuck", ()
        case quitting.Report():
            return "lost", ()
        case quitting.Wait(blocked_by=by) if by:
            return "blocked", by
        case _:
            return None, ()
