"""Pods whose proxy is gone before their payload: reported, and deleted only where that helps."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import QUIT, QUIT_AFTER
from istio_aux.model.policy import DeadProxy, Policy
from istio_aux.quit import rules as quitting
from unit.rules.pods import EMPTY, MISSING, RUNNING, State, document, exited, job, waiting
from unit.rules.table import Row, decide, table

DELETE = Policy(dead_proxy=DeadProxy.DELETE)
JOB = ("batch/v1", "Job")


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
        "Envoy ran out of memory beside a payload that will be restarted",
        job(
            {"istio-proxy": exited(137, "OOMKilled"), "main": exited(1)},
            details={"main": {"restartPolicy": "OnFailure"}},
        ),
        "istio-proxy exited 137 (OOMKilled), not restarted",
    ),
    Row(
        "a payload without a status may still run",
        job({"istio-proxy": exited(0), "main": MISSING}),
        "not finished: main (no status yet)",
    ),
    Row(
        "a payload that the author waits for, beside another one that nobody does",
        job(
            {"istio-proxy": exited(0), "main": RUNNING, "dind": exited(0)},
            annotations={QUIT_AFTER: "main"},
        ),
        "not finished: main (running)",
    ),
)
def test_report(row: Row) -> None:
    """A proxy that is gone for good although a payload may still run is reported (T30, T39)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Report), decision
    assert row.because in decision.reason
    assert not decision.delete


REPLACING = [
    (JOB, "Never"),
    (("batch/v2", "Job"), "Never"),
    (("kubeflow.org/v1", "JAXJob"), "OnFailure"),
    (("kubeflow.org/v1", "PaddleJob"), "OnFailure"),
    (("kubeflow.org/v1", "PyTorchJob"), "OnFailure"),
]
FAILS = "the {} would fail: its operator counts a pod that is deleted as failed"
UNKNOWN = "its controller {} ({}) is not known to make a new pod"
KEPT = [
    *(
        (owner, "OnFailure", FAILS)
        for owner in (
            ("kubeflow.org/v1", "TFJob"),
            ("kubeflow.org/v2beta1", "MPIJob"),
            ("kubeflow.org/v1", "XGBoostJob"),
        )
    ),
    (("kubeflow.org/v1", "TFJob"), "Never", FAILS),
    (("kubeflow.org/v1", "PyTorchJob"), "Never", FAILS),
    (("argoproj.io/v1alpha1", "Workflow"), "Never", UNKNOWN),
    (("example.org/v1", "Job"), "Never", UNKNOWN),
    (("batch/v1", "CronJob"), "Never", UNKNOWN),
    (("v1", "Job"), "Never", UNKNOWN),
    (("", ""), "Never", UNKNOWN),
]


def lost(**fields: Any) -> pods.Pod:
    """A pod whose payload runs although its proxy is gone."""
    return job({"istio-proxy": exited(0), "main": RUNNING}, **fields)


def reported(pod: pods.Pod, policy: Policy = DELETE) -> quitting.Report:
    decision = decide(pod, policy, None)
    assert isinstance(decision, quitting.Report), decision
    return decision


@pytest.mark.parametrize(("owner", "restart"), REPLACING)
def test_a_pod_that_will_be_replaced_is_deleted_where_the_policy_says_so(
    owner: tuple[str, str], restart: str
) -> None:
    """Its controller is known to make a new one (T30, T39)."""
    decision = reported(lost(owner=owner, restart=restart))
    assert decision.delete
    assert "not deleted" not in decision.reason


@pytest.mark.parametrize(("owner", "restart", "why"), KEPT)
def test_a_pod_that_may_not_be_replaced_is_only_reported(
    owner: tuple[str, str], restart: str, why: str
) -> None:
    """`tests/node/test_training_deletion.py` shows what the training operator does (T30)."""
    decision = reported(lost(owner=owner, restart=restart))
    assert not decision.delete
    version, kind = owner
    assert decision.reason.endswith(f"; not deleted: {why.format(kind, version)}")


def test_a_bare_pod_is_only_reported() -> None:
    """Nobody would make a new one."""
    decision = reported(lost())
    assert not decision.delete
    assert decision.reason.endswith(
        "; not deleted: the pod has no controller that would make a new one"
    )


def test_the_one_owner_that_controls_the_pod_counts() -> None:
    """In whatever place. The API server refuses two controllers; a file may hold them."""
    found = document({"istio-proxy": exited(0), "main": RUNNING}, owner=JOB)
    [ours], other = found["metadata"]["ownerReferences"], {"apiVersion": "v1", "kind": "ConfigMap"}
    for owners, deleted in (([other, ours], True), ([ours, other], True), ([ours, ours], False)):
        found["metadata"]["ownerReferences"] = owners
        assert reported(pods.convert(found)).delete is deleted


def test_by_default_nothing_is_deleted() -> None:
    """Then the reason does not speak of deleting either."""
    decision = reported(lost(owner=JOB), Policy())
    assert not decision.delete
    assert "deleted" not in decision.reason


@pytest.mark.parametrize("state", [MISSING, EMPTY], ids=["missing", "empty"])
def test_a_pod_is_not_deleted_for_a_payload_of_unknown_state(state: State) -> None:
    """Unknown is reason enough to report, and none to destroy."""
    decision = reported(job({"istio-proxy": exited(0), "main": state}, owner=JOB))
    assert not decision.delete
    assert decision.reason.endswith("; not deleted: the state of its payload is not known")


def test_one_payload_that_is_known_to_run_is_enough_to_delete() -> None:
    """The other one may be missing from the report."""
    pod = job({"istio-proxy": exited(0), "main": RUNNING, "wait": MISSING}, owner=JOB)
    assert reported(pod).delete


def test_a_pod_is_not_deleted_while_an_annotation_is_not_understood() -> None:
    """What the author waits for is not known then."""
    decision = reported(lost(owner=JOB, annotations={QUIT_AFTER: "mian"}))
    assert not decision.delete
    assert 'istio-aux.io/quit-after: "mian"' in decision.reason


def test_a_pod_whose_author_opted_out_is_neither_reported_nor_deleted() -> None:
    """Opting out means all of istio-aux."""
    pod = lost(owner=JOB, annotations={QUIT: "false"})
    assert isinstance(decide(pod, DELETE, None), quitting.Ignore)


@pytest.mark.parametrize("obeyed", [True, None, False])
def test_a_pod_whose_payload_may_be_finished_is_not_deleted(obeyed: bool | None) -> None:
    """A kubelet from 1.35 on does not start ``main`` again; which one it is may not be known."""
    pod = job(
        {"istio-proxy": exited(0), "main": exited(1)}, restart="OnFailure",
        owner=("kubeflow.org/v1", "PyTorchJob"), details={"main": {"restartPolicy": "Never"}}
    )  # fmt: skip
    decision = decide(pod, DELETE, None, obeyed=obeyed)
    assert isinstance(decision, quitting.Ignore) is (obeyed is True)
    if isinstance(decision, quitting.Report):
        assert decision.delete is (obeyed is False)
