"""Other projects' controllers, unmodified: binaries and manifests of their Go modules, our images.

kustomize makes the manifests. Here are

* Kubeflow's training-operator 1.9 (its overlay `standalone`), Trainer 2.3 (`manager`) and MPI
  operator 0.8 (`standalone`); a launcher and workers without MPI are stand-ins;
* JobSet 0.12 (`default`), and Kueue 0.19 (`default`, without visibility of queues);
* Argo Workflows 3.7 (`cluster-install` without the server); an artifact store is a stand-in;
* cert-manager 1.21: its CRDs and controllers, in one process beside the cluster. Its webhook is not
  there, which only refuses objects that its CRDs allow and its programs do not.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from lightkube import Client
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, Pod
from lightkube.types import PatchType

from lab import Cluster, images, meshed, tools, until
from tools import errors, toolchain

Document = dict[str, Any]

_ADMISSION, _RBAC = "admissionregistration.k8s.io", "rbac.authorization.k8s.io"
# Objects are sent as they are written: typed models would drop what they do not know.
_GLOBAL = {
    kind: create_global_resource(group, "v1", kind, f"{kind.lower()}s")
    for group, kind in (
        ("apiextensions.k8s.io", "CustomResourceDefinition"),
        (_RBAC, "ClusterRole"),
        (_RBAC, "ClusterRoleBinding"),
        (_ADMISSION, "MutatingWebhookConfiguration"),
        (_ADMISSION, "ValidatingWebhookConfiguration"),
    )
}
_GLOBAL["PriorityClass"] = create_global_resource(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"
)
_NAMESPACED = {
    kind: create_namespaced_resource(group, "v1", kind, f"{kind.lower()}s")
    for group, kind in (
        ("", "ConfigMap"),
        ("", "Secret"),
        ("", "Service"),
        ("", "ServiceAccount"),
        ("apps", "DaemonSet"),
        ("apps", "Deployment"),
        (_RBAC, "Role"),
        (_RBAC, "RoleBinding"),
    )
}


def module(program: str, name: str) -> Path:
    """The folder of a module that a program is built from, fetched again if need be."""
    return toolchain.module(tools.PROGRAMS[program].folder, name)


def read(path: Path) -> list[Document]:
    return [d for d in yaml.load_all(path.read_text(), yaml.CSafeLoader) if d]


def built(*parts: Path, image: str = "", without: str = "", **fields: Any) -> Iterator[Document]:
    """What kustomize makes of its folders or files, with the lab's image in each Deployment.

    `fields` are those of the kustomization, and no name has `without` in it. Namespaces are for
    the caller to make.
    """
    with tempfile.TemporaryDirectory() as place:
        fields["resources"] = [os.path.relpath(part, place) for part in parts]
        Path(place, "kustomization.yaml").write_text(json.dumps(fields))
        made = errors.run(
            [tools.path("kubectl"), "kustomize", "--load-restrictor=LoadRestrictionsNone", place]
        )
    for document in yaml.load_all(made, yaml.CSafeLoader):
        if document["kind"] == "Deployment":
            for container in document["spec"]["template"]["spec"]["containers"]:
                container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
        left_out = without and without in document["metadata"]["name"]
        if document["kind"] != "Namespace" and not left_out:
            yield document


def install(cluster: Cluster, namespace: str, *documents: Iterable[Document]) -> None:
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=namespace)))
        for each in documents:
            apply(client, each)


def await_served(make: Callable[[], object], what: str) -> None:
    """Return when a controller and its webhook take an object. Raises TimeoutError."""
    # lightkube has no ApiError for a kind that is not served yet.
    until(make, what=f"{what} to be ready", ignoring=(Exception,), every=0.5)


def apply(client: Client, documents: Iterable[Document]) -> None:
    for document in documents:
        client.apply({**_GLOBAL, **_NAMESPACED}[document["kind"]].from_dict(document), force=True)


TRAINING_OPERATOR = "github.com/kubeflow/training-operator"
KUBEFLOW = "kubeflow"
OPERATOR = "training-operator"
# Labels of a user's namespace (kubeflow profile-controller namespace-labels.yaml, profiles v1).
PROFILE = {
    "app.kubernetes.io/part-of": "kubeflow-profile",
    "istio-injection": "enabled",
    "katib.kubeflow.org/metrics-collector-injection": "enabled",
    "pipelines.kubeflow.org/enabled": "true",
    "serving.kubeflow.org/inferenceservice": "enabled",
}

TFJob = create_namespaced_resource("kubeflow.org", "v1", "TFJob", "tfjobs")
PyTorchJob = create_namespaced_resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")


def install_training_operator(cluster: Cluster) -> None:
    """Start the operator in the cluster; `await_ready` waits for it."""
    cluster.load(images.controller(images.TRAINING_OPERATOR, "training-operator"))
    cluster.load(images.alpine())
    overlay = module(OPERATOR, TRAINING_OPERATOR) / "manifests/overlays/standalone"
    install(cluster, KUBEFLOW, built(overlay, image=images.TRAINING_OPERATOR))


def await_training_operator(cluster: Cluster) -> None:
    """Return when the operator's own webhook accepts a TFJob."""
    container = {"name": "tensorflow", "image": images.BUSYBOX}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": "is-the-operator-ready", "namespace": "default"}
    job = TFJob.from_dict({"metadata": metadata, "spec": {"tfReplicaSpecs": {"Worker": worker}}})
    with cluster.client() as client:
        await_served(lambda: client.create(job, dry_run=True), OPERATOR)


