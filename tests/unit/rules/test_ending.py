"""The end of a pod by force: what its payload loses, and a native proxy that was killed."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.cli import report
from istio_aux.model import ending
from istio_aux.model.annotations import PROXY_CONFIG
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.quit.rules import LEFT_ALONE
from unit.rules.pods import RUNNING, exited, job, judged, waiting
from unit.rules.starting import planned

PAIR = {"istio-proxy": RUNNING, "main": RUNNING}
JOB = ("batch/v1", "Job")
LOST = "a classic proxy exits 5 s after SIGTERM, and calls fail for the rest of 120 s: "


def long(grace: int = 120, **more: Any) -> dict[str, Any]:
    return {"spec": {"terminationGracePeriodSeconds": grace}, **more}


def drain(text: str) -> dict[str, Any]:
    return {"annotations": {PROXY_CONFIG: text}}


def drains(seconds: str) -> dict[str, Any]:
    """What the injector leaves in the proxy of the mesh's and the pod's ProxyConfig."""
    text = f'{{"concurrency":2,"terminationDrainDuration":"{seconds}"}}'
    return {"details": {"istio-proxy": {"env": [{"name": "PROXY_CONFIG", "value": text}]}}}


def end(pod: Any) -> str:
    """What `explain` says of it."""
    return report.explain(pod, judged(pod)).end


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (job(PAIR, **long()), LOST),
        (job(PAIR, **long(31)), "5 s after SIGTERM, and calls fail for the rest of 31 s"),
        (job(PAIR, **long(30)), ""),
        (job(PAIR), ""),
        (job({"main": RUNNING}, sidecars={"istio-proxy": RUNNING}, **long()), ""),
        (job(PAIR, phase="Failed", **long()), ""),
        (job(PAIR, **long(), **drain("terminationDrainDuration: 60s")), "exits 60 s after"),
        (job(PAIR, **long(), **drain("{'termination_drain_duration': '120.5s'}")), ""),
        (job(PAIR, **long(), **drain("#terminationDrainDuration: 120s")), LOST),
        (job(PAIR, **long(), **drain("terminationDrainDuration: " * 9000 + "120s")), LOST),
        (job(PAIR, **long(), **drains("120s")), ""),
        (job(PAIR, **long(), **drains("1s"), **drain("a: b")), "exits 1 s after"),
        (job(PAIR, **long(), deleting=True, grace=10), ""),
        (job(PAIR, deleting=True, grace=120), LOST),
    ],
)  # fmt: skip
def test_the_network_that_a_long_grace_period_would_need_is_said_to_be_lost(
    pod: Any, says: str
) -> None:
    """istio#7136. A drain as long as the grace period, of the pod or the mesh, keeps it."""
    assert says in end(pod)
    assert bool(end(pod)) is bool(says)


CLASSIC, NATIVE = (StartPolicy(capability=each) for each in (Capability.CLASSIC, Capability.NATIVE))


@pytest.mark.parametrize("restart", ["Never", "Always"])
def test_admission_warns_unless_the_proxy_is_native(restart: str) -> None:
    new = {"restartPolicy": restart, "terminationGracePeriodSeconds": 120, "containers": [{}]}

    [warning] = planned({"metadata": {}, "spec": new}, CLASSIC).warnings

    assert warning.startswith(f"IA0108: {LOST}")
    assert len(f"istio-aux: {warning}") <= 256, "the API server cuts what is longer"
    assert planned({"metadata": {}, "spec": new}, NATIVE).warnings == ()


def test_the_proxy_of_a_pod_that_is_being_deleted_is_left_alone_and_the_reason_says_why() -> None:
    found = judged(job({**PAIR, "main": exited(0)}, deleting=True))

    assert (found.action, found.decision.blocked_by) == ("ignore", ())
    assert found.reason == (
        "the pod is being deleted since 2026-11-21 08:16Z; as the kubelet last said, not ended: "
        f"istio-proxy (running); {LEFT_ALONE}"
    )


ENOUGH = "terminationGracePeriodSeconds was 1: 5 is enough"


@pytest.mark.parametrize(
    ("proxy", "phase", "grace", "says"),
    [
        (exited(137, "Error"), "Succeeded", 1, f"killed with exit code 137: {ENOUGH}"),
        (exited(143), "Failed", 1, f"killed with exit code 143: {ENOUGH}; {ending.COUNTED}"),
        (exited(137), "Failed", 60, "nothing of 60 s of grace: the payload's time and 5 s more is"),
        (exited(137, "OOMKilled"), "Failed", 1, ""),
        (exited(0), "Failed", 1, ""),
        (exited(137), "Running", 1, ""),
        (waiting("PodInitializing"), "Failed", 1, ""),
    ],
)  # fmt: skip
def test_a_native_proxy_that_was_killed_is_told_with_what_would_have_been_enough(
    proxy: Any, phase: str, grace: int, says: str
) -> None:
    """buildkite/agent-stack-k8s#862. One that is killed in a running pod is started again."""
    pod = job(
        {"main": exited(1)}, sidecars={"istio-proxy": proxy}, phase=phase, owner=JOB, **long(grace)
    )

    assert says in end(pod)
    assert bool(end(pod)) is bool(says)
