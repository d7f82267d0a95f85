"""The worlds of Istio by version: how a Job's pod starts in each, and how it ends.

The lab's stand-in, which is compared with recordings, plays Istio before and after our part.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jsonpatch
import msgspec
import pytest
from istio_aux.cli import report
from istio_aux.injector import probe_rules as probing
from istio_aux.injector.injection import Expectation, InjectionPolicy, expected, hooks_of
from istio_aux.model import pod as pods
from istio_aux.model.policy import Policy, Rung, Start
from istio_aux.model.webhooks import ControlPlane
from istio_aux.quit import rules as quitting
from lab.istio import decision, proxyconfig, sidecar, webhooks
from unit.rules import mesh
from unit.rules.pods import RUNNING, exited, waiting
from unit.rules.starting import patched
from unit.rules.table import decide

HOLD = {proxyconfig.HOLD: True}
REFUSED = {proxyconfig.ANNOTATION: f"{proxyconfig.HOLD}: false"}
OLD, NEW = ("v1.32.2",), ("v1.34.4", "v1.33.0")
ASKED = "sidecars are native on request"
NEVER = "Istio makes no native sidecars, not even on request"
STARTED_WITH = "istio-aux.io/started-with"
# With what istio-validation fails, and how the repair of istio-cni labels the pod.
NOT_REDIRECTED = 126
UNINITIALIZED = {"labels": {"cni.istio.io/uninitialized": "true"}}
AGENT = (15020, (Rung.EXEC, Rung.PORT_FORWARD, Rung.ENVOY))


class World(NamedTuple):
    """An Istio and its kubelets, how it starts a pod alone, and how with istio-aux.

    Attributes:
        alone: how Istio itself starts the pod after its proxy: `native`, `hold`, or nothing.
        started: the same with istio-aux.
        says: what `explain` says of the start.
        why: what `check` and the status say of native sidecars.
        quits: status port and ways to quit the proxy; None: the kubelet ends it.
    """

    name: str
    istio: dict[str, Any]
    kubelets: Sequence[str]
    alone: str
    started: str
    says: str | None
    why: str = ASKED
    quits: tuple[int, tuple[Rung, ...]] | None = None
    annotations: Mapping[str, str] = {}


def world(version: str = "1.28.10", **istio: Any) -> dict[str, Any]:
    return {"version": version, **istio}


NATIVELY: dict[str, Any] = {"started": "native", "says": "native"}
HELD: dict[str, Any] = {"started": "hold", "says": "hold", "quits": AGENT}
CLASSIC: dict[str, Any] = {**HELD, "why": NEVER}
WORLDS = [
    World("Istio 1.23", world(native="never"), NEW, "", **CLASSIC),
    World("1.24 as installed", world("1.24.6"), ("v1.30.1",), "", **NATIVELY),
    World(
        "1.24 before native sidecars", world("1.24.6"), ("v1.28.9",), "", **HELD,
        why='node node-0: kubelet "v1.28.9" runs no native sidecars; they need 1.29',
    ),
    World("1.24 all native", world("1.24.6", native="default"), OLD, "native", **NATIVELY),
    World("1.24 mesh holds", world("1.24.6", mesh=HOLD), OLD, "hold", **NATIVELY),
    World("1.28 on 1.32", world(native="default"), OLD, "", **NATIVELY),
    World("1.28 on 1.33", world(native="default"), NEW, "native", **NATIVELY),
    World("1.28 on both", world(native="default"), (*OLD, *NEW), "", **NATIVELY),
    World("1.28 not native", world(), NEW, "", **NATIVELY),
    World("1.28 mesh holds", world(native="never", mesh=HOLD), NEW, "hold", **CLASSIC),
    World("1.28 mesh holds on 1.32", world(mesh=HOLD), OLD, "hold", **NATIVELY),
    World(
        "1.28 mesh holds on 1.33", world(native="default", mesh=HOLD), NEW, "native", **NATIVELY
    ),
    World("1.28 values hold", world(native="never", hold=True), NEW, "hold", **CLASSIC),
    World(
        "1.28 mesh holds, the author does not", world(mesh=HOLD), OLD, "", started="", says=None,
        quits=AGENT, annotations=REFUSED,
    ),
    World(
        "1.28 values hold, the author does not", world(hold=True), OLD, "hold", started="hold",
        says=None, quits=AGENT, annotations=REFUSED,
    ),
    World(
        "1.28 hooks of the mesh",
        world(native="never", lifecycle={"preStop": {"exec": {"command": ["sleep", "5"]}}}),
        NEW, "", started="", why=NEVER, quits=AGENT,
        says="asked for hold, but hold has no effect: istio-proxy has a lifecycle of its own, "
        "without postStart",
    ),
    World(
        "1.28 status port of the mesh", world(native="never", mesh={"statusPort": 15520}), NEW, "",
        started="hold", says="hold", why=NEVER, quits=(15520, (Rung.PORT_FORWARD, Rung.ENVOY)),
    ),
    World("1.28 with istio-cni", world(native="never", cni=True), NEW, "", **CLASSIC),
    World("1.28 with istio-cni on 1.32", world(cni=True), OLD, "", **NATIVELY),
    World("1.30 on 1.32", world("1.30.3", native="default"), OLD, "", **NATIVELY),
    World("1.30 on 1.33", world("1.30.3", native="default"), NEW, "native", **NATIVELY),
    World(
        "1.30 revision", world("1.30.3", native="never", revision="1-30-3"), NEW, "", **CLASSIC
    ),
    World("1.30 mesh holds", world("1.30.3", mesh=HOLD), OLD, "hold", **NATIVELY),
]  # fmt: skip


def a_pod(annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "x"}], "restartPolicy": "Never"}
    metadata = {"name": "job", "namespace": "training", "annotations": dict(annotations or {})}
    return {"metadata": metadata, "spec": spec}


class Istio:
    """The stand-in as one world has it."""

    def __init__(self, found: World) -> None:
        given = {"native": "on request", **found.istio}
        self.template = sidecar.Template("istio-system", "proxyv2", **given)
        self.native = decision.native_by_default(
            self.template.native, found.kubelets, self.template.minor
        )

    def answer(self, review: dict[str, Any]) -> dict[str, Any]:
        return decision.answer(review, self.template, native=self.native)[0]

    def inject(self, pod: dict[str, Any]) -> dict[str, Any]:
        request = {"uid": "1", "namespace": "training", "object": pod}
        response = self.answer({"request": request})["response"]
        return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["patch"])))

    def capability(self, kubelets: Sequence[str]) -> probing.NativeCheck:
        """What the workload finds out: by the kubelets, by asking istiod, then by a dry run."""
        question = probing.Question("training", {})
        answer = self.answer(json.loads(question.review("7")))
        asked = probing.answered(json.dumps(answer).encode(), "7")
        assert asked.injected
        dry_run = self.inject(json.loads(question.body(native=True)))
        checks = (
            probing.of_kubelets({f"node-{n}": found for n, found in enumerate(kubelets)}),
            None if asked.native is probing.NOT_CHECKED else asked.native,
            probing.of_dry_run(json.dumps(dry_run).encode()),
        )
        return next(check for check in checks if check)


def start_of(pod: dict[str, Any]) -> str:
    """How a pod's payload is made to start after its proxy."""
    init = [c["name"] for c in pod["spec"].get("initContainers", []) if "restartPolicy" in c]
    first = pod["spec"]["containers"][0]
    if init:
        return "native"
    return (
        "hold"
        if first["name"] == "istio-proxy" and "postStart" in first.get("lifecycle", {})
        else ""
    )


