"""Pods that a container keeps, or that never start, say by whom, and what they request."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from functools import partial
from typing import Any

import msgspec
import pytest
from istio_aux.cli import report
from istio_aux.model import ending, kept, resources
from istio_aux.model.annotations import NOT_NATIVE, PROXY_CONFIG, QUIT_AFTER
from istio_aux.model.answers import group
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.model.limits import MOST, Limit, LimitRange, Limits, ResourceQuota
from istio_aux.model.pod import Key, Pod, convert
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Requests, quantity, requests
from istio_aux.quit.pairs import KATIB_FIX
from istio_aux.quit.rules import (
    LEFT_ALONE,
    TERMINATING_FOR,
    Ignore,
    Quit,
    Report,
    Wait,
    lasting_reason,
)
from unit.rules.pods import (
    DATA,
    DELETE,
    EMPTY,
    ENDED,
    JOB,
    MISSING,
    NATIVE,
    NEW,
    RUNNING,
    SET_UP,
    Row,
    State,
    blockers,
    decide,
    decided,
    document,
    exited,
    held,
    job,
    judged,
    listed,
    moment,
    pair,
    planned,
    row,
    statuses,
    table,
    waiting,
)

# Pods that a container keeps although another is finished say by whom, trials of Katib, too.

OVERDUE = datetime(2026, 11, 21, 8, 17, tzinfo=UTC)  # Of the grace period of 30 s.
CRASHES, PULLS = waiting("CrashLoopBackOff"), waiting("ImagePullBackOff")
EARLY = "fetch runs before istio-proxy: `istio-aux.io/start: native` has the proxy start first"


def starting(
    inits: dict[str, State], main: State = NEW, *, started: str = "", restarts: int = 0,
    phase: str = "Pending", **fields: Any,
) -> Pod:  # fmt: skip
    """A pod with these init containers, those without ``-init`` in their names being native."""
    plain = {"istio-init", "istio-validation", "fetch"}
    spec = [{"name": n} | ({} if n in plain else {"restartPolicy": "Always"}) for n in inits]
    shown = [
        each | {"started": each["name"] == started, "restartCount": restarts}
        for each in statuses(inits)
    ]
    classic = {} if "istio-proxy" in inits else {"istio-proxy": NEW}
    status = {"initContainerStatuses": shown}
    made = {"spec": {"initContainers": spec}, "status": status, "phase": phase}
    return job({"main": main, **classic}, **made, **fields)


def found(pod: Pod, seconds: float | None, since: datetime = OVERDUE) -> Any:
    """What `audit` lists of a pod so many seconds after a time, or of a file, which has none."""
    now = moment(since, seconds or 0)
    return listed(pod, judged(pod, None if seconds is None else now), now.date)


def start(sentence: str, by: str, because: str, inits: dict[str, State], **fields: Any) -> Any:
    return pytest.param(inits, fields, by, because, id=sentence)


@pytest.mark.parametrize(
    ("inits", "fields", "by", "because"),
    [
        start("a native proxy that never gets ready", "istio-proxy", "(running, not ready)",
              {**SET_UP, "istio-proxy": RUNNING}),
        start("a native proxy that cannot start", "istio-proxy", "(exited 128 (StartError), will",
              {**SET_UP, "istio-proxy": exited(128, "StartError")}),
        start("a native proxy whose image cannot be pulled", "istio-proxy", "ImagePullBackOff",
              {**SET_UP, "istio-proxy": PULLS}),
        start("another native sidecar", "shipper", "(waiting: CrashLoopBackOff)",
              {**SET_UP, "istio-proxy": RUNNING, "shipper": CRASHES}, started="istio-proxy"),
        start("Istio's check of the network", "istio-validation", "(running)",
              {"istio-validation": RUNNING, "fetch": NEW}),
        start("an init container of its own that fails again and again", "fetch", EARLY,
              {"fetch": CRASHES, "istio-init": NEW}, restart="OnFailure", restarts=3),
        start("the same of a pod that is held for a reason", "fetch",
              "fetch runs before istio-proxy: istio-aux holds it, not native: a quota",
              {"fetch": CRASHES, "istio-init": NEW}, annotations={NOT_NATIVE: "a quota"},
              restarts=3),
        start("the same while it runs", "fetch", "(running)", {"fetch": RUNNING}, restarts=3),
        start("an init container of its own whose image cannot be pulled", "fetch", "BackOff); f",
              {"fetch": PULLS}),
    ],
)  # fmt: skip
def test_who_keeps_a_payload_from_starting(
    inits: dict[str, State], fields: dict[str, Any], by: str, because: str
) -> None:
    """istio#51883, istio#52370, istio#23457, istio#53150, gcs-fuse-csi-driver#1619."""
    decision = decided(Wait, starting(inits, **fields))
    assert (blockers(decision), decision.stage, decision.code) == ((by,), "unstarted", "IA0104")
    assert decision.reason.startswith(f"the payload has not started: {by} (")
    assert because in decision.reason


