"""`quit` and `restart-unmeshed` run a controller of `serve` once, with the caller's rights.

All rules of the controllers hold. `quit` needs to read only pods, and only in the namespaces that
the user asks for. So rights in one are enough, whether an installation selects it or not.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from msgspec import structs

from istio_aux.cli import cluster, report, workloads
from istio_aux.injector.capture import AGENTS
from istio_aux.injector.rules import ControlPlanes
from istio_aux.judge.installation import Installation
from istio_aux.judge.pods import about, state_of
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.clock import now, system_clock
from istio_aux.kube.events import Events
from istio_aux.kube.lease import Leadership
from istio_aux.kube.objects import Key
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.model.kubelet import Kubelet
from istio_aux.model.owners import again
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import DeadProxy, QuitPolicy, RacePolicy
from istio_aux.model.resources import Requests, held
from istio_aux.model.sidecars import REMEDY
from istio_aux.model.text import listed
from istio_aux.quit.attempt import End, QuitOutcome, QuitScope
from istio_aux.quit.controller import QuitController
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Ignore, Wait, decide_once
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import RolloutLimits
from istio_aux.repair.rules import SETTLED, Restart
from istio_aux.rights import EVICT, QUIT_RIGHTS
from istio_aux.settings import Settings
from istio_aux.tasks import running, until
from istio_aux.telemetry import Telemetry
from istio_aux.watches import PATIENCE, MeshWatch, Watches

DELETE_JOB = f"where the pod of a Job has no sidecar, {again('Job')}"
GRANTED = 5.0  # Seconds to wait for a right: RBAC takes effect a moment after a role changes.
_POLL = 0.1  # Seconds between two checks of that right.
_END = 2.0  # Seconds for actions in flight to end, and then as many for Events to be sent.


async def free(client: Client, request: workloads.ClusterRequest) -> int:
    """Free the pods that hang now, or show which would be; return the exit status."""
    found = await cluster.find(client, request.config)
    # The installation's policy, except that no pod is deleted.
    run = _FreeRun(
        client,
        request,
        structs.replace(
            found.first.policy(request.sidecars),
            dead_proxy=DeadProxy.REPORT,
        ),
    )
    status = 0
    live = cluster.LiveJudge(client, found)
    async for each in workloads.find(
        client,
        request,
        {} if request.targets else actions.JOBS,
    ):
        if isinstance(each, Pod):
            run.consider(each, await live.kubelet(each))
        else:
            report.complain(each)
            status = cluster.FAILED
    if run.verdicts or not request.targets:
        status = max(status, await run.run())
    report.complain(*cluster.unknowns(found))
    return status


class _FreeRun:
    """One run of `quit`, which is also the handler of its watches of pods."""

    def __init__(
        self, client: Client, request: workloads.ClusterRequest, policy: QuitPolicy
    ) -> None:
        self._client = client
        self._request = request
        self._policy = policy
        # What would be done, and then what was done.
        self.verdicts = dict[Key, report.PodOutcome]()
        self._looked_at = 0
        self._hung = set[Key]()
        self._ends: dict[Key, End] = {}
        self._labels: dict[str, dict[str, str]] = {}
        telemetry = Telemetry()
        self._events = Events(client, socket.gethostname())
        self._watches = Watches(client, telemetry)
        self._leadership = Leadership(held=False)
        self._quit = QuitController(
            client,
            self._labels,
            telemetry,
            self._events,
            QuitScope(policy=policy),
            leadership=self._leadership,
            ended=self._ends.__setitem__,
        )

    def consider(self, pod: Pod, kubelet: Kubelet) -> None:
        """Decide whether to free the pod; list it if it hangs, is blocked, or the user named it.

        If another container keeps the pod after its proxy, the pod only loses the network. So
        such a pod is freed only if the user named it.
        """
        self._looked_at += 1
        facts = PodFacts(pod, self._policy, kubelet)
        named = bool(self._request.targets)
        decision = decide_once(facts, system_clock())
        phase = pod.status.phase
        outcome, reason, requests = "kept", pod.unschedulable or decision.reason, held(pod)
        state = state_of(pod, decision)
        stuck = state == "stuck"
        running = phase == "Running" or stuck
        due = stuck or (isinstance(decision, Wait) and decision.until)
        if phase in {"Succeeded", "Failed"}:
            outcome, reason, requests = "ended", f"it had ended before: {phase}", Requests()
        elif due and running:
            if facts.outlasting and (self._request.dry_run or not named):
                outcome = "would-cut-off" if named else "kept"
                anyway = "" if named else f"quit pod/{pod.metadata.name} --yes has it exit anyway; "
                reason = (
                    f"{PROXY} would exit, and {listed(facts.outlasting)} would keep the pod, "
                    f"without network; {anyway}to end such a container: NAME=PORT/PATH in "
                    f"--sidecars, if it listens for such a request; else {REMEDY}"
                )
            else:
                outcome = "would-free" if self._request.dry_run else "stuck"
                self._hung.add(pod.metadata.key)
        if named or (running and (due or decision.blocked_by)):
            self.verdicts[pod.metadata.key] = _outcome(
                about(pod),
                outcome,
                reason,
                state=state or "",
                code=(decision.code or "") if state else "",
                requests=requests,
            )

    def apply(self, resource: Pod) -> None:
        """Pass a pod that hangs to the controller: it was listed, or has changed."""
        if resource.metadata.key in self._hung:
            self._quit.apply(resource)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or does not run any more."""
        self._quit.delete(key)

    async def run(self) -> int:
        """Free the pods that hang, print the result, and return the exit status."""
        failure = await self._free() if self._hung else ""
        found = sorted(self.verdicts.values(), key=lambda each: (each.namespace, each.name))
        self._request.output.show(
            found,
            report.quits_text,
            dry_run=self._request.dry_run,
            among=self._request.among(self._looked_at, self._client.namespace),
        )
        if failure:
            report.complain(failure)
        stays = {"stuck", "kept"} if self._request.targets else {"stuck"}
        left = not self._request.dry_run and any(each.outcome in stays for each in found)
        return cluster.FAILED if failure or left else 0

    async def _free(self) -> str:
        """Tell the proxies of pods that hang to exit; return why that is impossible, or nothing.

        A dry run only finds out whether the account may do that.
        """
        namespaces = {key.namespace for key in self._hung}
        everywhere = self._request.all_namespaces and not self._request.targets
        scope = {""} if everywhere else namespaces
        if (forbidden := await self._forbidden(scope)) or self._request.dry_run:
            return forbidden
        for namespace in namespaces:
            self._labels[namespace] = {}  # It counts as selected, whatever its labels are.
            self._quit.relabelled(namespace)
        for namespace in sorted(scope):
            self._watches.add(
                f"pods of {namespace or 'all namespaces'}",
                actions.collection("v1", "pods", namespace),
                Pod,
                self,
                selection=actions.JOBS,
            )
        async with running(*(work() for work in self._watches.work().values()), self._events.run()):
            patience, watches = self._request.patience, self._watches
            end = now() + patience
            await until(lambda: watches.refused or not watches.missing(), min(PATIENCE, patience))
            if missing := _missing(watches):
                return missing
            self._leadership.lead(True)  # Lead only now: each pod that is told to exit is watched.
            await until(lambda: not any(map(self._ends_yet, self._hung)), end - now())
            for key in self._hung:
                self.verdicts[key] = self._result(key)
            await self._quit.stop(_END)
            await self._events.sent(_END)
        return ""

    async def _forbidden(self, scope: set[str]) -> str:
        """Why no proxy can be told to exit; the empty text if an attempt may succeed."""
        for namespace in sorted(scope):
            may = [
                await actions.allowed(self._client, right._replace(namespace=namespace))
                for right in QUIT_RIGHTS
            ]
            if not any(may):
                return (
                    "this account may not create pods/exec or pods/portforward in"
                    f" {workloads.place(namespace)}"
                )
        return ""

    def _ends_yet(self, key: Key) -> bool:
        """Whether a pod that hung is still there and may end soon."""
        state = self._quit.known.get(key)
        return state is not None and (
            state.unwatched
            or state.asks_for == "quit"
            or (isinstance(state.decision, Ignore) and state.asks_for != "blocked")
        )

    def _result(self, key: Key) -> report.PodOutcome:
        """What became of a pod that hung, and why."""
        state = self._quit.known.get(key)
        end = self._ends.get(key, End(reason="it ended without a quit"))
        if state is None:
            exited = end.outcome in {QuitOutcome.EXITED, QuitOutcome.EXITED_NONZERO}
            outcome = "freed" if exited else "gone"
            reason = end.reason
        else:
            decision = state.decision
            works = isinstance(decision, Wait) and not (state.asks_for or decision.blocked_by)
            alone = isinstance(decision, Ignore) and decision.blocked_by  # The proxy has exited.
            outcome = "kept" if works or alone else "stuck"
            reason = (state.task and state.task.failure) or decision.reason
        return structs.replace(
            self.verdicts[key],
            outcome=outcome,
            reason=reason,
            seconds=end.after_payload,
        )


