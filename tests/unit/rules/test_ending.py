"""The end of a pod by force: what its payload loses, and a native proxy that was killed.

Then a pod that is being deleted, and does not go: what keeps it, and when that counts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.cli import report
from istio_aux.injector.injection import Expectation
from istio_aux.model import ending
from istio_aux.model import pod as pods
from istio_aux.model.annotations import PROXY_CONFIG
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Requests
from istio_aux.quit.rules import LEFT_ALONE, TERMINATING_FOR, lasting
from unit.rules.pods import RUNNING, State, document, exited, job, judged, moment, waiting
from unit.rules.starting import planned
from unit.rules.table import blockers, decide, row

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


END = datetime(2026, 11, 21, 8, 17, tzinfo=UTC)  # Of the grace period of 30 s.
SINCE = "the pod is being deleted since 2026-11-21 08:16Z; as the kubelet last said, "
ENDED = f"{SINCE}every container has ended"
RUNS = f"{SINCE}not ended: istio-proxy (running)"
NODE = "the node does not finish"
DONE = exited(0)
GPUS = {"resources": {"requests": {"nvidia.com/gpu": "8"}}}


def deleted(
    main: State = DONE, proxy: State = DONE, *, finalizers: Any = None, **fields: Any
) -> Pod:
    """A pod on node n1 that is being deleted; a ``native`` one without a classic proxy."""
    native = fields.pop("native", False)
    states, spec = {"main": main}, {"nodeName": "n1", **fields.pop("spec", {})}
    states |= {} if native else {"istio-proxy": proxy}
    sidecars = {"istio-proxy": proxy} if native else None
    body = document(
        states, sidecars=sidecars, deleting=True, spec=spec, details={"main": GPUS}, **fields
    )
    body["metadata"]["finalizers"] = finalizers
    return pods.convert(body)


@pytest.mark.parametrize(
    ("pod", "by", "reason"),
    [
        row("every container has ended", deleted(), ("node n1",), f"{ENDED}; {NODE}"),
        row("the kubelet's last word is from before", deleted(proxy=RUNNING), ("node n1",),
            f"{RUNS}; {LEFT_ALONE}; {NODE}"),
        row("beside a native proxy", deleted(proxy=RUNNING, native=True), ("node n1",),
            f"{RUNS}; {NODE}"),
        row("before its payload started", deleted(waiting("Pending"), waiting(""), phase="Pending"),
            ("node n1",), f"{SINCE}not ended: main (waiting: Pending), istio-proxy (waiting); "
            f"{LEFT_ALONE}; {NODE}"),
        row("finalizers come after the node", deleted(finalizers=["a/b"]), ("node n1",),
            f"{ENDED}; finalizers: a/b; {NODE}"),
        row("the kubelet has finished", deleted(finalizers=["a/b", "c/d"], grace=0),
            ("finalizer a/b", "finalizer c/d"),
            f"{ENDED.replace(':16Z', ':17Z')}; finalizers: a/b, c/d; no controller removes them"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_that_should_be_gone(pod: Pod, by: tuple[str, ...], reason: str) -> None:
    """istio.io#16748: without Istio's CNI plugin the kubelet cannot remove the pod's network."""
    decision = decide(pod)
    assert (blockers(decision), lasting(decision)) == (by, reason)
    assert (decision.action, decision.stage, decision.code) == ("ignore", "deleted", "IA0125")


@pytest.mark.parametrize(
    "pod",
    [
        row("a server", deleted(restart="Always")),
        row("no sidecar", job({"main": exited(0)}, deleting=True)),
        row("not deleted", job({"main": exited(0), "istio-proxy": exited(0)})),
    ],
)
def test_no_other_pod_is_told_of(pod: Pod) -> None:
    assert blockers(decide(pod)) == ()


def found(pod: Pod, seconds: float | None) -> Any:
    judgement = judged(pod, None if seconds is None else moment(END, seconds))
    return report.audit(pod, None, judgement, lambda _: Expectation(True, ""))


def test_it_is_a_holder_from_five_minutes_past_its_grace_period_on() -> None:
    assert found(deleted(), TERMINATING_FOR - 1) is None
    late = found(deleted(), TERMINATING_FOR)
    assert (late.state, late.code, late.by) == ("blocked", "IA0125", ("node n1",))
    assert (late.since, late.requests) == (END.replace(minute=16, second=30), Requests(gpus=8))
    assert late.reason == f"{ENDED}; {NODE}"
    assert found(deleted(RUNNING, RUNNING), 1e6).requests == Requests(gpus=8)


def test_a_file_may_be_from_the_grace_period_unless_every_container_has_ended() -> None:
    assert found(deleted(), None).code == "IA0125"
    assert found(deleted(proxy=RUNNING), None) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing_and_explain_says_what_keeps_it(phase: str) -> None:
    """Neither the scheduler nor a quota counts it (k8s@1.36 evaluator/core/pods.go QuotaV1Pod)."""
    pod = deleted(phase=phase, finalizers=["example.com/keep"], grace=0)
    assert found(pod, 1e6) is None
    said = report.explain(pod, judged(pod, moment(END, 1e6)))
    assert said.reason.endswith("finalizers: example.com/keep; no controller removes them")


@pytest.mark.parametrize("grace", [-5, 10**30, 9 * 10**12])
@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_hostile_times_and_names_cost_a_sentence_alone(grace: int, at: str) -> None:
    names = [f"{number}{'f' * 9000}/x" for number in range(500)]
    decision = decide(deleted(finalizers=names, grace=grace, gone_by=at), now=moment(END))
    assert blockers(decision) == ("node n1",)
    assert len(decision.reason) < 1000
    assert len(blockers(decide(deleted(finalizers=names, grace=0)))) == 3
    (by,) = blockers(decide(deleted(spec={"nodeName": "n" * 9000})))
    assert len(by) < 200
