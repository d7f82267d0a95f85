"""Look once, change nothing: which pods wait for their proxy to exit, or lost it, and why.

Only the reading and the judging may live here; the judgement is the quit controller's own. How the
result looks is the business of `audit_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from istio_aux.core import quit as quitting
from istio_aux.core.namespace import Namespace
from istio_aux.core.pod import PROXY, Pod
from istio_aux.core.policy import Policy
from istio_aux.core.selectors import Selector
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.lists import Lister
from istio_aux.quit.controller import FIELDS, PODS

State = Literal["stuck", "blocked", "lost"]


class Finding(msgspec.Struct, frozen=True):
    """One pod that a person should know of; as JSON, the names are a contract.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod.
        state: ``stuck``: only the proxy keeps it; ``blocked``: some payload containers are
            finished, others are not, or an annotation cannot be understood; ``lost``: the proxy is
            gone before the payload.
        since: when it came to this, as the kubelet says: when the last of the finished payload
            containers ended, or the proxy if the pod is lost; None if it does not say.
        action: what `serve` would do with it in a selected namespace.
        reason: why.
        by: what a blocked pod waits for: containers, or an annotation that cannot be understood.
        containers: each container's verdict, by name.
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


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods to look at: those of one namespace, of namespaces with certain labels, or all."""

    namespace: str | None = None
    selector: Selector = Selector()


class Audit(msgspec.Struct, frozen=True):
    """What was found among how many pods, and in how many namespaces if they were selected."""

    findings: list[Finding]
    looked_at: int
    namespaces: int | None = None


async def look(
    access: Access,
    scope: Scope,
    policy: Policy,
    read: Callable[[int], None] = lambda _count: None,
) -> Audit:
    """Read the pods that run and are meant to end, and judge each of them as of now.

    ``read`` is called with the number of pods read so far whenever there are more to come. The
    total is not known: the API server counts what remains only without a field selector
    (meta/v1 ListMeta.remainingItemCount).

    Raises:
        KubeError: the API server refuses, or does not answer.
    """
    count, findings, now = 0, list[Finding](), datetime.now(UTC)
    path = PODS if scope.namespace is None else f"/api/v1/namespaces/{scope.namespace}/pods"
    async with Client(access) as client:
        selected = await _selected(client, scope)
        if selected is not None and not selected:
            return Audit([], 0, 0)
        seen = set[str]()
        async for page in Lister(client, path, Pod).pages({"fieldSelector": FIELDS}):
            for pod in page.items or ():
                wanted = selected is None or pod.metadata.namespace in selected
                # A list that had to be begun again shows pods twice.
                if wanted and pod.metadata.uid not in seen:
                    seen.add(pod.metadata.uid)
                    findings += filter(None, [judge(pod, policy, now)])
            count = len(seen)
            if page.metadata.next:
                read(count)
    findings.sort(key=lambda found: (found.namespace, found.name))
    return Audit(findings, count, None if selected is None else len(selected))


def judge(pod: Pod, policy: Policy, now: datetime | None) -> Finding | None:
    """The finding on one pod, or None when all is as it should be."""
    decision = quitting.decide(pod, policy, now)
    state, by = _state(decision)
    if state is None:
        return None
    return Finding(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        state=state,
        since=_since(pod, state, decision.containers),
        action=str(decision.__struct_config__.tag),
        reason=decision.reason,
        by=by,
        containers=dict(decision.containers),
    )


async def _selected(client: Client, scope: Scope) -> set[str] | None:
    """The names of the selected namespaces; None for all, without asking who may not be asked."""
    if not scope.selector.requirements:
        return None
    params = {"labelSelector": str(scope.selector)}
    if scope.namespace is not None:
        params["fieldSelector"] = f"metadata.name={scope.namespace}"
    pages = Lister(client, "/api/v1/namespaces", Namespace).pages(params)
    return {item.metadata.name async for page in pages for item in page.items or ()}


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


def _since(
    pod: Pod, state: State, containers: Mapping[str, quitting.ContainerVerdict]
) -> datetime | None:
    ended = [
        ended.replace(tzinfo=ended.tzinfo or UTC)
        for status in pod.statuses()
        if (verdict := containers.get(status.name)) is not None
        and (status.name == PROXY if state == "lost" else verdict.role == "payload")
        and verdict.finished
        and status.state is not None
        and status.state.terminated is not None
        and (ended := status.state.terminated.finished_at) is not None
    ]
    return max(ended, default=None)
