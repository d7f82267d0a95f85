"""What the real Job controller makes of a Job that is suspended while a pod of it runs.

`repair.suspension` follows this, and the table in `docs/explanation/behaviour.md`. The pods exit
with 143, as most programs do when they are told to stop.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import lab
import lightkube
import pytest
from lab import meshed
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet
from lab.workload import ask
from lightkube import ApiError
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import PatchType

NAME = "batch-jobs"

STOPPED = {"onExitCodes": {"operator": "In", "values": [143]}}


@dataclass(frozen=True)
class Case:
    """One Job that is suspended, and what it becomes.

    ``seen`` is whether the pod stays until its controller has seen how it ended.
    """

    spec: Mapping[str, Any]
    becomes: Literal["Complete", "Failed"]
    seen: bool = False


FAILS = {"podFailurePolicy": {"rules": [{"action": "FailJob", **STOPPED}]}}
INDEXED = {"completionMode": "Indexed", "backoffLimitPerIndex": 0}
CASES = {
    "suspended-at-its-limit": Case({"backoffLimit": 0}, "Complete"),
    "suspended-index": Case(INDEXED, "Complete"),
    "suspended-by-rule": Case(FAILS, "Failed", seen=True),
}


class Stage:
    """All Jobs of `CASES`, which are dealt with at the same time."""

    def __init__(
        self, client: lightkube.Client, kubelet: ScriptedKubelet, namespace: str = NAME
    ) -> None:
        self.client, self.kubelet, self.namespace = client, kubelet, namespace

    def each(self, what: str, do: Callable[[str, Case], bool]) -> None:
        """Do something to each Job, as often as it takes until it says that it is done."""
        left = dict(CASES)

        def done() -> bool:
            for name, case in list(left.items()):
                if do(name, case):
                    del left[name]
            return not left

        lab.until(done, what=what, ignoring=(ApiError,))

    def job(self, name: str) -> Job:
        return self.client.get(Job, name, namespace=NAME)

    def conditions(self, name: str) -> set[str]:
        status = self.job(name).status
        return {c.type for c in (status and status.conditions) or [] if c.status == "True"}

    def pods(self, name: str) -> list[Pod]:
        labels: dict[str, Any] = {"batch.kubernetes.io/job-name": name}
        return list(self.client.list(Pod, namespace=NAME, labels=labels))

    def create(self, name: str, case: Case) -> None:
        pod = meshed.pod(self.namespace, name, sidecar=None)
        self.client.create(meshed.job(pod, completions=1, **case.spec))

    def run(self, name: str, *, but: str = "") -> Pod | None:
        """Run the Job's pod that is not the one of that UID, once there is one."""
        found = [pod for pod in self.pods(name) if pod.metadata and pod.metadata.uid != but]
        if not found:
            return None
        self.kubelet.run(found[0])
        return found[0]

    def suspend(self, name: str, *, suspend: bool) -> None:
        self.client.patch(
            Job, name, {"spec": {"suspend": suspend}}, namespace=NAME, patch_type=PatchType.MERGE
        )


@pytest.fixture(scope="module")
def played(client: lightkube.Client, kubelet: ScriptedKubelet) -> Stage:
    """The Jobs once each has lost its first pod, and has failed or has completed."""
    make_namespace(client, NAME)
    stage, first, second = Stage(client, kubelet), dict[str, Pod](), dict[str, Pod]()
    for name, case in CASES.items():
        stage.create(name, case)

    def begin(name: str, _case: Case) -> bool:
        if pod := stage.run(name):
            first[name] = pod
            kubelet.linger(pod)
            stage.suspend(name, suspend=True)
        return name in first

    def stopped(name: str, _case: Case) -> bool:
        pods = stage.pods(name)
        if all(pod.metadata and pod.metadata.deletionTimestamp for pod in pods):
            kubelet.finish(first[name], "main", exit_code=143)
            return True
        return False

    def gone(name: str, case: Case) -> bool:
        # A kubelet reports the phase, and then ends the pod: mostly before the controller looks.
        if not case.seen or stage.conditions(name) - {"Suspended"}:
            kubelet.release(first[name])
            return True
        return False

    def again(name: str, case: Case) -> bool:
        if not stage.pods(name) and name not in second:
            stage.suspend(name, suspend=False)
        if case.becomes in stage.conditions(name):
            return True
        meta = first[name].metadata
        if name not in second and meta and (pod := stage.run(name, but=str(meta.uid))):
            second[name] = pod
            kubelet.finish(pod, "main")
        return False

    stage.each("the first pod runs", begin)
    stage.each("it is stopped", stopped)
    stage.each("it is gone", gone)
    stage.each("the Job is over", again)
    return stage


@pytest.mark.parametrize("name", CASES)
def test_a_job_that_is_suspended_counts_no_failure_and_ends_as_the_table_says(
    played: Stage, name: str
):
    status = played.job(name).status

    assert status
    assert not status.failed
    assert CASES[name].becomes in played.conditions(name)


def test_explain_and_audit_say_why_the_pods_of_a_job_are_refused(
    cluster: lab.Cluster, client: lightkube.Client, kubelet: ScriptedKubelet
):
    """As the Job controller says it: the namespace admits only pods that are restricted."""
    space = f"refused-{secrets.token_hex(3)}"
    make_namespace(client, space, {"pod-security.kubernetes.io/enforce": "restricted"})
    Stage(client, kubelet, space).create("mnist", Case({}, "Complete"))

    def said(*argv: str) -> str:
        return ask(cluster.kubeconfig, *argv, "-n", space).stderr

    lab.until(lambda: "violates PodSecurity" in said("explain", "job/mnist"), what="the Event")
    assert f"{space}: job/mnist: its pods were refused, last at " in said("audit")
    client.delete(Namespace, space)
