"""What is done about a pod without a sidecar: the decision table, in English."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from istio_aux.injector.capture import NodeAgent, read_config
from istio_aux.injector.injection import Expectation
from istio_aux.model import pod as pods
from istio_aux.model.annotations import DATAPLANE, INJECT
from istio_aux.model.applications import Applications, PodOptions
from istio_aux.model.findings import Code
from istio_aux.model.policy import RepairPolicy
from istio_aux.model.selectors import parse, parse_namespaces
from istio_aux.model.text import with_article
from istio_aux.repair.rules import (
    AwaitCapture,
    Candidate,
    Captured,
    NotKnown,
    RepairAction,
    ReportUnmeshed,
    Restart,
    Skip,
    as_admitted,
)
from msgspec import structs
from sizes import ROOT
from unit.rules.pods import (
    AMBIENT,
    CNI,
    CNI_READY,
    JOB,
    NO,
    NONE,
    OURSELVES,
    REPORT,
    RESTART,
    RUNNING,
    STATEFUL,
    UNKNOWN,
    YES,
    Row,
    ambient,
    decide_repair,
    raw,
    table,
    unmeshed,
    unmeshed_job,
)

NAME = "app.kubernetes.io/name"
INJECTED = {"sidecar.istio.io/status": "{}"}
LONG = {f"a{number}": "" for number in range(1_001)}
JOBS = [
    JOB,
    ("kubeflow.org/v2beta1", "MPIJob"),
    *(
        ("kubeflow.org/v1", kind)
        for kind in ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")
    ),
]


@table(
    Row("a Deployment's pod", unmeshed()),
    *(
        Row(f"a {owner[1]}'s pod", unmeshed(owner=owner, name="charm-a-0"))
        for owner in (STATEFUL, ("apps/v1", "DaemonSet"), ("v1", "ReplicationController"))
    ),
    Row(
        "a pod that asks for a sidecar by its label",
        unmeshed(labels={INJECT: "true"}, annotations={INJECT: "false"}),
    ),
    Row(
        "a charm's pod, in a model beside that of istio-aux",
        unmeshed(labels={NAME: OURSELVES.name, "operator.juju.is/name": "charm-a"}),
    ),
    Row("an ambient pod that Istio injects", unmeshed(labels={DATAPLANE: "ambient"})),
)
def test_restarted(row: Row) -> None:
    """istio#15873: a pod whose controller makes a new one is evicted under `restart`."""
    assert decide_repair(row.pod) == Restart(
        reason=f"the pod has no sidecar and should have one: {YES.reason}",
    )


@table(
    Row(
        "a pod with a classic sidecar",
        unmeshed({"main": RUNNING, "istio-proxy": RUNNING}),
        "the pod has a container istio-proxy",
    ),
    Row(
        "a pod on its node's network",
        unmeshed(spec={"hostNetwork": True}),
        "hostNetwork",
    ),
    Row(
        "the image of a static pod",
        unmeshed(annotations={"kubernetes.io/config.mirror": "8f2e"}),
        "mirrors a static pod",
    ),
    Row(
        "a pod that succeeded",
        unmeshed_job(phase="Succeeded"),
        "the pod is finished: phase Succeeded",
    ),
    Row("a pod that is being deleted", unmeshed(deleting=True), "the pod is being deleted"),
    Row(
        "a pod that its label keeps out of the mesh",
        unmeshed(labels={INJECT: "false"}, annotations={INJECT: "true"}),
        f'label {INJECT}: "false"',
    ),
    *(
        Row(f"a pod of {name}", unmeshed(namespace=name), name)
        for name in ("kube-system", "kube-public", "kube-node-lease", "local-path-storage")
    ),
    *(
        Row(
            f"a pod of Juju itself: {key}",
            unmeshed(labels={key: value}),
            f"Juju needs the pod: label {key}",
        )
        for key, value in (
            ("operator.juju.is/name", "modeloperator"),
            ("juju-modeloperator", "modeloperator"),
            ("model.juju.is/disable-webhook", "true"),
        )
    ),
    Row(
        "a unit of istio-aux",
        unmeshed(owner=STATEFUL, namespace=OURSELVES.namespace, labels={NAME: OURSELVES.name}),
        "the pod is one of istio-aux itself",
    ),
)
@pytest.mark.parametrize("expectation", [YES, UNKNOWN])
def test_ignored(row: Row, expectation: Expectation) -> None:
    """Nobody touches, or even mentions, a pod that is to have no sidecar, or has one.

    istio#15873.
    """
    decision = decide_repair(row.pod, RESTART, expectation)
    assert type(decision) is Skip, decision
    assert row.because in decision.reason


