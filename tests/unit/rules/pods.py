"""What tables of rules are made of: rows, pods with and without sidecars, Istio's webhooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import jsonpatch
import msgspec
import pytest
import yaml
from istio_aux.injector import injection
from istio_aux.injector.capture import NodeAgent, NodeAgents, read_config
from istio_aux.injector.injection import Expectation, Hook, InjectionPolicy, Policies, hooks_of
from istio_aux.judge.installation import Installation, Installations, Judgement
from istio_aux.judge.pods import judge, outside
from istio_aux.model.annotations import DATAPLANE
from istio_aux.model.applications import Application
from istio_aux.model.found import Found
from istio_aux.model.kubelet import Kubelet
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod, convert, decode as decode_pod
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.policy import DeadProxy, QuitPolicy, RacePolicy, RepairPolicy, StartPolicy
from istio_aux.model.resources import Requests
from istio_aux.model.webhooks import ClientConfig, Configuration, ControlPlane
from istio_aux.quit import rules
from istio_aux.quit.facts import PodFacts
from istio_aux.repair import rules as repair
from istio_aux.settings import DEFAULTS
from istio_aux.start import patch
from istio_aux.start.plan import Plan, plan
from msgspec.structs import replace
from sizes import ROOT

# Pods for tables of tests: a row says only what differs from a Job's pod on a classic sidecar.

DATA = ROOT / "tests/data"
"""Recordings of real clusters; tests/data/README.md says of which."""


def moment(date: datetime, after: float = 0) -> Moment:
    """So many seconds after a date, in a process that began in 1970 and whose clock is right."""
    seconds = (date + timedelta(seconds=after)).timestamp()
    return Moment(seconds, seconds)


ENDED = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)
"""When every container of these pods ended that has ended, unless a row says otherwise."""
JOB = ("batch/v1", "Job")
"""The apiVersion and the kind of a pod's controller."""

State = dict[str, Any] | None
"""A container's state as JSON; None leaves its status out."""

RUNNING: State = {"running": {"startedAt": "2026-11-21T08:16:26Z"}}
LATE: State = {"running": {"startedAt": "2026-11-21T08:16:30Z"}}
MISSING: State = None
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
"""Fields of a pod with a native proxy that runs."""
EMPTY: State = {}


def exited(code: int, reason: str = "", *, at: str = "2026-11-21T08:16:29Z") -> State:
    """The state of a container that ended with ``code`` at a time in RFC 3339."""
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}


def waiting(reason: str) -> State:
    """The state of a container that waits for its first or its next start."""
    return {"waiting": {"reason": reason}}


def ruled(action: str, operator: str, *codes: int, policy: str = "Never") -> dict[str, Any]:
    """Details of a container with one restart rule."""
    rule = {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}
    return {"restartPolicy": policy, "restartPolicyRules": [rule]}


def document(
    containers: Mapping[str, State],
    *,
    sidecars: Mapping[str, State] | None = None,
    restart: str | None = "Never",
    phase: str | None = "Running",
    spec: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    details: Mapping[str, Mapping[str, Any]] | None = None,
    conditions: list[dict[str, str]] | None = None,
    status: Mapping[str, Any] | None = None,
    owner: tuple[str, str] | None = None,
    deleting: bool = False,
    gone_by: str = "2026-11-21T08:17:00Z",
    grace: int = 30,
) -> dict[str, Any]:
    """A pod as JSON: ``containers`` and native ``sidecars`` map names, in order, to states.

    ``details`` adds fields to the spec of a container, by its name; ``spec`` and ``status`` add
    fields to theirs. ``owner`` is the apiVersion and the kind of the controller. ``grace`` is what
    is left of the grace period of one that is ``deleting``, and ``gone_by`` its end.
    """
    more = details or {}
    metadata: dict[str, Any] = {"name": "job-x7k2p", "namespace": "training", "uid": "u-1"}
    if "istio-proxy" in {*containers, *(sidecars or {})}:
        annotations = {"sidecar.istio.io/status": "{}", **(annotations or {})}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if owner is not None:
        version, kind = owner
        metadata["ownerReferences"] = [{"apiVersion": version, "kind": kind, "controller": True}]
    if deleting:
        metadata["deletionTimestamp"] = gone_by
        metadata["deletionGracePeriodSeconds"] = grace
    inits = sidecars or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "restartPolicy": restart,
            "containers": [{"name": name, **more.get(name, {})} for name in containers],
            "initContainers": [
                {"name": name, "restartPolicy": "Always", **more.get(name, {})} for name in inits
            ],
            **(spec or {}),
        },
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "containerStatuses": statuses(containers),
            "initContainerStatuses": statuses(inits),
            **(status or {}),
        },
    }


