"""`check` of a cluster: what would keep istio-aux from working there. It changes nothing.

This module reads the cluster, and `judge.preflight` judges. Watches are those of `serve`
(`watches.MeshWatch`), open for a moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from msgspec import structs

from istio_aux import rights
from istio_aux.cli import cluster, report, workloads
from istio_aux.injector.probe import DRY_RUN, read_agents, read_kubelets, read_slices, read_version
from istio_aux.injector.probe_rules import dry_run_pod, refused_in
from istio_aux.injector.rules import ControlPlanes
from istio_aux.judge import preflight
from istio_aux.judge.installation import Installations, LeftOut
from istio_aux.judge.moving import NetworkPolicy, Survey, To
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.errors import UNANSWERED, ApiError, KubeError, gap
from istio_aux.kube.lease import StoredLease
from istio_aux.kube.objects import Unreadable
from istio_aux.model.annotations import START
from istio_aux.model.ending import cut_off, failure
from istio_aux.model.findings import Code, ignored
from istio_aux.model.limits import LIMITED, Limits
from istio_aux.model.names import START_WEBHOOK
from istio_aux.model.owners import JobCounts
from istio_aux.model.pod import ISTIOS_INIT, Metadata, Pod
from istio_aux.model.pod_settings import InjectionRequest, ambient_by
from istio_aux.model.policy import Capability
from istio_aux.model.webhooks import Configuration, Service
from istio_aux.repair.rules import ReportUnmeshed
from istio_aux.settings import Settings
from istio_aux.start.plan import after_injection, plan
from istio_aux.telemetry import Telemetry
from istio_aux.watches import MeshWatch

_LIST_AGENTS = "list nodes and pods"
TRIED = 10  # Namespaces in which a pod is tried: a quota or a policy may refuse any pod.


async def check(client: Client, request: workloads.ClusterRequest) -> int:
    """Print the results found in time; return 0 if istio-aux works, or would once it is installed.

    Raises:
        KubeError: the API server does not answer at all.
    """
    every = list[preflight.CheckResult]()
    try:
        async with asyncio.timeout(request.patience):
            await _run_checks(client, request, every)
    except TimeoutError:
        every.append(
            preflight.unknown(
                "time",
                f"the other checks were not finished within {request.patience:g} s",
                "check again, with more time",
            )
        )
    every = preflight.combined(every)
    found = [preflight.bounded(each) for each in every if each.code not in request.ignore]
    request.output.show(
        found,
        report.check_text,
        to=request.to,
        ignored=ignored(each.code for each in every if each.code in request.ignore),
    )
    return 0 if preflight.works(found) else cluster.FAILED


async def _run_checks(
    client: Client, request: workloads.ClusterRequest, results: list[preflight.CheckResult]
) -> None:
    server = await read_version(client)
    found = await cluster.find(client, request.config)
    results += preflight.installations(found.names, filter(None, (found.gap, *found.problems)))
    judged = found.selecting(request.selectors)
    settings = judged.first.settings
    mesh_watch = MeshWatch(client, settings, Telemetry())
    # An installation has an account of its own.
    if request.config or request.pre or not (settings.lease or found.gap):
        results += await _tried(
            "rights",
            "create selfsubjectaccessreviews",
            _rights(client, settings, request),
        )
    async with mesh_watch.watched():
        results += await _tried("kubernetes", "list nodes", _versions(client, server))
        mesh = mesh_watch.injectors.control_planes
        configurations = {key.name: it for key, it in mesh_watch.injectors.configurations.items()}
        ours = settings.webhook_configuration or min(
            (key for key, it in configurations.items() if it.is_ours),
            default=None,
        )
        missing = mesh_watch.watches.missing()
        results[:0] = await _tried(
            "versions",
            "list pods of Istio and istio-aux",
            _images(
                client,
                server,
                found,
                None if "injectors" in missing else configurations.values(),
            ),
        )
        results += (preflight.unknown(name, why, "check again") for name, why in missing.items())
        if "injectors" not in missing:
            if not request.pre:
                results += preflight.webhook(ours, configurations)
            results += preflight.injectors(
                mesh,
                configurations,
                native=request.to == To.NATIVE,
            )
            results += await _tried(
                "installation",
                "list endpointslices",
                _unready(client, configurations),
            )
        if request.to:
            results += await _tried(
                "pods",
                "list pods",
                _moving(client, To(request.to), mesh, mesh_watch, judged),
            )
            return
        results += preflight.untried(mesh, missing)
        selected = {
            name: labels
            for name, labels in mesh_watch.namespaces.items()
            if settings.namespace_selectors.matches(labels)
            and name not in mesh_watch.namespaces.terminating
        }
        if "namespaces" not in missing:
            every = await cluster.find(client, None) if request.config else found
            results += preflight.overlapping(every.shared(mesh_watch.namespaces))
            results += preflight.namespaces(
                str(settings.namespace_selectors),
                selected,
                mesh,
            )
            if ambient := [name for name, labels in selected.items() if ambient_by({}, labels)]:
                results += await _tried("ambient", _LIST_AGENTS, _ambient(client, ambient))
            if mesh.known:
                results += await _tried(
                    "pods",
                    "list pods",
                    _pods(
                        client,
                        judged if judged.found else structs.replace(found, found=(found.first,)),
                        mesh,
                        mesh_watch.namespaces,
                    ),
                )
        if selected and ours in configurations and not request.pre:
            results += await _admission(
                client, settings, mesh_watch.injectors.left_to_ambient, selected
            )
    if settings.lease and not request.pre:
        results += await _tried("lease", "get leases", _elected(client, settings.lease))


async def _tried(
    check: str, right: str, work: Awaitable[Iterable[preflight.CheckResult]]
) -> list[preflight.CheckResult]:
    """Do the ``work`` of a check, which needs the ``right`` to read."""
    try:
        return [*await work]
    except KubeError as error:
        return [preflight.unknown(check, gap(error, right))]


async def _unready(
    client: Client,
    configurations: Mapping[str, Configuration],
) -> list[preflight.CheckResult]:
    """Report the installations whose webhook Service has no ready pod."""
    services = {
        (name, Service(behind.namespace, behind.name))
        for name, configuration in configurations.items()
        for hook in configuration.webhooks or ()
        if hook.name == START_WEBHOOK and (behind := hook.client_config.service)
    }
    return [
        preflight.unready(name, service)
        for name, service in sorted(services)
        if not any(each.ready for each in await read_slices(client, service))
    ]


async def _versions(client: Client, server: str) -> Iterable[preflight.CheckResult]:
    return preflight.versions(
        server,
        await read_kubelets(client),
        [
            each.kind
            for each in await actions.served_types(client)
            if each.api == f"{rights.ADMISSION}/v1"
        ],
    )


async def _images(
    client: Client,
    server: str,
    found: Installations,
    configurations: Iterable[Configuration] | None,
) -> Iterable[preflight.CheckResult]:
    """Find the versions of Istio and istio-aux by the images of their pods."""
    planes = {
        configuration.control_plane(hook).namespace
        for configuration in configurations or ()
        for hook in configuration.webhooks or ()
        if hook.is_istios
    }
    homes = {it.settings.lease[0] for it in found.found if it.settings.lease}
    unsure = found.gap or found.problems
    return (
        preflight.images(
            server,
            None if configurations is None else await _tags(client, planes - {""}, "discovery"),
            None if unsure else await _tags(client, homes, "istio-aux"),
        ),
    )


async def _tags(client: Client, namespaces: Iterable[str], container: str) -> Counter[str]:
    """Count the tags of the images of a container in these namespaces."""
    tags = Counter[str]()
    for namespace in sorted(namespaces):
        async for page in actions.pages(
            client,
            actions.collection("v1", "pods", namespace),
            Pod,
            actions.NOT_TERMINAL,
        ):
            tags.update(
                each.tag for pod in page.items for each in pod.containers if each.name == container
            )
    return tags


async def _ambient(client: Client, names: Iterable[str]) -> list[preflight.CheckResult]:
    """Judge whether Istio's agents can take the pods of these namespaces on each node."""
    agents, known = await read_agents(client)
    return [
        *preflight.node_agents(
            agents,
            await read_kubelets(client),
            "new pods of an ambient mesh do not start there, or start outside it",
        ),
        *preflight.excluded(known, sorted(names)),
    ]


