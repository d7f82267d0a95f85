"""`audit` of a cluster, and `explain` of its pods: read once, change nothing."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Container, Coroutine, Mapping

import msgspec

from istio_aux.cli import report, workloads
from istio_aux.injector.watcher import survey
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import (
    AccessError,
    ApiError,
    KubeError,
)
from istio_aux.kube.objects import Key, Reader
from istio_aux.model.applications import Applications, left_out
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Policy
from istio_aux.model.selectors import NamespaceSelectors, Selector
from istio_aux.model.webhooks import Namespace
from istio_aux.start.plan import admitted

NO_ANSWER = 1  # Exit status when the API server refuses or does not answer.
BAD_CREDENTIALS = 2  # Exit status when the credentials cannot be used.
FOUND = 3  # Exit status of `audit` when pods are in a state that they must not be in.
UNREADABLE_SHOWN = 3  # Unreadable pods that are named; the others are counted.

_NAMESPACES = actions.collection("v1", "namespaces")
_namespace = Reader(Namespace, "namespace")


Credentials = Callable[[], Access]
"""Finds the credentials; raises `AccessError`."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that the user names, as `workloads.find` takes them."""

    targets: tuple[str, ...] = ()
    namespace: str | None = None
    all_namespaces: bool = False
    selector: Selector = Selector()


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The pods to audit: of one namespace, of those that one of the selectors matches, or all."""

    namespace: str | None = None
    selectors: NamespaceSelectors | None = None
    labels: Selector = Selector()  # What the user chose of the pods.
    pods: Selector = Selector()  # Others are left out, but for those of `applications`.
    inject: Selector | None = None  # These should have a sidecar although their annotation says no.
    applications: Applications = Applications()  # Their pods should have a sidecar.

    def has(self, pod: Pod, selected: Container[str]) -> bool:
        """Whether the pod is in scope; ``selected`` are the namespaces that match."""
        if self.selectors is not None and pod.metadata.namespace not in selected:
            return False
        return not left_out(pod, self.pods, self.applications)


def explain(credentials: Credentials, chosen: Chosen, show: Callable[[Pod, Moment], None]) -> int:
    """Explain pods of a cluster as they are now; return the exit status.

    ``show`` gets each pod, and the present time. What has no pods, and a pod that cannot be read,
    is one line on stderr.
    """

    async def work(access: Access) -> int:
        status = 0
        async with Client(access, patient=True) as client:
            async for each in workloads.find(
                client, chosen.targets, namespace=chosen.namespace or access.namespace,
                all_namespaces=chosen.all_namespaces, selector=chosen.selector,
            ):  # fmt: skip
                if isinstance(each, Pod):
                    show(each, system_clock())
                else:
                    report.complain(str(each))
                    status = NO_ANSWER
        return status

    return run(credentials, work)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How `audit` answers."""

    output: str = "text"
    holders: bool = False  # Only what keeps the pods that do not complete.
    fail_on: frozenset[str] = frozenset()  # States of which no pod may be.
    watch: float | None = None  # Seconds between two looks.


def audit(credentials: Credentials, scope: Scope, policy: Policy, asked: Asked) -> int:
    """Print the pods that wait for their proxy, lost it or lack it; return the exit status.

    It is `FOUND` if a pod has a state of ``asked.fail_on``, else `NO_ANSWER` if some pods could not
    be judged, else 0.
    """

    async def work(access: Access) -> int:
        last: report.Audit | None = None
        while True:
            pods = await audit_pods(access, scope, policy)
            if last is None or pods.findings != last.findings:
                shown = pods.since(last) if last and asked.output == "json" else pods
                if last and asked.output == "text":
                    report.write(sys.stdout, "")
                report.show(sys.stdout, shown.holders() if asked.holders else shown, asked.output)
                if pods.unknown:
                    gaps = "; ".join(pods.gaps)
                    report.complain(f"pods that may lack their sidecar: {pods.unknown}: {gaps}")
            if asked.fail_on.intersection(each.state for each in pods.findings):
                return FOUND
            if asked.watch is None:
                return NO_ANSWER if pods.unknown else 0
            sys.stdout.flush()
            last = pods
            await asyncio.sleep(asked.watch)

    return run(credentials, work)