@pytest.mark.parametrize(
    ("inits", "fields", "by", "because"),
    [
        start("an init container of its own that works", "", EARLY, {"fetch": RUNNING}, restarts=2),
        start("the same that failed twice", "", EARLY, {"fetch": CRASHES}, restarts=2),
        start("the same that has just failed", "", EARLY, {"fetch": exited(1)}, restarts=2),
        start("the same after a native proxy", "", "istio-proxy is a native sidecar",
              {"istio-proxy": RUNNING, "fetch": RUNNING}, started="istio-proxy"),
        start("the image of the proxy is on its way", "", "", {"istio-proxy": NEW}),
        start("the image of the payload cannot be pulled", "", "not finished: main (waiting: Ima",
              {**SET_UP}, main=PULLS),
        start("no node is found", "", "no status yet", {"istio-init": MISSING}, main=MISSING),
        start("it is being deleted", "", "deleted", {"istio-proxy": RUNNING}, deleting=True,
              restart="Always"),
        start("it is a server", "", "Always", {"istio-validation": RUNNING}, restart="Always"),
        start("it has failed", "", "phase Failed", {"istio-validation": exited(1)}, phase="Failed"),
    ],
)  # fmt: skip
def test_nobody_keeps_a_payload_from_starting(
    inits: dict[str, State], fields: dict[str, Any], by: str, because: str
) -> None:
    """A download may take hours."""
    decision = decide(starting(inits, **fields))
    assert blockers(decision) == ()
    assert because in decision.reason


def test_init_containers_that_have_not_ended_are_in_the_table() -> None:
    pod = starting({"istio-proxy": RUNNING, "fetch": NEW, "istio-init": exited(0)})
    table = report.explain(pod, judged(pod)).containers
    assert {name: (it.role, it.why) for name, it in table.items()} == {
        "istio-proxy": ("sidecar", "running, not ready"),
        "fetch": ("init", "waiting: PodInitializing"),
        "main": ("payload", "waiting: PodInitializing"),
    }


@pytest.mark.parametrize("fields", [{"containers": {"istio-proxy": RUNNING}}, NATIVE], ids=str)
@pytest.mark.parametrize(("minutes", "by"), [(14, ()), (16, ("main",))])
def test_a_payload_that_the_kubelet_forgets_to_start_again_is_named(
    fields: dict[str, Any], minutes: int, by: tuple[str, ...]
) -> None:
    """kubernetes#137146. A back-off of 5 min at most is no end: it is reported as waiting."""
    pod = job({"main": exited(1), **fields.get("containers", {})}, restart="OnFailure",
              **{key: it for key, it in fields.items() if key == "sidecars"})  # fmt: skip
    decision = decide(pod, now=moment(ENDED, minutes * 60))
    assert (blockers(decision), decision.code) == (by, "IA0113" if by else None)
    assert ("; the kubelet has not started main again for long" in decision.reason) is bool(by)


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (job({"main": exited(0)}, **NATIVE), "blocked"),
        (
            starting(
                {**SET_UP, "istio-proxy": RUNNING}, annotations={"sidecar.istio.io/status": "{}"}
            ),
            "unstarted",
        ),
    ],
    ids=["ends", "starts"],
)
def test_a_native_sidecar_holds_each_pod_for_a_moment_which_a_command_does_not_tell(
    pod: Pod, state: str
) -> None:
    """By the times of the pod alone; since when its proxy could have been ready is known, too."""
    assert found(pod, 59, ENDED) is None
    late = found(pod, 60, ENDED)
    assert (late.state, late.by, late.since) == (state, ("istio-proxy",), ENDED)


COLLECTOR = "metrics-logger-and-collector"
WRAPPED = [
    "python train.py 1>/var/log/katib/metrics.log 2>&1 && echo completed > /var/log/katib/$$$$.pid"
]
ARGS = ["-t", "random-7c9k", "-m", "loss", "-o-type", "minimize", "-s-db", "katib-db-manager:6789"]
DONE = {"training-container": exited(0)}
CLASSIC: dict[str, State] = {**DONE, COLLECTOR: RUNNING, "istio-proxy": RUNNING}


