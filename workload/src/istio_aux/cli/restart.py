"""`restart-unmeshed`: the repair controller of `serve`, once, for so many pods of a namespace.

All its rules hold: `repair.rules` says which pods may be restarted, `repair.rollout` restarts them
one at a time for each controller, and pods are evicted, within their PodDisruptionBudgets. Pods of
Jobs are left alone: a Job that is suspended has to be resumed, which is the work of `serve`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from istio_aux.cli import cluster, report
from istio_aux.cli.installation import Installation
from istio_aux.cli.report import RestartVerdict
from istio_aux.injector.rules import ControlPlanes
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.kube.objects import Key
from istio_aux.model.documents import whole
from istio_aux.model.pod import Pod
from istio_aux.model.policy import RacePolicy, RepairPolicy, Right
from istio_aux.repair.controller import RepairController
from istio_aux.repair.rollout import RolloutLimits
from istio_aux.repair.rules import Restart
from istio_aux.tasks import until
from istio_aux.telemetry import Telemetry
from istio_aux.watches import PATIENCE, Surroundings

NOT_DONE = 1  # Exit status when nothing may be restarted, or not all of it was in time.
GRANTED = 5.0  # Seconds: RBAC takes effect a moment after a role changes.
_END = 2.0  # Seconds that evictions in flight have to end, and then Events to be sent.
_POLL = 0.1  # Seconds between two questions for a right.
_EVICT = Right("create", "", "pods/eviction", "to restart pods")


class RestartRequest(cluster.ClusterRequest, frozen=True, kw_only=True):
    """Which pods to restart: ``limit`` of one namespace, or of all, in ``patience`` seconds."""

    namespace: str | None = None
    limit: int = 10
    patience: float = 300.0
    dry_run: bool = True


def restart_unmeshed(credentials: cluster.Credentials, request: RestartRequest) -> int:
    """Restart pods, or show which would be; return the exit status."""

    async def work(access: Access) -> int:
        async with Client(access) as client:
            found = await cluster.find(client, request.config)
            cluster.told(found)
            failed = await _RestartRun(client, found.first, request).run()
        if failed:
            report.complain(failed)
        return NOT_DONE if failed else 0

    return cluster.run(credentials, work)


class _RestartRun:
    """One run of the command."""

    def __init__(self, client: Client, installation: Installation, request: RestartRequest) -> None:
        settings, self._installation = installation.settings, installation.name
        self._client, self._settings, self._request = client, settings, request
        self._done: dict[Key, Restart] = {}
        telemetry = Telemetry()
        self._around = around = Surroundings(
            client, settings, telemetry, changed=self._mesh_changed, relabelled=self._relabelled
        )
        source = "/".join(settings.lease or ())
        self._events = Events(client, socket.gethostname(), source=source)
        policy = RepairPolicy(race=RacePolicy.RESTART, ours=settings.repair_policy.ours)
        self._repair = RepairController(
            client, around.namespaces, telemetry, self._events,
            policy=policy, options=settings.pod_options, going=around.namespaces.going,
            limits=RolloutLimits(restarts=request.limit), restarted=self._done.__setitem__,
        )  # fmt: skip
        self._repair.set_applications(installation.applications)
        path = actions.collection("v1", "pods", request.namespace or "")
        self._pods = around.watches.add(
            "pods", path, Pod, self._repair, selection=actions.NOT_TERMINAL
        )

    async def run(self) -> str:
        """Do it, and print the result; return why it is not done, or the empty text."""
        loop, patience, dry_run = (
            asyncio.get_running_loop(),
            self._request.patience,
            self._request.dry_run,
        )
        end = loop.time() + patience

        def left(most: float = patience) -> float:
            return max(0.0, min(most, end - loop.time()))

        if why := await self._forbidden():
            return why
        async with self._around.watched(self._events.run(), self._repair.run(self._pods.synced)):
            known = await until(self._pods.synced.is_set, left(PATIENCE))
            if missing := self._around.watches.missing():
                return "; ".join(f"{name}: {why}" for name, why in missing.items())
            if not (known and self._around.injectors.control_planes.known):
                return "it is not known whether Istio injects: see `istio-aux check`"
            over = await until(lambda: self._repair.finished, left(PATIENCE)) or dry_run
            if not dry_run:
                self._repair.lead(True)
                over = await until(lambda: self._repair.finished, left())
                await self._repair.stop(_END)
                await self._events.sent(_END)
        found = [*self._verdicts()]
        text = partial(
            report.restarts_text, found, dry_run=dry_run, installation=self._installation
        )
        report.show(sys.stdout, self._request.output, found, text)
        return "" if over else f"not finished within {patience:g} s: run it again"

    async def _forbidden(self) -> str:
        """Why no pod may be restarted now, or the empty text."""
        if self._request.dry_run:
            return ""
        if (race := self._settings.repair_policy.race).restarts:
            return f"race-policy: {race}: `serve` restarts these pods already"
        right = _EVICT._replace(namespace=self._request.namespace or "")
        with suppress(TimeoutError):
            async with asyncio.timeout(GRANTED):
                while not await actions.allowed(self._client, right):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL)
                return ""
        return (
            f"this account may not {right}: the option race-policy: restart grants it to the"
            " workload, and the action restart-unmeshed for as long as it runs"
        )

    def _verdicts(self) -> Iterator[RestartVerdict]:
        """The pods that were restarted, or the first ones that would be, and why the others not."""
        for key, action in self._done.items():
            yield RestartVerdict(key.namespace, key.name, "restarted", action.reason)
        request, candidates = self._request, self._repair.candidates()
        chosen = set(candidates[: request.limit] if request.dry_run else ())
        left = set(candidates) - chosen
        full = request.dry_run or len(self._done) >= request.limit
        late = f": the limit is {request.limit}" if full else f" within {request.patience:g} s"
        for pod in whole(self._repair.unmeshed()):
            why = f"{pod.reason}; not restarted{late}" if pod in left else pod.reason
            outcome = "would-restart" if pod in chosen else "kept"
            yield RestartVerdict(pod.namespace, pod.name, outcome, why)

    def _mesh_changed(self, mesh: ControlPlanes) -> None:
        self._repair.set_injectors(mesh)

    def _relabelled(self, namespace: str) -> None:
        self._repair.relabelled(namespace)