def finished(pod: dict[str, Any]) -> pods.Pod:
    """The pod when its payload is over and its proxy still runs."""
    classic = [c["name"] for c in pod["spec"]["containers"]]
    inits = [c["name"] for c in pod["spec"].get("initContainers", [])]
    proxy = {"name": "istio-proxy", "state": RUNNING}
    pod["status"] = {
        "phase": "Running",
        "containerStatuses": [
            proxy if name == "istio-proxy" else {"name": name, "state": exited(0)}
            for name in classic
        ],
        "initContainerStatuses": [
            proxy if name == "istio-proxy" else {"name": name, "state": exited(0)} for name in inits
        ],
    }
    return pods.decode(msgspec.json.encode(pod))


@pytest.mark.parametrize("found", WORLDS, ids=lambda found: found.name)
def test_in_each_world_a_pod_starts_after_its_proxy_and_ends_with_it(found: World) -> None:
    """T10 T21 T31: by the kubelet or by istio-aux, and without a false claim."""
    istio = Istio(found)
    capability = istio.capability(found.kubelets)
    before = a_pod(found.annotations)

    alone = istio.inject(before)
    made = istio.inject(patched(before, Start(capability=capability.capability)))
    over = finished(made)
    explained = report.explain(over, Policy(), None)
    decided = decide(over)

    told = (decided.status_port, decided.rungs) if isinstance(decided, quitting.Quit) else None
    seen = (start_of(alone), start_of(made), explained.start, capability.why, told)
    assert seen == (found.alone, found.started, found.says, found.why, found.quits)
    finding = report.audit(over, Expectation(True, ""), Policy(), None)
    state = finding.state if isinstance(finding, report.Finding) else None
    assert state == ("stuck" if told else None)


