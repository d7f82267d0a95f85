"""What is done about a pod's proxy: the decision table, in English."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from istio_aux.core import quit as quitting
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy
from unit.core.pods import EMPTY, MISSING, RUNNING, exited, job, ruled, waiting


class Row(NamedTuple):
    """A sentence, the pod it is about, and words that the reason must have."""

    sentence: str
    pod: Pod
    because: str = ""


def table(*rows: Row) -> Any:
    """Parametrise a test with rows; their sentences are the ids."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.sentence) for row in rows])


def decide(pod: Pod) -> quitting.Action:
    return quitting.decide(pod, Policy(), None)


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
            annotations={quitting.IGNORE_CONTAINERS: "dind, log"},
        ),
    ),
    Row(
        "the annotation that allows quitting changes nothing",
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={quitting.QUIT: "true"}),
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
    assert (decision.proxy, decision.status_port) == ("istio-proxy", 15020)


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
        "phase Unknown",
    ),
    Row(
        "a pod that is still pending",
        job({"main": exited(0), "istio-proxy": RUNNING}, phase="Pending"),
        "phase Pending",
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
        "phase Unknown",
    ),
)
def test_wait(row: Row) -> None:
    """While a payload container may run again the proxy stays (T2, T4, T6, T9, T12, T13)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Wait), decision
    assert row.because in decision.reason


@table(
    Row(
        "a pod that is meant to run for ever",
        job({"main": exited(0), "istio-proxy": RUNNING}, restart="Always"),
        "restartPolicy Always",
    ),
    Row(
        "a pod without a restartPolicy has the default, Always",
        job({"main": exited(0), "istio-proxy": RUNNING}, restart=None),
        "restartPolicy Always",
    ),
    Row(
        "a native sidecar, with one payload container",
        job({"main": exited(0)}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row(
        "a native sidecar, with several payload containers",
        job({"main": exited(0), "wait": RUNNING}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row("a pod without a proxy", job({"main": exited(0)}), "no container istio-proxy"),
    Row("a gateway", job({"istio-proxy": RUNNING}), "no payload container"),
    Row(
        "a pod whose every payload container is to be ignored",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            annotations={quitting.IGNORE_CONTAINERS: "main"},
        ),
        "no payload container",
    ),
    Row(
        "a pod that is being deleted",
        job({"main": exited(0), "istio-proxy": RUNNING}, deleting=True),
        "being deleted",
    ),
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
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={quitting.QUIT: "false"}),
        'istio-aux.io/quit: "false"',
    ),
    Row(
        "a pod whose author misspelt the opt-out",
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={quitting.QUIT: "False"}),
        'istio-aux.io/quit: "False" (neither "true" nor "false")',
    ),
    Row(
        "a pod whose proxy just quit, before the phase follows",
        job({"main": exited(3), "istio-proxy": exited(0)}),
        "and istio-proxy too",
    ),
)
def test_ignore(row: Row) -> None:
    """Some pods are none of our business, and stay so (T5, T10, T11, T22)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Ignore), decision
    assert row.because in decision.reason


@table(
    Row(
        "the hold timed out, and the payload runs without a network",
        job({"istio-proxy": exited(0), "main": RUNNING}),
        "istio-proxy exited 0, not restarted (restartPolicy Never), but not finished: main",
    ),
    Row(
        "the proxy was killed for its memory before the payload could start",
        job({"istio-proxy": exited(137, "OOMKilled"), "main": waiting("ContainerCreating")}),
        "istio-proxy exited 137 (OOMKilled)",
    ),
    Row(
        "the proxy exited well under OnFailure, so that it stays away",
        job({"istio-proxy": exited(0), "main": RUNNING}, restart="OnFailure"),
        "istio-proxy exited 0",
    ),
)
def test_report(row: Row) -> None:
    """A proxy that is gone for good although a payload may still run is reported (T30)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Report), decision
    assert row.because in decision.reason
