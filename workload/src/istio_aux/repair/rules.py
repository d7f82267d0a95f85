"""What to do about a pod that may be outside its mesh: the decision of the repair controller.

A pod is in the mesh by its sidecar, or because Istio's CNI has captured it. `injection` says which
of both it should have, and `rollout` when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from msgspec import structs

from istio_aux.injector.capture import NodeAgent
from istio_aux.injector.injection import Expectation
from istio_aux.model import kept, owners
from istio_aux.model.annotations import INJECTED, REDIRECTION, redirection, text_label
from istio_aux.model.applications import Application, Applications, PodOptions
from istio_aux.model.findings import Code
from istio_aux.model.names import JUJU_PODS
from istio_aux.model.pod import PROXY, Key, OwnerReference, Pod, Struct, interned, shared
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import RacePolicy, RepairPolicy
from istio_aux.model.selectors import LONGEST_NAME
from istio_aux.model.text import with_article

_WORD = 16  # Characters of a phase or of INJECT that are stored: known values have nine at most.
# The condition of a pod with a network (KEP-3085, on since Kubernetes 1.29).
_NETWORK = "PodReadyToStartContainers"
# Values of `REDIRECTION` once ztunnel has taken the pod, and while the pod's traffic is led to a
# ztunnel that has not.
CAPTURED, HALF_CAPTURED = "enabled", "pending"
RENEWED = 60.0  # Seconds within which a pod that starts on its node gets its first network.


class Candidate(Struct, frozen=True):
    """All that repair reads of a pod, and stores of one that may lack its sidecar."""

    key: Key = Key("", "", "")
    version: str = ""
    created: float = 0.0  # Seconds since 1970.
    owner: OwnerReference | None = None  # The pod's controller.
    injection: InjectionRequest = InjectionRequest()
    phase: str = ""
    ready: bool = False
    too_much: int = 0  # Bytes of its names and labels, if they are too many to store.
    names_proxy: bool = False
    deleting: bool = False  # Whether it has a deletionTimestamp.
    deleted: float = 0.0  # When its deletion began; 0 if that is not known.
    node: str = ""
    redirection: str = ""  # Value of `REDIRECTION`: `enabled`, `pending`, or empty.
    # When the pod got its network, in seconds since 1970; 0: it has no address.
    addressed: float = 0.0
    # Whether its network may be the second, and `redirection` from the first.
    renewed: bool = False

    @classmethod
    def of(cls, pod: Pod) -> Candidate:
        """Read a pod."""
        meta = pod.metadata
        injection = InjectionRequest.of(pod)
        if owner := meta.controller:  # Thousands of owners differ only in name and uid.
            owner = interned(
                structs.replace(
                    owner, api_version=shared(owner.api_version), kind=shared(owner.kind)
                )
            )
        created = meta.creation_timestamp
        ends = meta.deletion_timestamp
        grace = meta.deletion_grace_period_seconds
        said = kept.size((meta.key, pod.spec.node_name, owner, pod.labels))
        started = pod.status.start_time
        captured = shared(redirection.get(meta) or "")
        made = [
            condition.last_transition_time
            for condition in pod.status.conditions or ()
            if condition.type == _NETWORK
        ]
        got = next(filter(None, (*made, started, created)), None)
        network = got.timestamp() if got else 1.0
        if injection.annotation:
            injection = structs.replace(injection, annotation=injection.annotation[:_WORD])
        return cls(
            key=meta.key,
            version=meta.resource_version,
            created=created.timestamp() if created else 0.0,
            owner=owner,
            injection=injection,
            too_much=said if said > kept.MOST else 0,
            phase=shared((pod.status.phase or "")[:_WORD]),
            ready=pod.has_condition("Ready"),
            names_proxy=pod.names_proxy,
            deleting=ends is not None,
            # Right before a pod is gone its grace period is 0 and its deletionTimestamp moves to
            # the present (apiserver rest.BeforeDelete), which does not say when the deletion began.
            deleted=ends.timestamp() - grace if ends and grace else 0.0,
            node=shared((pod.spec.node_name or "")[:LONGEST_NAME]),
            redirection=captured,
            addressed=network if pod.status.pod_ip else 0.0,
            renewed=captured == CAPTURED
            and network > (started.timestamp() if started else network) + RENEWED,
        )

    @classmethod
    def sibling(cls, pod: Pod) -> Candidate:
        """Read only the fields by which pods of one controller are compared, and no containers."""
        return cls(
            key=pod.metadata.key,
            owner=pod.metadata.controller,
            deleting=pod.metadata.deletion_timestamp is not None,
        )

    @property
    def ended(self) -> bool:
        """Whether the pod has succeeded or failed."""
        return self.phase in {"Succeeded", "Failed"}


_JUJU = tuple((text_label(key), value) for key, value in JUJU_PODS)


class Skip(kept.Reasoned, frozen=True):
    """Do nothing: the pod needs no sidecar, or must not be touched."""


class NotKnown(Skip, frozen=True):
    """Do nothing: it is not known whether the pod is in its mesh, and the reason says why."""


class Captured(Skip, frozen=True):
    """Do nothing: the pod is in its ambient mesh."""


class AwaitCapture(kept.Reasoned, frozen=True):
    """Decide again once the pod has an address, or has had one for `SETTLED` seconds."""


class ReportUnmeshed(kept.Reasoned, frozen=True):
    """Do not restart the pod, which is not in its mesh; the reason says why not."""

    # `MESH_UNKNOWN`: not known whether the pod should be in a mesh, or whether it is.
    code: Code = Code.NO_SIDECAR
    waits: bool = False  # Whether to decide again once the injector is live.

    @property
    def unmeshed(self) -> bool:
        """Whether the pod should be in its mesh."""
        return self.code is not Code.MESH_UNKNOWN


class Restart(kept.Reasoned, frozen=True):
    """Replace the pod, only in the version that was seen.

    It is evicted, never deleted: that would bypass PodDisruptionBudgets.
    """

    code: Code = Code.NO_SIDECAR

    @property
    def ambient(self) -> bool:
        """Whether Istio's CNI has to capture the next pod."""
        return self.code is Code.OUTSIDE


