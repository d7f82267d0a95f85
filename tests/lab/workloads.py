"""Job-like workloads as users write them, every way in which they can end, and trials of Katib.

They are sent as they are written: models drop what they lack. An `Outcome` is what must be equal
without a sidecar; a `Seen` is a workload in a cluster at one moment, or at its end.

A `Difference` is what Kubernetes before the lab's newest one lacks, with what is true of the
product there. A test that cannot run on an older one has the mark of its difference, whose reason
says what happens instead. `make matrix` makes a table of them.

Trials of Katib are Jobs with the pods that Katib's webhook makes of them, written down. Katib is in
no package registry. The pod is that of its webhook (katib v0.18 pkg/webhook/v1beta1): shared
processes, a shared folder, a training command that leaves a marker, a collector beside it.

The collector is a stand-in in shell: it finds the first process of each other container, awaits all
of them or the training alone, and checks the marker, as Katib's does (pkg/metricscollector/v1beta1/
common/pns.go); then it sends the lines with the metric to the database over TCP, and fails if it
cannot. It does not: speak gRPC, parse metrics, stop a training early, or follow the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from lightkube import Client
from lightkube.generic_resource import GenericNamespacedResource, create_api_info

from lab import images, tools, until, upstream
from lab.meshed import PROXY


@dataclass(frozen=True)
class Difference:
    """Something that Kubernetes has from 1.`since` on."""

    what: str  # What is lacking before.
    since: int
    instead: str  # What the product does there, or what happens.
    shown: str  # The test that shows it.

    @property
    def there(self) -> bool:
        return not tools.before(self.since)

    @property
    def needed(self) -> pytest.MarkDecorator:
        """The mark of a test that takes it."""
        return pytest.mark.skipif(
            not self.there, reason=f"{tools.VERSION}: no {self.what}: {self.instead} ({self.shown})"
        )


NATIVE = Difference(
    "native sidecar by default (Istio wants kubelets of 1.33)",
    33,
    "sidecars are classic unless asked for otherwise, so pods are held, or ask",
    "unit/test_injector_watcher.py",
)
CONTAINER_RESTARTS = Difference(
    "restart policy and restart rules of a single container",
    35,
    "1.34 drops them unless its gate ContainerRestartRules is on, others refuse the pod",
    "oracle/",
)
RESTART_ALL = Difference(
    "restart of all containers by a rule",
    36,
    "the API server refuses the pod, or drops the rule",
    "oracle/",
)
WEBSOCKETS = Difference(
    "WebSocket from the API server to the kubelet",
    36,
    "the API server translates exec into SPDY; quitting does not differ",
    "cluster/test_quit.py",
)
EVENTS = Difference(
    "right of ClusterRole edit to write Events of events.k8s.io",
    35,
    "quit by a person writes none",
    "cluster/test_commands.py",
)


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
        return RESOURCES[self.kind].from_dict(
            _with_image({**self.manifest, "metadata": metadata}, image)
        )


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
    # The operator takes the restart policy from here, and says so when the template has one.
    replicas = {
        name: {"replicas": number, "restartPolicy": of["spec"].pop("restartPolicy"), "template": of}
        for name, (number, of) in templates.items()
    }
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
        spec["runtimePatches"] = [
            {"manager": "lab.test/author", "trainingRuntimeSpec": {"template": {"spec": jobs}}}
        ]
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


OK = "sleep 1"
FAIL = "sleep 1; exit 3"
# What is left to do when the main payload is over, over the network.
UPLOAD = f"sleep 4; {TALK}"
# Memory without end, as the container's only process.
GLUTTON = {"command": ["tail", "/dev/zero"], "resources": {"limits": {"memory": "16Mi"}}}
ASKS_NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}


def rule(action: str, *codes: int) -> list[dict[str, Any]]:
    """What the kubelet does when a container exits with one of the codes."""
    return [{"action": action, "exitCodes": {"operator": "In", "values": list(codes)}}]


# The number of tries that its index has had is all that a pod of a Job knows of the others.
TRIES = {
    "name": "TRIES",
    "valueFrom": {
        "fieldRef": {
            "fieldPath": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
        }
    },
}
# The client speaks first: a proxy finds out from that which protocol it is. A connection may end
# before its first word.
WELCOME, GREET = "read -r hello && echo welcome", "echo hello; read -r welcome"
LISTEN = f"until nc -l -p $MASTER_PORT -e sh -c '{WELCOME}'; do usleep 200000; done"
ASK = f"until nc $MASTER_ADDR $MASTER_PORT -e sh -c '{GREET}'; do usleep 200000; done"


def a_job(
    name: str,
    ends: str,
    codes: tuple[int, ...],
    *containers: dict[str, Any],
    spec: Mapping[str, Any] | None = None,
    restarts: int = 0,
    needs: Difference | None = None,
    **of_pod: Any,
) -> Workload:
    """A Job of these containers, which ends in that condition with these exit codes."""
    manifest = job(template(*containers, **of_pod), **(spec or {}))
    return Workload(name, manifest, ends, codes, restarts=restarts, needs=needs)


def a_pod(
    name: str,
    ends: str,
    codes: tuple[int, ...],
    *containers: dict[str, Any],
    restarts: int = 0,
    needs: Difference | None = None,
    **of_pod: Any,
) -> Workload:
    """The same as a pod that nobody owns."""
    return Workload(name, pod(*containers, **of_pod), ends, codes, restarts=restarts, needs=needs)


UPLOADER = container(UPLOAD, name="uploader")
BY_INDEX = {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
FAILURE_POLICY = {
    "rules": [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [137, 143]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [RETRY]}},
    ]
}
JOBS = (
    a_job("a-job-succeeds", "Complete", (0,), container(OK)),
    a_job("a-job-fails", "Failed", (3,), container(FAIL)),
    a_job("a-job-on-failure-succeeds", "Complete", (0,), container(OK), restart="OnFailure"),
    # The Job controller deletes the pod that has used up its tries.
    a_job(
        "a-job-on-failure-gives-up", "Failed", (), container(FAIL),
        restart="OnFailure", spec={"backoffLimit": 1},
    ),
    a_job(
        "a-job-on-failure-succeeds-in-its-second-try", "Complete", (0,), container(fails_once()),
        restart="OnFailure", spec={"backoffLimit": 4}, restarts=1,
    ),
    a_job(
        "a-job-succeeds-with-its-second-pod", "Complete", (0, 3),
        container('sleep 1; [ "$TRIES" -gt 0 ] || exit 3', env=[TRIES]),
        spec={"backoffLimit": 6, "backoffLimitPerIndex": 1, **BY_INDEX},
    ),
    a_job("a-job-with-two-payloads-succeeds", "Complete", (0, 0), container(OK), UPLOADER),
    a_job("a-job-with-two-payloads-fails-by-one", "Failed", (0, 3), container(FAIL), UPLOADER),
    a_job("a-job-is-oom-killed", "Failed", (137,), container("", **GLUTTON)),
    a_job(
        "a-job-fails-by-its-pod-failure-policy", "Failed", (RETRY,),
        container(f"sleep 1; exit {RETRY}"),
        spec={"backoffLimit": 6, "podFailurePolicy": FAILURE_POLICY},
    ),
    # A process that is not the first of its namespace can kill itself. Kubernetes makes one dollar
    # sign of two.
    a_job(
        "a-job-whose-wrappers-are-killed", "Failed", (137, 143),
        container("sleep 1000 & sleep 1; kill -KILL $$$$"),
        container("kill -TERM $$$$; sleep 1000", name="before-its-child"),
        shareProcessNamespace=True,
    ),
    Workload(
        "a-cron-job-that-forbids-overlap-runs-again",
        cron_job(template(container(OK)), schedule="@every 5s"),
        "Complete",
        (0, 0),
    ),
)  # fmt: skip

RESTART_RULES = (
    a_job(
        "a-container-restarts-by-its-rule-in-a-pod-that-never-does", "Complete", (0,),
        container(fails_once(), restartPolicy="Never", restartPolicyRules=rule("Restart", RETRY)),
        restarts=1, needs=CONTAINER_RESTARTS,
    ),
    a_job(
        "a-container-restarts-on-failure-in-a-pod-that-never-does", "Complete", (0,),
        container(fails_once(), restartPolicy="OnFailure"),
        restarts=1, needs=CONTAINER_RESTARTS,
    ),
    a_pod(
        "a-container-never-restarts-in-a-pod-that-does", "Failed", (3,),
        container(FAIL, restartPolicy="Never"), restart="OnFailure", needs=CONTAINER_RESTARTS,
    ),
    Workload(
        "all-containers-restart-by-the-rule-of-one",
        pod(
            container(
                fails_once(),
                restartPolicy="Never",
                restartPolicyRules=rule("RestartAllContainers", RETRY),
            ),
            container("sleep 3", name="other"),
        ),
        "Succeeded",
        (0, 0),
        restarts=2,
        everything_restarts=True,
        needs=RESTART_ALL,
    ),
)  # fmt: skip

# Containers and restarts as KubeRay and Spark write them; an executor's owner is left out.
RAY_AND_SPARK = (
    # KubeRay 1.7 in SidecarMode: only the submitter starts again (kuberay#4399).
    a_pod(
        "a-ray-head-whose-submitter-starts-again", "Succeeded", (0, 0),
        container("sleep 8", name="ray-head"),
        container(fails_once(1), name="ray-job-submitter", restartPolicy="OnFailure"),
        restarts=1, needs=CONTAINER_RESTARTS,
    ),
    a_job(
        "a-rayjob-whose-submitter-fails", "Failed", (1,),
        container(f"sleep 1; {TALK}; exit 1", name="ray-job-submitter"),
    ),
    a_pod(
        "a-spark-driver-succeeds", "Succeeded", (0,),
        container(f"sleep 2; {TALK}", name="spark-kubernetes-driver"),
    ),
    a_pod(
        "a-spark-executor-is-told-to-end", "Failed", (143,),
        container(f"sleep 1; {TALK}; exit 143", name="spark-kubernetes-executor"),
    ),
)  # fmt: skip

PODS = (
    a_pod("a-pod-succeeds", "Succeeded", (0,), container(OK)),
    a_pod("a-pod-fails", "Failed", (3,), container(FAIL)),
    a_pod(
        "a-pod-succeeds-in-its-second-try", "Succeeded", (0,), container(fails_once()),
        restart="OnFailure", restarts=1,
    ),
)  # fmt: skip

TRAINING = (
    Workload(
        "a-tfjob-succeeds",
        training_job("TFJob", Worker=(2, template(container(OK, name="tensorflow")))),
        "Succeeded",
        (0, 0),
    ),
    Workload(
        "a-tfjob-fails",
        # One worker: the operator stops counting with the first that fails.
        training_job("TFJob", Worker=(1, template(container(FAIL, name="tensorflow")))),
        "Failed",
        (3,),
    ),
    Workload(
        "a-pytorchjob-whose-worker-finds-its-master",
        training_job(
            "PyTorchJob",
            Master=(1, template(container(LISTEN, name="pytorch"))),
            Worker=(1, template(container(ASK, name="pytorch"))),
        ),
        "Succeeded",
        (0, 0),
    ),
)

# Less than 5 s of grace, and a native proxy may be killed (`istio_aux.model.ending`).
ENOUGH: Mapping[str, Any] = {"annotations": ASKS_NATIVE, "terminationGracePeriodSeconds": 5}
NATIVE_SIDECARS = (
    a_job("a-job-with-a-native-sidecar", "Complete", (0,), container(OK), **ENOUGH),
    a_pod(
        "a-pod-with-a-native-sidecar-and-two-payloads", "Failed", (0, 3),
        container(OK), container(FAIL, name="second"), **ENOUGH,
    ),
)  # fmt: skip

# The first way in which the agent of each can be reached is another one.
OWN_PORT = a_job(
    "a-job-whose-agent-has-a-port-of-its-own", "Complete", (0,), container(OK),
    annotations={"status.sidecar.istio.io/port": "15520"},
)  # fmt: skip
NO_PORT = a_pod(
    "a-pod-whose-agent-has-no-port", "Failed", (3,),
    # It is not held, so it starts before its proxy is ready.
    container(f"until {TALK}; do sleep 1; done; exit 3"),
    annotations={"status.sidecar.istio.io/port": "0"},
)  # fmt: skip

ENDINGS = (
    OWN_PORT, NO_PORT, *JOBS, *RESTART_RULES, *RAY_AND_SPARK, *PODS, *TRAINING,
    *NATIVE_SIDECARS,
)  # fmt: skip

# Without a proxy that is ready, nothing answers.
AT_ONCE = a_job("a-job-that-talks-at-once", "Complete", (0,), container(TALK))

# These end in other ways, in which kubelet and proxy do what they do in those that stay.
BY_NIGHT = tuple(
    workload
    for workload in ENDINGS
    if workload in RAY_AND_SPARK
    or workload.name
    in {
        "a-container-never-restarts-in-a-pod-that-does",
        "a-container-restarts-on-failure-in-a-pod-that-never-does",
        "a-job-fails-by-its-pod-failure-policy",
        "a-job-on-failure-gives-up",
        "a-job-on-failure-succeeds",
        "a-job-succeeds-with-its-second-pod",
        "a-job-with-two-payloads-fails-by-one",
        "a-pod-fails",
        "a-pod-succeeds",
        "a-pod-succeeds-in-its-second-try",
        "a-pytorchjob-whose-worker-finds-its-master",
        "a-tfjob-fails",
    }
)

# What an installation is tried with.
ACCEPTANCE = (AT_ONCE, *ENDINGS)


COLLECTOR, TRIAL = "metrics-logger-and-collector", "training-container"
KATIB = "/var/log/katib"
METRICS = f"{KATIB}/metrics.log"
DATABASE_PORT = 6789
# The marker tells whether the training succeeded; its name is the pid of the training's shell.
# The kubelet makes one dollar of two in a command.
MARKER = f"echo completed > {KATIB}/$$$$.pid"
COLLECT = rf"""
all=true
while [ $# -gt 0 ]; do
    case $1 in -t) trial=$2 ;; -m) metric=$2 ;; -s-db) db=$2 ;; -w) all=$2 ;; esac
    shift
