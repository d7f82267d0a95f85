"""Many pods without their sidecar: what is reported, and which of them are replaced.

One story of three acts, as the crowd takes time: ``report``, ``restart``, ``restart`` with Jobs.
The tests of an act look at its end from several sides.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab
import lab.istio
import lightkube
import pytest
from istio_aux.repair.suspension import MARK
from lab import crowd
from lab.crowd import KINDS, Keeper, kind_of
from lab.fixtures import make_namespace
from lab.hooks import mutating, patching
from lab.kubelet import ScriptedKubelet
from lab.meshed import has_sidecar
from lab.served import metric, program
from lab.workload import Workload
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Namespace, Pod

# Measured on 2 busy cores: an act is over after 10 s.
ACT = 100.0
WHO = "repairing"


@dataclass(frozen=True)
class Scene:
    """What there is at the end of an act.

    Attributes:
        before, after: UIDs of the pods, by name, at the beginning and at the end of the act.
        status: what the workload said.
        log: its log.
        events: the pods with an Event of each reason.
        unmeshed, evicted, stopped: its metrics.
    """

    before: dict[str, str]
    after: dict[str, str]
    status: dict[str, Any]
    log: list[dict[str, Any]]
    events: dict[str, set[str]]
    unmeshed: float
    evicted: float
    stopped: float

    def said(self) -> Counter[str]:
        """How many pods of each kind are unmeshed, as /status says."""
        return Counter(kind_of(pod["name"]) for pod in self.status["unmeshed-pods"])

    def gone(self) -> Counter[str]:
        """How many pods of each kind are not there any more."""
        uids = set(self.after.values())
        return Counter(kind_of(name) for name, uid in self.before.items() if uid not in uids)

    def restarted(self, kind: str) -> list[str]:
        """The pods of a kind that were evicted, in order."""
        return [
            line["pod"]
            for line in self.log
            if line["event"] == "restarted" and kind_of(line["pod"]) == kind
        ]


class Stage:
    """The namespace of the crowd, after Istio came too late for it."""

    def __init__(self, cluster: lab.Cluster, keeper: Keeper, namespace: str, folder: Path) -> None:
        self.cluster, self.keeper, self.namespace = cluster, keeper, namespace
        self._folder = folder

    def play(self, act: str, until: Any, settings: dict[str, Any]) -> Scene:
        """Run a workload until it has nothing more to do."""
        before = self._uids()
        folder = self._folder / act
        with program(self.cluster, folder, WHO, {"lease": f"{WHO}/{WHO}", **settings}) as workload:
            lab.until(lambda: until(workload), timeout=ACT, what=f"the end of {act}", every=0.2)
            scene = Scene(
                before=before,
                after=self._uids(),
                status=workload.status(),
                log=[json.loads(line) for line in workload.process.log.read_text().splitlines()],
                events={reason: self.events(reason) for reason in ("NoSidecar", "RestartStopped")},
                unmeshed=metric(workload, "istio_aux_unmeshed_pods"),
                evicted=metric(workload, 'istio_aux_sidecar_restarts_total{outcome="evicted"}'),
                stopped=metric(workload, 'istio_aux_sidecar_restarts_total{outcome="stopped"}'),
            )
            # Else the next one would wait until the Lease lapses.
            workload.stop()
            return scene

    def going(self) -> bool:
        """Whether there is a pod that is to run and is on its way out."""
        return any(pod.metadata and pod.metadata.deletionTimestamp for pod in self.keeper.pods())

    def _uids(self) -> dict[str, str]:
        with self.cluster.client() as client:
            found = [pod.metadata for pod in client.list(Pod, namespace=self.namespace)]
        return {str(meta.name): str(meta.uid) for meta in found if meta}

    def events(self, reason: str) -> set[str]:
        """The pods with an Event of that reason."""
        with self.cluster.client() as client:
            found = client.list(Event, namespace=self.namespace, fields={"reason": reason})
            return {str(event.involvedObject.name) for event in found}


def strip(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Take what Istio added from a pod."""
    payload = [each for each in pod["spec"]["containers"] if each["name"] == "main"]
    return [
        {"op": "replace", "path": "/spec/containers", "value": payload},
        {"op": "remove", "path": "/spec/initContainers"},
        {"op": "remove", "path": "/metadata/annotations"},
    ]


@pytest.fixture(scope="module")
def thief(cluster: lab.Cluster) -> Iterator[None]:
    """A webhook after Istio's that takes the sidecar from the pods of one controller."""
    name = "zz-thief"
    stripped = {"objectSelector": {"matchLabels": {crowd.STRIPPED: "yes"}}}
    with mutating(cluster, name, {name: patching(strip)}, {name: stripped}):
        yield