def statuses(states: Mapping[str, State]) -> list[dict[str, Any]]:
    """Container statuses as JSON, without those that are missing."""
    return [{"name": name, "state": state} for name, state in states.items() if state is not None]


NEW = waiting("PodInitializing")
SET_UP: dict[str, State] = {"istio-init": exited(0)}
INIT = {"initContainers": [{"name": "istio-init"}]}


def hook(*command: str) -> dict[str, Any]:
    """Details of a container whose start waits for this command."""
    return {"lifecycle": {"postStart": {"exec": {"command": [*command]}}}}


HOOK = hook("pilot-agent", "wait", "--timeoutSeconds=300")


def while_held(*, init: Mapping[str, State] = SET_UP, **more: Any) -> dict[str, Any]:
    """Fields of a pod whose hook waits: of Istio 1.31, on a kubelet 1.36.3.

    The kubelet last reported when the init containers had ended.
    """
    return {
        "phase": "Pending",
        "details": {"istio-proxy": HOOK},
        "spec": INIT,
        "status": {"initContainerStatuses": statuses(init)},
        **more,
    }


def job(containers: Mapping[str, State], **fields: Any) -> Pod:
    """The same as a `Pod`."""
    return convert(document(containers, **fields))


def judged(pod: Pod, now: Moment | None = None, **settings: Any) -> Judgement:
    """What an installation with these settings does about a pod of a selected namespace."""
    ours = Installation(settings=replace(DEFAULTS, **settings))
    return Installations((ours,)).judge(pod, None, now)


def held(
    *by: str,
    since: datetime | None = None,
    requests: Requests | None = None,
    fix: str = "",
) -> Found:
    """A pod that these containers hold."""
    return Found(
        namespace="training", name="job", uid="u-1", since=since, by=by, requests=requests, fix=fix
    )


def listed(pod: Pod, judgement: Judgement, now: datetime) -> Any:
    """What `audit` lists of a pod that Istio would inject; None if nothing."""
    meshed = outside(pod, None, judgement, lambda _: Expectation(True, ""), NodeAgents(), now=now)
    return next((it for it in judge(pod, judgement, meshed) if it.state), None)


# Decision tables: rows with an English name, and what they are about.

POLICY = QuitPolicy()
DELETE = QuitPolicy(dead_proxy=DeadProxy.DELETE)
Kind = TypeVar("Kind", bound=rules.Decision)


class Row(NamedTuple):
    """A sentence, the pod it is about, words that the reason must have, and who blocks the pod."""

    sentence: str
    pod: Pod
    because: str = ""
    by: tuple[str, ...] | None = None
    policy: QuitPolicy = POLICY


def table(*rows: Row) -> Any:
    """Parametrise a test with rows; their sentences are the ids."""
    return pytest.mark.parametrize("row", [pytest.param(each, id=each.sentence) for each in rows])


def row(sentence: str, *values: Any) -> Any:
    """A row of another table, by its sentence."""
    return pytest.param(*values, id=sentence)


def decide(
    pod: Pod,
    policy: QuitPolicy = POLICY,
    now: Moment | None = None,
    *,
    seen: Moment | None = None,
    obeyed: bool | None = True,
) -> rules.Action:
    """Read a pod and decide; without ``now`` every grace period is over."""
    found = rules.decide(PodFacts(pod, policy, Kubelet(obeyed)), now, seen=seen)
    says = isinstance(found, rules.Quit | rules.Report) or bool(found.blocked_by)
    assert (found.code is not None) == says, "what may be a finding has a code, and nothing else"
    return found


def decided(kind: type[Kind], pod: Pod, policy: QuitPolicy = POLICY, **more: Any) -> Kind:
    """The decision on a pod, which is one of this kind; see `decide` for what else it rests on."""
    found = decide(pod, policy, **more)
    assert isinstance(found, kind), found
    return found


def met(row: Row, action: type[rules.Action]) -> None:
    """Decide on the pod of a row: action, reason and blockers are as it says."""
    decision = decided(action, row.pod, row.policy)
    assert row.because in decision.reason
    assert row.by in {None, blockers(decision)}


def pair(
    main: State, proxy: State = RUNNING, /, others: Mapping[str, State] = {}, **fields: Any
) -> Pod:
    """A pod with a payload container and a proxy in these states, and others."""
    return job({"main": main, "istio-proxy": proxy, **others}, **fields)


def done(**fields: Any) -> Pod:
    """A pod whose payload is finished, and whose proxy runs."""
    return pair(exited(0), **fields)


def blockers(decision: rules.Action) -> tuple[str, ...]:
    """What blocks the pod, as `/status` shows it."""
    return tuple(map(str, decision.blocked_by))


