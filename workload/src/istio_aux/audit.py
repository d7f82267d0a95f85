"""Look once, change nothing: which pods wait for their proxy to exit, or lost it, and why.

Only the reading and the showing may live here; the judgement is the quit controller's own.
"""

from __future__ import annotations

import msgspec

from istio_aux.core import quit as quitting
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.lists import Lister
from istio_aux.quit.controller import FIELDS
from istio_aux.quit.record import verdict_of


class Finding(msgspec.Struct, frozen=True):
    """One pod that a person should know of.

    Attributes:
        namespace: of the pod.
        name: of the pod.
        uid: of the pod.
        state: ``stuck``: only the proxy keeps it; ``blocked``: some payload containers are
            finished, others are not; ``lost``: the proxy is gone before the payload.
        action: what `serve` would do with it in a selected namespace.
        reason: why.
        containers: each container's verdict, by name.
    """

    namespace: str
    name: str
    uid: str
    state: str
    action: str
    reason: str
    containers: dict[str, quitting.ContainerVerdict]


async def find(access: Access, namespace: str | None) -> list[Finding]:
    """Read the pods of one namespace, or of all, and judge each of them.

    Raises:
        KubeError: the API server refuses, or does not answer.
    """
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    findings: list[Finding] = []
    async with Client(access) as client:
        async for page in Lister(client, path, Pod).pages({"fieldSelector": FIELDS}):
            judged = (judge(pod) for pod in page.items or ())
            findings.extend(finding for finding in judged if finding)
    return sorted(findings, key=lambda found: (found.namespace, found.name))


def judge(pod: Pod) -> Finding | None:
    """The finding on one pod, or None when all is as it should be."""
    decision = quitting.decide(pod, Policy(), None)
    state = _state(decision)
    if state is None:
        return None
    return Finding(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        state=state,
        action=verdict_of(decision),
        reason=decision.reason,
        containers=dict(decision.containers),
    )


def as_json(findings: list[Finding]) -> str:
    """One JSON object a line."""
    return "\n".join(msgspec.json.encode(finding).decode() for finding in findings)


def as_table(findings: list[Finding]) -> str:
    """A table for people, with a line that says so when it would be empty."""
    if not findings:
        return "no pod is stuck or blocked"
    rows = [("NAMESPACE", "NAME", "STATE", "REASON")]
    rows += [(found.namespace, found.name, found.state, found.reason) for found in findings]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = (
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]))
        for row in rows
    )
    return "\n".join(lines)


def _state(decision: quitting.Action) -> str | None:
    match decision:
        case quitting.Quit():
            return "stuck"
        case quitting.Report():
            return "lost"
        case quitting.Wait(containers=containers):
            payload = [c.finished for c in containers.values() if c.role == "payload"]
            return "blocked" if any(payload) else None
        case quitting.Ignore():
            return None