def trial(
    containers: dict[str, State] = CLASSIC,
    *,
    args: list[str] = ARGS,
    training: list[str] = WRAPPED,
    **more: Any,
) -> Pod:
    """A pod as Katib's webhook makes it (v0.18 pkg/webhook/v1beta1/pod)."""
    details = {"training-container": {"args": training}}
    details |= {name: {"args": args} for name in containers if name.startswith("metrics-")}
    more.setdefault("spec", {"shareProcessNamespace": True})
    return job(containers, details=details, **more)


def test_a_collector_that_waits_for_a_classic_proxy_is_named_with_the_setting_that_heals_it() -> (
    None
):
    """Nothing is done, whatever runs on beside it: it has not reported yet.

    argo-workflows#1282, katib#1638.
    """
    held = decided(Wait, trial())

    assert (blockers(held), held.fix, held.code) == ((COLLECTOR,), KATIB_FIX, "IA0111")
    assert held.reason == f"not finished: {COLLECTOR} (running); {KATIB_FIX}"
    assert "waitAllProcesses: false" in KATIB_FIX
    beside = decide(trial({**CLASSIC, "vault-agent": RUNNING}))
    assert ({*blockers(beside)}, beside.fix) == ({COLLECTOR, "vault-agent"}, KATIB_FIX)


def test_a_collector_that_waits_for_the_training_alone_is_about_to_end() -> None:
    """The setting is made: the collector reports, and then its proxy is told to exit."""
    args = [*ARGS, "-w", "false"]

    assert decide(trial(args=args)).fix == ""
    assert decide(trial(args=[*ARGS, "-w", "true"])).fix == KATIB_FIX
    decided(Quit, trial({**CLASSIC, COLLECTOR: exited(0)}, args=args))


@pytest.mark.parametrize(
    ("pod", "why"),
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
def test_no_other_pod_is_taken_for_that(pod: Pod, why: str) -> None:
    decision = decide(pod)
    assert (decision.fix, "Katib" in decision.reason) == ("", False), why


# Pods whose proxy is gone before their payload: reported, and deleted only where that helps.

EXITED, OOM = exited(0), exited(137, "OOMKilled")


def lost(main: State = RUNNING, proxy: State = EXITED, /, **fields: Any) -> Pod:
    """A pod whose payload runs although its proxy is gone."""
    return pair(main, proxy, **fields)


@table(
    Row(
        "the hold timed out, and the payload runs without a network",
        lost(),
        "istio-proxy exited 0, not restarted (restartPolicy Never), but not finished: main",
    ),
    Row(
        "the proxy was killed for its memory before the payload could start",
        lost(waiting("ContainerCreating"), OOM),
        "istio-proxy exited 137 (OOMKilled)",
    ),
    Row(
        "a payload that the author waits for, beside another one that nobody does",
        lost(others={"dind": exited(0)}, annotations={QUIT_AFTER: "main"}),
        "not finished: main (running)",
    ),
)
def test_report(row: Row) -> None:
    """A proxy that is gone for good beside a payload that may run is reported.

    istio#45627, scuttle#34.
    """
    decision = decided(Report, row.pod)
    assert (row.because in decision.reason, decision.delete) == (True, False)
    assert "deleted" not in decision.reason


def kubeflow(kind: str, restart: str) -> Pod:
    version = "v2beta1" if kind == "MPIJob" else "v1"
    return lost(owner=(f"kubeflow.org/{version}", kind), restart=restart)


@pytest.mark.parametrize(
    "pod",
    [
        lost(owner=JOB),
        lost(owner=("batch/v2", "Job")),
        *(kubeflow(kind, "OnFailure") for kind in ("JAXJob", "PaddleJob", "PyTorchJob")),
        lost(owner=JOB, others={"wait": MISSING}),
    ],
    ids=["Job", "a later Job", "JAXJob", "PaddleJob", "PyTorchJob", "another payload is missing"],
)
def test_a_pod_that_will_be_replaced_is_deleted_where_the_policy_says_so(pod: Pod) -> None:
    """Its controller is known to make a new one (istio#45627, scuttle#34)."""
    decision = decided(Report, pod, DELETE)
    assert decision.delete
    assert "not deleted" not in decision.reason


UNREPORTED = "the state of its payload is not known"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        *(
            (kubeflow(kind, restart),
             f"the {kind} would fail: its operator counts a pod that is deleted as failed")
            for kind, restart in (
                ("MPIJob", "OnFailure"), ("PyTorchJob", "Never"), ("TFJob", "Never"),
                ("TFJob", "OnFailure"), ("XGBoostJob", "OnFailure"),
            )
        ),
        *(
            (lost(owner=(version, kind)),
             f"its controller {kind} ({version}) is not known to make a new pod")
            for version, kind in (
                ("argoproj.io/v1alpha1", "Workflow"), ("example.org/v1", "Job"),
                ("batch/v1", "CronJob"), ("v1", "Job"), ("", ""),
            )
        ),
        (lost(), "the pod has no controller that would make a new one"),
        (lost(MISSING, owner=JOB), UNREPORTED),
        (lost(EMPTY, owner=JOB), UNREPORTED),
        (lost(owner=JOB, annotations={QUIT_AFTER: "mian"}),
         'annotation istio-aux.io/quit-after: "mian": expected containers of the pod: main'),
    ],
)  # fmt: skip
def test_any_other_pod_is_only_reported_and_the_reason_says_why(pod: Pod, why: str) -> None:
    """istio#45627.

    A running pod that is deleted counts as failed, and its job may fail with it (training-operator
    1.9 pkg/core/status.go UpdateJobReplicaStatuses).
    """
    decision = decided(Report, pod, DELETE)
    assert not decision.delete
    assert decision.reason.endswith(f"; not deleted: {why}")


