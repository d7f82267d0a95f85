"""Reports of every shape: what they are judged by, and what not."""

from __future__ import annotations

from istio_aux.model import pod as pods
from istio_aux.quit import rules as quitting
from unit.rules.pods import MISSING, RUNNING, State, document, exited, job, ruled, statuses, waiting
from unit.rules.table import Row, decide, table

DONE: dict[str, State] = {"main": exited(0), "istio-proxy": RUNNING}


@table(
    Row(
        "a proxy that is not ready, but runs",
        job(
            DONE,
            status={
                "containerStatuses": [
                    {"name": "istio-proxy", "ready": False, "state": RUNNING},
                    *statuses({"main": exited(0)}),
                ]
            },
        ),
    ),
    Row(
        "a proxy that was restarted, and runs again",
        job(
            DONE,
            status={
                "containerStatuses": [
                    {
                        "name": "istio-proxy",
                        "state": RUNNING,
                        "lastState": exited(137, "OOMKilled"),
                        "restartCount": 2,
                    },
                    *statuses({"main": exited(0)}),
                ]
            },
        ),
    ),
    Row(
        "statuses of containers that the spec does not have",
        job(DONE, status={"containerStatuses": statuses({**DONE, "ghost": RUNNING})}),
    ),
    Row(
        "an ephemeral container that still runs",
        job(
            DONE,
            spec={"ephemeralContainers": [{"name": "debugger"}]},
            status={"ephemeralContainerStatuses": statuses({"debugger": RUNNING})},
        ),
    ),
    Row(
        "an init container that failed once and was tried again",
        job(
            DONE,
            restart="OnFailure",
            spec={"initContainers": [{"name": "istio-init"}]},
            status={
                "initContainerStatuses": [
                    {"name": "istio-init", "state": exited(0), "lastState": exited(1)}
                ]
            },
        ),
    ),
    Row(
        "an init container with restart rules of its own, which did not match",
        job(
            DONE,
            spec={"initContainers": [{"name": "setup", **ruled("RestartAllContainers", "In", 42)}]},
            status={"initContainerStatuses": statuses({"setup": exited(0)})},
        ),
    ),
    Row(
        "an init container whose status nobody reports any more",
        job(DONE, spec={"initContainers": [{"name": "istio-init"}]}),
    ),
    Row(
        "another native sidecar that crashes in a loop",
        job(DONE, sidecars={"vault-agent": waiting("CrashLoopBackOff")}),
    ),
    Row(
        "another native sidecar that exited with a rule for another code",
        job(
            DONE,
            sidecars={"watcher": exited(1)},
            details={"watcher": ruled("RestartAllContainers", "In", 88, policy="Always")},
        ),
    ),
    Row(
        "a restart of all containers that is over",
        job(DONE, conditions=[{"type": "AllContainersRestarting", "status": "False"}]),
    ),
    Row(
        "a restart of all containers that nobody confirms",
        job(DONE, conditions=[{"type": "AllContainersRestarting", "status": "Unknown"}]),
    ),
    Row(
        "a condition that has nothing to do with it",
        job(DONE, conditions=[{"type": "Ready", "status": "True"}]),
    ),
    Row(
        "a container with a rule of RestartAllContainers that runs again, whatever it ended with",
        job(
            {**DONE, "wait": exited(0)},
            details={"wait": ruled("RestartAllContainers", "In", 9)},
            status={
                "containerStatuses": [
                    *statuses(DONE),
                    {"name": "wait", "state": exited(0), "lastState": exited(9)},
                ]
            },
        ),
    ),
    Row("a report without a phase", job(DONE, phase=None)),
)
def test_none_of_this_keeps_a_proxy(row: Row) -> None:
    """Only what the kubelet would start again, or what still runs, does (T9, T12)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Quit), decision


@table(
    Row(
        "no statuses at all",
        job(DONE, status={"containerStatuses": None, "initContainerStatuses": None}),
        "main (no status yet)",
    ),
    Row(
        "no status of the pod whatever",
        pods.convert({**document(DONE), "status": None}),
        "main (no status yet)",
    ),
    Row(
        "a report in which one of two payloads is missing",
        job({"main": exited(0), "wait": MISSING, "istio-proxy": RUNNING}),
        "wait (no status yet)",
    ),
    Row(
        "a payload that runs again after a restart",
        job(
            {"main": RUNNING, "istio-proxy": RUNNING},
            status={
                "containerStatuses": [
                    {"name": "main", "state": RUNNING, "lastState": exited(0), "restartCount": 1},
                    *statuses({"istio-proxy": RUNNING}),
                ]
            },
        ),
        "main (running)",
    ),
    Row(
        "the moment between a failure and the next start",
        job(
            {"main": exited(1), "istio-proxy": RUNNING},
            restart="OnFailure",
            status={
                "containerStatuses": [
                    {"name": "main", "state": exited(1), "lastState": exited(0)},
                    *statuses({"istio-proxy": RUNNING}),
                ]
            },
        ),
        "main (exited 1, will be restarted (restartPolicy OnFailure))",
    ),
    Row(
        "a payload that waits for its next start although it ended well before",
        job(
            {"main": waiting("CrashLoopBackOff"), "istio-proxy": RUNNING},
            status={
                "containerStatuses": [
                    {"name": "main", "state": waiting("CrashLoopBackOff"), "lastState": exited(0)},
                    *statuses({"istio-proxy": RUNNING}),
                ]
            },
        ),
        "main (waiting: CrashLoopBackOff)",
    ),
    Row(
        "a container that vanished while all were restarted",
        job({"main": exited(137, "RestartingAllContainers"), "istio-proxy": RUNNING}),
        "all containers are being restarted",
    ),
    Row(
        "a native sidecar that vanished while all were restarted",
        job(DONE, sidecars={"watcher": exited(137, "RestartingAllContainers")}),
        "all containers are being restarted",
    ),
    Row(
        "the proxy vanished while all were restarted, and the payload runs on",
        job({"main": RUNNING, "istio-proxy": exited(137, "RestartingAllContainers")}),
        "all containers are being restarted",
    ),
    Row(
        "an init container whose rule restarts all containers",
        job(
            DONE,
            spec={"initContainers": [{"name": "setup", **ruled("RestartAllContainers", "In", 9)}]},
            status={"initContainerStatuses": statuses({"setup": exited(9)})},
        ),
        "all containers will be restarted: setup exited 9",
    ),
    Row(
        "statuses of an init container, one of which restarts all containers",
        job(
            DONE,
            spec={"initContainers": [{"name": "setup", **ruled("RestartAllContainers", "In", 9)}]},
            status={
                "initContainerStatuses": [
                    *statuses({"setup": exited(0)}),
                    *statuses({"setup": exited(9)}),
                ]
            },
        ),
        "all containers will be restarted: setup exited 9",
    ),
    Row(
        "a proxy that the kubelet starts again after each exit",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            details={"istio-proxy": {"restartPolicy": "Always"}},
        ),
        "istio-proxy is started again after it exits with 0 (container restartPolicy Always)",
    ),
    Row(
        "a proxy whose exit with 0 restarts all containers",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            details={"istio-proxy": ruled("RestartAllContainers", "In", 0)},
        ),
        "istio-proxy is started again after it exits with 0",
    ),
    Row(
        "an ignored container whose rule restarts all containers",
        job(
            {**DONE, "dind": exited(9)},
            annotations={"istio-aux.io/ignore-containers": "dind"},
            details={"dind": ruled("RestartAllContainers", "In", 9)},
        ),
        "all containers will be restarted: dind exited 9",
    ),
    Row(
        "init containers that run once more in a new sandbox",
        job(DONE, phase="Pending", spec={"initContainers": [{"name": "istio-init"}]}),
        "phase Pending",
    ),
    Row("a phase that no Kubernetes had so far", job(DONE, phase="Paused"), "phase Paused"),
    Row(
        "statuses that contradict each other",
        job(DONE, status={"containerStatuses": statuses(DONE) + statuses({"main": RUNNING})}),
        "main (no status yet)",
    ),
    Row(
        "two reports of the proxy that contradict each other",
        job(
            DONE,
            status={"containerStatuses": [*statuses(DONE), *statuses({"istio-proxy": exited(0)})]},
        ),
        "istio-proxy does not run: no status yet",
    ),
    Row(
        "a proxy whose restart is pending",
        job({"main": exited(0), "istio-proxy": waiting("CrashLoopBackOff")}, restart="OnFailure"),
        "istio-proxy does not run: waiting: CrashLoopBackOff",
    ),
    Row(
        "a proxy whose restart is pending by a rule",
        job(
            {"main": exited(0), "istio-proxy": exited(137)},
            details={"istio-proxy": ruled("Restart", "In", 137)},
        ),
        "istio-proxy does not run: exited 137, will be restarted",
    ),
)
def test_all_of_this_keeps_a_proxy(row: Row) -> None:
    """Unknown is never finished, nor is a container that will restart (T2, T4, T9, T12)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Wait), decision
    assert row.because in decision.reason
    assert decision.until is None