@pytest.fixture(scope="module")
def stage(
    cluster: lab.Cluster,
    client: lightkube.Client,
    kubelet: ScriptedKubelet,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """istio#43074: the pods are there, and then comes Istio, which ignores the ambient label."""
    name = "crowd"
    labels = {"istio-injection": "enabled", "istio.io/dataplane-mode": "ambient"}
    make_namespace(client, name, labels)
    with Keeper(cluster, kubelet, name) as keeper:
        crowd.populate(cluster, name)
        keeper.await_ready()
        istio = lab.istio.install(cluster)
        yield Stage(cluster, keeper, name, tmp_path_factory.mktemp(WHO))
        istio.remove()
        client.delete(Namespace, name)


@pytest.fixture(scope="module")
def reported(stage: Stage) -> Scene:
    """The end of ``report``."""
    total = sum(kind.count for kind in KINDS.values() if kind.fate != "ignored")

    def told(workload: Workload) -> bool:
        found = workload.status().get("unmeshed-total") == total
        return found and bool(stage.events("NoSidecar"))

    return stage.play("report", told, {"race-policy": "report"})


@pytest.fixture(scope="module")
def restarted(stage: Stage, reported: Scene, thief: None) -> Scene:
    """The end of ``restart``: it was refused what it is refused, gave up, and did all else."""
    replaced = sum(kind.count for kind in KINDS.values() if kind.fate == "replaced")

    def over(workload: Workload) -> bool:
        outcomes = ("evicted", "refused", "stopped")
        series = [f'istio_aux_sidecar_restarts_total{{outcome="{each}"}}' for each in outcomes]
        evicted, refused, stopped = (metric(workload, each) for each in series)
        # Between two attempts the reason says what the last one was refused for.
        pods = workload.status().get("unmeshed-pods", [])
        said = {kind_of(pod["name"]) for pod in pods if "tried again later" in pod["reason"]}
        done = evicted >= replaced + 1 and refused >= 2 and stopped == 1 and not stage.going()
        done = done and {"held", "twice"} <= said
        return done and bool(stage.events("RestartStopped"))

    return stage.play("restart", over, {"race-policy": "restart"})


def test_report_lists_those_that_should_have_a_sidecar_and_touches_no_pod(reported: Scene):
    """istio#15873: in /status, in the metric, and by Events."""
    expected = {name: kind.count for name, kind in KINDS.items() if kind.fate != "ignored"}
    assert reported.said() == expected
    assert reported.unmeshed == reported.status["unmeshed-total"] == sum(expected.values())
    assert reported.events["NoSidecar"]
    assert {kind_of(name) for name in reported.events["NoSidecar"]} <= expected.keys()
    assert reported.before == reported.after
    assert len(reported.after) == sum(kind.count for kind in KINDS.values())
    assert reported.evicted == 0


def test_restart_replaces_exactly_the_allowed_pods_which_get_a_sidecar(
    restarted: Scene, stage: Stage
):
    """istio#15873: of those that are hopeless one is tried."""
    replaced = {name: kind.count for name, kind in KINDS.items() if kind.fate == "replaced"}
    assert restarted.gone() == {**replaced, "hopeless": 1}
    expected = {
        name: kind.count
        for name, kind in KINDS.items()
        if kind.fate in {"refused", "stopped", "reported"}
    }
    assert restarted.said() == expected
    for name, count in replaced.items():
        assert [has_sidecar(pod) for pod in stage.keeper.pods(name)] == [True] * count


def test_what_a_budget_forbids_is_said_and_not_done(restarted: Scene):
    """A PodDisruptionBudget that allows no disruption; two of them, which no eviction gets by."""
    reasons = {kind_of(pod["name"]): pod["reason"] for pod in restarted.status["unmeshed-pods"]}
    assert "would violate the pod's disruption budget" in reasons["held"]
    assert "more than one PodDisruptionBudget" in reasons["twice"]


def test_a_replacement_without_a_sidecar_ends_the_restarts_of_its_controller(restarted: Scene):
    """istio#15873: no loop; the new pod's Event and /status say why."""
    assert len(restarted.restarted("hopeless")) == 1
    assert restarted.stopped == 1
    said = [
        pod["reason"]
        for pod in restarted.status["unmeshed-pods"]
        if kind_of(pod["name"]) == "hopeless"
    ]
    assert len(said) == KINDS["hopeless"].count
    assert all("was evicted, has no sidecar either" in reason for reason in said)
    told = restarted.events["RestartStopped"]
    assert len(told) == 1
    assert told <= restarted.after.keys() - restarted.before.keys()


def test_jobs_are_restarted_when_that_is_allowed(restarted: Scene, stage: Stage):
    """The Job is suspended for both of its pods, and counts no failure. The TFJob does not exist.
    A controller that another process gave up is not tried again: the Lease says so.
    """

    gone = "its TFJob is gone"

    def over(workload: Workload) -> bool:
        log = workload.process.log.read_text()
        # The metric also counts Jobs that tests of other namespaces have left suspended.
        resumed = f'"job-resumed","message":"{stage.namespace}/batch"' in log
        known = {kind_of(pod["name"]) for pod in workload.status().get("unmeshed-pods", [])}
        over = resumed and gone in log and "hopeless" in known and not stage.going()
        return over and len(stage.keeper.pods("batch")) == KINDS["batch"].count

    jobs = stage.play("jobs", over, {"race-policy": "restart-jobs"})
    assert jobs.gone() == {"batch": 2}
    assert jobs.evicted == 0
    assert [has_sidecar(pod) for pod in stage.keeper.pods("batch")] == [True, True]
    with stage.cluster.client() as client:
        job = client.get(Job, "batch", namespace=stage.namespace)
    assert job.status
    assert not job.status.failed
    assert job.spec
    assert not job.spec.suspend
    assert job.metadata
    assert not job.metadata.labels or MARK not in job.metadata.labels
    # Whoever leads next does not suspend it again.
    assert "this job is resumed" in (job.metadata.annotations or {})[MARK]
    reasons = {kind_of(pod["name"]): pod["reason"] for pod in jobs.status["unmeshed-pods"]}
    assert reasons["training"].endswith(f"; not restarted: {gone}")
    assert "after another was evicted, has no sidecar either" in reasons["hopeless"]