# Pods that missed their sidecar: a row says only what differs from a Deployment's ready pod.

REPLICAS = ("apps/v1", "ReplicaSet")
STATEFUL = ("apps/v1", "StatefulSet")

YES = Expectation(expected=True, reason="webhook namespace.sidecar-injector.istio.io selects it")
AMBIENT = Expectation(
    expected=True, reason='namespace label istio.io/dataplane-mode: "ambient"', ambient=True
)
NO = Expectation(expected=False, reason="no webhook selects it")
UNKNOWN = Expectation(expected=None, reason="the injector does not answer")

# Istio's CNI on the node of a pod.
CNI = read_config({"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true"})
CNI_READY = NodeAgent(ready_since=1.0, config=CNI, lacks="", place="istio-system/istio-cni-config")

OURSELVES = Application("kubeflow", "istio-aux")
REPORT = RepairPolicy(race=RacePolicy.REPORT, ours=OURSELVES)
RESTART = RepairPolicy(race=RacePolicy.RESTART, ours=OURSELVES)
NONE = RepairPolicy(race=RacePolicy.NONE)


def raw(
    containers: Mapping[str, State] | None = None,
    *,
    name: str = "web-7d9f-x2k4j",
    namespace: str = "shop",
    uid: str = "pod-1",
    version: str = "41",
    owner: tuple[str, str] | None = REPLICAS,
    owner_uid: str = "owner-1",
    restart: str = "Always",
    ready: bool = True,
    created: str | None = None,
    controls: bool = True,
    **fields: Any,
) -> dict[str, Any]:
    """The pod as JSON; see `unit.rules.pods.document` for the other fields."""
    found = document(
        containers or {"main": RUNNING},
        restart=restart,
        owner=owner,
        conditions=[{"type": "Ready", "status": "True" if ready else "False"}],
        **fields,
    )
    found["metadata"] |= {
        "name": name, "namespace": namespace, "uid": uid, "resourceVersion": version,
    }  # fmt: skip
    if created is not None:
        found["metadata"]["creationTimestamp"] = created
    for reference in found["metadata"].get("ownerReferences", []):
        reference |= {"name": "web", "uid": owner_uid, "controller": controls}
    return found


def unmeshed(*args: Any, **fields: Any) -> Pod:
    """The same as a `Pod`."""
    return convert(raw(*args, **fields))


def unmeshed_job(*args: Any, **fields: Any) -> Pod:
    """A pod of a Job, likewise."""
    return unmeshed(*args, **{"owner": JOB, "restart": "Never", **fields})