async def _rights(
    client: Client,
    settings: Settings,
    request: workloads.ClusterRequest,
) -> Iterable[preflight.CheckResult]:
    # RBAC lets an account give only rights that it has (k8s@1.36 rbac escalation_check.go).
    wanted = [*(rights.installing() if request.pre else ()), *rights.needed(settings)]
    answers = await asyncio.gather(*(actions.allowed(client, right) for right in wanted))
    return (
        preflight.rights(
            "this account",
            [right for right, yes in zip(wanted, answers, strict=True) if not yes],
        ),
    )


async def _pods(
    client: Client,
    found: Installations,
    mesh: ControlPlanes,
    namespaces: Mapping[str, Mapping[str, str]],
) -> Iterable[preflight.CheckResult]:
    """Say what would change about existing pods, and which Job-like pods no installation covers.

    Also count the existing and future pods that lose the network when they are ended by force.
    """
    now, seen = system_clock(), 0
    cut_pods = Counter[str]()
    live = cluster.LiveJudge(client, found, mesh, namespaces)
    jobs = await cluster.counting(client) if mesh.native.capability.can else {}
    limits = await _limits(client, [])
    changes = dict[str, list[str]]()
    left_out = dict[str, list[LeftOut]]()
    failed = dict[Code, list[str]]()
    validated = set[str]()  # Nodes of pods that wait there for Istio's CNI.
    async for pod in workloads.list_pods(client, "", actions.NOT_SUCCEEDED):
        if isinstance(pod, Unreadable) or pod.metadata.namespace not in namespaces:
            continue
        about, labels = pod.metadata, namespaces[pod.metadata.namespace]
        if lately := failure(pod, now):
            failed.setdefault(lately.code, []).append(f"{about.namespace}/{about.name}")
        if any(each.name == ISTIOS_INIT[1] for each in pod.init_containers):
            validated.update(filter(None, [pod.spec.node_name]))
        if pod.status.phase == "Failed":
            continue
        judged = found.judge(pod, labels, now)
        meshed, wanted = await live.outside(pod, judged, now.date)
        owner = about.controller
        how = structs.replace(
            mesh.start(
                judged.installation.settings.start(Capability.UNKNOWN),
                InjectionRequest.of(pod, labels),
            ),
            job=JobCounts(exits=bool(owner and owner.uid in jobs)),
            limits=limits.of(about.namespace),
        )
        _, out = found.of(pod, labels)
        # Repair looks at pods of any namespace.
        if out.why and not (isinstance(meshed, ReportUnmeshed) and meshed.unmeshed):
            if preflight.hangs_alone(pod, wanted) and not found.selects(labels):
                left_out.setdefault(about.namespace, []).append(out)
            continue
        seen += 1
        cut_pods[f"{about.namespace}/{owner or about.name}"] += pod.has_proxy and bool(cut_off(pod))
        if what := preflight.change(pod, judged.decision, meshed, wanted, how):
            changes.setdefault(what, []).append(f"{about.namespace}/{about.name}")
    selects = any(map(found.selects, namespaces.values()))
    return [
        *(await _validating(client, validated) if validated else ()),
        # An installation whose settings are not known may select them.
        *preflight.unselected(
            {}
            if found.gap or found.problems
            else {name: (out[0].do, out[0].change, len(out)) for name, out in left_out.items()}
        ),
        *(preflight.pod_changes(seen, changes) if selects else ()),
        *preflight.counting(
            sorted(
                job
                for job in jobs.values()
                if found.selects(namespaces.get(job.partition("/")[0], {}))
            )
        ),
        *preflight.failures(failed),
        *preflight.cut_off(
            +cut_pods,
            await _cut_off(client, found, mesh, namespaces) if selects else Counter[str](),
        ),
    ]