TRAINER = "kubeflow-system"
RUNTIME = "shell"

TrainJob = create_namespaced_resource("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
_Runtime = create_global_resource(
    "trainer.kubeflow.org", "v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes"
)


def install_jobsets(cluster: Cluster) -> None:
    """Start both controllers and make the runtime `RUNTIME`; returns when both take objects."""
    cluster.load(images.controller(images.JOBSET, "jobset"))
    cluster.load(images.controller(images.TRAINER, "trainer"))
    default = module("jobset", "sigs.k8s.io/jobset") / "config/default"
    install(cluster, "jobset-system", built(default, image=images.JOBSET))
    # Its overlay `manager`, without the JobSet of another address.
    base = module("trainer", "github.com/kubeflow/trainer/v2") / "manifests/base"
    certificate = {"name": "kubeflow-trainer-webhook-cert", "namespace": TRAINER}
    trainer = built(
        *(base / part for part in ("crds", "manager", "rbac", "webhook")),
        image=images.TRAINER, namespace=TRAINER,
        secretGenerator=[{**certificate, "options": {"disableNameSuffixHash": True}}],
    )  # fmt: skip
    install(cluster, TRAINER, trainer)
    # As Trainer's own runtimes are: one replicated Job, whose container is called node.
    node = {"containers": [{"name": "node", "image": images.BUSYBOX}], "restartPolicy": "Never"}
    job: dict[str, Any] = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": node}},
        },
    }
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [job]}}}
    runtime = _Runtime.from_dict({"metadata": {"name": RUNTIME}, "spec": spec})
    metadata = {"name": "is-jobset-ready", "namespace": "default"}
    probe = JobSet.from_dict({"metadata": metadata, "spec": {"replicatedJobs": [job]}})
    with cluster.client() as client:
        await_served(lambda: client.create(probe, dry_run=True), "JobSet")
        await_served(lambda: client.apply(runtime, field_manager="lab", force=True), "Trainer")


MPI_OPERATOR = "mpi-operator"
MPI_JOBS = "mpijobs.kubeflow.org"
MPI_PORT = 2222
# Instead of sshd: an answer for everybody who asks, until the pod is deleted. Unlike sshd it speaks
# last: a proxy finds out from the client's first bytes which protocol it is.
MPI_WORKER = ["nc", "-ll", "-p", str(MPI_PORT), "-e", "sh", "-c", "read -r work && echo done"]
# Instead of mpirun: it asks each host of the operator's list, and lasts longer than a moment.
MPI_LAUNCH = f"""
for host in $(cut -d' ' -f1 /etc/mpi/hostfile); do
    until echo work | nc "$host" {MPI_PORT} | grep done; do usleep 500000; done
done
sleep 1"""

MPIJob = create_namespaced_resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs")


def install_mpi_operator(cluster: Cluster) -> None:
    """Start the operator, and end the training-operator, which has another version of its kind."""
    cluster.load(images.controller(images.MPI_OPERATOR, "mpi-operator"))
    with cluster.client() as client:
        client.patch(Deployment, OPERATOR, {"spec": {"replicas": 0}}, namespace=KUBEFLOW)
        client.delete(CustomResourceDefinition, MPI_JOBS)
        until(
            lambda: meshed.is_gone(client, CustomResourceDefinition, MPI_JOBS),
            what=f"{MPI_JOBS} to be gone",
        )
    overlay = (
        module("mpi-operator", "github.com/kubeflow/mpi-operator") / "manifests/overlays/standalone"
    )
    install(cluster, MPI_OPERATOR, built(overlay, image=images.MPI_OPERATOR))


