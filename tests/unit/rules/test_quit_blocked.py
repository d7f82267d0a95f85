"""Pods that a container keeps although another is finished say by whom, trials of Katib, too."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.cli import report
from istio_aux.injector.injection import Expectation
from istio_aux.model import pod as pods
from istio_aux.model.annotations import NOT_NATIVE, QUIT_AFTER, SIDECARS
from istio_aux.model.pod import Pod
from istio_aux.model.policy import DeadProxy, QuitPolicy
from istio_aux.quit.pairs import KATIB_FIX
from istio_aux.quit.rules import Action, Ignore, Quit, Report, Wait
from unit.rules.pods import (
    EMPTY,
    MISSING,
    RUNNING,
    State,
    document,
    exited,
    job,
    judged,
    moment,
    statuses,
    waiting,
)
from unit.rules.table import Row, blockers, decide, pair, table

DIND: dict[str, State] = {"main": exited(0), "dind": RUNNING}
FAILED: dict[str, State] = {"main": exited(1), "dind": RUNNING}
IGNORING: dict[str, Any] = {"annotations": {SIDECARS: "dind=ignore"}}
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
END = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)  # Of every container that has ended.
RESTARTING = [{"type": "AllContainersRestarting", "status": "True"}]


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
    decision = decide(starting(inits, **fields))
    assert isinstance(decision, Wait), decision
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
    decision = decide(pod, now=moment(END, minutes * 60))
    assert (blockers(decision), decision.code) == (by, "IA0113" if by else None)
    late = "; the kubelet has not started main again for long"
    assert decision.reason.endswith(late) is bool(by)


@pytest.mark.parametrize(
    ("pod", "state"),
    [
        (job({"main": exited(0)}, **NATIVE), "blocked"),
        (starting({**SET_UP, "istio-proxy": RUNNING}), "unstarted"),
    ],
    ids=["ends", "starts"],
)
def test_a_native_sidecar_holds_each_pod_for_a_moment_which_a_command_does_not_tell(
    pod: Pod, state: str
) -> None:
    """By the times of the pod alone; since when its proxy could have been ready is known, too."""

    def found(seconds: float) -> Any:
        judgement = judged(pod, moment(END, seconds))
        return report.audit(pod, None, judgement, lambda _: Expectation(True, ""))

    assert found(59) is None
    assert (found(60).state, found(60).by, found(60).since) == (state, ("istio-proxy",), END)


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
) -> Action:
    """The decision on a pod as Katib's webhook makes it (v0.18 pkg/webhook/v1beta1/pod)."""
    details = {"training-container": {"args": training}}
    details |= {name: {"args": args} for name in containers if name.startswith("metrics-")}
    policy = more.pop("policy", QuitPolicy())
    more.setdefault("spec", SHARED)
    return decide(job(containers, details=details, **more), policy, None)


def test_a_collector_that_waits_for_a_classic_proxy_is_named_with_the_setting_that_heals_it() -> (
    None
):
    """Nothing is done, whatever runs on beside it: it has not reported yet.

    argo-workflows#1282, katib#1638.
    """
    found = trial()

    assert isinstance(found, Wait)
    assert blockers(found) == (COLLECTOR,)
    assert (found.fix, found.code) == (KATIB_FIX, "IA0111")
    assert found.reason == f"not finished: {COLLECTOR} (running); {KATIB_FIX}"
    assert "waitAllProcesses: false" in KATIB_FIX
    beside = trial({**CLASSIC, "vault-agent": RUNNING})
    assert ({*blockers(beside)}, beside.fix) == ({COLLECTOR, "vault-agent"}, KATIB_FIX)


def test_a_collector_that_waits_for_the_training_alone_is_about_to_end() -> None:
    """The setting is made: the collector reports, and then its proxy is told to exit."""
    args = [*ARGS, "-w", "false"]

    assert trial(args=args).fix == ""
    assert trial(args=[*ARGS, "-w", "true"]).fix == KATIB_FIX
    after = trial({**CLASSIC, COLLECTOR: exited(0)}, args=args)
    assert isinstance(after, Quit)


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
def test_no_other_pod_is_taken_for_that(found: Action, why: str) -> None:
    assert (found.fix, "Katib" in found.reason) == ("", False), why


# Pods whose proxy is gone before their payload: reported, and deleted only where that helps.

DELETE = QuitPolicy(dead_proxy=DeadProxy.DELETE)
JOB = ("batch/v1", "Job")
EXITED, OOM = exited(0), exited(137, "OOMKilled")


def lost(main: State = RUNNING, proxy: State = EXITED, /, **fields: Any) -> Pod:
    """A pod whose payload runs although its proxy is gone."""
    return pair(main, proxy, **fields)


def reported(pod: Pod, policy: QuitPolicy = DELETE) -> Report:
    decision = decide(pod, policy, None)
    assert isinstance(decision, Report), decision
    return decision


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
    decision = reported(row.pod, QuitPolicy())
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
    decision = reported(pod)
    assert decision.delete
    assert "not deleted" not in decision.reason


FAILS = "the {} would fail: its operator counts a pod that is deleted as failed"
FAILING = [
    ("MPIJob", "OnFailure"),
    ("PyTorchJob", "Never"),
    ("TFJob", "Never"),
    ("TFJob", "OnFailure"),
    ("XGBoostJob", "OnFailure"),
]
STRANGERS = [
    ("argoproj.io/v1alpha1", "Workflow"),
    ("example.org/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("v1", "Job"),
    ("", ""),
]
UNREPORTED = "the state of its payload is not known"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        *((kubeflow(kind, restart), FAILS.format(kind)) for kind, restart in FAILING),
        *(
            (lost(owner=(version, kind)),
             f"its controller {kind} ({version}) is not known to make a new pod")
            for version, kind in STRANGERS
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
    decision = reported(pod)
    assert not decision.delete
    assert decision.reason.endswith(f"; not deleted: {why}")


def test_the_one_owner_that_controls_the_pod_counts() -> None:
    """In whatever place. The API server refuses two controllers; a file may hold them."""
    found = document({"istio-proxy": exited(0), "main": RUNNING}, owner=JOB)
    [ours], other = found["metadata"]["ownerReferences"], {"apiVersion": "v1", "kind": "ConfigMap"}
    for owners, deleted in (([other, ours], True), ([ours, other], True), ([ours, ours], False)):
        found["metadata"]["ownerReferences"] = owners
        assert reported(pods.convert(found)).delete is deleted


@pytest.mark.parametrize("obeyed", [True, None, False])
def test_a_pod_whose_payload_may_be_finished_is_not_deleted(obeyed: bool | None) -> None:
    """A kubelet from 1.35 on does not start ``main`` again; which one it is may not be known."""
    owner, own = ("kubeflow.org/v1", "PyTorchJob"), {"main": {"restartPolicy": "Never"}}
    pod = lost(exited(1), restart="OnFailure", owner=owner, details=own)
    decision = decide(pod, DELETE, None, obeyed=obeyed)
    assert isinstance(decision, Ignore) is (obeyed is True)
    if isinstance(decision, Report):
        assert decision.delete is (obeyed is False)
