"""When a pod's proxy is told to exit, and when it has to wait: the decision table, in English."""

from __future__ import annotations

from istio_aux.model import pod as pods
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT
from istio_aux.quit import rules as quitting
from unit.rules.pods import MISSING, RUNNING, State, document, exited, job, ruled, statuses, waiting
from unit.rules.table import Row, decide, done, table


@table(
    Row("a payload that succeeded frees its proxy", done()),
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
        done(sidecars={"vault-agent": RUNNING}),
    ),
    Row("the annotation that allows quitting changes nothing", done(annotations={QUIT: "true"})),
)
def test_quit(row: Row) -> None:
    """When nothing of the payload will run again, the proxy is told to exit (T1, T3, T8, T12)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Quit), decision
    assert decision.status_port == 15020


@table(
    Row("a payload that runs", job({"main": RUNNING, "istio-proxy": RUNNING}), "main (running)"),
    Row(
        "a payload whose image cannot be had",
        job({"main": waiting("ImagePullBackOff"), "istio-proxy": RUNNING}, phase="Pending"),
        "main (waiting: ImagePullBackOff)",
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
        "a pod that is still pending",
        done(phase="Pending"),
        "phase Pending: a container has never started",
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
        done(
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


@table(
    Row("a pod that is meant to run forever", done(restart="Always"), "restartPolicy Always"),
    Row(
        "a pod without a restartPolicy has the default, Always",
        done(restart=None),
        "restartPolicy Always",
    ),
    Row(
        "a native sidecar, with one payload container",
        job({"main": exited(0)}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row("a pod without a proxy", job({"main": exited(0)}), "no container istio-proxy"),
    Row("a gateway", job({"istio-proxy": RUNNING}), "no payload container"),
    Row(
        "a pod whose every payload container is to be ignored",
        done(annotations={IGNORE_CONTAINERS: "main"}),
        "no payload container",
    ),
    Row("a pod that is being deleted", done(deleting=True), "being deleted"),
    Row(
        "a pod that succeeded",
        job({"main": exited(0), "istio-proxy": exited(0)}, phase="Succeeded"),
        "phase Succeeded",
    ),
    Row(
        "a pod that ran into its deadline, with a proxy not yet reported as gone",
        job({"main": exited(137), "istio-proxy": RUNNING}, phase="Failed"),
        "phase Failed",
    ),
    Row(
        "a pod whose author opted out",
        done(annotations={QUIT: "false"}),
        'istio-aux.io/quit: "false"',
    ),
    Row(
        "a pod whose author misspelt the opt-out",
        done(annotations={QUIT: "False"}),
        'istio-aux.io/quit: "False": expected true or false',
    ),
    Row(
        "a pod whose proxy just quit, before the phase follows",
        job({"main": exited(3), "istio-proxy": exited(0)}),
        "and istio-proxy too",
    ),
    Row(
        "a pod whose proxy was killed after its payload, and is not restarted",
        job({"main": exited(0), "istio-proxy": exited(137)}),
        "and istio-proxy too",
    ),
    Row(
        "a pod that is being deleted although its payload still runs",
        job({"main": RUNNING, "istio-proxy": exited(0)}, deleting=True),
        "being deleted",
    ),
    Row("a gateway that lost its proxy", job({"istio-proxy": exited(0)}), "no payload container"),
    Row(
        "a pod with a gateway's proxy and a native sidecar",
        job({"istio-proxy": RUNNING}, sidecars={"vault-agent": RUNNING}),
        "no payload container",
    ),
    Row(
        "a native sidecar that exited, which the kubelet starts again",
        job({"main": RUNNING}, sidecars={"istio-proxy": exited(1)}),
        "native sidecar",
    ),
    Row(
        "an opt-out of several lines and great length",
        job({"main": RUNNING, "istio-proxy": RUNNING}, annotations={QUIT: "no\n" + "o" * 200}),
        f'istio-aux.io/quit: "no\\n{"o" * 57}…"',
    ),
    Row(
        "a container that is called like the proxy but only sets things up",
        job({"main": exited(0)}, spec={"initContainers": [{"name": "istio-proxy"}]}),
        "no container istio-proxy",
    ),
    Row("an empty document", job({}, restart="Never", phase=None), "no container istio-proxy"),
)
def test_ignore(row: Row) -> None:
    """Some pods are none of our business, and stay so (T5, T10, T11, T22)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Ignore), decision
    assert row.because in decision.reason


