"""What to do about a pod that may have missed its sidecar: the decision of the repair controller.

Whether the pod should have a sidecar is an input (`injection`). When its turn comes is decided in
`rollout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import structs

from istio_aux.injector.injection import Expectation
from istio_aux.model.annotations import INJECTED, text_label
from istio_aux.model.applications import Application, Applications, PodOptions
from istio_aux.model.kept import MOST, Reasoned
from istio_aux.model.names import JUJU_PODS
from istio_aux.model.owners import PodController
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.model.wish import Wish
from istio_aux.repair.candidate import Candidate

_JUJU = tuple((text_label(key), value) for key, value in JUJU_PODS)


class Skip(Reasoned, frozen=True):
    """Do nothing: the pod needs no sidecar, or must not be touched."""


class ReportUnmeshed(Reasoned, frozen=True):
    """Do not restart the pod, which has no sidecar; the reason says why not."""

    unmeshed: bool  # Whether it should have one; False: that is not known.
    waits: bool = False  # Whether it is decided again as soon as the injector is live.


class Restart(Reasoned, frozen=True):
    """Replace the pod, only in the version that was seen.

    It is evicted, never deleted: that would bypass PodDisruptionBudgets.
    """

    # Whether its Job is suspended instead, whose pods are never evicted: see `suspension`.
    suspend: bool = False


RepairAction = Skip | ReportUnmeshed | Restart


def as_admitted(
    pod: Candidate,
    labels: Mapping[str, str] | None,
    options: PodOptions,
    applications: Applications,
    expect: Callable[[Wish], Expectation],
) -> tuple[Candidate, Expectation]:
    """Return the pod as our admission would make it now, and whether that should have a sidecar.

    ``labels`` are those of its namespace, which need not be selected: a pod of any namespace may
    miss its sidecar. None: they are not known. ``expect`` says what Istio would do.
    """
    wish = structs.replace(pod.wish, around=labels)
    covered = applications.covers(wish.namespace, wish.application)
    ours = covered or options.namespaces.matches(labels or {})
    why = options.left_out(
        wish.namespace, selected=True, chosen=options.pods.matches(wish.labels), covered=covered
    )
    new = wish.admitted(applications, options.inject if ours else None)
    if new is not wish:
        pod = structs.replace(pod, wish=new)
    return pod, Expectation(expected=False, reason=why) if why else expect(new)


def decide(
    pod: Candidate,
    expectation: Expectation,
    policy: RepairPolicy,
    *,
    live: bool | None,
    obstacle: str = "",
) -> RepairAction:
    """Decide what to do about ``pod``, as our admission would make it now.

    ``live``: whether the injector would give a new pod its sidecar; None: not known. ``obstacle``:
    why the Job that controls the pod cannot be suspended, once that is known.
    """
    if reason := next(_reasons_to_skip(pod, policy), None):
        return Skip(reason=reason)
    if expectation.expected is None:
        why = f"not known whether the pod should have a sidecar: {expectation.reason}"
        return ReportUnmeshed(reason=why, unmeshed=False)
    if not expectation.expected:
        return Skip(reason=expectation.reason)
    problem = f"the pod has no sidecar and should have one: {expectation.reason}"
    if not policy.race.restarts:
        return ReportUnmeshed(reason=problem, unmeshed=True)
    owner = pod.controller
    obstacle = next(_reasons_to_keep(pod, owner, policy, live), obstacle)
    if obstacle:
        reason = f"{problem}; not restarted: {obstacle}"
        return ReportUnmeshed(reason=reason, unmeshed=True, waits=not live)
    if owner.is_job:  # The admin has allowed what that costs it.
        job = "Job, or the set that it is part of," if owner.kind == "Job" else owner.kind
        problem += f"; the {job} is suspended until all its pods are gone, and makes new ones"
        problem += f"; what it has done for the {owner.kind} is lost"
    return Restart(problem, suspend=owner.is_job)


def _reasons_to_skip(pod: Candidate, policy: RepairPolicy) -> Iterator[str]:
    """Why the pod is left alone whether it should have a sidecar or not."""
    if policy.race is RacePolicy.NONE:
        yield "race-policy: none"
    if pod.too_much:
        yield f"too much to judge: the pod has {pod.too_much} bytes of labels, not at most {MOST}"
    if pod.deleting:
        yield "the pod is being deleted"
    if pod.ended:
        yield f"the pod is finished: phase {pod.phase}"
    if pod.names_proxy:
        yield f"the pod has a container {PROXY}"
    if pod.wish.injected:
        yield f"annotation {INJECTED}: Istio has processed the pod"
    # A new pod would get no sidecar either; the expectation may be out of date.
    yield from pod.wish.against()
    # Without these pods nothing could be repaired.
    for label, value in _JUJU:
        if label.on(pod.wish.labels) and value in {None, label.get(pod.wish.labels)}:
            yield f"Juju needs the pod: label {label.name}"
    if policy.ours == Application(pod.wish.namespace, pod.wish.application):
        yield "the pod is one of istio-aux itself"


def _reasons_to_keep(
    pod: Candidate, owner: PodController, policy: RepairPolicy, live: bool | None
) -> Iterator[str]:
    """Why an unmeshed pod is not restarted although the policy restarts pods."""
    if not live:
        # Istio's webhooks have failurePolicy Fail: no new pod would be created.
        yield "the injector is not live" if live is False else "not known if the injector is live"
    if owner.obstacle:
        yield owner.obstacle
    if owner.is_job and policy.race is not RacePolicy.RESTART_JOBS:
        yield f"it is a {owner.kind}'s, and race-policy is not restart-jobs"
    if owner.is_job and not owner.suspendable:
        yield owner.failure or f"no {owner.kind} of its API is known that can be suspended"
    if owner.is_job and pod.finished:
        yield "its containers are finished"
    if pod.phase not in {"Pending", "Running"}:
        # The node may be lost: the pod would stay Terminating until the node is back.
        yield f"phase {pod.phase or 'not known'}"
    if not (pod.key.uid and pod.version and owner.uid):
        yield "without uid and resourceVersion it cannot be checked that it is still the same pod"