done
pids= main=
for process in /proc/[0-9]*; do
    pid=${{process#/proc/}}
    # The parent of a container's first process is outside of the pod; pause is process 1.
    parent=$(sed -n 's/^PPid:[^0-9]*//p' "$process/status" 2>/dev/null)
    if [ "$parent" != 0 ] || [ "$pid" = 1 ] || [ "$pid" = $$$$ ]; then continue; fi
    pids="$pids $pid"
    if [ -z "$main" ] || tr '\0' ' ' <"$process/cmdline" | grep -q 'echo completed > {KATIB}'; then
        main=$pid
    fi
done
while [ -n "$pids" ]; do
    left=
    for pid in $pids; do
        if [ -d "/proc/$pid" ]; then
            left="$left $pid"
        elif [ "$pid" = "$main" ]; then
            [ "$(cat "{KATIB}/$pid.pid")" = completed ] || exit 255
            [ "$all" = true ] || break 2
        fi
    done
    pids=$left
    sleep 1
done
sed -n "/^$metric=/s/^/$trial /p" {METRICS} | nc "${{db%:*}}" "${{db#*:}}" || exit 255
"""


def database() -> dict[str, Any]:
    """A pod that stores what collectors send: in its log. A stand-in for katib-db-manager."""
    return pod(
        container(f"exec nc -ll -p {DATABASE_PORT} -e sh -c 'cat >/proc/1/fd/1'"), restart="Always"
    )


def trial(
    name: str,
    database: str,
    *,
    wait_all_processes: Literal["true", "false"] | None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A trial that reports ``loss=0.25``; ``wait_all_processes`` as in KatibConfig, None: unset."""
    args = ["-t", name, "-m", "loss", "-o-type", "minimize", "-s-db", f"{database}:{DATABASE_PORT}"]
    args += ["-path", METRICS, "-format", "TEXT"]
    if wait_all_processes is not None:
        args += ["-w", wait_all_processes]
    mount = {"volumeMounts": [{"name": "metrics-volume", "mountPath": KATIB}]}
    # It is longer than the start of the collector, which must still find it.
    training = f"{{ sleep 5; echo loss=0.25; }} 1>{METRICS} 2>&1 && {MARKER}"
    made = template(
        {"name": TRIAL, "image": images.BUSYBOX, "command": ["sh", "-c"], "args": [training]}
        | mount,
        {"name": COLLECTOR, "image": images.BUSYBOX, "args": args}
        | {"command": ["sh", "-c", COLLECT, "collector"]}
        | mount,
        annotations=annotations,
        shareProcessNamespace=True,
        volumes=[{"name": "metrics-volume", "emptyDir": {}}],
    )
    return job(made)


# Jobs of a CronJob that count: if there is a second one, the first did not hang.
RUNS = 2

# The conditions that end an owner; others are about the way there, which may differ.
ENDS = {"Complete", "Completed", "Error", "Failed", "Succeeded"}
# The labels by which an owner's pods are found.
OWNED_BY = (
    "batch.kubernetes.io/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    upstream.WORKFLOW,
)

Object = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class EndedContainer:
    """A container at its end: its last exit code, None while there is none, and its restarts."""

    name: str
    exit_code: int | None
    restarts: int


@dataclass(frozen=True, order=True)
class EndedPod:
    """A pod at its end; its name is left out, for it may be random."""

    phase: str
    payload: tuple[EndedContainer, ...]


@dataclass(frozen=True)
class Outcome:
    """A workload at its end; equal to another if the two ended in the same way."""

    # Type and reason of those in `ENDS` that are true; of a pod its phase.
    conditions: tuple[tuple[str, str], ...]
    counts: tuple[tuple[str, int], ...]  # How many pods a Job counted in which way.
    pods: tuple[EndedPod, ...]  # The pods that are left.


def read_outcome(owners: Iterable[Object], pods: Iterable[Object]) -> Outcome:
    """The outcome of a workload, by its object (the Jobs of a CronJob) and its pods."""
    owners, pods = list(owners), list(pods)
    counted = [count for owner in owners for count in _counts(owner.get("status") or {})]
    return Outcome(
        conditions=tuple(sorted(end for owner in owners for end in _ends(owner))),
        counts=tuple(sorted(counted)),
        pods=tuple(sorted(map(_pod, pods))),
    )


def proxies(pods: Iterable[Object]) -> list[EndedContainer]:
    fields = ("initContainerStatuses", "containerStatuses")
    return [c for pod in pods for c in _containers(pod, *fields) if c.name == PROXY]


def codes(outcome: Outcome) -> tuple[int | None, ...]:
    """The last exit codes of all payload containers, sorted."""
    return tuple(
        sorted(c.exit_code for pod in outcome.pods for c in pod.payload if c.exit_code is not None)
    )


def describes(workload: Workload, outcome: Outcome) -> bool:
    restarts = sum(c.restarts for pod in outcome.pods for c in pod.payload)
    return (
        workload.ends in {kind for kind, _ in outcome.conditions}
        and codes(outcome) == workload.codes
        and restarts == workload.restarts
    )


def _ends(owner: Object) -> list[tuple[str, str]]:
    status = owner.get("status") or {}
    if phase := status.get("phase"):
        return [(phase, "")] if phase in ENDS else []
    return [
        (condition["type"], condition.get("reason", ""))
        for condition in status.get("conditions") or ()
        if condition["type"] in ENDS and condition["status"] == "True"
    ]


def _counts(status: Object) -> Iterable[tuple[str, int]]:
    # Kubeflow's operator stops counting when a job is over, though other replicas may still run.
    names = ("active", "succeeded", "failed")
    yield from ((name, status[name]) for name in names if status.get(name))
    # Those of a TrainJob, and of a JobSet.
    for job in status.get("jobsStatus") or status.get("replicatedJobsStatus") or ():
        yield from ((f"{job['name']}: {name}", job.get(name, 0)) for name in names)


def _pod(pod: Object) -> EndedPod:
    payload = sorted(c for c in _containers(pod, "containerStatuses") if c.name != PROXY)
    return EndedPod(pod["status"].get("phase", ""), tuple(payload))


def _containers(pod: Object, *fields: str) -> Iterable[EndedContainer]:
    for status in (s for field in fields for s in pod["status"].get(field) or ()):
        terminated = (status.get("state") or {}).get("terminated") or {}
        yield EndedContainer(status["name"], terminated.get("exitCode"), status["restartCount"])


@dataclass(frozen=True)
class Seen:
    """A workload, the objects that tell how it ended (the Jobs of a CronJob), and its pods."""

    workload: Workload
    owners: Sequence[Object]
    pods: Sequence[Object]

    @property
    def owner(self) -> Object:
        [owner] = self.owners
        return owner

    @property
    def outcome(self) -> Outcome:
        return read_outcome(self.owners, self.pods)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen to it."""
        expected = RUNS if self.workload.kind == "CronJob" else 1
        ended = [owner for owner in self.owners if _ends(owner)]
        return len(ended) >= expected and all(
            pod["status"].get("phase") in {"Succeeded", "Failed"}
            and "deletionTimestamp" not in pod["metadata"]
            for pod in self.pods
        )

    @property
    def proxies(self) -> list[tuple[int | None, int]]:
        """The exit code and the restarts of each sidecar."""
        return [(proxy.exit_code, proxy.restarts) for proxy in proxies(self.pods)]

    @property
    def freed(self) -> list[tuple[int | None, int]]:
        """The same if each pod had one, which ended with 0 in its first run."""
        return [(0, 1 if self.workload.everything_restarts else 0)] * len(self.pods)

    @property
    def running(self) -> bool:
        """Whether the payload of each pod runs, or has ended."""
        containers = [c for pod in self.pods for c in pod["status"].get("containerStatuses") or ()]
        return bool(containers) and all("waiting" not in c["state"] for c in containers)

    def uids(self, *, finished: bool) -> set[str]:
        """Of its pods that have succeeded, or of the others."""
        return {
            pod["metadata"]["uid"]
            for pod in self.pods
            if (pod["status"].get("phase") == "Succeeded") is finished
        }


def look(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload as it is now in this namespace."""
    return _look(client, (namespace,), [workload])[workload.name]


def await_address(client: Client, pod: Workload, namespace: str) -> str:
    """Create a pod; return its address once it has one."""
    client.create(made := pod.in_namespace(namespace))
    return until(
        lambda: client.get(type(made), pod.name, namespace=namespace)["status"].get("podIP"),
        what=f"pod {namespace}/{pod.name} to have an address",
    )


def await_end(client: Client, workload: Workload, namespace: str) -> Seen:
    """The workload once nothing more will happen to it."""
    return until(
        lambda: seen if (seen := look(client, workload, namespace)).over else None,
        what=f"{workload.kind} {namespace}/{workload.name} to end",
    )


def await_ends(
    client: Client,
    places: Sequence[tuple[str, ...]],
    workloads: Sequence[Workload],
    *,
    quiet: float,
) -> list[dict[str, Seen]]:
    """The workloads of each place (some namespaces), once all have ended or none for `quiet` s."""
    going, since = set[tuple[int, str]](), time.monotonic()
    while True:
        seen = [_look(client, names, workloads) for names in places]
        now = {(at, w.name) for w in workloads for at, of in enumerate(seen) if not of[w.name].over}
        if now != going:
            going, since = now, time.monotonic()
        if not going or time.monotonic() > since + quiet:
            return seen
        # Owners of five kinds end here: one list a second is simpler than five watches.
        time.sleep(1)


def _look(client: Client, names: Sequence[str], workloads: Sequence[Workload]) -> dict[str, Seen]:
    # Pods first: an object that has ended since then is judged by its pods another time.
    kinds = ["Pod", *{"Job" if w.kind == "CronJob" else w.kind for w in workloads} - {"Pod"}]
    found = {
        kind: [each for name in names for each in client.list(RESOURCES[kind], namespace=name)]
        for kind in kinds
    }
    seen: dict[str, Seen] = {}
    for workload in workloads:
        owners = _owners(workload, found)
        seen[workload.name] = Seen(workload, owners, _pods_of(owners, found["Pod"]))
    return seen


def _owners(workload: Workload, found: Mapping[str, Sequence[Object]]) -> Sequence[Object]:
    if workload.kind != "CronJob":
        return [o for o in found[workload.kind] if o["metadata"]["name"] == workload.name]
    jobs = [
        job
        for job in found["Job"]
        for owner in job["metadata"].get("ownerReferences") or ()
        if owner["name"] == workload.name
    ]
    return sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"])[:RUNS]


def _pods_of(owners: Sequence[Object], pods: Sequence[Object]) -> list[Object]:
    """The pods of these owners among those of their namespace; a bare pod is its own."""
    names = {owner["metadata"]["name"] for owner in owners}

    def belongs(pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        named = [labels[label] for label in OWNED_BY if label in labels]
        return bool(names.intersection(named or [pod["metadata"]["name"]]))

    return [pod for pod in pods if belongs(pod)]
