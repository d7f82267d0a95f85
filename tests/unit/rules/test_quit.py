"""When a pod's proxy is told to exit, and when it has to wait: the decision table, in English."""

from __future__ import annotations

from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT
from istio_aux.quit import rules as quitting
from unit.rules.pods import EMPTY, MISSING, RUNNING, exited, job, ruled, waiting
from unit.rules.table import Row, decide, table


@table(
    Row(
        "a payload that succeeded frees its proxy",
        job({"main": exited(0), "istio-proxy": RUNNING}),
    ),
    Row(
        "a failed payload under Never frees its proxy",
        job({"main": exited(3, "Error"), "istio-proxy": RUNNING}),
    ),
    Row(
        "a payload that ran out of memory under Never frees its proxy",
        job({"main": exited(137, "OOMKilled"), "istio-proxy": RUNNING}),
    ),
    Row(
        "a payload that could not start under Never frees its proxy",
        job({"main": exited(128, "StartError"), "istio-proxy": RUNNING}),
    ),
    Row(
        "a payload that succeeded under OnFailure frees its proxy",
        job({"main": exited(0), "istio-proxy": RUNNING}, restart="OnFailure"),
    ),
    Row(
        "the proxy may be the first container",
        job({"istio-proxy": RUNNING, "tensorflow": exited(0)}),
    ),
    Row(
        "several payload containers are finished, one of them failed",
        job({"main": exited(1), "istio-proxy": RUNNING, "wait": exited(0)}),
    ),
    Row(
        "another native sidecar that still runs holds nothing up",
        job({"main": exited(0), "istio-proxy": RUNNING}, sidecars={"vault-agent": RUNNING}),
    ),
    Row(
        "a container that the annotation names holds nothing up",
        job(
            {"main": exited(0), "istio-proxy": RUNNING, "dind": RUNNING, "log": RUNNING},
            annotations={IGNORE_CONTAINERS: "dind, log"},
        ),
    ),
    Row(
        "the annotation that allows quitting changes nothing",
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={QUIT: "true"}),
    ),
    Row(
        "a container that never restarts ends although the pod says OnFailure",
        job(
            {"main": exited(1), "istio-proxy": RUNNING},
            restart="OnFailure",
            details={"main": {"restartPolicy": "Never"}},
        ),
    ),
    Row(
        "a rule for another exit code does not restart the payload",
        job(
            {"main": exited(1), "istio-proxy": RUNNING},
            details={"main": ruled("Restart", "In", 42)},
        ),
    ),
)
def test_quit(row: Row) -> None:
    """When nothing of the payload will run again, the proxy is told to exit (T1, T3, T8, T12)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Quit), decision
    assert decision.status_port == 15020


@table(
    Row(
        "a payload that runs",
        job({"main": RUNNING, "istio-proxy": RUNNING}),
        "main (running)",
    ),
    Row(
        "a failed payload under OnFailure will be started again",
        job({"main": exited(1, "Error"), "istio-proxy": RUNNING}, restart="OnFailure"),
        "main (exited 1 (Error), will be restarted (restartPolicy OnFailure))",
    ),
    Row(
        "a payload that crashes in a loop, beside the only running container",
        job({"main": waiting("CrashLoopBackOff"), "istio-proxy": RUNNING}, restart="OnFailure"),
        "main (waiting: CrashLoopBackOff)",
    ),
    Row(
        "a payload whose image cannot be had",
        job({"main": waiting("ImagePullBackOff"), "istio-proxy": RUNNING}, phase="Pending"),
        "main (waiting: ImagePullBackOff)",
    ),
    Row(
        "a payload without a status",
        job({"main": MISSING, "istio-proxy": RUNNING}),
        "main (no status yet)",
    ),
    Row(
        "a payload with an empty state",
        job({"main": EMPTY, "istio-proxy": RUNNING}),
        "main (waiting)",
    ),
    Row(
        "a small container that still uploads results",
        job({"main": exited(0), "istio-proxy": RUNNING, "wait": RUNNING}),
        "not finished: wait (running)",
    ),
    Row(
        "another long-running sidecar is named",
        job({"main": exited(0), "istio-proxy": RUNNING, "cloud-sql-proxy": RUNNING}),
        "not finished: cloud-sql-proxy (running)",
    ),
    Row(
        "a proxy that was killed and will be started again",
        job({"main": exited(0), "istio-proxy": exited(137)}, restart="OnFailure"),
        "istio-proxy does not run: exited 137, will be restarted",
    ),
    Row(
        "a proxy that has not started",
        job({"main": exited(0), "istio-proxy": waiting("PodInitializing")}, phase="Pending"),
        "istio-proxy does not run: waiting: PodInitializing",
    ),
    Row(
        "a proxy without a status",
        job({"main": exited(0), "istio-proxy": MISSING}),
        "istio-proxy does not run: no status yet",
    ),
    Row(
        "a node that does not report",
        job({"main": exited(0), "istio-proxy": RUNNING}, phase="Unknown"),
        "phase Unknown: the node does not report",
    ),
    Row(
        "a pod that is still pending",
        job({"main": exited(0), "istio-proxy": RUNNING}, phase="Pending"),
        "phase Pending: a container has never started",
    ),
    Row(
        "a container that always restarts in a pod that never does",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            details={"main": {"restartPolicy": "Always"}},
        ),
        "will be restarted (container restartPolicy Always)",
    ),
    Row(
        "a rule restarts the payload after this exit code",
        job(
            {"main": exited(42), "istio-proxy": RUNNING},
            details={"main": ruled("Restart", "In", 41, 42)},
        ),
        "will be restarted (restartPolicyRules: Restart)",
    ),
    Row(
        "a rule of the payload restarts all containers",
        job(
            {"main": exited(9), "logger": exited(0), "istio-proxy": RUNNING},
            details={"main": ruled("RestartAllContainers", "NotIn", 0)},
        ),
        "all containers will be restarted: main exited 9",
    ),
    Row(
        "a rule of a native sidecar restarts all containers",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            sidecars={"watcher": exited(88)},
            details={"watcher": ruled("RestartAllContainers", "In", 88, policy="Always")},
        ),
        "all containers will be restarted: watcher exited 88",
    ),
    Row(
        "all containers are being restarted, and are still reported as they were",
        job(
            {"main": exited(0), "istio-proxy": exited(0)},
            conditions=[{"type": "AllContainersRestarting", "status": "True"}],
        ),
        "all containers are being restarted",
    ),
    Row(
        "the proxy ends with all the others, of which the first already waits for its start",
        job(
            {"main": waiting("ContainerCreating"), "istio-proxy": exited(0)},
            conditions=[{"type": "AllContainersRestarting", "status": "True"}],
        ),
        "all containers are being restarted",
    ),
    Row(
        "a proxy that seems lost, on a node that does not report",
        job({"main": RUNNING, "istio-proxy": exited(0)}, phase="Unknown"),
        "phase Unknown: the node does not report",
    ),
)
def test_wait(row: Row) -> None:
    """While a payload container may run again the proxy stays (T2, T4, T6, T9, T12, T13)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Wait), decision
    assert row.because in decision.reason
