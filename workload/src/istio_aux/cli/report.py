"""What `explain` and `audit` report about a pod: the decisions of the controllers, as of now."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from istio_aux.injector.injection import Expectation
from istio_aux.model.answers import Holder, TroubledPod, group
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import Policy, RepairPolicy
from istio_aux.model.resources import Requests
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import ContainerVerdict, PodFacts
from istio_aux.repair import rules as repair
from istio_aux.start.plan import effective_start

State = Literal["stuck", "blocked", "lost", "unmeshed"]  # `audit --help` says what they mean.


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of `explain`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    action: str
    reason: str
    containers: dict[str, ContainerVerdict]
    start: str | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `audit`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    state: State
    # When the last finished payload container ended, or the proxy of a lost pod, or when an
    # unmeshed pod was created; None if the kubelet does not say.
    since: datetime | None
    action: str  # What `serve` would do in a selected namespace.
    reason: str
    by: tuple[str, ...] = ()  # What a blocked pod waits for: containers, or an invalid annotation.
    containers: dict[str, ContainerVerdict] = {}
    configuration: str = ""  # The webhook configuration that selects an unmeshed pod.
    requests: Requests | None = None  # What a stuck or blocked pod holds; None: it is not known.
    fix: str = ""  # The setting that ends what blocks the pod, if one is known.


class Audit(msgspec.Struct, frozen=True):
    """The findings among all pods that were read."""

    findings: list[Finding]
    pods: int
    namespaces: int | None = None  # How many are selected; None without a selector.
    unknown: int = 0  # Pods without a sidecar, or unreadable ones, that may or may not need one.
    gaps: tuple[str, ...] = ()  # Why that is unknown, one line each.

    def holders(self) -> Holders:
        """What holds the stuck and the blocked pods."""
        return Holders(group(
            TroubledPod(
                each.namespace, each.name, each.uid, each.reason, each.since,
                by=each.by, requests=each.requests, fix=each.fix,
            )
            for each in self.findings if each.state in {"stuck", "blocked"}
        ))  # fmt: skip


class Holders(msgspec.Struct, frozen=True):
    """What `audit --holders` shows; the JSON names of each are a contract."""

    holders: list[Holder]


class RestartVerdict(msgspec.Struct, frozen=True):
    """One line of `restart-unmeshed`; its JSON names are a contract."""

    namespace: str
    name: str
    outcome: Literal["restarted", "would-restart", "kept"]
    reason: str


class Restarts(msgspec.Struct, frozen=True):
    """All unmeshed pods, and what `restart-unmeshed` did about each, or would do."""

    verdicts: list[RestartVerdict]
    dry_run: bool


def explain(
    pod: Pod, policy: Policy, now: Moment | None, *, left_out: str | None = None
) -> Explanation:
    """Explain one pod; with ``now`` None every grace period counts as over.

    ``left_out`` says why the pod is left alone whatever its containers do, if so.
    """
    facts = PodFacts(pod, policy)
    decision = quitting.Ignore(reason=left_out) if left_out else quitting.decide(facts, now)
    start = effective_start(pod)
    return Explanation(**_identity(pod), **_verdict(facts, decision), start=start)


def audit(
    pod: Pod, expectation: Expectation, policy: Policy, now: Moment | None
) -> Finding | str | None:
    """Judge one pod; None when all is well.

    The text says why it is unknown whether the pod lacks a sidecar.
    """
    match repair.decide(pod, expectation, RepairPolicy(), live=None):
        case repair.ReportUnmeshed(unmeshed=True, reason=reason):
            return Finding(
                **_identity(pod),
                state="unmeshed",
                since=pod.metadata.creation_timestamp,
                action="report",
                reason=reason,
                configuration=expectation.configuration,
            )
        case repair.ReportUnmeshed():
            return expectation.reason
        case _ if pod.status.phase == "Running":  # The quit controller handles no other phase.
            return proxy_finding(pod, policy, now)
        case _:
            return None


def proxy_finding(pod: Pod, policy: Policy, now: Moment | None) -> Finding | None:
    """Judge the proxy of a running pod; None when all is well."""
    facts = PodFacts(pod, policy)
    decision = quitting.decide(facts, now)
    match decision:
        case quitting.Quit():
            state = "stuck"
        case quitting.Report():
            state = "lost"
        case _ if decision.blocked_by:
            state = "blocked"
        case _:
            return None
    return Finding(
        **_identity(pod),
        **_verdict(facts, decision),
        state=state,
        since=facts.ended(PROXY) if state == "lost" else facts.payload_ended,
        by=tuple(map(str, decision.blocked_by)),
        requests=None if state == "lost" else facts.requests,
        fix=decision.fix,
    )


def _identity(pod: Pod) -> dict[str, Any]:
    return pod.metadata.key._asdict()


def _verdict(facts: PodFacts, decision: quitting.Action) -> dict[str, Any]:
    return {
        "action": decision.action,
        "reason": decision.reason,
        "containers": dict(facts.containers),
    }