def test_the_one_owner_that_controls_the_pod_counts() -> None:
    """In whatever place. The API server refuses two controllers; a file may hold them."""
    body = document({"istio-proxy": exited(0), "main": RUNNING}, owner=JOB)
    [ours], other = body["metadata"]["ownerReferences"], {"apiVersion": "v1", "kind": "ConfigMap"}
    for owners, deleted in (([other, ours], True), ([ours, other], True), ([ours, ours], False)):
        body["metadata"]["ownerReferences"] = owners
        assert decided(Report, convert(body), DELETE).delete is deleted


@pytest.mark.parametrize("obeyed", [True, None, False])
def test_a_pod_whose_payload_may_be_finished_is_not_deleted(obeyed: bool | None) -> None:
    """A kubelet from 1.35 on does not start ``main`` again; which one it is may not be known."""
    owner, own = ("kubeflow.org/v1", "PyTorchJob"), {"main": {"restartPolicy": "Never"}}
    pod = lost(exited(1), restart="OnFailure", owner=owner, details=own)
    decision = decide(pod, DELETE, None, obeyed=obeyed)
    assert isinstance(decision, Ignore) is (obeyed is True)
    if isinstance(decision, Report):
        assert decision.delete is (obeyed is False)


# The end of a pod by force: what its payload loses, and a native proxy that was killed.


PAIR = {"istio-proxy": RUNNING, "main": RUNNING}
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


@pytest.mark.parametrize("restart", ["Never", "Always"])
def test_admission_warns_unless_the_proxy_is_native(restart: str) -> None:
    spec = {"restartPolicy": restart, "terminationGracePeriodSeconds": 120, "containers": [{}]}
    new = {"metadata": {}, "spec": spec}

    [warning] = planned(new, StartPolicy(capability=Capability.CLASSIC)).warnings

    assert warning.startswith(f"IA0108: {LOST}")
    assert len(f"istio-aux: {warning}") <= 256, "the API server cuts what is longer"
    assert planned(new, StartPolicy(capability=Capability.NATIVE)).warnings == ()


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
        {"main": exited(1)},
        sidecars={"istio-proxy": proxy},
        phase=phase,
        owner=JOB,
        **long(grace),
    )

    assert says in end(pod)
    assert bool(end(pod)) is bool(says)


SINCE = "the pod is being deleted since 2026-11-21 08:16Z; as the kubelet last said, "
OVER = f"{SINCE}every container has ended"
RUNS = f"{SINCE}not ended: istio-proxy (running)"
NODE = "the node does not finish"