@pytest.mark.parametrize("restart", ["Never", "OnFailure"])
@pytest.mark.parametrize("repair", [{"deletionTimestamp": "2026-11-21T08:17:00Z"}, UNINITIALIZED])
def test_a_pod_that_istio_cni_repairs_is_left_to_it(restart: str, repair: dict[str, Any]) -> None:
    """Its payload has not run: nothing is told to quit, nothing is reported or restarted.

    The repair (istio cni/pkg/repair) deletes or labels a pod whose validation failed before, so
    none with restartPolicy Never.
    """
    istio = Istio(World("", world(native="never", cni=True), NEW, "", "", None))
    pod = istio.inject(patched(a_pod()))
    failed = exited(NOT_REDIRECTED)
    again = {"state": waiting("CrashLoopBackOff"), "lastState": failed}
    pod["spec"]["restartPolicy"] = restart
    waits = [
        {"name": name, "state": waiting("PodInitializing")} for name in ("istio-proxy", "main")
    ]
    pod["status"] = {
        "phase": "Failed" if restart == "Never" else "Pending",
        "initContainerStatuses": [
            {"name": sidecar.VALIDATION, **({"state": failed} if restart == "Never" else again)}
        ],
        "containerStatuses": waits,
    }

    for state in (pod, {**pod, "metadata": {**pod["metadata"], **repair}}):
        read = pods.decode(msgspec.json.encode(state))
        assert isinstance(decide(read), quitting.Ignore | quitting.Wait)
        assert not decide(read).blocked_by
        assert report.audit(read, Expectation(True, ""), Policy(), None) is None


@pytest.mark.parametrize("revision", ["default", "1-30-3"])
def test_a_pod_that_asks_by_a_tag_is_expected_to_get_a_sidecar_of_its_revision(
    revision: str,
) -> None:
    documents = webhooks.configurations("istio-system", revision, tags=["prod"])
    hooks = hooks_of(map(mesh.decode, documents))
    policies = {ControlPlane("istio-system", revision): InjectionPolicy()}

    by_namespace = expected(mesh.pod(), {"istio.io/rev": "prod"}, hooks, policies)
    by_pod = expected(mesh.pod({"istio.io/rev": "prod"}), {}, hooks, policies)
    other = expected(mesh.pod(), {"istio.io/rev": "canary"}, hooks, policies)

    seen = [(e.expected, e.configuration, e.revision) for e in (by_namespace, by_pod)]
    assert seen == [(True, "istio-revision-tag-prod", revision)] * 2
    assert not other.expected
