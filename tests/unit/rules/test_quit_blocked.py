"""Pods that a container keeps although another one is finished: they say by whom."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT
from istio_aux.quit import rules as quitting
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.table import blockers, decide

DIND: dict[str, State] = {"main": exited(0), "dind": RUNNING}
FAILED: dict[str, State] = {"main": exited(1), "dind": RUNNING}
IGNORING: dict[str, Any] = {"annotations": {IGNORE_CONTAINERS: "dind"}}
RESTARTING = [{"type": "AllContainersRestarting", "status": "True"}]


def row(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Any:
    return pytest.param(containers, fields, by, id=sentence)


@pytest.mark.parametrize(
    ("containers", "fields", "by"),
    [
        row("a sidecar that runs on", DIND, "dind"),
        row(
            "every container that is not finished",
            {"main": exited(0), "a": RUNNING, "b": waiting("ImagePullBackOff"), "c": exited(1)},
            *("a", "b", "c"),
            restart="OnFailure",
            phase="Pending",
        ),
        row("no native sidecar: the kubelet ends it", DIND, "dind", sidecars={"vault": RUNNING}),
        row("nobody: the payload runs", {"main": RUNNING, "dind": RUNNING}),
        row("nobody: the payload will be restarted", FAILED, restart="OnFailure"),
        row("an end that nobody waits for counts for nothing",
            {"main": RUNNING, "dind": exited(0)}, **IGNORING),
        row("nobody knows: the node does not report", DIND, phase="Unknown"),
        row("nobody: the kubelet restarts all containers", DIND, conditions=RESTARTING),
        row("nobody: only the proxy is to come back",
            {"main": exited(0), "istio-proxy": waiting("CrashLoopBackOff")}, restart="OnFailure"),
    ],
)  # fmt: skip
def test_who_blocks_a_pod_with_a_classic_proxy(
    containers: dict[str, State], fields: dict[str, Any], by: tuple[str, ...]
) -> None:
    """T13: the pod is not silently left alone; it says who keeps it."""
    decision = decide(job({"istio-proxy": RUNNING, **containers}, **fields))
    assert isinstance(decision, quitting.Wait), decision
    assert blockers(decision) == by


def native(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Any:
    return row(sentence, containers, *by, sidecars={"istio-proxy": RUNNING}, **fields)


@pytest.mark.parametrize(
    ("containers", "fields", "by"),
    [
        row("an ignored container, once the proxy is gone: only the proxy ignores it",
            {**DIND, "istio-proxy": exited(0)}, "dind", **IGNORING),
        row("nobody: the ignored container has ended as well",
            {"main": exited(0), "istio-proxy": exited(0), "dind": exited(0)}, **IGNORING),
        native("a container that nobody ends", DIND, "dind"),
        native("an ignored container", DIND, "dind", **IGNORING),
        native("nobody: the payload runs", {"main": RUNNING, "dind": RUNNING}),
        native("nobody: the payload will be restarted", FAILED, restart="OnFailure"),
        native("nobody: the payload runs, and an ignored container has ended",
               {"main": RUNNING, "dind": exited(0)}, **IGNORING),
        native("nobody: the pod is being deleted", DIND, deleting=True),
        native("nobody: the pod is not meant to end", DIND, restart="Always"),
        native("nobody: the pod failed", DIND, phase="Failed"),
        native("nobody knows: the node does not report", DIND, phase="Unknown"),
        row("a pod without a proxy is none of our business", DIND),
        row("an author who wants the proxy to stay is no holder",
            {**DIND, "istio-proxy": RUNNING}, annotations={QUIT: "false"}),
    ],
)  # fmt: skip
def test_who_holds_a_pod_whose_proxy_keeps_it_from_nothing(
    containers: dict[str, State], fields: dict[str, Any], by: tuple[str, ...]
) -> None:
    decision = decide(job(containers, **fields))
    assert isinstance(decision, quitting.Ignore), decision
    assert blockers(decision) == by
    assert all(f"{name} (" in decision.reason for name in by)
