"""Every way in which a Job-like workload can end. Data only."""

from __future__ import annotations

from typing import Any

from lab.versions import CONTAINER_RESTARTS, RESTART_ALL
from lab.workloads import (
    RETRY,
    TALK,
    Workload,
    container,
    cron_job,
    fails_once,
    job,
    pod,
    template,
    training_job,
)

OK = "sleep 1"
FAIL = "sleep 1; exit 3"
# What is left to do when the main payload is over, over the network.
UPLOAD = f"sleep 4; {TALK}"
# Memory without end, as the container's only process.
GLUTTON = {"command": ["tail", "/dev/zero"], "resources": {"limits": {"memory": "16Mi"}}}
NATIVE = {"sidecar.istio.io/nativeSidecar": "true"}


def rule(action: str, *codes: int) -> list[dict[str, Any]]:
    """What the kubelet does when a container exits with one of the codes."""
    return [{"action": action, "exitCodes": {"operator": "In", "values": list(codes)}}]


def named(name: str, script: str) -> dict[str, Any]:
    """A container as Kubeflow's jobs want it."""
    return container(script, name=name)


# The number of tries that its index has had is all that a pod of a Job knows of the others.
TRIES = {
    "name": "TRIES",
    "valueFrom": {
        "fieldRef": {
            "fieldPath": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
        }
    },
}
# A connection may end before its first word.
LISTEN = "until echo welcome | nc -l -p $MASTER_PORT | grep hello; do usleep 200000; done"
ASK = "until echo hello | nc $MASTER_ADDR $MASTER_PORT | grep welcome; do usleep 200000; done"

JOBS = (
    Workload("a-job-succeeds", job(template(container(OK))), "Complete", (0,)),
    Workload("a-job-fails", job(template(container(FAIL))), "Failed", (3,)),
    Workload(
        "a-job-on-failure-succeeds",
        job(template(container(OK), restart="OnFailure")),
        "Complete",
        (0,),
    ),
    Workload(
        # The Job controller deletes the pod that has used up its tries.
        "a-job-on-failure-gives-up",
        job(template(container(FAIL), restart="OnFailure"), backoffLimit=1),
        "Failed",
        (),
    ),
    Workload(
        "a-job-on-failure-succeeds-in-its-second-try",
        job(template(container(fails_once()), restart="OnFailure"), backoffLimit=4),
        "Complete",
        (0,),
        restarts=1,
    ),
    Workload(
        "a-job-succeeds-with-its-second-pod",
        job(
            template(container('sleep 1; [ "$TRIES" -gt 0 ] || exit 3', env=[TRIES])),
            backoffLimit=6,
            backoffLimitPerIndex=1,
            completionMode="Indexed",
            completions=1,
            parallelism=1,
        ),
        "Complete",
        (0, 3),
    ),
    Workload(
        "a-job-with-two-payloads-succeeds",
        job(template(container(OK), container(UPLOAD, name="uploader"))),
        "Complete",
        (0, 0),
    ),
    Workload(
        "a-job-with-two-payloads-fails-by-one",
        job(template(container(FAIL), container(UPLOAD, name="uploader"))),
        "Failed",
        (0, 3),
    ),
    Workload("a-job-is-oom-killed", job(template(container("", **GLUTTON))), "Failed", (137,)),
    Workload(
        "a-job-fails-by-its-pod-failure-policy",
        job(
            template(container(f"sleep 1; exit {RETRY}")),
            backoffLimit=6,
            podFailurePolicy={
                "rules": [
                    {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [137, 143]}},
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [RETRY]}},
                ]
            },
        ),
        "Failed",
        (RETRY,),
    ),
    Workload(
        # A process that is not the first of its namespace can kill itself. Kubernetes makes one
        # dollar sign of two.
        "a-job-whose-wrappers-are-killed",
        job(
            template(
                container("sleep 1000 & sleep 1; kill -KILL $$$$"),
                container("kill -TERM $$$$; sleep 1000", name="before-its-child"),
                shareProcessNamespace=True,
            )
        ),
        "Failed",
        (137, 143),
    ),
    Workload(
        "a-cron-job-that-forbids-overlap-runs-again",
        cron_job(template(container(OK)), schedule="@every 5s"),
        "Complete",
        (0, 0),
    ),
)

