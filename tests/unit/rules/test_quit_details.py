"""What a decision says of each container, whose pod it is; and recordings of a real cluster."""

from __future__ import annotations

import json
from itertools import groupby

import pytest
from istio_aux.model import pod as pods
from istio_aux.model.annotations import IGNORE_CONTAINERS
from istio_aux.model.policy import Policy
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import PodFacts
from unit.rules.pods import RECORDS, RUNNING, State, exited, job, recorded
from unit.rules.table import decide


def kind(pod: pods.Pod) -> type[quitting.Action]:
    return type(decide(pod))


def test_every_container_has_a_role() -> None:
    """Roles go by name: the proxy and native sidecars, ignored ones, and the payload (T8)."""
    pod = job(
        {"istio-proxy": RUNNING, "main": exited(0), "dind": RUNNING},
        sidecars={"vault-agent": RUNNING},
        annotations={IGNORE_CONTAINERS: "dind,istio-proxy"},
    )
    verdicts = PodFacts(pod, Policy()).containers
    assert {name: verdict.role for name, verdict in verdicts.items()} == {
        "istio-proxy": "sidecar",
        "main": "payload",
        "dind": "ignored",
        "vault-agent": "sidecar",
    }


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("pod-classic-before-quit.json", quitting.Quit),
        ("pod-classic-after-quit.json", quitting.Ignore),
        ("pod-hold.json", quitting.Quit),
        ("pod-native.json", quitting.Ignore),
    ],
)
def test_a_recorded_pod_is_decided(record: str, expected: type[quitting.Action]) -> None:
    """Real pods of Istio 1.28, with all their fields."""
    assert kind(recorded(record)) is expected


def test_a_recorded_job_gets_exactly_one_stretch_of_quit() -> None:
    """Replayed event by event: wait, quit, and never again once the proxy has ended (T22, T29)."""
    events = (RECORDS / "watch-classic-job.jsonstream").read_text().splitlines()
    decisions = [kind(pods.convert(json.loads(event)["object"])) for event in events]
    assert [action for action, _ in groupby(decisions)] == [
        quitting.Wait,
        quitting.Quit,
        quitting.Ignore,
    ]
    assert decisions.count(quitting.Quit) == 1


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