RepairAction = Skip | AwaitCapture | ReportUnmeshed | Restart

# Seconds after which an uncaptured pod with an address counts as outside its mesh, if the agent of
# its node was ready all the time. The agent tries again every 5 s, and takes 10 pods a second once
# their namespace is labelled (istio cni/pkg/nodeagent/informers.go setupHandlers).
SETTLED = 30.0


def as_admitted(
    pod: Candidate,
    labels: Mapping[str, str] | None,
    options: PodOptions,
    applications: Applications,
    expect: Callable[[InjectionRequest], Expectation],
    *,
    terminating: Collection[str] = (),
) -> tuple[Candidate, Expectation]:
    """Return the pod with the label that our admission would add, and what the mesh does with that.

    ``labels`` are those of its namespace, which need not be selected: a pod of any namespace may
    miss its sidecar. None: they are not known. ``expect`` says what Istio's injector would do. A
    pod without a sidecar may be ambient in selected namespaces, unless they are
    ``terminating``.
    """
    injection = structs.replace(pod.injection, namespace_labels=labels)
    covered = applications.covers(injection.namespace, injection.application)
    ours = covered or options.namespaces.matches(labels or {})
    why = options.left_out(
        injection.namespace,
        selected=True,
        chosen=options.pods.matches(injection.labels),
        covered=covered,
    )
    new = injection.admitted(applications, wanted=ours and options.injects(injection.labels))
    pod = structs.replace(pod, injection=new)
    if why:
        return pod, Expectation(expected=False, reason=why)
    expectation = expect(new)
    ambient = new.ambient if ours and new.namespace not in terminating else ""
    if ambient and expectation.expected is False:
        expectation = Expectation(expected=True, reason=ambient, ambient=True)
    return pod, expectation


class Around(NamedTuple):
    """What decides about a pod beside the pod itself and the policy."""

    expectation: Expectation
    live: bool | None = None  # Whether the injector would give a new pod its sidecar.
    agent: NodeAgent = NodeAgent()  # Istio's CNI on the node of the pod.
    # Whether the pod had its address, and its node a ready agent, for `SETTLED` seconds.
    settled: bool = False


def decide(pod: Candidate, around: Around, policy: RepairPolicy) -> RepairAction:
    """Decide what to do about ``pod``, as our admission would make it now."""
    judged = _judge(pod, around, policy)
    if not (
        policy.race is RacePolicy.RESTART and isinstance(judged, ReportUnmeshed) and judged.unmeshed
    ):
        return judged
    live = around.expectation.ambient or around.live
    if obstacle := next(_reasons_to_keep(pod, judged, around, policy), ""):
        return structs.replace(
            judged, reason=f"{judged.reason}; not restarted: {obstacle}", waits=not live
        )
    return Restart(judged.reason, code=judged.code)


def _judge(pod: Candidate, around: Around, policy: RepairPolicy) -> RepairAction:
    """Find out whether the pod is in its mesh, if it should be."""
    expectation = around.expectation
    if reason := next(_reasons_to_skip(pod, policy, expectation), None):
        return Skip(reason=reason)
    if expectation.expected is False:
        return Skip(reason=expectation.reason)
    doubt = next(_doubts(pod), "")
    if expectation.expected and expectation.ambient:
        judged = _judge_capture(pod, around)
        if not doubt or isinstance(judged, Captured):
            return judged
    if doubt:
        return NotKnown(reason=doubt)
    if expectation.expected is None:
        return ReportUnmeshed(
            f"not known whether the pod should have a sidecar: {expectation.reason}",
            Code.MESH_UNKNOWN,
        )
    return ReportUnmeshed(f"the pod has no sidecar and should have one: {expectation.reason}")