RESTART_RULES = (
    Workload(
        "a-container-restarts-by-its-rule-in-a-pod-that-never-does",
        job(
            template(
                container(
                    fails_once(), restartPolicy="Never", restartPolicyRules=rule("Restart", RETRY)
                )
            )
        ),
        "Complete",
        (0,),
        restarts=1,
        needs=CONTAINER_RESTARTS,
    ),
    Workload(
        "a-container-restarts-on-failure-in-a-pod-that-never-does",
        job(template(container(fails_once(), restartPolicy="OnFailure"))),
        "Complete",
        (0,),
        restarts=1,
        needs=CONTAINER_RESTARTS,
    ),
    Workload(
        "a-container-never-restarts-in-a-pod-that-does",
        pod(container(FAIL, restartPolicy="Never"), restart="OnFailure"),
        "Failed",
        (3,),
        needs=CONTAINER_RESTARTS,
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
)

# Containers and restarts as KubeRay and Spark write them; an executor's owner is left out.
RAY_AND_SPARK = (
    Workload(
        # KubeRay 1.7 in SidecarMode: only the submitter starts again (kuberay#4399).
        "a-ray-head-whose-submitter-starts-again",
        pod(
            named("ray-head", "sleep 8"),
            container(fails_once(1), name="ray-job-submitter", restartPolicy="OnFailure"),
        ),
        "Succeeded",
        (0, 0),
        restarts=1,
        needs=CONTAINER_RESTARTS,
    ),
    Workload(
        "a-rayjob-whose-submitter-fails",
        job(template(named("ray-job-submitter", f"sleep 1; {TALK}; exit 1")), backoffLimit=0),
        "Failed",
        (1,),
    ),
    Workload(
        "a-spark-driver-succeeds",
        pod(named("spark-kubernetes-driver", f"sleep 2; {TALK}")),
        "Succeeded",
        (0,),
    ),
    Workload(
        "a-spark-executor-is-told-to-end",
        pod(named("spark-kubernetes-executor", f"sleep 1; {TALK}; exit 143")),
        "Failed",
        (143,),
    ),
)

PODS = (
    Workload("a-pod-succeeds", pod(container(OK)), "Succeeded", (0,)),
    Workload("a-pod-fails", pod(container(FAIL)), "Failed", (3,)),
    Workload(
        "a-pod-succeeds-in-its-second-try",
        pod(container(fails_once()), restart="OnFailure"),
        "Succeeded",
        (0,),
        restarts=1,
    ),
)

TRAINING = (
    Workload(
        "a-tfjob-succeeds",
        training_job("TFJob", Worker=(2, template(named("tensorflow", OK)))),
        "Succeeded",
        (0, 0),
    ),
    Workload(
        "a-tfjob-fails",
        # One worker: the operator stops counting with the first that fails.
        training_job("TFJob", Worker=(1, template(named("tensorflow", FAIL)))),
        "Failed",
        (3,),
    ),
    Workload(
        "a-pytorchjob-whose-worker-finds-its-master",
        training_job(
            "PyTorchJob",
            Master=(1, template(named("pytorch", LISTEN))),
            Worker=(1, template(named("pytorch", ASK))),
        ),
        "Succeeded",
        (0, 0),
    ),
)

NATIVE_SIDECARS = (
    Workload(
        "a-job-with-a-native-sidecar",
        job(template(container(OK), annotations=NATIVE)),
        "Complete",
        (0,),
    ),
    Workload(
        "a-pod-with-a-native-sidecar-and-two-payloads",
        pod(container(OK), container(FAIL, name="second"), annotations=NATIVE),
        "Failed",
        (0, 3),
    ),
)

# The first way in which the agent of each can be reached is another one.
OWN_PORT = Workload(
    "a-job-whose-agent-has-a-port-of-its-own",
    job(template(container(OK), annotations={"status.sidecar.istio.io/port": "15520"})),
    "Complete",
    (0,),
)
NO_PORT = Workload(
    "a-pod-whose-agent-has-no-port",
    pod(container(FAIL), annotations={"status.sidecar.istio.io/port": "0"}),
    "Failed",
    (3,),
)

# As with Istio up to 1.25: its proxy serves on for 5 s after it was told to quit.
DRAINS = Workload(
    "a-job-whose-proxy-drains-first",
    job(
        template(
            container(OK),
            annotations={"proxy.istio.io/config": 'proxyMetadata: {LAB_QUIT_DRAINS: "true"}'},
        )
    ),
    "Complete",
    (0,),
)

PARADE = (
    DRAINS, OWN_PORT, NO_PORT, *JOBS, *RESTART_RULES, *RAY_AND_SPARK, *PODS, *TRAINING,
    *NATIVE_SIDECARS,
)  # fmt: skip

# Without a proxy that is ready, nothing answers.
AT_ONCE = Workload("a-job-that-talks-at-once", job(template(container(TALK))), "Complete", (0,))

# What an installation is tried with.
ACCEPTANCE = (AT_ONCE, *PARADE)
