"""Job-like workloads as users write them, sent as they are written: models drop what they lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightkube.generic_resource import GenericNamespacedResource, create_api_info

from lab import images, upstream
from lab.versions import Difference


class Pod(GenericNamespacedResource):
    """A pod as it was written."""

    _api_info = create_api_info("", "v1", "Pod", "pods")


class Job(GenericNamespacedResource):
    """A Job as it was written."""

    _api_info = create_api_info("batch", "v1", "Job", "jobs")


class CronJob(GenericNamespacedResource):
    """A CronJob as it was written."""

    _api_info = create_api_info("batch", "v1", "CronJob", "cronjobs")


RESOURCES: Mapping[str, type[GenericNamespacedResource]] = {
    "Pod": Pod,
    "Job": Job,
    "CronJob": CronJob,
    "TFJob": upstream.TFJob,
    "PyTorchJob": upstream.PyTorchJob,
    "JobSet": upstream.JobSet,
    "TrainJob": upstream.TrainJob,
    "Workflow": upstream.Workflow,
    "MPIJob": upstream.MPIJob,
}
# A TCP connection to the API server: with a sidecar it needs one that runs.
TALK = "nc kubernetes.default 443 </dev/null"
# It ends as soon as its sidecar is ready, and runs for ten minutes at least without one.
TRAIN = "for i in $(seq 600); do wget -qO- 127.0.0.1:15021/healthz/ready && exit 0; sleep 1; done"
# The first try of a container fails with this code; it leaves a note for the next.
RETRY = 42


@dataclass(frozen=True)
class Workload:
    """A workload, and how it ends without a sidecar."""

    name: str  # What it does, as its name in Kubernetes.
    manifest: dict[str, Any]  # The object, without a namespace.
    ends: str = ""  # The condition in which it ends; of a pod the phase.
    # The last exit codes of its payload containers, sorted, over the pods it leaves.
    codes: tuple[int, ...] = ()
    restarts: int = 0  # How often a payload container started again, over the pods it leaves.
    # Whether a restart is one of all containers, so of the proxy as well.
    everything_restarts: bool = False
    needs: Difference | None = None  # What Kubernetes must have for it.

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    def in_namespace(
        self, namespace: str, image: str = images.BUSYBOX
    ) -> GenericNamespacedResource:
        """The object to create; `image` takes the place of the lab's own."""
        metadata = {**self.manifest["metadata"], "name": self.name, "namespace": namespace}
        document = _with_image({**self.manifest, "metadata": metadata}, image)
        return RESOURCES[self.kind].from_dict(document)


def _with_image(document: Any, image: str) -> Any:
    """A copy of a document with another image in place of the lab's."""
    if isinstance(document, dict):
        return {key: _with_image(value, image) for key, value in document.items()}
    if isinstance(document, list):
        return [_with_image(value, image) for value in document]
    return image if document == images.BUSYBOX else document


def container(script: str, name: str = "main", **more: Any) -> dict[str, Any]:
    """A payload container that runs a line of shell, with a folder that outlives its restarts."""
    notes = {"name": "notes", "mountPath": "/notes", "subPath": name}
    run = {"image": images.BUSYBOX, "command": ["sh", "-c", script], "volumeMounts": [notes]}
    return {"name": name, **run, **more}


def template(
    *containers: dict[str, Any],
    restart: str = "Never",
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    spec = {
        "containers": list(containers),
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "notes", "emptyDir": {}}],
        **more,
    }
    return {"metadata": {"annotations": dict(annotations or {})}, "spec": spec}


def pod(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **template(*containers, **more)}


def job(template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Job that gives up at the first failure, unless `spec` says otherwise."""
    spec = {"backoffLimit": 0, **spec, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": spec}


def cron_job(template: dict[str, Any], schedule: str) -> dict[str, Any]:
    """A CronJob that starts no Job while its last one is not over."""
    spec = {
        "schedule": schedule,
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": 10,
        "jobTemplate": {"spec": job(template)["spec"]},
    }
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {}, "spec": spec}


def training_job(kind: str, **templates: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    """A job of Kubeflow, with the number and the template of each kind of replica."""
    field = {"TFJob": "tfReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs"}[kind]
    replicas = {}
    for name, (number, of) in templates.items():
        # The operator takes the restart policy from here, and says so when the template has one.
        policy = of["spec"].pop("restartPolicy")
        replicas[name] = {"replicas": number, "restartPolicy": policy, "template": of}
    spec = {"runPolicy": {"cleanPodPolicy": "None"}, field: replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {}, "spec": spec}


def train_job(
    script: str, nodes: int = 1, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A TrainJob of the lab's runtime, whose pods get annotations by a patch of it."""
    run = {"numNodes": nodes, "image": images.BUSYBOX, "command": ["sh", "-c", script]}
    spec: dict[str, Any] = {"runtimeRef": {"name": upstream.RUNTIME}, "trainer": run}
    if annotations:
        of = {"spec": {"template": {"metadata": {"annotations": dict(annotations)}}}}
        jobs = {"replicatedJobs": [{"name": "node", "template": of}]}
        patch = {"manager": "lab.test/author", "trainingRuntimeSpec": {"template": {"spec": jobs}}}
        spec["runtimePatches"] = [patch]
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {},
        "spec": spec,
    }  # fmt: skip


def job_set(**templates: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    """A JobSet, with the number of pods and their template of each replicated Job."""
    jobs = [
        {
            "name": name,
            "template": {
                "spec": {
                    "backoffLimit": 0, "completions": pods, "parallelism": pods, "template": of,
                }
            },
        }
        for name, (pods, of) in templates.items()
    ]  # fmt: skip
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {},
        "spec": {"replicatedJobs": jobs},
    }  # fmt: skip


def fails_once(code: int = RETRY) -> str:
    """A script that fails in its first try; its second succeeds if it still has a network then."""
    first = f"touch /notes/tried; sleep 1; exit {code}"
    return f"[ -e /notes/tried ] || {{ {first}; }}; sleep 3; {TALK}"