def deleted(
    main: State = EXITED, proxy: State = EXITED, *, finalizers: Any = None, **fields: Any
) -> Pod:
    """A pod on node n1 that is being deleted; a ``native`` one without a classic proxy."""
    native = fields.pop("native", False)
    states, spec = {"main": main}, {"nodeName": "n1", **fields.pop("spec", {})}
    states |= {} if native else {"istio-proxy": proxy}
    sidecars = {"istio-proxy": proxy} if native else None
    body = document(
        states,
        sidecars=sidecars,
        deleting=True,
        spec=spec,
        details={"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}},
        **fields,
    )
    body["metadata"]["finalizers"] = finalizers
    return convert(body)


@pytest.mark.parametrize(
    ("pod", "by", "reason"),
    [
        row("every container has ended", deleted(), ("node n1",), f"{OVER}; {NODE}"),
        row("the kubelet's last word is from before", deleted(proxy=RUNNING), ("node n1",),
            f"{RUNS}; {LEFT_ALONE}; {NODE}"),
        row("beside a native proxy", deleted(proxy=RUNNING, native=True), ("node n1",),
            f"{RUNS}; {NODE}"),
        row("before its payload started", deleted(waiting("Pending"), waiting(""), phase="Pending"),
            ("node n1",), f"{SINCE}not ended: main (waiting: Pending), istio-proxy (waiting); "
            f"{LEFT_ALONE}; {NODE}"),
        row("finalizers come after the node", deleted(finalizers=["a/b"]), ("node n1",),
            f"{OVER}; finalizers: a/b; {NODE}"),
        row("the kubelet has finished", deleted(finalizers=["a/b", "c/d"], grace=0),
            ("finalizer a/b", "finalizer c/d"),
            f"{OVER.replace(':16Z', ':17Z')}; finalizers: a/b, c/d; no controller removes them"),
    ],
)  # fmt: skip
def test_what_keeps_a_pod_that_should_be_gone(pod: Pod, by: tuple[str, ...], reason: str) -> None:
    """istio.io#16748: without Istio's CNI plugin the kubelet cannot remove the pod's network."""
    decision = decide(pod)
    assert (blockers(decision), lasting_reason(decision)) == (by, reason)
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


def test_it_is_a_holder_from_five_minutes_past_its_grace_period_on() -> None:
    assert found(deleted(), TERMINATING_FOR - 1) is None
    late = found(deleted(), TERMINATING_FOR)
    assert (late.state, late.code, late.by) == ("blocked", "IA0125", ("node n1",))
    assert (late.since, late.requests) == (OVERDUE.replace(minute=16, second=30), Requests(gpus=8))
    assert late.reason == f"{OVER}; {NODE}"
    assert found(deleted(RUNNING, RUNNING), 1e6).requests == Requests(gpus=8)


def test_a_file_may_be_from_the_grace_period_unless_every_container_has_ended() -> None:
    assert found(deleted(), None).code == "IA0125"
    assert found(deleted(proxy=RUNNING), None) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_holds_nothing_and_explain_says_what_keeps_it(phase: str) -> None:
    """Neither the scheduler nor a quota counts it (k8s@1.36 evaluator/core/pods.go QuotaV1Pod)."""
    pod = deleted(phase=phase, finalizers=["example.com/keep"], grace=0)
    assert found(pod, 1e6) is None
    said = report.explain(pod, judged(pod, moment(OVERDUE, 1e6)))
    assert said.reason.endswith("finalizers: example.com/keep; no controller removes them")


@pytest.mark.parametrize("grace", [-5, 10**30, 9 * 10**12])
@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"])
def test_hostile_times_and_names_cost_a_sentence_alone(grace: int, at: str) -> None:
    names = [f"{number}{'f' * 9000}/x" for number in range(500)]
    decision = decide(deleted(finalizers=names, grace=grace, gone_by=at), now=moment(OVERDUE))
    assert blockers(decision) == ("node n1",)
    assert len(decision.reason) < 1000
    assert len(blockers(decide(deleted(finalizers=names, grace=0)))) == 3
    assert len(blockers(decide(deleted(spec={"nodeName": "n" * 9000})))[0]) < 200


# What pods hold by their requests, as the scheduler counts, and who holds pods.

GPU = "nvidia.com/gpu"


def requested(main: dict[str, object]) -> Requests | None:
    """What a pod with one container holds by the requests of that container."""
    details = {"main": {"resources": {"requests": main}}}
    return requests(job({"main": exited(0), "istio-proxy": RUNNING}, details=details))


@pytest.mark.parametrize("line", (DATA / "requests/pods.jsonl").read_text().splitlines())
def test_requests_are_what_the_scheduler_counts(line: str) -> None:
    """Sixty pods, with what `resource.PodRequests` of Kubernetes said of each."""
    pod = json.loads(line)
    spec = pod.pop("spec")

    assert requests(job({}, spec=spec)) == Requests(**pod)


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        (3, ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu",
             "amd.com/cpx_nps4", "gpu.intel.com/i915", "example.com/gpu"]),
        (0, ["nvidia.com/hostdev", "amd.com/xilinx_u30", "gpu.intel.com/millicores", "rdma/hca",
             "ephemeral-storage"]),
    ],
)  # fmt: skip
def test_devices_are_gpus_by_their_name(counts: int, names: list[str]) -> None:
    """A share or a slice of a GPU counts as one."""
    found = {name: requested({name: "3"}) for name in names}
    assert found == dict.fromkeys(names, Requests(gpus=counts))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("100m", Fraction(1, 10)), ("1.5Gi", 1536 * 2**20), (".5", Fraction(1, 2)),
        ("3.", 3), ("+2", 2), ("1e3", 1000), ("12E2", 1200), ("2E", 2 * 10**18), ("1E-1", 0.1),
        ("7n", Fraction(7, 10**9)), ("5u", Fraction(5, 10**6)), ("1k", 1000), ("0", 0),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: Fraction) -> None:
    assert quantity(text) == pytest.approx(value * 10**9, rel=1e-12)


