"""Pods that a container keeps although another one is finished: they say by whom.

Trials of Katib among them, whose metrics collector waits for the proxy, which waits for it.
"""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT
from istio_aux.model.policy import Policy
from istio_aux.quit import rules as quitting
from istio_aux.quit.rules import KATIB_FIX
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.table import blockers, decide

DIND: dict[str, State] = {"main": exited(0), "dind": RUNNING}
FAILED: dict[str, State] = {"main": exited(1), "dind": RUNNING}
IGNORING: dict[str, Any] = {"annotations": {IGNORE_CONTAINERS: "dind"}}
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
RESTARTING = [{"type": "AllContainersRestarting", "status": "True"}]


def case(sentence: str, containers: dict[str, State], *by: str, **fields: Any) -> Any:
    return pytest.param(containers, fields, by, id=sentence)


@pytest.mark.parametrize(
    ("containers", "fields", "by"),
    [
        case("a sidecar that runs on", DIND, "dind"),
        case(
            "every container that is not finished",
            {"main": exited(0), "a": RUNNING, "b": waiting("ImagePullBackOff"), "c": exited(1)},
            *("a", "b", "c"),
            restart="OnFailure",
            phase="Pending",
        ),
        case("no native sidecar: the kubelet ends it", DIND, "dind", sidecars={"vault": RUNNING}),
        case("nobody: the payload runs", {"main": RUNNING, "dind": RUNNING}),
        case("nobody: the payload will be restarted", FAILED, restart="OnFailure"),
        case("an end that nobody waits for counts for nothing",
             {"main": RUNNING, "dind": exited(0)}, **IGNORING),
        case("nobody knows: the node does not report", DIND, phase="Unknown"),
        case("nobody: the kubelet restarts all containers", DIND, conditions=RESTARTING),
        case("nobody: only the proxy is to come back",
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
    return case(sentence, containers, *by, **NATIVE, **fields)


@pytest.mark.parametrize(
    ("containers", "fields", "by"),
    [
        case("an ignored container, once the proxy is gone: only the proxy ignores it",
             {**DIND, "istio-proxy": exited(0)}, "dind", **IGNORING),
        case("nobody: the ignored container has ended as well",
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
        case("a pod without a proxy is none of our business", DIND),
        case("an author who wants the proxy to stay is no holder",
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


COLLECTOR = "metrics-logger-and-collector"
WRAPPED = [
    "python train.py 1>/var/log/katib/metrics.log 2>&1 && echo completed > /var/log/katib/$$$$.pid"
]
ARGS = ["-t", "random-7c9k", "-m", "loss", "-o-type", "minimize", "-s-db", "katib-db-manager:6789"]
SHARED = {"shareProcessNamespace": True}
DONE = {"training-container": exited(0)}
CLASSIC: dict[str, State] = {**DONE, COLLECTOR: RUNNING, "istio-proxy": RUNNING}


def trial(
    containers: dict[str, State] = CLASSIC,
    *,
    args: list[str] = ARGS,
    training: list[str] = WRAPPED,
    **more: Any,
) -> quitting.Action:
    """The decision on a pod as Katib's webhook makes it (v0.18 pkg/webhook/v1beta1/pod)."""
    details = {"training-container": {"args": training}}
    details |= {name: {"args": args} for name in containers if name.startswith("metrics-")}
    policy = more.pop("policy", Policy())
    more.setdefault("spec", SHARED)
    return decide(job(containers, details=details, **more), policy, None)


def test_a_collector_that_waits_for_a_classic_proxy_is_named_with_the_setting_that_heals_it() -> (
    None
):
    """T6, katib#1638: nothing is done, because the collector has not reported yet."""
    found = trial()

    assert isinstance(found, quitting.Wait)
    assert blockers(found) == (COLLECTOR,)
    assert found.fix == KATIB_FIX
    assert found.reason == f"not finished: {COLLECTOR} (running); {KATIB_FIX}"
    assert "waitAllProcesses: false" in KATIB_FIX


@pytest.mark.parametrize("collector", [COLLECTOR, "metrics-collector"])
def test_a_collector_that_waits_for_a_native_proxy_is_named_too(collector: str) -> None:
    """katib#2614: the kubelet ends the proxy after the collector."""
    found = trial({**DONE, collector: RUNNING}, **NATIVE)

    assert isinstance(found, quitting.Ignore)
    assert blockers(found) == (collector,)
    assert found.reason.endswith(f"held by {collector} (running); {KATIB_FIX}")


def test_a_collector_that_waits_for_the_training_alone_is_about_to_end() -> None:
    """The setting is made: the collector reports, and then its proxy is told to exit."""
    args = [*ARGS, "-w", "false"]

    assert trial(args=args).fix == ""
    assert trial(args=[*ARGS, "-w", "true"]).fix == KATIB_FIX
    after = trial({**CLASSIC, COLLECTOR: exited(0)}, args=args)
    assert isinstance(after, quitting.Quit)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (trial({**CLASSIC, "training-container": RUNNING}), "the training goes on"),
        (trial({**CLASSIC, "training-container": exited(1)}, restart="OnFailure"), "it runs again"),
        (trial({"prepare": exited(0), **CLASSIC, "training-container": RUNNING}), "likewise"),
        (trial({**CLASSIC, "istio-proxy": exited(0)}), "the proxy is gone"),
        (trial({**CLASSIC, "istio-proxy": waiting("CrashLoopBackOff")}), "it does not run"),
        (trial({**DONE, COLLECTOR: exited(0)}, **NATIVE), "the collector has ended"),
        (trial({**CLASSIC, COLLECTOR: waiting("ImagePullBackOff")}), "it has not started"),
        (trial(spec={}), "processes are not shared"),
        (trial(training=["python train.py"]), "Katib did not wrap this command"),
        (trial({**DONE, "uploader": RUNNING, "istio-proxy": RUNNING}), "it is no collector"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_other_pod_is_taken_for_that(found: quitting.Action, why: str) -> None:
    assert (found.fix, "Katib" in found.reason) == ("", False), why


def test_a_collector_that_is_ignored_on_purpose_is_ignored() -> None:
    """Its report needs a port that is not redirected; who names it there knows that."""
    assert isinstance(trial(policy=Policy(ignore_containers=frozenset({COLLECTOR}))), quitting.Quit)