async def audit_pods(access: Access, scope: Scope, policy: Policy) -> report.Audit:
    """Read the pods that are not finished, and judge each of them as of now.

    A refusal of what only unmeshed pods need is no `KubeError`, but one of the gaps.
    """
    findings, now = list[report.Finding](), system_clock()
    seen, unknown, unreadable = set[str](), Counter[str](), dict[Key, str]()
    path = actions.collection("v1", "pods", scope.namespace or "")
    async with Client(access, patient=True) as client:
        labels, gaps = await _namespaces(client, scope)
        selects = scope.selectors is not None
        if selects and not labels:
            return report.Audit([], 0, 0)
        mesh = await survey(client)
        chosen = {"labelSelector": str(scope.labels)} if scope.labels.requirements else {}
        async for page in actions.pages(client, path, Pod, {**actions.NOT_TERMINAL, **chosen}):
            for lost in page.unreadable:
                if not selects or lost.key.namespace in labels:
                    unreadable[lost.key] = f"cannot read pod {lost}"
            for pod in page.items:
                namespace = pod.metadata.namespace
                # A list that started again shows pods twice.
                if not scope.has(pod, labels) or pod.metadata.uid in seen:
                    continue
                seen.add(pod.metadata.uid)
                judged = admitted(pod, scope.applications, scope.inject)
                expectation = mesh.expected(judged, labels.get(namespace))
                match report.audit(judged, expectation, policy, now):
                    case report.Finding() as finding:
                        findings.append(finding)
                    case str(why):
                        unknown[why] += 1
                    case None:
                        pass
    named = [*unreadable.values()][:UNREADABLE_SHOWN]
    if len(unreadable) > len(named):
        named.append(f"and {len(unreadable) - len(named)} more")
    return report.Audit(
        sorted(findings, key=lambda finding: (finding.namespace, finding.name)),
        len(seen),
        len(labels) if selects else None,
        unknown.total() + len(unreadable),
        (*named, *unknown, *((*gaps, *mesh.gaps) if unknown else ())),
    )


async def _namespaces(
    client: Client, scope: Scope
) -> tuple[dict[str, Mapping[str, str]], tuple[str, ...]]:
    """The labels of the namespaces in scope, by name, and why some are unknown."""
    if (selectors := scope.selectors) is not None:
        one = {"fieldSelector": f"metadata.name={scope.namespace}"} if scope.namespace else {}
        found = await _labels(client, one)
        return {name: labels for name, labels in found.items() if selectors.matches(labels)}, ()
    try:
        if scope.namespace is None:
            return await _labels(client, {}), ()
        # A user with rights in one namespace may get it, but not list namespaces.
        body = await client.get(f"{_NAMESPACES}/{actions.namespace_name(scope.namespace)}")
        return {scope.namespace: _namespace.read(body).labels}, ()
    except ApiError as error:
        return {}, (f"{_NAMESPACES}: {error}",)


async def _labels(client: Client, params: Mapping[str, str]) -> dict[str, Mapping[str, str]]:
    pages = actions.pages(client, _NAMESPACES, Namespace, params)
    return {item.metadata.name: item.labels async for page in pages for item in page.items}


def run(credentials: Credentials, work: Callable[[Access], Coroutine[None, None, int]]) -> int:
    """Do ``work`` with the credentials; return its exit status, or that of a failure."""
    server = ""
    try:
        access = credentials()
        server = access.server
        return asyncio.run(work(access))
    except AccessError as error:
        report.complain(str(error))
        return BAD_CREDENTIALS
    except KubeError as error:
        report.complain(f"API server {server}: {error}")
        return NO_ANSWER
