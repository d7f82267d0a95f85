"""Some Kubeflow jobs fail when their running pod is deleted: why there is `fails_with`.

A pod that has no network, or no sidecar, may only be deleted where its job survives that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import lab
import lightkube
import pytest
from istio_aux.model import owners
from istio_aux.model import pod as pods
from lab.trainer import PyTorchJob, TFJob
from lab.workloads import container, template, training_job
from lightkube import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

pytestmark = pytest.mark.nightly("unit/rules/test_repair.py, by kind and restart policy")
KINDS = {
    "TFJob": (TFJob, "Worker", "tensorflow"),
    "PyTorchJob": (PyTorchJob, "Master", "pytorch"),
}
JOBS = {
    f"{kind.lower()}-{restart.lower()}": (kind, restart)
    for kind in KINDS
    for restart in ("Never", "OnFailure", "ExitCode")
}


@pytest.fixture(scope="module")
def endings(cluster: lab.Cluster, trainer: None) -> Iterator[Mapping[str, tuple[pods.Pod, str]]]:
    """The pod that was deleted and the condition that its job then had, by name of the job."""
    with cluster.client() as client:
        name = "training-deletion"
        client.create(Namespace(metadata=ObjectMeta(name=name)))
        for job, (kind, restart) in JOBS.items():
            resource, replica, main = KINDS[kind]
            of = template(container("sleep 600", name=main), restart=restart)
            document = training_job(kind, **{replica: (1, of)})
            document["metadata"] = {"name": job, "namespace": name}
            client.create(resource.from_dict(document))
        deleted = {job: delete(client, name, job) for job in JOBS}
        yield {job: (pod, ending(client, name, job, pod)) for job, pod in deleted.items()}
        client.delete(Namespace, name)


def pod_of(client: lightkube.Client, namespace: str, job: str) -> Pod:
    kind, _ = JOBS[job]
    return client.get(Pod, f"{job}-{KINDS[kind][1].lower()}-0", namespace=namespace)


def running(client: lightkube.Client, namespace: str, job: str) -> Pod | None:
    pod = pod_of(client, namespace, job)
    return pod if pod.status and pod.status.phase == "Running" else None


def delete(client: lightkube.Client, namespace: str, job: str) -> pods.Pod:
    pod = lab.until(
        lambda: running(client, namespace, job),
        what=f"the pod of {job} to run",
        ignoring=(ApiError,),
    )
    assert pod.metadata is not None
    client.delete(Pod, str(pod.metadata.name), namespace=namespace)
    return pods.convert(pod.to_dict())


def ending(client: lightkube.Client, namespace: str, job: str, old: pods.Pod) -> str:
    resource, _, _ = KINDS[JOBS[job][0]]

    def ended() -> str:
        conditions = client.get(resource, job, namespace=namespace).get("status", {})["conditions"]
        if any(c["type"] == "Failed" and c["status"] == "True" for c in conditions):
            return "Failed"
        pod = running(client, namespace, job)
        replaced = pod and pod.metadata and pod.metadata.uid != old.metadata.uid
        return "Running" if replaced else ""

    what = f"{job} to fail or to run again"
    return lab.until(ended, what=what, ignoring=(ApiError,))


@pytest.mark.parametrize("job", JOBS)
def test_only_those_training_jobs_fail_of_which_that_was_said(
    endings: Mapping[str, tuple[pods.Pod, str]], job: str
) -> None:
    """T41: Jobs by policy, never by surprise. Of what a pod does not show the worst is said."""
    pod, ending = endings[job]
    survives = job in {"pytorchjob-onfailure", "pytorchjob-exitcode"}

    assert ending == ("Running" if survives else "Failed")
    assert survives or owners.controls(pod).failure