@table(
    Row(
        "a pod with more labels than are looked at",
        unmeshed(labels=LONG),
        "bytes of names and labels, not at most 3072",
    ),
    Row(
        "a pod that says itself that Istio injected it",
        unmeshed(annotations=INJECTED),
        "annotation sidecar.istio.io/status without a container istio-proxy",
    ),
    *(
        Row(
            f"a pod with a container of its own, {where}, that has the name of the proxy",
            unmeshed(spec={where: [{"name": "istio-proxy"}]}),
            "container istio-proxy without annotation sidecar.istio.io/status",
        )
        for where in ("containers", "initContainers")
    ),
)
@pytest.mark.parametrize("expectation", [YES, UNKNOWN])
def test_what_a_pod_could_say_of_itself_does_not_show_that_it_is_in_its_mesh(
    row: Row, expectation: Expectation
) -> None:
    """The injector writes both (istio inject.go). No such pod is touched."""
    decision = decide_repair(row.pod, RESTART, expectation)
    assert type(decision) is NotKnown, decision
    assert row.because in decision.reason
    assert type(decide_repair(row.pod, RESTART, NO)) is Skip


@pytest.mark.parametrize("file", [*(ROOT / "tests/data").glob("*/pod-*.json")])
def test_what_istio_has_injected_is_believed(file: Path) -> None:
    found = json.loads(file.read_text())
    found["status"] = {"phase": "Running"}
    assert decide_repair(pods.convert(found)) == Skip(reason="the pod has a container istio-proxy")


@table(
    Row("a bare pod", unmeshed(owner=None), "the pod has no controller that would make a new one"),
    # Owners may be named for garbage collection alone.
    Row("an owner that does not control", unmeshed(controls=False), "the pod has no controller"),
    Row(
        "a pod of a controller that nobody knows",
        unmeshed(owner=("argoproj.io/v1alpha1", "Workflow")),
        "its controller Workflow (argoproj.io/v1alpha1) is not known to make a new pod",
    ),
    *(
        Row(
            f"the pod of a {kind} of {api}",
            unmeshed_job(owner=(api, kind)),
            f"it is {'an' if kind in {'MPIJob', 'XGBoostJob'} else 'a'} {kind}'s: delete the {kind}"
            " and apply it again, as `kubectl replace --force",
        )
        for api, kind in JOBS
    ),
    Row("a pod whose node does not report", unmeshed(phase="Unknown"), "phase Unknown"),
    *(
        Row(f"a pod without a {name}", unmeshed(**{name: ""}), "without uid and resourceVersion")
        for name in ("uid", "version", "owner_uid")
    ),
)
def test_reported_under_restart(row: Row) -> None:
    """What cannot be restarted safely is reported, with why it is not restarted.

    istio#3716, istio#15873.
    """
    decision = decide_repair(row.pod)
    assert isinstance(decision, ReportUnmeshed), decision
    assert decision.unmeshed
    found = f"the pod has no sidecar and should have one: {YES.reason}; not restarted: "
    assert decision.reason.startswith(found + row.because)


@pytest.mark.parametrize(
    ("policy", "expectation", "action"),
    [
        *(
            (policy, *found)
            for policy in (REPORT, RESTART)
            for found in (
                (UNKNOWN, ReportUnmeshed(
                    f"not known whether the pod should have a sidecar: {UNKNOWN.reason}",
                    Code.MESH_UNKNOWN)),
                (NO, Skip(reason=NO.reason)),
            )
        ),
        (REPORT, YES, ReportUnmeshed(
            f"the pod has no sidecar and should have one: {YES.reason}", Code.NO_SIDECAR)),
        (NONE, YES, Skip(reason="race-policy: none")),
    ],
)  # fmt: skip
def test_a_pod_is_never_restarted_on_a_guess_or_without_need(
    policy: RepairPolicy, expectation: Expectation, action: RepairAction
) -> None:
    """Unknown is never healthy: it is reported, but not that the pod is unmeshed.

    istio#3716: under `report` an unmeshed pod is found, and not touched.
    """
    assert decide_repair(unmeshed(), policy, expectation) == action


@pytest.mark.parametrize(
    ("live", "because"), [(False, "is not live"), (None, "not known if the injector is live")]
)
def test_a_pod_is_only_reported_while_its_injector_is_not_live(
    live: bool | None, because: str
) -> None:
    """The API server might refuse the new pod."""
    away = decide_repair(unmeshed(), live=live)
    assert isinstance(away, ReportUnmeshed)
    assert (away.unmeshed, away.reason.endswith(because)) == (True, True)


# Pods of an ambient mesh.

MESHED = {DATAPLANE: "ambient"}
LEFT_OUT = "outside the mesh: it has no annotation ambient.istio.io/redirection; it should be in: "
OLD = "may be of an earlier network, whose rules istio-cni may not have renewed: "
AWAY = NodeAgent(config=CNI, lacks="istio-cni is not ready on node node-1")
# Agents of Istio 1.28, which write no rules again when they start: from before and after the
# second network of a pod.
BEFORE, AFTER = (
    structs.replace(CNI_READY, config=read_config({}), ready_since=at) for at in (1.0, 4e9)
)


def set_to(**settings: str) -> dict[str, NodeAgent]:
    return {"agent": structs.replace(CNI_READY, config=read_config(settings))}