def ambient(
    redirection: str = "enabled",
    *,
    address: str = "10.0.0.7",
    renewed: bool = False,
    annotations: Mapping[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """One of an ambient mesh as JSON, with what Istio's CNI has annotated."""
    said = {"ambient.istio.io/redirection": redirection} if redirection else {}
    found = raw(annotations={**said, **(annotations or {})}, **fields)
    network = f"2026-11-21T{9 if renewed else 8:02}:16:30Z"
    got = {"type": "PodReadyToStartContainers", "status": "True", "lastTransitionTime": network}
    found["status"] |= {"podIP": address, "startTime": "2026-11-21T08:16:26Z"}
    found["status"]["conditions"].append(got)
    found["spec"]["nodeName"] = "node-1"
    return found


def agent(name: str = "istio-cni", *, ready: bool = True, **fields: Any) -> dict[str, Any]:
    """A pod of Istio's CNI, or of ztunnel, on the node of these pods."""
    label = {"istio-cni": {"k8s-app": "istio-cni-node"}, "ztunnel": {"app": "ztunnel"}}[name]
    found = raw(
        {"main": RUNNING}, name=name, namespace="istio-system", uid=name, ready=ready, labels=label,
        spec={"nodeName": "node-1"}, owner=("apps/v1", "DaemonSet"), **fields,
    )  # fmt: skip
    found["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-20T08:00:00Z"
    return found


def cni(**settings: str) -> dict[str, Any]:
    """The ConfigMap of Istio's CNI, by default as Istio 1.29 and later write it."""
    about = {"name": "istio-cni-config", "namespace": "istio-system", "uid": "cni"}
    data = {"AMBIENT_RECONCILE_POD_RULES_ON_STARTUP": "true", **settings}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": data}


def decide_repair(
    pod: Pod,
    policy: RepairPolicy = RESTART,
    expectation: Expectation = YES,
    *,
    live: bool | None = True,
    settled: bool = False,
    agent: NodeAgent = CNI_READY,
) -> repair.RepairAction:
    """Decide with the policy that does most."""
    around = repair.Around(expectation, live, agent, settled)
    labels = {DATAPLANE: "ambient"} if expectation.ambient else None
    found = repair.Candidate.of(pod)
    found = replace(found, injection=replace(found.injection, namespace_labels=labels))
    return repair.decide(found, around, policy)


# Plans of `start`, and the pods that they make when a library that is not ours applies them.

TO_HOLD = "holdApplicationUntilProxyStarts: true"
UNTOLD = StartPolicy()
"""`start-mode: auto`, while the capability is unknown."""


def planned(found: dict[str, Any], how: StartPolicy = UNTOLD) -> Plan:
    """The plan for a pod as JSON."""
    return plan(decode_pod(msgspec.json.encode(found)), how)


def patched(found: dict[str, Any], how: StartPolicy = UNTOLD) -> dict[str, Any]:
    """The pod after the plan."""
    return jsonpatch.apply_patch(found, patch.encode(planned(found, how).ops).decode())


def reviewed(**fields: Any) -> dict[str, Any]:
    """A review as the API server sends it at the creation of a pod."""
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "training",
        "operation": "CREATE",
    }
    kind = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    return {**kind, "request": {**request, **fields}}


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    """The annotations, none if there is no map of them."""
    return found["metadata"].get("annotations") or {}


# Istio's webhook configurations for tables of tests: recorded ones, and variations of them.

DEFAULT = "istio-revision-tag-default"
ORIGINAL = "istio-sidecar-injector"
"""Deactivated by `istioctl install`, which made the former."""
REVISED = "istio-sidecar-injector-1-30-3"
REVISION = "1-30-3"
_FILES = {
    DEFAULT: f"mwc-istioctl-install-{DEFAULT}.yaml",
    ORIGINAL: f"mwc-istioctl-install-{ORIGINAL}.yaml",
    REVISED: "mwc-revision-1-30-3.yaml",
}
OURS = ControlPlane("istio-system", "default")
THEIRS = ControlPlane("istio-system", REVISION)
POLICIES = {OURS: InjectionPolicy(), THEIRS: InjectionPolicy()}

INJECT = "sidecar.istio.io/inject"
TRUE = {INJECT: "true"}
FALSE = {INJECT: "false"}
ENABLED = {"istio-injection": "enabled"}
"""Labels of a namespace."""
IN_AMBIENT = {"istio.io/dataplane-mode": "ambient"}
NAME = "app.kubernetes.io/name"

Edit = Callable[[dict[str, Any]], None]


def recorded(name: str) -> Configuration:
    """A configuration as a real cluster had it."""
    return decode(as_recorded(name))


def edited(name: str, edit: Edit) -> Configuration:
    """The same after a change by ``edit``."""
    body = as_recorded(name)
    edit(body)
    return decode(body)


def each_webhook(configuration: str, /, **fields: Any) -> Configuration:
    """The same with other fields in each of its webhooks."""

    def edit(body: dict[str, Any]) -> None:
        for webhook in body["webhooks"]:
            webhook.update(fields)

    return edited(configuration, edit)


def renamed(name: str, to: str, *, replace: tuple[str, str] = ("", "")) -> Configuration:
    """The same by another name, with the values of selectors replaced."""

    def edit(body: dict[str, Any]) -> None:
        body["metadata"]["name"] = to
        for webhook in body["webhooks"]:
            for which in ("namespaceSelector", "objectSelector"):
                for expression in webhook[which]["matchExpressions"]:
                    values = expression.get("values", [])
                    values[:] = [replace[1] if value == replace[0] else value for value in values]

    return edited(name, edit)


def as_recorded(name: str) -> dict[str, Any]:
    """A recording as it was written."""
    return yaml.load((DATA / "istio" / _FILES[name]).read_text(), Loader=yaml.CSafeLoader)


def decode(body: object) -> Configuration:
    """As it comes over the wire; times, which nobody reads, become text."""
    return msgspec.json.decode(json.dumps(body, default=str), type=Configuration)


def target(configuration: Configuration) -> ClientConfig:
    """Where its first webhook leads to."""
    assert configuration.webhooks
    return configuration.webhooks[0].client_config


READY: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": True}}
"""An endpoint of a slice."""
GONE: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": False}}

HOOKS = hooks_of([recorded(REVISED), recorded(ORIGINAL), recorded(DEFAULT)])


def pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "training",
    **spec: Any,
) -> Pod:
    """A pod of which no more is read than this."""
    metadata = {"name": "p", "namespace": namespace, "labels": labels, "annotations": annotations}
    return convert({"metadata": metadata, "spec": spec})


def expected(
    pod: Pod, namespace: Mapping[str, str] | None, hooks: Sequence[Hook], policies: Policies
) -> Expectation:
    """Whether this pod would get a sidecar in a namespace with these labels."""
    return injection.expected(InjectionRequest.of(pod, namespace), hooks, policies)
