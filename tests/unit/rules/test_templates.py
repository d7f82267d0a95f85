"""The pods that manifests of workloads ask for."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from istio_aux.model import templates
from istio_aux.model.annotations import INJECT, QUIT
from istio_aux.model.owners import KINDS, TRAINING_KINDS, JobCounts
from istio_aux.model.templates import WORKLOADS

POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}
JOBS = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": POD}}}]}
ONE = {"template": POD}
FIELDS = {
    "TFJob": "tf", "PyTorchJob": "pytorch", "XGBoostJob": "xgb", "MPIJob": "mpi",
    "PaddleJob": "paddle", "JAXJob": "jax",
}  # fmt: skip


def manifest(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "team"}, "spec": deepcopy(spec)}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "name", "restarts"),
    [
        *[("apps", kind, ONE, "x-*", None) for kind in
          ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")],
        ("", "ReplicationController", ONE, "x-*", None),
        ("batch", "Job", ONE, "x-*", None),
        ("batch", "CronJob", {"jobTemplate": {"spec": ONE}}, "x-*", None),
        *[("kubeflow.org", kind, {f"{field}ReplicaSpecs": {"Worker": ONE}}, "x-worker-*", "Never")
          for kind, field in FIELDS.items()],
        ("jobset.x-k8s.io", "JobSet", JOBS, "x-node-*", "OnFailure"),
        ("trainer.kubeflow.org", "TrainingRuntime", {"template": {"spec": JOBS}}, "x-node-*",
         "OnFailure"),
    ],
)  # fmt: skip
def test_the_pod_of_each_kind_is_found(
    group: str, kind: str, spec: dict[str, Any], name: str, restarts: str | None
) -> None:
    """The template is the manifest's own, so that a change of it changes the manifest."""
    given = manifest(**spec)
    ((pod, template, only_metadata, *_),) = templates.read(given, group, kind)
    assert pod["metadata"] == {"labels": {"a": "b"}, "name": name, "namespace": "team"}
    assert (pod["spec"].get("restartPolicy"), only_metadata) == (restarts, False)
    template["spec"]["containers"][0]["name"] = "changed"
    assert "changed" in str(given)


def test_each_kind_of_job_is_known() -> None:
    assert {kind for _, kind in WORKLOADS} >= {*KINDS, *TRAINING_KINDS}