HOSTILE = [
    "", " 1", "1 ", "-1", "1K", "1ki", "1KI", "1e", "1e999", "1e1000000000", "0x10", "1_000",
    "\u0661", "NaN", "inf", "1Gi1", "1.2.3", ".", "9" * 41, "9" * 5000, "1\n",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    "bad", [*HOSTILE, ["1"], {}, True, 10**400, 1e300, "9223372036854775808", "1e99"]
)
def test_a_hostile_request_costs_the_numbers_of_its_pod_alone(bad: object) -> None:
    assert requested({"cpu": "1", GPU: bad}) is None


@pytest.mark.parametrize(
    ("own", "held"),
    [
        *((wrong, None) for wrong in (
            [], "all", {"requests": 5}, {"requests": {"cpu": {"x": {}}}}, {"requests": [[[[]]]]},
        )),
        # Where only limits are written, the API server adds the requests.
        *((none, Requests()) for none in (
            {"limits": {"cpu": "9"}}, {"requests": None}, None,
            {"requests": {"ephemeral-storage": "not looked at"}},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_resources_of_another_shape_are_unreadable_and_limits_and_null_are_no_requests(
    own: object, held: Requests | None
) -> None:
    assert requests(job({"main": RUNNING}, details={"main": {"resources": own}})) == held


OWN = {"cpu": "500m", "memory": "512Mi"}
DEFAULT = ", if Istio's proxy has its default size"
ROOM = {"requests": {"cpu": "600m", "memory": "640Mi"}}
BOTH, CPU, MEMORY = "0.6 CPUs, 640Mi of memory", {"cpu": "2"}, {"memory": "128Mi"}


@pytest.mark.parametrize(
    ("whole", "main", "native", "classic"),
    [
        row("no room for the proxy", {"requests": OWN}, {"requests": OWN},
            f"requests of {BOTH} or more{DEFAULT}", None),
        row("room enough", ROOM, {"requests": OWN}, "", ""),
        row("nothing is written", {}, {"requests": OWN}, "", ""),
        row("only of one of them", {"requests": {"cpu": "50m"}}, {},
            f"requests of 0.1 CPUs or more{DEFAULT}", None),
        row("only limits: the API server makes requests of what the containers request",
            {"limits": CPU}, {"requests": OWN}, f"requests of {BOTH} or more{DEFAULT}", None),
        row("only limits, and no requests of containers", {"limits": CPU}, {}, "", ""),
        row("a limit of a container is its request", {"requests": {"cpu": "1"}}, {"limits": CPU},
            f"requests of 2.1 CPUs or more{DEFAULT}", None),
        row("a limit that a classic proxy exceeds alone",
            {"limits": {"memory": "512Mi"}, "requests": MEMORY}, {}, "",
            f"limits of 1Gi of memory or more{DEFAULT}; limits of a native one do not count"),
        row("a limit that is the request", {"limits": OWN, "requests": OWN}, {"requests": OWN},
            f"requests of {BOTH} and limits of {BOTH} or more{DEFAULT}",
            f"requests of {BOTH} and limits of 2 CPUs, 1Gi of memory or more{DEFAULT}"
            "; limits of a native one do not count"),
        row("what no API server stores", {"requests": {"cpu": "much"}}, {}, "", ""),
    ],
)  # fmt: skip
def test_a_pod_says_what_its_own_resources_need_for_its_sidecar(
    whole: object, main: object, native: str, classic: str | None
) -> None:
    """KEP-2837, istio#57393, istio#58769. ``classic`` is None where both need the same."""
    pod = job({"main": None}, spec={"resources": whole}, details={"main": {"resources": main}})
    begin = "refused with a sidecar unless spec.resources has "
    for is_native, says in ((True, native), (False, native if classic is None else classic)):
        assert resources.too_small(pod, native=is_native) == (begin + says if says else "")


SIZED = {
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    "initContainers": [{"name": "fetch", "resources": {"requests": {"cpu": "950m"}}}],
}


@pytest.mark.parametrize(
    ("native", "sizes", "says"),
    [
        (True, {}, f"requests of 1.05 CPUs or more{DEFAULT}"),
        (False, {}, ""),
        (True, {"CPU": "50m"}, ""),
        (False, {"CPULimit": "1500m"}, "requests of 1.5 CPUs or more"),
        (True, {"Memory": "2Gi"}, "requests of 2Gi of memory or more"),
        (True, {"CPU": "much", "CPULimit": "9" * 99}, f"requests of 1.05 CPUs or more{DEFAULT}"),
    ],
)
def test_the_proxy_has_the_size_of_its_annotations_and_runs_before_init_containers(
    native: bool, sizes: dict[str, str], says: str
) -> None:
    annotations = {f"sidecar.istio.io/proxy{key}": value for key, value in sizes.items()}
    pod = job({"main": None}, spec=SIZED, annotations=annotations)
    assert resources.too_small(pod, native=native).partition(" has ")[2] == says


def test_resources_of_a_pod_that_has_its_proxy_are_large_enough() -> None:
    assert (
        resources.too_small(job({"main": None, "istio-proxy": None}, spec=SIZED), native=True) == ""
    )


@pytest.mark.parametrize(
    ("how", "classic"),
    [
        (StartPolicy(capability=Capability.NATIVE), False),
        (StartPolicy(capability=Capability.CLASSIC), True),
    ],
)
def test_admission_warns_of_a_pod_that_will_be_refused(how: StartPolicy, classic: bool) -> None:
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "resources": ROOM}],
        "resources": {"requests": OWN, "limits": OWN},
    }

    [warning] = planned({"metadata": {}, "spec": spec}, how).warnings

    assert warning.startswith("IA0114: refused with a sidecar unless spec.resources has requests")
    assert warning.endswith("a native one do not count") is classic
    assert len(f"istio-aux: {warning}") <= 256, "the API server cuts what is longer"
    refuses = {"annotations": {"sidecar.istio.io/inject": "false"}}
    assert planned({"metadata": refuses, "spec": spec}).warnings == ()


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (resources.total((Requests(millicpu=1500, memory=2**30, gpus=1), Requests(memory=2**29),
                          Requests())), "1 GPU, 1.5 CPUs, 1.5Gi of memory"),
        (Requests(millicpu=1000), "1 CPU"),
        (Requests(gpus=24, memory=1023), "24 GPUs, 1023 of memory"),
        (Requests(memory=2**63 - 1), "8Ei of memory"),
        (Requests(), ""),
    ],
)  # fmt: skip
def test_what_all_pods_hold_is_one_line(held: Requests, line: str) -> None:
    assert str(held) == line


