"""Kinds of workloads, and where in a manifest of each the templates of its pods are."""

from __future__ import annotations

from collections.abc import Mapping

from istio_aux.model.owners import TRAINING_KINDS

_REPLICAS = {"PyTorchJob": "pytorch", "XGBoostJob": "xgb"}  # Beginnings of ``…ReplicaSpecs``.

_JOB = ("spec", "template")
_JOBS = ("spec", "replicatedJobs", "*", "template", *_JOB)
_STEPS = ("templates", "*")

WORKLOADS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("", "ReplicationController"): _JOB,
    **{("apps", f"{kind}Set"): _JOB for kind in ("Daemon", "Replica", "Stateful")},
    ("apps", "Deployment"): _JOB,
    ("batch", "Job"): _JOB,
    ("batch", "CronJob"): ("spec", "jobTemplate", *_JOB),
    **{
        ("kubeflow.org", kind): (
            "spec",
            f"{_REPLICAS.get(kind, kind.removesuffix('Job').lower())}ReplicaSpecs",
            "*",
            "template",
        )
        for kind in TRAINING_KINDS
    },
    ("jobset.x-k8s.io", "JobSet"): _JOBS,
    ("trainer.kubeflow.org", "TrainJob"): (),
    ("trainer.kubeflow.org", "TrainingRuntime"): ("spec", "template", *_JOBS),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): ("spec", "template", *_JOBS),
    ("argoproj.io", "Workflow"): ("spec", *_STEPS),
    ("argoproj.io", "WorkflowTemplate"): ("spec", *_STEPS),
    ("argoproj.io", "ClusterWorkflowTemplate"): ("spec", *_STEPS),
    ("argoproj.io", "CronWorkflow"): ("spec", "workflowSpec", *_STEPS),
}
"""Where the pod templates of a kind are, by API group and kind; ``*`` stands for all items of a
list, or all values of a map. A Pod is its own template, and a TrainJob has none: its runtime has.
"""
