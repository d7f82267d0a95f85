"""Pods whose proxy is gone before their payload: reported, and deleted only where that helps."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import QUIT, QUIT_AFTER
from istio_aux.model.pod import Pod
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit import rules as quitting
from unit.rules.pods import EMPTY, MISSING, RUNNING, State, document, exited, waiting
from unit.rules.table import Row, decide, pair, table

DELETE = Policy(dead_proxy=DeadProxy.DELETE)
JOB = ("batch/v1", "Job")
EXITED, OOM = exited(0), exited(137, "OOMKilled")


def lost(main: State = RUNNING, proxy: State = EXITED, /, **fields: Any) -> Pod:
    """A pod whose payload runs although its proxy is gone."""
    return pair(main, proxy, **fields)


def reported(pod: Pod, policy: Policy = DELETE) -> quitting.Report:
    decision = decide(pod, policy, None)
    assert isinstance(decision, quitting.Report), decision
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
        "Envoy ran out of memory beside a payload that will be restarted",
        lost(exited(1), OOM, details={"main": {"restartPolicy": "OnFailure"}}),
        "istio-proxy exited 137 (OOMKilled), not restarted",
    ),
    Row("a payload without a status", lost(MISSING), "not finished: main (no status yet)"),
    Row(
        "a payload that the author waits for, beside another one that nobody does",
        lost(others={"dind": exited(0)}, annotations={QUIT_AFTER: "main"}),
        "not finished: main (running)",
    ),
)
def test_report(row: Row) -> None:
    """A proxy that is gone for good although a payload may still run is reported (T30, T39).

    By default nothing is deleted, and the reason does not speak of that.
    """
    decision = reported(row.pod, Policy())
    assert row.because in decision.reason
    assert not decision.delete
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
    """Its controller is known to make a new one (T30, T39)."""
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
    """`tests/node/test_training_deletion.py` shows what the training operator does (T30)."""
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


def test_a_pod_whose_author_opted_out_is_neither_reported_nor_deleted() -> None:
    """Opting out means all of istio-aux."""
    pod = lost(owner=JOB, annotations={QUIT: "false"})
    assert isinstance(decide(pod, DELETE, None), quitting.Ignore)


@pytest.mark.parametrize("obeyed", [True, None, False])
def test_a_pod_whose_payload_may_be_finished_is_not_deleted(obeyed: bool | None) -> None:
    """A kubelet from 1.35 on does not start ``main`` again; which one it is may not be known."""
    owner, own = ("kubeflow.org/v1", "PyTorchJob"), {"main": {"restartPolicy": "Never"}}
    pod = lost(exited(1), restart="OnFailure", owner=owner, details=own)
    decision = decide(pod, DELETE, None, obeyed=obeyed)
    assert isinstance(decision, quitting.Ignore) is (obeyed is True)
    if isinstance(decision, quitting.Report):
        assert decision.delete is (obeyed is False)
