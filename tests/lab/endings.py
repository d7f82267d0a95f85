"""Every way in which a Job-like workload can end. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.versions import CONTAINER_RESTARTS, RESTART_ALL, Difference
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
ANSWER, GREET = "read -r hello && echo welcome", "echo hello; read -r welcome"
LISTEN = f"until nc -l -p $MASTER_PORT -e sh -c '{ANSWER}'; do usleep 200000; done"
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
ENOUGH: Mapping[str, Any] = {"annotations": NATIVE, "terminationGracePeriodSeconds": 5}
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