@pytest.mark.parametrize(
    ("found", "facts", "kind", "because"),
    [
        (ambient(), {"agent": AWAY}, Captured, "the pod is in the ambient mesh"),
        (ambient(labels={INJECT: "false"}), {}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": AWAY}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": BEFORE}, Captured, "the pod is in the ambient mesh"),
        (ambient(renewed=True), {"agent": AFTER}, ReportUnmeshed, OLD + "it came after that net"),
        (ambient(renewed=True), {"agent": NodeAgent()}, ReportUnmeshed, OLD + "istio-cni is not"),
        (ambient(""), {"settled": False}, AwaitCapture, "not captured yet: it has no annotation"),
        (ambient("", address=""), {}, AwaitCapture, "not captured yet: it has no address"),
        (ambient("pending", address="", owner=None), {"settled": False}, AwaitCapture, "not capt"),
        (ambient(""), {"agent": AWAY}, ReportUnmeshed, "redirection; istio-cni is not ready on"),
        (ambient(""), {"agent": NodeAgent()}, ReportUnmeshed, "; istio-cni is not known"),
        (ambient(""), {"agent": NodeAgent(ready_since=1.0, lacks="ConfigMap a/b: 403")},
         ReportUnmeshed, "captures: ConfigMap a/b: 403"),
        (ambient(""), {}, Restart, LEFT_OUT + AMBIENT.reason),
        (ambient("", labels={INJECT: "false"}), {"live": False}, Restart, LEFT_OUT),
        (ambient("pending"), {}, ReportUnmeshed, "not restarted: istio-cni tries again until ztun"),
        (ambient("pending", address=""), {"agent": AWAY}, ReportUnmeshed, "the pod has no network"),
        (ambient("x" * 99), {}, Restart, LEFT_OUT),
        (ambient(""), set_to(EXCLUDE_NAMESPACES="a, shop"), Skip, "EXCLUDE_NAMESPACES has shop"),
        (ambient("pending"), set_to(EXCLUDE_NAMESPACES="shop"), Skip, "does not capture it"),
        (ambient(""), set_to(AMBIENT_ENABLED="false"), Skip, "AMBIENT_ENABLED is false in Conf"),
        (ambient(""), set_to(AMBIENT_ENABLEMENT_SELECTOR="[]"), Skip, "SELECTOR does not match"),
        (ambient("", owner=JOB), {}, ReportUnmeshed, "not restarted: it is a Job's"),
        (ambient("", owner=None), {}, ReportUnmeshed, "not restarted: the pod has no controller"),
        (ambient("", annotations=INJECTED), {}, NotKnown, "without a container istio-proxy"),
        (ambient(labels=LONG), {}, Captured, "the pod is in the ambient mesh"),
        (ambient("", spec={"hostNetwork": True}), {}, Skip, "hostNetwork"),
        (ambient("", phase="Succeeded"), {}, Skip, "the pod is finished"),
    ],
)  # fmt: skip
def test_a_pod_that_istios_cni_did_not_capture_is_outside_the_mesh(
    found: dict[str, Any], facts: dict[str, Any], kind: type[RepairAction], because: str
) -> None:
    """istio#61182, istio#55968. Unknown is not outside, and "pending" is no network at all."""
    decision = decide_repair(pods.convert(found), RESTART, AMBIENT, **{"settled": True, **facts})
    assert type(decision) is kind, decision
    assert because in decision.reason


@pytest.mark.parametrize(
    ("namespace", "labels", "istio", "captured"),
    [
        (MESHED, {}, NO, True),
        ({}, MESHED, NO, True),
        (MESHED, {DATAPLANE: "none"}, NO, False),
        ({DATAPLANE: "none"}, MESHED, NO, True),
        ({}, {}, NO, False),
        (MESHED, {}, YES, False),
        (MESHED, {}, UNKNOWN, False),
        (MESHED, {"chosen": "no"}, NO, False),
        ({**MESHED, "selected": "no"}, {}, NO, False),
        ({**MESHED, "going": "yes"}, {}, NO, False),
    ],
)  # fmt: skip
def test_istios_cni_captures_what_has_the_label_and_gets_no_sidecar(
    namespace: dict[str, str], labels: dict[str, str], istio: Expectation, captured: bool
) -> None:
    """istio cni/pkg/util/enablement_selector.go Matches; only pods that are looked after count."""
    options = PodOptions(namespaces=parse_namespaces("selected!=no"), pods=parse("chosen!=no"))
    pod = Candidate.of(pods.convert(raw(labels=labels)))
    terminating = {"shop"} if "going" in namespace else ()
    _, found = as_admitted(
        pod, namespace, options, Applications(), lambda _injection: istio, terminating=terminating
    )
    assert found.ambient is captured


@pytest.mark.parametrize(
    "wanted",
    [
        *("a Job", "a TFJob", "a JAXJob", "a PyTorchJob", "a Node", "a ReplicaSet"),
        *("an MPIJob", "an XGBoostJob", "an APIService", "an HTTPRoute", "an IngressClass"),
    ],
)
def test_the_article_of_a_kind_is_that_which_is_spoken(wanted: str) -> None:
    assert with_article(wanted.split()[1]) == wanted