@pytest.mark.parametrize(
    ("policy", "restarts"),
    [("ExitCode", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure")],
)
def test_the_policy_of_a_replica_counts(policy: str, restarts: str) -> None:
    """training-operator 1.9 setRestartPolicy: whatever the template says."""
    template = {"spec": {"restartPolicy": "Always"}}
    given = manifest(tfReplicaSpecs={"PS": {"restartPolicy": policy, "template": template}})
    ((pod, *_),) = templates.read(given, "kubeflow.org", "TFJob")
    assert pod["spec"]["restartPolicy"] == restarts
    assert template["spec"] == {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [("Workflow", lambda it: it), ("CronWorkflow", lambda it: {"workflowSpec": it})],
)
def test_a_step_of_argo_has_the_labels_and_annotations_of_its_workflow(
    kind: str, wrap: Any
) -> None:
    """A DAG is no pod."""
    steps = [
        {"name": "main", "dag": {}},
        {"name": "a", "container": {"image": "x"}, "sidecars": [{"name": "side"}],
         "metadata": {"annotations": {"own": "2"}}},
        {"name": "b", "containerSet": {"containers": [{"name": "one"}, {"name": "two"}]}},
    ]  # fmt: skip
    common = {"labels": {"all": "1"}, "annotations": {"own": "1", "other": "3"}}
    given = manifest(**wrap({"podMetadata": common, "templates": steps}))
    first, second = templates.read(given, "argoproj.io", kind)
    assert first.pod["metadata"] == {
        "labels": {"all": "1"},
        "annotations": {"own": "2", "other": "3", "workflows.argoproj.io/node-name": "*"},
        "name": "x-a-*", "namespace": "team",
    }  # fmt: skip
    names = [[each["name"] for each in made.pod["spec"]["containers"]] for made in (first, second)]
    assert names == [["wait", "main", "side"], ["wait", "one", "two"]]
    assert first.pod["spec"]["restartPolicy"] == "Never"
    assert first.only_metadata


@pytest.mark.parametrize(
    ("kind", "spec", "error"),
    [
        ("Job", {}, "spec.template is missing"),
        ("Job", {"template": 7}, "spec.template: expected an object"),
        ("Job", {"template": {"spec": []}}, "spec: expected an object"),
        ("TFJob", {"tfReplicaSpecs": {"Worker": None}}, "spec.tfReplicaSpecs.Worker is missing"),
        ("TFJob", {"tfReplicaSpecs": "x"}, "spec.tfReplicaSpecs: expected an object"),
        ("JobSet", {"replicatedJobs": [{}]}, "spec.replicatedJobs.0.template is missing"),
        ("Workflow", {"templates": [{"container": 7}]}, "container: expected an object"),
    ],
)
def test_what_cannot_be_used_is_named(kind: str, spec: dict[str, Any], error: str) -> None:
    group = next(group for group, each in WORKLOADS if each == kind)
    with pytest.raises(ValueError, match=f"^{error}$"):
        list(templates.read(manifest(**spec), group, kind))


@pytest.mark.parametrize("named", [{}, {"containerName": "main"}], ids=str)
@pytest.mark.parametrize(
    ("group", "kind"), [("batch", "Job"), ("batch", "CronJob"), ("jobset.x-k8s.io", "JobSet")]
)
def test_a_failure_policy_that_names_no_container_counts_native_sidecars(
    group: str, kind: str, named: dict[str, str]
) -> None:
    """cloud-sql-proxy#1803: kubernetes pkg/controller/job matchOnExitCodes."""
    codes = {"operator": "In", "values": [143], **named}
    policy = {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": codes},
        ]
    }
    job = {"spec": {"template": {"spec": {"containers": []}}, "podFailurePolicy": policy}}
    spec = {
        "Job": job["spec"],
        "CronJob": {"jobTemplate": job},
        "JobSet": {"replicatedJobs": [{"name": "node", "template": job}]},
    }[kind]

    [found] = templates.read({"metadata": {"name": "x"}, "spec": spec}, group, kind)

    assert found.job == JobCounts(exits=not named)


WISH = {"annotations": {QUIT: "false"}, "labels": {INJECT: "false", "app": "x"}}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "above", "place"),
    [
        ("apps", "Deployment", ONE, ["the Deployment"], "spec.template"),
        ("batch", "CronJob", {"jobTemplate": {"metadata": WISH, "spec": ONE}},
         ["the CronJob", "spec.jobTemplate"], "spec.jobTemplate.spec.template"),
        ("kubeflow.org", "TFJob", {"tfReplicaSpecs": {"PS": ONE, "Worker": ONE}}, ["the TFJob"],
         "spec.tfReplicaSpecs.*.template"),
        ("trainer.kubeflow.org", "TrainingRuntime", {"template": {"metadata": WISH, "spec": JOBS}},
         ["the TrainingRuntime", "spec.template"],
         "spec.template.spec.replicatedJobs.*.template.spec.template"),
    ],
)  # fmt: skip
def test_a_wish_above_the_template_is_named_with_its_place(
    group: str, kind: str, spec: dict[str, Any], above: list[str], place: str
) -> None:
    """mds-core#180, istio#11854, postgres-operator#3368: no controller copies it to a pod."""
    given = manifest(**spec)
    given["metadata"] |= WISH
    first, *others = templates.read(given, group, kind)

    assert tuple(map(str, first.unread)) == tuple(
        f"IA0203: {key} is on {where}, where nothing reads it: put it on {place}.metadata"
        for where in above
        for key in (QUIT, INJECT)
    )
    assert [each.unread for each in others] == [()] * len(others)


@pytest.mark.parametrize(
    ("given", "group", "kind"),
    [
        ({"metadata": {"name": "x", **WISH}, "spec": {"template": {**POD, "metadata": WISH}}},
         "batch", "Job"),
        ({**POD, "metadata": WISH}, "", "Pod"),
    ],
    ids=["Job", "Pod"],
)  # fmt: skip
def test_a_wish_that_a_template_has_too_is_not_named(
    given: dict[str, Any], group: str, kind: str
) -> None:
    [found] = templates.read(given, group, kind)
    assert found.unread == ()