FIRST = datetime(2026, 11, 20, 7, 12, tzinfo=UTC)
holding = partial(held, since=FIRST + timedelta(days=1), requests=Requests(gpus=8, millicpu=500))


def test_the_holder_of_most_gpus_comes_first_then_that_of_most_pods() -> None:
    none = Requests()
    found = run_now(group((
        holding("b", requests=none), holding("c", requests=none), holding("c", requests=none),
        holding("a", requests=none), holding("z"),
    )))  # fmt: skip
    assert [one.by for one in found] == [("z",), ("c",), ("a",), ("b",)]


FIX, THEN = "set x: false", "since 2026-11-21 07:12Z"


@pytest.mark.parametrize(
    ("pods", "lines"),
    [
        ([holding("a"), holding("a", since=FIRST), holding("a")],
         ["3 pods are kept by a since 2026-11-20 07:12Z: 24 GPUs, 1.5 CPUs"]),
        ([holding("a", "b"), holding("b", "a", requests=None)],
         [f"2 pods are kept by a, b {THEN}: 8 GPUs, 0.5 CPUs; the requests of 1 cannot be read"]),
        ([holding("a", since=None, requests=None)],
         ["1 pod is kept by a; the requests of 1 cannot be read"]),
        ([holding("a", since=FIRST.astimezone(timezone(timedelta(hours=2))))],
         ["1 pod is kept by a since 2026-11-20 07:12Z: 8 GPUs, 0.5 CPUs"]),
        ([holding(*(f"c{number}" for number in range(9)), requests=Requests())],
         ["1 pod is kept by c0, c1, c2 and 6 more since 2026-11-21 07:12Z"]),
        ([holding("a"), holding("a", since=None, requests=Requests(), fix=FIX)],
         ["1 pod is kept by a since 2026-11-21 07:12Z: 8 GPUs, 0.5 CPUs",
          f"1 pod is kept by a; {FIX}"]),
        ([holding(requests=Requests())], ["1 pod is kept by istio-proxy since 2026-11-21 07:12Z"]),
    ],
    ids=["since the first, all together", "whatever their order", "unknown requests",
          "times in UTC", "many holders", "fixes divide holders", "the proxy"],
)  # fmt: skip
def test_holders_are_told_in_short_lines(pods: list[Found], lines: list[str]) -> None:
    assert [one.text for one in run_now(group(pods))] == lines


