"""Some Kubeflow jobs fail when their running pod is deleted: why there is `fails_with`.

A pod that has no network, or no sidecar, may only be deleted where its job survives that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import lab
import lightkube
import pytest
from istio_aux.model import pod
from istio_aux.repair.candidate import Candidate
from lab.fixtures import new_namespaces
from lab.outcome import look
from lab.workloads import Workload, container, template, training_job
from lightkube.resources.core_v1 import Pod

pytestmark = pytest.mark.nightly("unit/rules/test_repair.py, by kind and restart policy")
KINDS = {"TFJob": ("Worker", "tensorflow"), "PyTorchJob": ("Master", "pytorch")}


def job(kind: str, restart: str) -> Workload:
    replica, main = KINDS[kind]
    of = template(container("sleep 600", name=main), restart=restart)
    manifest = training_job(kind, **{replica: (1, of)})
    return Workload(f"{kind.lower()}-{restart.lower()}", manifest, "Failed", ())


JOBS = [job(kind, restart) for kind in KINDS for restart in ("Never", "OnFailure", "ExitCode")]


@pytest.fixture(scope="module")
def endings(cluster: lab.Cluster, trainer: None) -> Iterator[Mapping[str, tuple[Any, str]]]:
    """The pod that was deleted and what then became of its job, by name of the job."""
    with cluster.client() as client, new_namespaces(client, "training-deletion") as names:
        [namespace] = names.values()
        for each in JOBS:
            client.create(each.in_namespace(namespace))
        deleted = [(each, delete(client, each, namespace)) for each in JOBS]
        yield {
            each.name: (gone, ending(client, each, namespace, gone["metadata"]["uid"]))
            for each, gone in deleted
        }


def running(client: lightkube.Client, job: Workload, namespace: str) -> Any:
    """The pod of the job that runs, if there is one."""
    pods = look(client, job, namespace).pods
    return next((each for each in pods if each["status"].get("phase") == "Running"), None)


def delete(client: lightkube.Client, job: Workload, namespace: str) -> Any:
    found = lab.until(lambda: running(client, job, namespace), what=f"the pod of {job.name} to run")
    client.delete(Pod, found["metadata"]["name"], namespace=namespace)
    return found


def ending(client: lightkube.Client, job: Workload, namespace: str, old: str) -> str:
    def ended() -> str:
        if look(client, job, namespace).outcome.conditions:
            return "Failed"
        now = running(client, job, namespace)
        return "Running" if now and now["metadata"]["uid"] != old else ""

    return lab.until(ended, what=f"{job.name} to fail or to run again")


@pytest.mark.parametrize("name", [each.name for each in JOBS])
def test_only_those_training_jobs_fail_of_which_that_was_said(
    endings: Mapping[str, tuple[Any, str]], name: str
) -> None:
    """Jobs by policy, never by surprise. Of what a pod does not show the worst is said.

    istio#15873.
    """
    deleted, ending = endings[name]
    survives = name in {"pytorchjob-onfailure", "pytorchjob-exitcode"}

    assert ending == ("Running" if survives else "Failed")
    assert survives or Candidate.of(pod.convert(dict(deleted))).controller.failure