def mpi_job(launch: str = MPI_LAUNCH) -> dict[str, Any]:
    """An MPIJob whose launcher runs shell, and whose two workers run until they are deleted."""

    def replicas(number: int, name: str, command: list[str]) -> dict[str, Any]:
        container = {"name": name, "image": images.BUSYBOX, "command": command}
        spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
        return {"replicas": number, "restartPolicy": "Never", "template": {"spec": spec}}

    spec = {
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
        "launcherCreationPolicy": "WaitForWorkersReady",
        "mpiReplicaSpecs": {
            "Launcher": replicas(1, "launcher", ["sh", "-c", launch]),
            "Worker": replicas(2, "worker", MPI_WORKER),
        },
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {}, "spec": spec,
    }  # fmt: skip


KUEUE, PREFIX = "kueue-system", "kueue-"
MANAGER = "controller-manager"
QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}
# The CPU of each Job, and of a queue: one Job at a time.
SHARE = "100m"

_OF_KUEUE = ("kueue.x-k8s.io", "v1beta2")
Flavor = create_global_resource(*_OF_KUEUE, "ResourceFlavor", "resourceflavors")
ClusterQueue = create_global_resource(*_OF_KUEUE, "ClusterQueue", "clusterqueues")
LocalQueue = create_namespaced_resource(*_OF_KUEUE, "LocalQueue", "localqueues")
Admission = create_namespaced_resource(*_OF_KUEUE, "Workload", "workloads")


def install_kueue(cluster: Cluster) -> None:
    """Start Kueue; returns when it admits Jobs."""
    cluster.load(images.controller(images.KUEUE, "kueue"))
    install(cluster, KUEUE, _of_kueue())
    flavor = Flavor.from_dict({"metadata": {"name": "any"}})
    with cluster.client() as client:
        await_served(lambda: client.apply(flavor, field_manager="lab", force=True), "Kueue")


def remove_kueue(client: Client) -> None:
    """End Kueue, and delete its webhook configurations."""
    for kind, name in (
        (MutatingWebhookConfiguration, "mutating"),
        (ValidatingWebhookConfiguration, "validating"),
    ):
        client.delete(kind, f"{PREFIX}{name}-webhook-configuration")
    client.delete(Deployment, PREFIX + MANAGER, namespace=KUEUE)


def make_queue(client: Client, namespace: str) -> None:
    """A queue for the namespace, with room for one Job at a time."""
    quota = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": SHARE}]}
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    metadata = {"name": QUEUE["kueue.x-k8s.io/queue-name"], "namespace": namespace}
    client.create(ClusterQueue.from_dict({"metadata": {"name": namespace}, "spec": spec}))
    spec = {"clusterQueue": namespace}
    client.create(LocalQueue.from_dict({"metadata": metadata, "spec": spec}))


def activate(client: Client, namespace: str, job: str, *, active: bool) -> None:
    """Let Kueue admit a Job, or not: then it suspends the Job (0.19 workload_types.go Active)."""
    for found in client.list(Admission, namespace=namespace):
        if any(owner["name"] == job for owner in found["metadata"].get("ownerReferences") or ()):
            body = {"spec": {"active": active}}
            name = found["metadata"]["name"]
            client.patch(Admission, name, body, namespace=namespace, patch_type=PatchType.MERGE)


def _of_kueue() -> Iterator[dict[str, Any]]:
    default = module("kueue", "sigs.k8s.io/kueue") / "config/default"
    for document in built(default, image=images.KUEUE, without="visibility"):
        if document["kind"] == "Deployment":
            [manager] = document["spec"]["template"]["spec"]["containers"]
            manager["args"].append("--feature-gates=VisibilityOnDemand=false")
        yield document


ARGO = "argo"
WORKFLOW = "workflows.argoproj.io/workflow"
STORE_PORT = 8080
# A stand-in for an artifact store: it takes what Argo's driver `http` sends, in chunks, but answers
# only when somebody has asked for /release, and then logs path and content. It does not: answer
# anything else, or keep anything.
_STORE = r"""
cr=$(printf '\r'); content=; read -r _ path _
while read -r line && line=${line%"$cr"} && [ "$line" != 0 ] && [ "$path$line" != /release ]; do
    content="$content $line"
done
# Something left unread would reset the connection, maybe before the answer arrives.
if [ "$path" = /release ]; then touch /tmp/released; else read -r _; fi
until [ -e /tmp/released ]; do usleep 200000; done
printf 'HTTP/1.1 201 Created\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
echo "$path: $content" >/proc/1/fd/1
"""

Workflow = create_namespaced_resource("argoproj.io", "v1alpha1", "Workflow", "workflows")


def install_argo(cluster: Cluster) -> None:
    """Start the controller; there is no need to wait, for it finds the Workflows that it missed."""
    place = "/usr/local/bin/workflow-controller"
    cluster.load(images.controller(images.WORKFLOW_CONTROLLER, "workflow-controller", place))
    # It runs as root, as Argo's image of this name does.
    cluster.load(images.controller(images.ARGOEXEC, "argoexec", "/bin/argoexec", user=""))
    install(cluster, ARGO, _of_argo())


