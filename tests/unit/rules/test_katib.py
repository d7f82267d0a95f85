"""Trials of Katib whose metrics collector waits for the proxy, which waits for the collector."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model.policy import Policy
from istio_aux.quit import rules as quitting
from istio_aux.quit.rules import KATIB_FIX
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.table import blockers, decide

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


def native(containers: dict[str, State], **more: Any) -> quitting.Action:
    return trial(containers, sidecars={"istio-proxy": RUNNING}, **more)


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
    found = native({**DONE, collector: RUNNING})

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
        (native({**DONE, COLLECTOR: exited(0)}), "the collector has ended"),
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