# What ResourceQuotas and LimitRanges allow: what is kept of them, and what is not known.


GI, ONE = quantity("1Gi"), quantity("1")
MANY = {f"requests.nvidia.com/{'x' * 200}-{number}": "1" for number in range(1000)}


def quota(name: str = "a", hard: Any = None, used: Any = None, **spec: Any) -> ResourceQuota:
    about = {"namespace": "team", "name": name, "uid": name}
    document = {"metadata": about, "spec": spec, "status": {"hard": hard, "used": used}}
    return msgspec.convert(document, ResourceQuota)


def limit_range(*limits: dict[str, Any], name: str = "b") -> LimitRange:
    about = {"namespace": "team", "name": name, "uid": name}
    return msgspec.convert({"metadata": about, "spec": {"limits": [*limits]}}, LimitRange)


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        (quota(), Limit(name="ResourceQuota a")),
        (
            quota(hard={"limits.memory": "3Gi", "pods": "9"}, used={"limits.memory": "1Gi"}),
            Limit(name="ResourceQuota a", most={"limits.memory": 2 * GI}),
        ),
        (
            quota(hard={"cpu": "2", "requests.cpu": "3"}, used={"cpu": "1", "requests.cpu": "1"}),
            Limit(name="ResourceQuota a", most={"requests.cpu": ONE}),
        ),
        (
            quota(hard={"memory": "1Gi"}, used={"memory": "2Gi"}),
            Limit(name="ResourceQuota a", most={"requests.memory": 0}),
        ),
        (quota(scopes=["Terminating"]), Limit(name="ResourceQuota a", deadline=True)),
        (quota(scopes=["NotTerminating"]), Limit(name="ResourceQuota a", deadline=False)),
        (quota(hard=MANY, used=MANY), Limit(name="ResourceQuota a")),
        (
            limit_range(
                {"type": "Pod", "max": {"memory": "2Gi"}},
                {"type": "Pod", "max": {"memory": "1Gi"}, "maxLimitRequestRatio": {"cpu": "2"}},
                {"type": "Container", "max": {"memory": "1"}},
            ),
            Limit(
                name="LimitRange b",
                most={"requests.memory": GI, "limits.memory": GI},
                ratio={"cpu": 2 * ONE},
            ),
        ),
    ],
)
def test_what_pods_may_add_or_have_is_kept_of_each(
    found: ResourceQuota | LimitRange, limit: Limit
) -> None:
    limits = Limits()

    limits.apply(found)

    assert limits.of("team") == (limit,)
    assert kept.size(limit) < 512
    assert limits.of("other") == ()


def test_the_limits_of_a_namespace_follow_their_objects() -> None:
    limits = Limits()
    for found in (quota("a", {"cpu": "1"}), limit_range(), quota("a", {"cpu": "2"})):
        limits.apply(found)

    assert [each.most for each in limits.of("team") or ()] == [{"requests.cpu": 2 * ONE}, {}]
    for name in ("a", "b", "unknown"):
        limits.delete(Key("team", name, name))
    assert limits.of("team") == ()


def test_what_cannot_be_read_or_is_too_much_is_not_known() -> None:
    unreadable, many = Limits(), Limits()
    unreadable.apply(quota(hard={"cpu": "much"}))
    for number in range(MOST + 1):
        assert many.of("team") is not None
        many.apply(quota(f"a{number}"))

    assert (unreadable.of("team"), many.of("team")) == (None, None)


@pytest.mark.parametrize(
    ("needs", "refused"),
    [
        ({"limits.memory": GI}, ""),
        ({"limits.memory": GI + 1}, "limits.memory, by x"),
        ({"requests.cpu": ONE, "limits.cpu": 2 * ONE}, ""),
        ({"requests.cpu": ONE, "limits.cpu": 2 * ONE + 1}, "the ratio of limits.cpu, by x"),
        ({"limits.cpu": 9 * ONE}, ""),
    ],
)
def test_a_pod_that_needs_more_is_refused(needs: dict[str, int], refused: str) -> None:
    limit = Limit(name="x", most={"limits.memory": GI}, ratio={"cpu": 2 * ONE})
    assert limit.refuses(needs) == refused