def allow_results(client: Client, namespace: str) -> None:
    """Let the pods of Workflows in a namespace report their results, as Argo's documents say."""
    manifests = module("argoexec", tools.ARGO) / "manifests/quick-start/base"
    role = manifests / "executor/emissary/executor-role.yaml"
    apply(client, built(role, manifests / "executor-default-rolebinding.yaml", namespace=namespace))


def store() -> dict[str, Any]:
    """A pod that takes artifacts, answers when it is released, and logs them."""
    serve = ["nc", "-ll", "-p", str(STORE_PORT), "-e", "sh", "-c", _STORE]
    container = {"name": "store", "image": images.BUSYBOX, "command": serve}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }  # fmt: skip


def release_store(address: str) -> dict[str, Any]:
    """A pod that has the store at `address` answer everybody."""
    ask = f"wget -qO- http://{address}:{STORE_PORT}/release"
    container = {"name": "release", "image": images.BUSYBOX, "command": ["sh", "-c", ask]}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {},
        "spec": {"containers": [container], "restartPolicy": "OnFailure"},
    }  # fmt: skip


def signalled(client: Client, container: str) -> set[tuple[str, str]]:
    """Namespace and name of the pods in which the controller has tried to end the container."""
    lines = [
        line
        for pod in client.list(Pod, namespace=ARGO)
        if pod.metadata and pod.metadata.name
        for line in client.log(pod.metadata.name, namespace=ARGO)
    ]
    found = [
        re.search(r" namespace=(\S+) pod=(\S+)", line)
        for line in lines
        if 'msg="signaled container"' in line and f" container={container} " in line
    ]
    return {(match[1], match[2]) for match in found if match}


def workflow(
    script: str, upload: str = "", metadata: dict[str, dict[str, str]] | None = None
) -> dict[str, Any]:
    """A Workflow of one step: it runs `script`, and may `upload` /tmp/model when it has ended."""
    outputs: dict[str, Any] = {
        "parameters": [{"name": "result", "valueFrom": {"path": "/tmp/result", "default": "none"}}]
    }
    if upload:
        plain: dict[str, Any] = {"none": {}}
        outputs["artifacts"] = [
            {"name": "model", "path": "/tmp/model", "archive": plain, "http": {"url": upload}}
        ]
    step = {
        "name": "step",
        "container": {"image": images.BUSYBOX, "command": ["sh", "-c", script]},
        "outputs": outputs,
        "metadata": metadata or {},
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {},
        "spec": {"entrypoint": "step", "templates": [step]},
    }  # fmt: skip


def results(workflow: Any) -> list[str]:
    nodes = (workflow.get("status") or {}).get("nodes") or {}
    outputs = [(node.get("outputs") or {}).get("parameters") or [] for node in nodes.values()]
    return [parameter["value"] for parameters in outputs for parameter in parameters]


def _of_argo() -> Iterator[dict[str, Any]]:
    overlay = module("workflow-controller", tools.ARGO) / "manifests/cluster-install"
    for document in built(overlay, image=images.WORKFLOW_CONTROLLER, without="argo-server"):
        if document["kind"] == "Deployment":
            [container] = document["spec"]["template"]["spec"]["containers"]
            container["args"] = ["--executor-image", images.ARGOEXEC]
        yield document


CERT_MANAGER = "github.com/cert-manager/cert-manager"
Certificate = create_namespaced_resource("cert-manager.io", "v1", "Certificate", "certificates")


def install_cert_manager(cluster: Cluster) -> None:
    """Start its controllers and its CA injector; they end with the cluster."""
    folder = module("cert-manager", CERT_MANAGER)
    with cluster.client() as client:
        for path in sorted((folder / "deploy/crds").glob("*.yaml")):
            apply(client, read(path))
    cluster.spawn(
        "cert-manager", [tools.path("cert-manager"), f"--kubeconfig={cluster.kubeconfig}"]
    )


def renew_certificate(client: Client, name: str, namespace: str) -> None:
    """Ask for a new certificate before the time, as `cmctl renew` does."""
    found: dict[str, Any] = client.get(Certificate, name, namespace=namespace).to_dict()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    issuing = {
        "type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test",
        "lastTransitionTime": now, "observedGeneration": found["metadata"]["generation"],
    }  # fmt: skip
    others = [each for each in found["status"]["conditions"] if each["type"] != "Issuing"]
    client.patch(
        Certificate.Status, name, {"status": {"conditions": [*others, issuing]}},
        namespace=namespace, patch_type=PatchType.MERGE,
    )  # fmt: skip
