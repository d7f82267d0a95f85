"""`quit`: the quit controller of `serve`, once, with the rights of the account that calls it.

All its rules hold: `quit.rules` decides, and the status of its container is what shows that a
proxy has exited. Only pods are watched, and only where they are asked for: rights in a single
namespace are enough. Which namespaces an installation selects does not matter; its other settings
count where the account may read them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Container, Iterator
from functools import partial

from msgspec import structs

from istio_aux.cli import cluster, report
from istio_aux.cli.check import QUIT_RIGHTS, quiet
from istio_aux.cli.report import QuitResult, QuitVerdict
from istio_aux.kube import actions
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.clock import system_clock
from istio_aux.kube.events import Events
from istio_aux.kube.objects import Key
from istio_aux.model import resources
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.model.resources import Requests
from istio_aux.model.text import listed
from istio_aux.quit import rules as quitting
from istio_aux.quit.controller import Controller
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Ignore, Quit, Wait
from istio_aux.quit.state import End, QuitOutcome
from istio_aux.tasks import running, until
from istio_aux.telemetry import Telemetry
from istio_aux.watches import PATIENCE, Watches

STILL_THERE = 1  # Exit status when a pod that hangs, or that was named, still runs.
_GONE = "it ended without a quit"
_HELP = (
    "NAME=PORT/PATH in --sidecars ends a container that listens for such a request; "
    "in new pods, the annotation istio-aux.io/sidecars: NAME=native"
)
_END = 2.0  # Seconds that attempts in flight have to end, and then Events to be sent.


class QuitRequest(cluster.Chosen, frozen=True, kw_only=True):
    """Which pods to free in ``patience`` seconds: of the targets, else those with such labels."""

    patience: float = 120.0
    dry_run: bool = True


def free(credentials: cluster.Credentials, request: QuitRequest) -> int:
    """Free the pods that hang now, or show which would be; return the exit status."""

    async def work(access: Access) -> int:
        quiet()
        here = "" if request.all_namespaces else request.namespace or access.namespace
        async with Client(access) as client:
            found = await cluster.find(client, request.config)
            cluster.told(found)
            named, status = list[Pod](), 0
            if request.targets:
                async for each in request.find(client, access):
                    if isinstance(each, Pod):
                        named.append(each)
                    else:
                        report.complain(each)
                        status = cluster.NO_ANSWER
                if not named:
                    return status
            # As the installation treats pods, but that no pod is deleted.
            policy = structs.replace(
                found.first.policy(request.sidecars), dead_proxy=DeadProxy.REPORT
            )
            spaces = {pod.metadata.namespace for pod in named} or {here}
            return max(status, await _FreeRun(client, request, policy, named).run(spaces))

    return cluster.run(credentials, work)


class _FreeRun:
    """One run of the command. It is the handler of the watches of pods."""

    def __init__(
        self, client: Client, request: QuitRequest, policy: Policy, named: list[Pod]
    ) -> None:
        self._client, self._request, self._policy = client, request, policy
        self._named = {pod.metadata.key: pod for pod in named}
        self._hung: dict[Key, Requests | None] = {}
        # The owner of each pod, and what keeps it after its proxy.
        self._about: dict[Key, tuple[str, list[str]]] = {}
        self._held = list[QuitVerdict]()
        # The pods that count: those that are named, and those that hang once all are listed.
        self._chosen: Container[Key] | None = self._named or None
        self._ends: dict[Key, End] = {}
        self._labels: dict[str, dict[str, str]] = {}
        telemetry = Telemetry()
        self._events = Events(client, socket.gethostname())
        self._watches = Watches(client, telemetry)
        self._quit = Controller(
            client, self._labels, telemetry, self._events,
            policy=policy, leading=False, ended=self._ends.__setitem__,
        )  # fmt: skip

    def apply(self, resource: Pod) -> None:
        """The pod exists and looks like this."""
        key = resource.metadata.key
        if self._chosen is not None and key not in self._chosen:
            return
        if not self._request.selector.matches(resource.labels):
            self._quit.delete(key)
            return
        if key.namespace not in self._labels:
            self._labels[key.namespace] = {}  # Selected, whatever labels it has.
            self._quit.relabelled(key.namespace)
        self._about[key] = report.owner_of(resource), PodFacts(resource, self._policy).outlasting
        self._quit.apply(resource)

    def delete(self, key: Key, _last: Pod | None) -> None:
        """The pod is gone, or does not run any more."""
        self._quit.delete(key)

    async def run(self, scope: set[str]) -> int:
        """Do it in these namespaces, print the result, and return the exit status."""
        watches = [
            self._watches.add(
                f"pods of {namespace or 'all namespaces'}",
                actions.collection("v1", "pods", namespace), Pod, self,
                selection=actions.RUNNING_JOBS,
            )
            for namespace in sorted(scope)
        ]  # fmt: skip
        works = (*self._watches.work().values(), self._events.run)
        async with running(*(work() for work in works)):
            clock, patience = asyncio.get_running_loop().time, self._request.patience
            end = clock() + patience
            await until(
                lambda: self._watches.refused or all(each.synced.is_set() for each in watches),
                min(PATIENCE, patience),
            )
            if missing := self._watches.missing():
                report.complain("; ".join(f"{name}: {why}" for name, why in missing.items()))
                return cluster.NO_ANSWER
            self._choose()
            forbidden = await self._forbidden(scope) if self._hung else ""
            if not (self._request.dry_run or forbidden):
                self._quit.lead(True)
                await until(lambda: not any(map(self._ends_yet, self._hung)), end - clock())
            found = sorted(self._verdicts(), key=lambda each: (each.namespace, each.name))
            await self._quit.stop(_END)
            await self._events.sent(_END)
        dry_run = self._request.dry_run
        text = partial(report.quits_text, found, dry_run=dry_run)
        report.show(sys.stdout, self._request.output, found, text)
        if forbidden:
            report.complain(forbidden)
        stays = {"stuck", *({"kept"} if self._named else ())}
        still = not dry_run and any(each.outcome in stays for each in found)
        return STILL_THERE if still or forbidden else 0

    def _choose(self) -> None:
        """All pods are listed: leave those alone that do not hang now.

        Without its proxy, a pod that another container keeps is worse off. So that is done only
        to pods that are named.
        """
        for key, state in [*self._quit.known.items()]:
            hangs, reason = state.asks_for == "quit", state.decision.reason
            owner, outlasting = self._about[key]
            keepers = outlasting if hangs else []
            if hangs and not (keepers and (self._request.dry_run or not self._named)):
                self._hung[key] = state.requests
                continue
            self._quit.delete(key)
            if keepers:
                reason = f"{PROXY} would exit, and {listed(keepers)} would keep the pod, without "
                reason += f"network: only done to a pod that is named; {_HELP}"
            if keepers or (state.decision.blocked_by and not self._named):
                self._held.append(QuitVerdict(*key, "kept", reason, state.requests, owner))
        self._chosen = self._hung

    async def _forbidden(self, scope: set[str]) -> str:
        """Why no proxy can be told to exit; the empty text if an attempt may succeed."""
        for namespace in sorted(scope):
            rights = [right._replace(namespace=namespace) for right in QUIT_RIGHTS]
            if not any([await actions.allowed(self._client, right) for right in rights]):
                where = f"in namespace {namespace}" if namespace else "in all namespaces"
                return f"this account may not create pods/exec or pods/portforward {where}"
        return ""

    def _ends_yet(self, key: Key) -> bool:
        """Whether a pod that hung is still there and may end soon."""
        state = self._quit.known.get(key)
        if state is None:
            return False
        exited = isinstance(state.decision, Ignore) and not state.decision.blocked_by
        return exited or state.left or state.asks_for == "quit"

    def _verdicts(self) -> Iterator[QuitVerdict]:
        """The pods that hung, those that were named, and those that other containers hold."""
        for key, requests in self._hung.items():
            end, (owner, _) = self._ends.get(key), self._about[key]
            waited = end.after_payload if end else None
            yield QuitVerdict(*key, *self._outcome(key), requests, owner, waited)
        answered = {Key(each.namespace, each.name, each.uid) for each in self._held}
        for key, pod in self._named.items():
            if key not in self._hung and key not in answered:
                decision = quitting.decide(PodFacts(pod, self._policy, None), system_clock())
                outcome, reason, held = "kept", decision.reason, resources.requests(pod)
                if (phase := pod.status.phase) in {"Succeeded", "Failed"}:
                    outcome, reason, held = "ended", f"it had ended before: {phase}", Requests()
                elif isinstance(decision, Quit):  # It is not watched although it hung when read.
                    outcome, reason = "gone", _GONE
                yield QuitVerdict(*key, outcome, reason, held, report.owner_of(pod))
        yield from self._held

    def _outcome(self, key: Key) -> tuple[QuitResult, str]:
        """What became of a pod that hung, or would, and why."""
        state = self._quit.known.get(key)
        if state is None:
            end = self._ends.get(key, End(reason=_GONE))
            exited = end.outcome in {QuitOutcome.EXITED, QuitOutcome.EXITED_NONZERO}
            return "freed" if exited else "gone", end.reason
        decision = state.decision
        if self._request.dry_run:
            unclear = isinstance(decision, Wait) and decision.until is None
            return "kept" if unclear else "would-free", decision.reason
        failure = state.task.failure if state.task else ""
        works = isinstance(decision, Wait) and not (state.asks_for or decision.blocked_by)
        alone = isinstance(decision, Ignore) and decision.blocked_by  # The proxy has exited.
        return "kept" if works or alone else "stuck", failure or decision.reason