DONE: dict[str, State] = {"main": exited(0), "istio-proxy": RUNNING}


@table(
    Row(
        "a proxy that is not ready, but runs",
        done(
            status={
                "containerStatuses": [
                    {"name": "istio-proxy", "ready": False, "state": RUNNING},
                    *statuses({"main": exited(0)}),
                ]
            }
        ),
    ),
    Row(
        "a proxy that was restarted, and runs again",
        done(
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
            }
        ),
    ),
    Row(
        "statuses of containers that the spec does not have",
        done(status={"containerStatuses": statuses({**DONE, "ghost": RUNNING})}),
    ),
    Row(
        "an ephemeral container that still runs",
        done(
            spec={"ephemeralContainers": [{"name": "debugger"}]},
            status={"ephemeralContainerStatuses": statuses({"debugger": RUNNING})},
        ),
    ),
    Row(
        "an init container that failed once and was tried again",
        done(
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
        done(
            spec={"initContainers": [{"name": "setup", **ruled("RestartAllContainers", "In", 42)}]},
            status={"initContainerStatuses": statuses({"setup": exited(0)})},
        ),
    ),
    Row(
        "an init container whose status nobody reports any more",
        done(spec={"initContainers": [{"name": "istio-init"}]}),
    ),
    Row(
        "another native sidecar that exited with a rule for another code",
        done(
            sidecars={"watcher": exited(1)},
            details={"watcher": ruled("RestartAllContainers", "In", 88, policy="Always")},
        ),
    ),
    Row(
        "a restart of all containers that is over",
        done(conditions=[{"type": "AllContainersRestarting", "status": "False"}]),
    ),
    Row(
        "a condition that has nothing to do with it",
        done(conditions=[{"type": "Ready", "status": "True"}]),
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
    Row("a report without a phase", done(phase=None)),
)
def test_none_of_this_keeps_a_proxy(row: Row) -> None:
    """Only what the kubelet would start again, or what still runs, does (T9, T12)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Quit), decision


@table(
    Row(
        "no statuses at all",
        done(status={"containerStatuses": None, "initContainerStatuses": None}),
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
        "a container that vanished while all were restarted",
        job({"main": exited(137, "RestartingAllContainers"), "istio-proxy": RUNNING}),
        "all containers are being restarted",
    ),
    Row(
        "a native sidecar that vanished while all were restarted",
        done(sidecars={"watcher": exited(137, "RestartingAllContainers")}),
        "all containers are being restarted",
    ),
    Row(
        "the proxy vanished while all were restarted, and the payload runs on",
        job({"main": RUNNING, "istio-proxy": exited(137, "RestartingAllContainers")}),
        "all containers are being restarted",
    ),
    Row(
        "an init container whose rule restarts all containers",
        done(
            spec={"initContainers": [{"name": "setup", **ruled("RestartAllContainers", "In", 9)}]},
            status={"initContainerStatuses": statuses({"setup": exited(9)})},
        ),
        "all containers will be restarted: setup exited 9",
    ),
    Row(
        "statuses of an init container, one of which restarts all containers",
        done(
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
        done(details={"istio-proxy": {"restartPolicy": "Always"}}),
        "istio-proxy is started again after it exits with 0 (container restartPolicy Always)",
    ),
    Row(
        "a proxy whose exit with 0 restarts all containers",
        done(details={"istio-proxy": ruled("RestartAllContainers", "In", 0)}),
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
        done(phase="Pending", spec={"initContainers": [{"name": "istio-init"}]}),
        "phase Pending",
    ),
    Row("a phase that no Kubernetes had so far", done(phase="Paused"), "phase Paused"),
    Row(
        "two reports of the proxy that contradict each other",
        done(
            status={"containerStatuses": [*statuses(DONE), *statuses({"istio-proxy": exited(0)})]}
        ),
        "istio-proxy does not run: no status yet",
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
