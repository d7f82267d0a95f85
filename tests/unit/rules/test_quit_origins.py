"""Pods of every origin and with every kind of end: the same judgement for all."""

from __future__ import annotations

import pytest
from istio_aux.quit import rules as quitting
from unit.rules.pods import RUNNING, State, exited, job
from unit.rules.table import decide

DONE: dict[str, State] = {"main": exited(0), "istio-proxy": RUNNING}
OWNERS = [
    ("batch/v1", "Job"),
    ("kubeflow.org/v1", "TFJob"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v1", "PaddleJob"),
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"),
    ("argoproj.io/v1alpha1", "Workflow"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("apps/v1", "ReplicaSet"),
    ("example.org/v1", "Unheard"),
    None,
]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: owner[1] if owner else "none")
@pytest.mark.parametrize(
    ("state", "expected"), [(exited(0), quitting.Quit), (RUNNING, quitting.Wait)]
)
def test_who_owns_a_pod_never_matters(
    owner: tuple[str, str] | None, state: State, expected: type[quitting.Action]
) -> None:
    """T7: the pod of a Job, of any other kind and of nobody are judged alike."""
    pod = job({"main": state, "istio-proxy": RUNNING}, owner=owner)
    assert type(decide(pod)) is expected


def test_a_pod_is_judged_by_itself_not_by_its_source() -> None:
    """T29: nothing that a template leaves behind is asked, only containers and their states."""
    plain = decide(job(DONE))
    marked = decide(
        job(
            DONE,
            labels={"sidecar.istio.io/inject": "false", "app": "web"},
            annotations={
                "sidecar.istio.io/inject": "false",
                "sidecar.istio.io/status": '{"containers":[]}',
                "kubectl.kubernetes.io/default-container": "istio-proxy",
            },
            owner=("tekton.dev/v1", "TaskRun"),
        )
    )
    assert isinstance(plain, quitting.Quit)
    assert marked == plain


def test_envoy_that_ran_out_of_memory_is_reported_while_the_payload_runs() -> None:
    """T39: under OnFailure it comes back by itself, under Never it does not."""
    gone: dict[str, State] = {"main": RUNNING, "istio-proxy": exited(137, "OOMKilled")}
    assert isinstance(decide(job(gone)), quitting.Report)
    assert isinstance(decide(job(gone, restart="OnFailure")), quitting.Wait)