async def _validating(client: Client, nodes: Collection[str]) -> Iterable[preflight.CheckResult]:
    """Judge whether Istio's CNI sets up the pods that wait for it on these nodes."""
    agents, _ = await read_agents(client)
    return preflight.node_agents(
        {"istio-cni": agents["istio-cni"]},
        nodes,
        "new pods with a sidecar may fail there in istio-validation",
    )


async def _cut_off(
    client: Client,
    found: Installations,
    mesh: ControlPlanes,
    namespaces: Mapping[str, Mapping[str, str]],
) -> Counter[str]:
    """Count, by workload, the templates whose pods will lose the network; skip unreadable ones."""
    cut = Counter[str]()
    async for each in workloads.list_templates(client, []):
        if (where := each.pod.metadata.namespace) not in namespaces:
            continue
        labels = namespaces[where]
        ours, out = found.of(each.pod, labels)
        injection = InjectionRequest.of(each.pod, labels)
        if out.why or not mesh.expected(injection).expected:
            continue
        how = mesh.start(ours.settings.start(Capability.UNKNOWN), injection)
        made = after_injection(each.pod, plan(each.pod, structs.replace(how, job=each.job)))
        cut[f"{where}/{each.workload}"] += made.has_proxy and bool(cut_off(made))
    return +cut