def _judge_capture(pod: Candidate, around: Around) -> RepairAction:
    """Find out whether Istio's CNI has captured the pod.

    It annotates a pod when ztunnel has taken it (istio cni/pkg/nodeagent/meshdataplane_linux.go
    AddPodToMesh). It does not look at the annotation again when the pod gets another network, as
    after the start of its node (istio#61182, istio#55968).
    """
    agent = around.agent
    said = f'annotation {REDIRECTION}: "{pod.redirection}"'
    if pod.redirection != CAPTURED:
        how = said if pod.redirection else f"it has no annotation {REDIRECTION}"
        return _judge_uncaptured(pod, around, how)
    if not pod.renewed or agent.renewed(pod.addressed):
        return Captured(f"the pod is in the ambient mesh: {said}")
    why = agent.lacks or "it came after that network"
    return ReportUnmeshed(
        f"not known whether the pod is in the ambient mesh: {said} may be of an earlier network,"
        f" whose rules istio-cni may not have renewed: {why}",
        Code.MESH_UNKNOWN,
    )


def _judge_uncaptured(pod: Candidate, around: Around, how: str) -> RepairAction:
    """Find out whether Istio's CNI should have captured the pod; ``how`` shows that it has not."""
    agent, half = around.agent, pod.redirection == HALF_CAPTURED
    if why := agent.ignores(pod.injection):
        return Skip(f"istio-cni does not capture it: {why}")
    if not (pod.addressed or half):
        return AwaitCapture("not captured yet: it has no address")
    if agent.ready_since is None and not half:
        return ReportUnmeshed(
            f"not known whether the pod will be in the ambient mesh: {how}; {agent.lacks}",
            Code.MESH_UNKNOWN,
        )
    if not around.settled:
        return AwaitCapture(f"not captured yet: {how}")
    if half:
        return ReportUnmeshed(
            f"the pod has no network: {how}: istio-cni leads its traffic to ztunnel, which has not"
            " taken the pod",
            Code.NO_NETWORK,
        )
    return ReportUnmeshed(
        f"outside the mesh: {how}; it should be in: {around.expectation.reason}", Code.OUTSIDE
    )


def _reasons_to_skip(
    pod: Candidate, policy: RepairPolicy, expectation: Expectation
) -> Iterator[str]:
    """Yield why repair does nothing about the pod, whether it should be in the mesh or not."""
    if policy.race is RacePolicy.NONE:
        yield "race-policy: none"
    if pod.deleting:
        yield "the pod is being deleted"
    if pod.ended:
        yield f"the pod is finished: phase {pod.phase}"
    if pod.names_proxy and pod.injection.injected:
        yield f"the pod has a container {PROXY}"
    # Without these pods Juju could not repair the model.
    for label, value in _JUJU:
        if label.on(pod.injection.labels) and value in {None, label.get(pod.injection.labels)}:
            yield f"Juju needs the pod: label {label.name}"
    if policy.ours == Application(pod.injection.namespace, pod.injection.application):
        yield "the pod is one of istio-aux itself"
    # A new pod would get no sidecar either; the expectation may be out of date. The CNI ignores
    # labels and annotations about injection.
    yield from pod.injection.exclusions() if expectation.ambient else pod.injection.refusals()


def _doubts(pod: Candidate) -> Iterator[str]:
    """Yield why the pod's author may have written PROXY or INJECTED: the injector sets both."""
    if pod.too_much:
        yield (
            f"too much to judge: the pod has {pod.too_much} bytes of names and labels, not at most"
            f" {kept.MOST}"
        )
    if pod.names_proxy:
        yield f"container {PROXY} without annotation {INJECTED}"
    if pod.injection.injected:
        yield f"annotation {INJECTED} without a container {PROXY}"


def _reasons_to_keep_uncaptured(judged: ReportUnmeshed, agent: NodeAgent) -> Iterator[str]:
    """Yield why Istio's CNI may not capture the next pod, or captures this one yet."""
    if judged.code is Code.NO_NETWORK:
        yield "istio-cni tries again until ztunnel takes the pod"
    if agent.config is None:
        yield f"not known which pods istio-cni captures: {agent.lacks}"


def _reasons_to_keep(
    pod: Candidate, judged: ReportUnmeshed, around: Around, policy: RepairPolicy
) -> Iterator[str]:
    """Yield why an unmeshed pod is not restarted although the policy restarts pods."""
    if around.expectation.ambient:
        yield from _reasons_to_keep_uncaptured(judged, around.agent)
    if policy.only is not None and pod.key.uid not in policy.only:
        yield "other pods were chosen"
    if not (around.expectation.ambient or around.live):
        # Istio's webhooks have failurePolicy Fail: no new pod would be created.
        yield (
            "the injector is not live"
            if around.live is False
            else "not known if the injector is live"
        )
    owner = pod.owner
    if obstacle := owners.obstacle(owner):
        yield obstacle
    if owner and owners.is_job(owner):
        # A restart loses the work of its pods, so its author decides when.
        yield f"it is {with_article(owner.kind)}'s: {owners.again(owner.kind)}"
    if pod.phase not in {"Pending", "Running"}:
        # The node may be lost: the pod would stay Terminating until the node is back.
        yield f"phase {pod.phase or 'not known'}"
    if not (pod.key.uid and pod.version and owner and owner.uid):
        yield "without uid and resourceVersion it cannot be checked that it is still the same pod"