def _missing(watches: Watches) -> str:
    return "; ".join(f"{name}: {why}" for name, why in watches.missing().items())


async def restart_unmeshed(client: Client, request: workloads.ClusterRequest) -> int:
    """Restart pods, or show which would be; return the exit status."""
    end = now() + request.patience
    request = await cluster.resolved(client, request)
    async with aclosing(workloads.list_pods(client, request.namespace or "", {})) as pods:
        await anext(pods, None)  # Fail early if pods may not be listed: a watch would retry.
    found = await cluster.find(client, request.config)
    if found.gap:
        raise workloads.UnanswerableError(f"{found.gap}: {DELETE_JOB}")
    report.complain(*cluster.unknowns(found))
    ours = found.first
    failed = "" if request.dry_run else await _may_not_restart(client, ours.settings, request)
    if failed := failed or await _restart(client, ours, request, end):
        report.complain(failed)
    return cluster.FAILED if failed else 0


async def _may_not_restart(
    client: Client, settings: Settings, request: workloads.ClusterRequest
) -> str:
    """Why no pod may be restarted now, or the empty text."""
    if (race := settings.repair_policy.race) is RacePolicy.RESTART:
        return f"race-policy: {race}: `serve` restarts these pods already"
    right = EVICT._replace(namespace=request.namespace or "")
    with suppress(TimeoutError):
        async with asyncio.timeout(GRANTED):
            while not await actions.allowed(client, right):  # noqa: ASYNC110
                await asyncio.sleep(_POLL)
            return ""
    return (
        f"this account may not {right}: the option race-policy: restart grants it to the"
        " workload, and the action restart-unmeshed for as long as it runs"
    )