async def _moving(
    client: Client,
    to: To,
    mesh: ControlPlanes,
    mesh_watch: MeshWatch,
    found: Installations,
) -> list[preflight.CheckResult]:
    """Say what breaks or stays behind when the cluster goes native or ambient."""
    if not mesh.known or "namespaces" in mesh_watch.watches.missing():
        return [preflight.unknown("namespaces", "the injectors have no answer yet", "check again")]
    unread = list[str]()
    survey = Survey(
        to,
        mesh,
        mesh_watch.namespaces,
        await _limits(client, unread) if to is To.NATIVE else Limits(),
    )

    def kept(pod: Pod) -> bool:
        _, out = found.of(pod, mesh_watch.namespaces.get(pod.metadata.namespace, {}))
        return not out.why

    async for pod in workloads.list_pods(client, "", actions.NOT_TERMINAL):
        if isinstance(pod, Unreadable):
            unread.append(f"cannot read pod {pod}")
        else:
            survey.see(pod, kept=kept(pod))
    async for each in workloads.list_templates(client, unread):
        survey.template(
            each.pod,
            each.workload,
            kept=kept(each.pod),
            job=each.job,
        )
    if to is To.AMBIENT:
        async for item in workloads.list_known(
            client,
            actions.collection("networking.k8s.io/v1", "networkpolicies"),
            NetworkPolicy,
            unread,
        ):
            survey.policy(item)
    return [
        *(await _tried("ambient", _LIST_AGENTS, _ambient(client, ())) if to is To.AMBIENT else ()),
        *(preflight.unknown("pods", why) for why in unread[:TRIED]),
        *survey.results(),
    ]


async def _limits(client: Client, unread: list[str]) -> Limits:
    """Read LimitRanges and ResourceQuotas; append to ``unread`` why some cannot be read."""
    limits = Limits()
    for name, kind in LIMITED.items():
        async for item in workloads.list_known(
            client,
            actions.collection("v1", name),
            kind,
            unread,
        ):
            limits.apply(item)
    return limits


async def _admission(
    client: Client,
    settings: Settings,
    left_to_ambient: Callable[[Pod], str],
    selected: Iterable[str],
) -> list[preflight.CheckResult]:
    """Create a pod by a server-side dry run, to see whether our webhook changes it.

    It leaves a pod alone that an ambient mesh has.
    """
    tried = [
        name
        for name in sorted(selected)
        if not left_to_ambient(Pod(metadata=Metadata(namespace=name)))
    ]
    if not tried:
        return [
            preflight.unknown(
                "network",
                "no pod can be tried: an ambient mesh has each selected namespace",
            )
        ]
    if (labels := settings.pod_selector.sample()) is None:
        return [
            preflight.unknown(
                "network",
                f"no labels were found that pod-selector {settings.pod_selector} matches",
                "set another pod-selector if there are none",
            )
        ]
    refusals = dict[str, str]()
    for namespace in tried[:TRIED]:
        try:
            async with asyncio.timeout(DRY_RUN):
                began = system_clock().monotonic
                # With this annotation our webhook changes the pod, whatever the options say.
                pod = dry_run_pod(namespace, labels, {START: "hold"}, restartPolicy="Never")
                answer = await actions.dry_run_pod(client, namespace, pod)
        except ApiError as error:
            refusals[namespace] = str(error)
        except UNANSWERED as error:
            return [
                preflight.unknown(
                    "network",
                    f"a dry run in namespace {namespace}: {error or 'no answer in time'}",
                )
            ]
        else:
            return [
                preflight.network(
                    namespace,
                    answer,
                    system_clock().monotonic - began,
                )
            ]
    return [preflight.unknown("network", refused_in(refusals))]


async def _elected(client: Client, lease: tuple[str, str]) -> Iterable[preflight.CheckResult]:
    elected = await actions.read(
        client,
        actions.object_path(f"{rights.LEASES}/v1", "leases", *lease),
        StoredLease,
    )
    return (
        preflight.lease(
            "/".join(lease),
            elected.spec if elected else None,
            system_clock().date,
        ),
    )
