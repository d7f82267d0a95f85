"""`audit` and `explain`, which read a live cluster once, and helpers of the other commands."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from msgspec import structs

from istio_aux.cli import report, workloads
from istio_aux.cli.page import page
from istio_aux.injector.capture import NodeAgents
from istio_aux.injector.injection import Expectation
from istio_aux.injector.probe import read_agents
from istio_aux.injector.rules import ControlPlanes
from istio_aux.injector.watcher import away, survey
from istio_aux.judge.installation import (
    Installation,
    Installations,
    Judgement,
    Labels,
    installations,
)
from istio_aux.judge.pods import judge, outside
from istio_aux.kube import access as credentials, actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import UNREAD, AccessError, ApiError, KubeError
from istio_aux.kube.exec import is_ready
from istio_aux.kube.objects import Unreadable, decoded
from istio_aux.model import kept, resources
from istio_aux.model.annotations import injected
from istio_aux.model.ending import COUNTED
from istio_aux.model.findings import Code, Remark
from istio_aux.model.found import Found
from istio_aux.model.kubelet import OBEYS, Kubelet, depends_on_kubelet, obeys
from istio_aux.model.moment import Moment
from istio_aux.model.owners import Job, JobCounts
from istio_aux.model.pod import Pod
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import listed, one_line
from istio_aux.model.webhooks import Configuration, Namespace
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Quit, Report, decide_once
from istio_aux.repair.rules import RepairAction

FAILED = 1  # Exit status when it is not done, not known, or not as it should be.
BAD_CREDENTIALS = 2  # Exit status when the credentials cannot be used.
# Seconds for which an Event about refused pods counts. Controllers try again every minute, and
# client-go reports that every five minutes.
LATELY = 900.0
ASKED = 100  # Pods at most whose proxy is asked whether it is ready.
ANSWERS = 5.0  # Seconds for its answer.
HOOK_FAILED = "FailedPostStartHook"  # Reason of the kubelet's Event.


def run(
    answer: workloads.Answer,
    request: workloads.ClusterRequest,
    *,
    patient: bool,
) -> int:
    """Answer a request with a client of its cluster; return the exit status.

    Credentials are found as kubectl finds them. An error is a line on stderr. For ``patient`` see
    `Client`.
    """
    server = ""
    # Keep the workload's log off the terminal: answers have what matters.
    logging.getLogger("istio_aux").addHandler(logging.NullHandler())

    async def work(client: Client) -> int:
        async with client:
            return await answer(client, request)

    try:
        access = credentials.find(
            request.kubeconfig or (request.config and request.config.settings.kubeconfig),
            context=request.context,
        )
        server = f"API server {access.server}"
        return asyncio.run(work(Client(access, patient=patient, user=request.user)))
    except (AccessError, workloads.UnanswerableError) as error:
        report.complain(str(error))
        return BAD_CREDENTIALS if isinstance(error, AccessError) else FAILED
    except KubeError as error:
        again = "the credentials are not accepted: log in again: " if error.code == 401 else ""
        report.complain(f"{server}: {again}{error}")
        return FAILED


async def explain(
    client: Client, request: workloads.ClusterRequest, show: Callable[..., None]
) -> int:
    """Explain pods of a cluster as they are now; return the exit status.

    ``show`` gets each pod, its `Judgement`, and the keyword arguments of `report.explain`. A target
    without pods, and a pod that cannot be read, is a line on stderr.
    """
    jobs = dict[str, Collection[str]]()
    told = list[str]()
    found = await find(client, request.config)
    live = LiveJudge(client, found)
    held = each = None
    now = system_clock()
    status = FAILED if found.problems and Code.SETTINGS not in request.ignore else 0
    async for each in workloads.find(client, request, told=told):
        if isinstance(each, str):
            report.complain(each)
            status = FAILED
            continue
        if (where := each.metadata.namespace) not in jobs:
            await live.read_labels(where)
            jobs[where] = await counting(client, where)
        judged = await live.judge(each, now, request.sidecars)
        owner = each.metadata.controller
        native = [sidecar.name for sidecar in each.native_sidecars]
        counts = native and owner and owner.uid in jobs[where]
        notes = [Remark(Code.COUNTED, f"{listed(native)}: {COUNTED}")] if counts else []
        judged = await _hook_failed(client, judged)
        has_proxy = each.names_proxy and injected.on(each.metadata)
        meshed = None if has_proxy else await live.outside(each, judged, now.date)
        waits = each.unschedulable and resources.requests(each)
        if waits and waits.gpus and held is None:
            held = await _held(client, found.first)
        show(
            each,
            judged,
            notes=notes,
            meshed=meshed,
            held=held if waits and waits.gpus else "",
        )
    report.complain(*told, *unknowns(found, live.gaps, request.ignore, said=[found.gap]))
    if each is None:
        report.complain(f"there is no pod {request.among(0, client.namespace)}")
    return status


async def _held(client: Client, ours: Installation) -> str:
    """Say how many GPUs finished pods hold; empty if none, or if pods may not be listed."""
    held = list[int]()
    now = system_clock()
    with suppress(KubeError):
        async for pod in workloads.list_pods(client, "", actions.JOBS):
            if isinstance(pod, Pod) and pod.status.phase == "Running":
                facts = PodFacts(pod, ours.policy(None))
                finished = isinstance(decide_once(facts, now), Quit)
                if finished and facts.requests and facts.requests.gpus:
                    held.append(facts.requests.gpus)
    return f"; {sum(held)} GPUs are held by {len(held)} finished pods" if held else ""


async def counting(client: Client, namespace: str = "") -> dict[str, str]:
    """Jobs whose podFailurePolicy counts exit codes of native sidecars, by UID, if readable."""
    with suppress(KubeError):
        return {
            job.metadata.uid: str(job.metadata.key)
            async for page in actions.pages(
                client,
                actions.collection("batch/v1", "jobs", namespace),
                Job,
                {},
            )
            for job in page.items
            if JobCounts.of(job.spec).exits
        }
    return {}


async def find(client: Client, config: Installation | None) -> Installations:
    """Find the installations of the cluster, or take the one that ``config`` has.

    Raises:
        KubeError: the API server does not answer.
    """
    if config:
        return Installations((config,))
    try:
        read = [
            page async for page in actions.pages(client, actions.CONFIGURATIONS, Configuration, {})
        ]
    except ApiError as error:
        return Installations(gap=workloads.gap(error, "list mutatingwebhookconfigurations"))
    return installations(
        {item.metadata.name: item for page in read for item in page.items}.values(),
        [str(bad) for page in read for bad in page.unreadable],
    )


def unknowns(
    found: Installations,
    gaps: Iterable[str] = (),
    ignore: Collection[str] = (),
    *,
    said: Iterable[str] = (),
) -> Iterator[str]:
    """Yield the unknown settings, a line each, without those that an answer has already ``said``.

    ``gaps`` say why labels of namespaces are not known. An installation selects by these labels.
    """
    if found.gap not in {"", *said}:
        yield f"no installation's settings are known, so the defaults are used: {found.gap}"
    if Code.SETTINGS not in ignore:
        yield from (str(Remark(Code.SETTINGS, problem)) for problem in found.problems)
    if not found.gap:
        for gap in dict.fromkeys(gaps):
            yield f"pods are judged as if their namespace were selected: {gap}"


async def audit(client: Client, request: workloads.ClusterRequest) -> int:
    """Print the pods that wait for their proxy, lost it or lack it; return the exit status.

    It is `FAILED` if some pods could not be judged, else 0.
    """
    request = await resolved(client, request)
    pods = await audit_pods(client, request)
    return show_audit(pods, request, system_clock().date)


async def resolved(client: Client, request: workloads.ClusterRequest) -> workloads.ClusterRequest:
    """Return the request with the UIDs of the pods of its targets, and their namespace.

    Raises:
        UnanswerableError: a target has no pods.
    """
    if not request.targets:
        return request
    found = [each async for each in workloads.find(client, request)]
    pods = [each.metadata for each in found if isinstance(each, Pod)]
    if wrong := [each for each in found if isinstance(each, str)]:
        raise workloads.UnanswerableError("; ".join(wrong))
    spaces, only = {each.namespace for each in pods}, {each.uid for each in pods}
    return structs.replace(request, namespace=spaces.pop() if len(spaces) == 1 else None, only=only)


def show_audit(pods: report.Audit, request: workloads.ClusterRequest, now: datetime) -> int:
    """Print an answer of `audit`, as of ``now``; return the exit status."""
    if request.holders:
        request.output.show(pods.holders(), report.holders_text, audit=pods)
    else:
        request.output.show(
            pods.findings,
            report.audit_text,
            audit=pods,
            now=now,
        )
    if request.report:
        try:
            request.report.write_text(page(pods, now), "utf-8")
        except OSError as error:
            report.complain(f"{request.report}: {error.strerror or error}")
            return FAILED
    report.complain(*pods.notes)
    unsure = pods.installations.problems and Code.SETTINGS not in request.ignore
    return FAILED if pods.unknown or unsure else 0


async def audit_pods(client: Client, request: workloads.ClusterRequest) -> report.Audit:
    """Read the unfinished pods, and those that failed lately, and judge each of them as of now.

    The result's ``notes`` say what is not known. A refused read that only the search for unmeshed
    pods needs is a note, too, and no `KubeError`.
    """
    now = system_clock()
    owners = set[str]()
    tally = Tally()
    where = request.namespace or ""
    mesh, unread = await survey(client)
    found = await find(client, request.config)
    live = LiveJudge(client, found, mesh)
    await live.read_labels(request.namespace)
    async for pod in workloads.list_pods(
        client,
        where,
        actions.NOT_SUCCEEDED,
        request.selector,
        request.wants,
    ):
        if isinstance(pod, Unreadable):
            tally.unreadable.append(str(pod))
            continue
        if pod.status.phase == "Failed":
            judged = found.judge(pod, live.namespaces.get(pod.metadata.namespace), now)
            tally.add(judge(pod, judged, lately=now))
            continue
        tally.pods += 1
        owners.update(each.uid for each in pod.metadata.owner_references or ())
        judged = await live.judge(pod, now)
        meshed = await live.outside(pod, judged, now.date)
        tally.add(judge(pod, judged, meshed, lately=now))
    remarks = [
        Remark(
            Code.REFUSED,
            f"{each.metadata.namespace}: {each.involved_object.kind.lower()}/"
            f"{each.involved_object.name}: {each.refused}",
        )
        for uid, each in (await workloads.refused_pods(client, where)).items()
        if request.only is None and uid not in owners and now.wall - each.at.timestamp() < LATELY
    ][: report.MOST]
    return tally.audit(found, request, gaps=live.gaps, unread=unread, remarks=remarks)


class Tally:
    """Counts pods, keeps their findings, and why some could not be judged."""

    def __init__(self) -> None:
        self.pods = 0  # That have not ended.
        self.unreadable = list[str]()  # Pods that cannot be read, each with the reason.
        self.unsure = Counter[str]()  # Pods that may hang, by the reason.
        self._unknown = Counter[str]()  # Pods that may lack their sidecar, by the reason.
        self._findings = list[Found]()

    def add(self, found: Collection[Found]) -> bool:
        """Keep the findings of `judge` about a pod that have a state; count those in doubt.

        Returns whether there is one of either.
        """
        for each in found:
            if each.state:
                self._findings.append(each)
            elif each.in_doubt:
                self._unknown[each.reason] += 1
        return any(each.state or each.in_doubt for each in found)

    def audit(
        self,
        found: Installations,
        request: workloads.ClusterRequest,
        *,
        gaps: Iterable[str] = (),
        unread: Iterable[str] = (),
        remarks: Sequence[Remark] = (),
        notes: Iterable[str] = (),
    ) -> report.Audit:
        """Return all findings, except those with codes that the request ignores.

        ``gaps`` say why labels of namespaces are not known, and ``unread`` names other reads that
        failed. For each of them some pods may lack their sidecar.
        """
        number, unsure = self._unknown.total() + len(self.unreadable), self.unsure.total()
        doubts = {Code.MESH_UNKNOWN: number, Code.UNKNOWN: unsure}
        remarks = [*remarks]
        if number:
            unreadable = [f"cannot read pod {each}" for each in self.unreadable]
            reasons = [
                *filter(None, [listed(unreadable, "; ", most=3)]),
                *self._unknown,
                *((*gaps, *unread) if self._unknown else ()),
            ]
            remarks.append(
                Remark(
                    Code.MESH_UNKNOWN,
                    f"pods that may lack their sidecar: {number}: {listed(reasons, '; ')}",
                )
            )
        if unsure:
            remarks.append(
                Remark(
                    Code.UNKNOWN,
                    f"pods that may hang: {unsure}: {'; '.join(self.unsure)}",
                )
            )
        return report.Audit(
            sorted(
                (each for each in self._findings if each.code not in request.ignore),
                key=lambda finding: (finding.namespace, finding.name),
            ),
            self.pods,
            sum(count for code, count in doubts.items() if code not in request.ignore),
            installations=found,
            among=request.among(self.pods),
            narrowed=bool(request.targets or request.selector.requirements),
            ignored=[it.code for it in (*self._findings, *remarks) if it.code in request.ignore],
            notes=(
                *unknowns(
                    found,
                    gaps,
                    request.ignore,
                    said=(each.left_out for each in self._findings),
                ),
                *notes,
                *(str(each) for each in remarks if each.code not in request.ignore),
            ),
        )


class LiveJudge:
    """Judges pods by what it reads of their cluster: each thing once, and only if a pod needs it.

    Attributes:
        namespaces: their labels, by name; `read_labels` adds some.
        gaps: why some are not known.
    """

    def __init__(
        self,
        client: Client,
        found: Installations,
        mesh: ControlPlanes | None = None,
        namespaces: Mapping[str, Labels] | None = None,
    ) -> None:
        """``mesh`` is what is read already of injectors, ``namespaces`` the labels that are."""
        self.namespaces, self.gaps = {**(namespaces or {})}, list[str]()
        self._client, self._found, self._mesh = client, found, mesh
        self._kubelets = dict[str, Kubelet]()  # By node.
        self._agents: NodeAgents | None = None
        self._asked = 0  # Proxies.
        self._away: str | None = None  # Which injectors have no istiod.

    async def read_labels(self, namespace: str | None) -> None:
        """Read the labels of a namespace, or of all."""
        try:
            if namespace:  # With rights in one namespace a user may get it, but not list them.
                body = await self._client.get(
                    f"{actions.NAMESPACES}/{actions.namespace_name(namespace)}"
                )
                found = {namespace: kept.labels(decoded(body, Namespace))}
            else:
                found = {
                    item.metadata.name: kept.labels(item)
                    async for page in actions.pages(self._client, actions.NAMESPACES, Namespace, {})
                    for item in page.items
                }
        except UNREAD as error:
            self.gaps.append(
                workloads.gap(
                    error,
                    f"get namespace {namespace}" if namespace else "list namespaces",
                )
            )
        else:
            self.namespaces |= found

    async def judge(
        self,
        pod: Pod,
        now: Moment,
        sidecars: tuple[SidecarRule, ...] | None = None,
    ) -> Judgement:
        """Judge a pod as `Installations.judge` does; ask the proxy of a held one if it is ready.

        The kubelet may be pulling the payload's image instead. So only a proxy that says that it is
        not ready makes a finding. At most `ASKED` proxies are asked.
        """
        labels, kubelet = self.namespaces.get(pod.metadata.namespace), await self.kubelet(pod)
        judged = self._found.judge(pod, labels, now, sidecars, kubelet=kubelet, asks=True)
        decision, ready = judged.decision, None
        if decision.stage != "held" or not decision.blocked_by:
            return judged
        if self._asked < ASKED:
            self._asked += 1
            ready = await is_ready(self._client, pod.metadata.key, ANSWERS)
        if ready is False:
            if self._away is None:
                self._away = await away(self._client, await self._planes())
            more = filter(None, ["the proxy is not ready", self._away])
        else:
            more = ["the proxy is ready" if ready else "not known whether the proxy is ready"]
            decision = structs.replace(decision, blocked_by=(), code=None)
        reason = "; ".join((decision.reason, *more))
        return judged._replace(decision=structs.replace(decision, reason=reason), reason=reason)

    async def outside(
        self, pod: Pod, judged: Judgement, now: datetime
    ) -> tuple[RepairAction, Expectation]:
        """Judge whether a pod is in its mesh; see `judge.pods.outside`."""
        labels, expected = (
            self.namespaces.get(pod.metadata.namespace),
            (await self._planes()).expected,
        )
        found = outside(pod, labels, judged, expected, self._agents or NodeAgents(), now=now)
        if self._agents or not found[1].ambient:
            return found
        try:
            _, self._agents = await read_agents(self._client)
        except UNREAD as error:
            self._agents = NodeAgents(unread=workloads.gap(error, "list the pods of istio-cni"))
        return outside(pod, labels, judged, expected, self._agents, now=now)

    async def kubelet(self, pod: Pod) -> Kubelet:
        """Read the version of a pod's kubelet if it matters; stderr has why that failed."""
        if not depends_on_kubelet(pod):
            return OBEYS
        node = pod.spec.node_name or ""
        if node not in self._kubelets:
            version = ""
            try:
                version = await actions.read_kubelet(self._client, node)
            except UNREAD as error:
                report.complain(
                    "restart rules of containers may or may not be obeyed: "
                    + workloads.gap(error, f"get node {node}")
                )
            self._kubelets[node] = Kubelet(obeys(version))
        return self._kubelets[node]

    async def _planes(self) -> ControlPlanes:
        if self._mesh is None:
            self._mesh, _ = await survey(self._client)
        return self._mesh


async def _hook_failed(client: Client, judged: Judgement) -> Judgement:
    """Add the kubelet's Event about a hold that gave up, if the account may list Events."""
    pod = judged.facts.pod.metadata
    if isinstance(judged.decision, Report) and judged.facts.never_met:
        events = await workloads.refused_pods(client, pod.namespace, pod.uid, [HOOK_FAILED])
        if failed := events.get(pod.uid):
            why = one_line(failed.message[: workloads.LONGEST_WHY], workloads.LONGEST_WHY)
            return judged._replace(reason=f"{judged.reason}; {HOOK_FAILED}: {why}")
    return judged