async def _restart(
    client: Client, ours: Installation, request: workloads.ClusterRequest, end: float
) -> str:
    """Restart pods until ``end`` and print the result; return why that failed, or nothing."""
    settings = ours.settings
    telemetry = Telemetry()
    done = dict[Key, Restart]()
    dry_run = request.dry_run

    def mesh_changed(mesh: ControlPlanes) -> None:
        repair.store.set_injectors(mesh)

    def relabelled(namespace: str) -> None:
        repair.store.invalidate(namespace)

    mesh_watch = MeshWatch(
        client,
        settings,
        telemetry,
        changed=mesh_changed,
        relabelled=relabelled,
    )
    events = Events(client, socket.gethostname(), source="/".join(settings.lease or ()))
    leadership = Leadership(held=False)
    repair = RepairController(
        client,
        mesh_watch.namespaces,
        telemetry,
        events,
        policy=structs.replace(settings.repair_policy, race=RacePolicy.RESTART, only=request.only),
        options=settings.pod_options,
        terminating=mesh_watch.namespaces.terminating,
        limits=RolloutLimits(restarts=request.limit),
        restarted=done.__setitem__,
        leadership=leadership,
    )
    repair.store.set_applications(ours.applications)
    pods = mesh_watch.watches.add(
        "pods",
        actions.collection("v1", "pods", request.namespace or ""),
        Pod,
        repair.store,
        selection=actions.NOT_TERMINAL,
    )
    agents = mesh_watch.watches.add(
        "agents",
        actions.PODS,
        Pod,
        repair.store.cni,
        selection={"labelSelector": AGENTS["istio-cni"]},
    )

    async with mesh_watch.watched(events.run(), repair.run(pods.synced)):
        watches = mesh_watch.watches
        known = await until(
            lambda: watches.refused or (pods.synced.is_set() and agents.synced.is_set()),
            min(PATIENCE, end - now()),
        )
        if missing := _missing(watches):
            return f"{missing}; {DELETE_JOB}" if watches.refused else missing
        if not (known and mesh_watch.injectors.control_planes.known):
            return "it is not known whether Istio injects: see `istio-aux check`"
        settling = min(PATIENCE + SETTLED, end - now())
        over = await until(lambda: repair.finished, settling) or dry_run
        if not dry_run:
            leadership.lead(True)
            over = await until(lambda: repair.finished, end - now())
            await repair.stop(_END)
            await events.sent(_END)
    request.output.show(
        [*_restarts(repair, done, request)],
        report.restarts_text,
        dry_run=dry_run,
        installation=ours.name,
        among=request.among(None),
    )
    return "" if over else f"not finished within {request.patience:g} s: run it again"


def _restarts(
    repair: RepairController,
    done: Mapping[Key, Restart],
    request: workloads.ClusterRequest,
) -> Iterator[report.PodOutcome]:
    """Yield the pods that were or would be restarted, and all others, each with the reason."""
    for key, action in done.items():
        pod = Found(**key._asdict(), state="unmeshed", code=action.code)
        yield _outcome(pod, "restarted", action.reason)
    candidates, dry_run = [it.uid for it in repair.candidates()], request.dry_run
    chosen = candidates[: request.limit] if dry_run else []
    not_chosen = {*candidates} - {*chosen}
    limited = dry_run or len(done) >= request.limit
    late = f": the limit is {request.limit}" if limited else f" within {request.patience:g} s"
    for pod in filter(lambda pod: request.wants(pod.uid), run_now(repair.unmeshed())):
        yield _outcome(
            pod,
            "would-restart" if pod.uid in chosen else "kept",
            f"{pod.reason}; not restarted{late}" if pod.uid in not_chosen else pod.reason,
        )


def _outcome(pod: Found, outcome: str, reason: str, **more: Any) -> report.PodOutcome:
    """What became of a pod, or would."""
    of: dict[str, Any] = {**structs.asdict(pod), "outcome": outcome, "reason": reason, **more}
    return report.PodOutcome(**of)
