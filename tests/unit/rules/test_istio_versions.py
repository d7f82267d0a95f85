"""Istio by version: how a Job's pod starts, and how it ends."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import jsonpatch
import msgspec
import pytest
from istio_aux.cli import report
from istio_aux.injector import probe_rules as probing
from istio_aux.injector.injection import Expectation
from istio_aux.model import pod as pods
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.quit.rules import Quit, Way
from unit.istio import decision, proxyconfig, sidecar
from unit.rules.pods import RUNNING, exited, judged, moment, statuses
from unit.rules.starting import patched
from unit.rules.table import decide

HOLD = {proxyconfig.HOLD: True}
REFUSED = {proxyconfig.ANNOTATION: f"{proxyconfig.HOLD}: false"}
OLD, NEW = ("v1.32.2",), ("v1.34.4", "v1.33.0")
ASKED = "sidecars are native on request"
NEVER = "Istio makes no native sidecars, not even on request"
JUST_OVER = moment(datetime(2026, 11, 21, 8, 16, 30, tzinfo=UTC))
AGENT = (15020, (Way.EXEC, Way.PORT_FORWARD, Way.ENVOY))


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
    quits: tuple[int, tuple[Way, ...]] | None = None
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
    World("1.28 on 1.32", world(native="default"), OLD, "", **NATIVELY),
    World("1.28 on 1.33", world(native="default"), NEW, "native", **NATIVELY),
    World("1.28 not native", world(), NEW, "", **NATIVELY),
    World("1.28 mesh holds", world(native="never", mesh=HOLD), NEW, "hold", **CLASSIC),
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
        started="hold", says="hold", why=NEVER, quits=(15520, (Way.PORT_FORWARD, Way.ENVOY)),
    ),
    World("1.28 with istio-cni", world(native="never", cni=True), NEW, "", **CLASSIC),
    World("1.30 on 1.32", world("1.30.3", native="default"), OLD, "", **NATIVELY),
    World("1.30 on 1.33", world("1.30.3", native="default"), NEW, "native", **NATIVELY),
    World(
        "1.30 revision", world("1.30.3", native="never", revision="1-30-3"), NEW, "", **CLASSIC
    ),
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
        """What the workload finds out: by a dry run, and by the kubelets."""
        question = probing.Question("training", {})
        dry_run = self.inject(json.loads(question.body(native=True)))
        native = probing.created(json.dumps(dry_run).encode()).native
        old = probing.of_kubelets({f"node-{n}": found for n, found in enumerate(kubelets)})
        return old if old and native.capability is Capability.NATIVE else native


def start_of(pod: dict[str, Any]) -> str:
    """How a pod's payload is made to start after its proxy."""
    if any("restartPolicy" in container for container in pod["spec"].get("initContainers", [])):
        return "native"
    first = pod["spec"]["containers"][0]
    held = first["name"] == "istio-proxy" and "postStart" in first.get("lifecycle", {})
    return "hold" if held else ""


def finished(pod: dict[str, Any]) -> pods.Pod:
    """The pod when its payload is over and its proxy still runs."""

    def states(containers: str) -> list[dict[str, Any]]:
        names = [container["name"] for container in pod["spec"].get(containers, [])]
        return statuses({n: RUNNING if n == "istio-proxy" else exited(0) for n in names})

    pod["status"] = {
        "phase": "Running",
        "containerStatuses": states("containers"),
        "initContainerStatuses": states("initContainers"),
    }
    return pods.decode(msgspec.json.encode(pod))


@pytest.mark.parametrize("found", WORLDS, ids=lambda found: found.name)
def test_in_each_world_a_pod_starts_after_its_proxy_and_ends_with_it(found: World) -> None:
    """By the kubelet or by istio-aux, and without a false claim.

    community-distribution#3057, istio#37541.
    """
    istio = Istio(found)
    capability = istio.capability(found.kubelets)
    before = a_pod(found.annotations)

    alone = istio.inject(before)
    made = istio.inject(patched(before, StartPolicy(capability=capability.capability)))
    over = finished(made)
    explained = report.explain(over, judged(over))
    decided = decide(over)

    told = (decided.status_port, decided.ways) if isinstance(decided, Quit) else None
    seen = (start_of(alone), start_of(made), explained.start, capability.why, told)
    assert seen == (found.alone, found.started, found.says, found.why, found.quits)
    finding = report.audit(over, None, judged(over, JUST_OVER), lambda _: Expectation(True, ""))
    state = finding.state if isinstance(finding, report.Finding) else None
    assert state == ("stuck" if told else None)
