"""Pods that a container keeps although another is finished say by whom, trials of Katib, too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.cli import report
from istio_aux.model import ending
from istio_aux.model import pod as pods
from istio_aux.model.annotations import NOT_NATIVE, PROXY_CONFIG, QUIT_AFTER
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Capability, DeadProxy, QuitPolicy, StartPolicy
from istio_aux.model.resources import Requests
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
    EMPTY,
    ENDED,
    JOB,
    MISSING,
    RUNNING,
    Row,
    State,
    blockers,
    decide,
    decided,
    document,
    exited,
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

NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
OVERDUE = datetime(2026, 11, 21, 8, 17, tzinfo=UTC)  # Of the grace period of 30 s.
MADE = waiting("PodInitializing")
CRASHES, PULLS = waiting("CrashLoopBackOff"), waiting("ImagePullBackOff")
SET_UP = {"istio-init": exited(0)}
EARLY = "fetch runs before istio-proxy: `istio-aux.io/start: native` has the proxy start first"


def starting(
    inits: dict[str, State], main: State = MADE, *, started: str = "", restarts: int = 0,
    phase: str = "Pending", **fields: Any,
) -> Pod:  # fmt: skip
    """A pod with these init containers, those without ``-init`` in their names being native."""
    plain = {"istio-init", "istio-validation", "fetch"}
    spec = [{"name": n} | ({} if n in plain else {"restartPolicy": "Always"}) for n in inits]
    shown = [
        each | {"started": each["name"] == started, "restartCount": restarts}
        for each in statuses(inits)
    ]
    classic = {} if "istio-proxy" in inits else {"istio-proxy": MADE}
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
              {"istio-validation": RUNNING, "fetch": MADE}),
        start("an init container of its own that fails again and again", "fetch", EARLY,
              {"fetch": CRASHES, "istio-init": MADE}, restart="OnFailure"),
        start("the same of a pod that is held for a reason", "fetch",
              "fetch runs before istio-proxy: istio-aux holds it, not native: a quota",
              {"fetch": CRASHES, "istio-init": MADE}, annotations={NOT_NATIVE: "a quota"}),
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
        start("the same after a native proxy", "", "istio-proxy is a native sidecar",
              {"istio-proxy": RUNNING, "fetch": RUNNING}, started="istio-proxy"),
        start("the image of the proxy is on its way", "", "", {"istio-proxy": MADE}),
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
    pod = starting({"istio-proxy": RUNNING, "fetch": MADE, "istio-init": exited(0)})
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

DELETE = QuitPolicy(dead_proxy=DeadProxy.DELETE)
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
        assert decided(Report, pods.convert(body), DELETE).delete is deleted


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
GPUS = {"resources": {"requests": {"nvidia.com/gpu": "8"}}}


def deleted(
    main: State = EXITED, proxy: State = EXITED, *, finalizers: Any = None, **fields: Any
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
