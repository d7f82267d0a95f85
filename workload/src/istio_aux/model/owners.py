"""Owners of pods: which controllers there are, and what is read of Jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from istio_aux.model.moment import in_utc, zoned
from istio_aux.model.pod import NOT_SET_UP, Condition, OwnerReference, Resource, Struct
from istio_aux.model.text import one_line

TRAINING_KINDS = ("JAXJob", "MPIJob", "PaddleJob", "PyTorchJob", "TFJob", "XGBoostJob")

# Kinds, by API group, whose pods finish. Their controllers replace a deleted pod, or fail
# (`failure`): kubernetes pkg/controller/job, training-operator pkg/controller.v1/common.
_JOBS = {"batch": ("Job",), "kubeflow.org": TRAINING_KINDS}
# Kinds of kubeflow.org that restart a failed replica, unless its restartPolicy is Never.
_RESTARTING = ("JAXJob", "PaddleJob", "PyTorchJob")
# Kinds, by API group, whose pods do not finish: kubernetes pkg/controller.
_SERVICES = {
    "": ("ReplicationController",),
    "apps": ("DaemonSet", "ReplicaSet", "StatefulSet"),
}

# Labels by which pods of one controller differ (k8s@1.36 pkg/controller/statefulset
# stateful_set_utils.go).
EACH_ITS_OWN = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
    }
)

# The search is linear: `Metadata.controller` has no name longer than `LONGEST_OWNER`.
_SCHEDULED = re.compile(r"(.+)-([0-9]{8,10})")
_YEAR = 366 * 86400  # Seconds.
_ORDINAL = re.compile(r".*-([0-9]+)")  # kubernetes pkg/controller/statefulset: statefulPodRegex.


def cron_job(job: str, created: datetime | None) -> str:
    """The CronJob that made a Job of this name, with a pod ``created`` then; or empty.

    The name of the Job ends in the minutes since 1970 for which it was scheduled (k8s@1.36
    cronjob_controllerv2.go getJobName). Only the Job names its owner, not the pod. A date at the
    end of a name, such as 20261121, would be a minute of 2008.
    """
    match = _SCHEDULED.fullmatch(job)
    if match is None or created is None:
        return ""
    return match[1] if -60 <= created.timestamp() - 60 * int(match[2]) <= _YEAR else ""


def workload(owner: OwnerReference | None, labels: Mapping[str, str]) -> str:
    """Name the controller of a pod with these labels, such as TFJob/mnist; empty if it has none.

    A ReplicaSet of a Deployment is named after the Deployment and the pod's label (k8s@1.36
    deployment/sync.go getNewReplicaSet).
    """
    suffix = f"-{labels.get('pod-template-hash')}"
    if owner and owner.kind == "ReplicaSet" and owner.name.endswith(suffix):
        return f"Deployment/{owner.name.removesuffix(suffix)}"
    return str(owner or "")


def group(owner: OwnerReference) -> str:
    """The API group of the owner; empty for the core group."""
    return owner.api_version.rpartition("/")[0]


def is_job(owner: OwnerReference) -> bool:
    """Whether a controller is of a kind that is known to make pods that finish."""
    return owner.kind in _JOBS.get(group(owner), ())


def again(kind: str) -> str:
    """How a Job of this kind gets new pods."""
    return f"delete the {kind} and apply it again, as `kubectl replace --force -f` does"


def obstacle(owner: OwnerReference | None) -> str:
    """Why the controller of a deleted pod is not known to make a new one; empty if it does."""
    if owner is None:
        return "the pod has no controller that would make a new one"
    if owner.kind in {**_JOBS, **_SERVICES}.get(group(owner), ()):
        return ""
    return f"its controller {owner.kind} ({owner.api_version}) is not known to make a new pod"


def ordinal(owner: OwnerReference | None, name: str) -> int:
    """The number of a StatefulSet's pod of this name; -1 for the pod of another ``owner``."""
    is_set = owner is not None and (group(owner), owner.kind) == ("apps", "StatefulSet")
    number = _ORDINAL.fullmatch(name) if is_set else None
    return int(number[1]) if number else -1


def failure(owner: OwnerReference, restart_policy: str) -> str:
    """Why a controller would fail if a pod with this ``restartPolicy`` is deleted; or empty.

    The training operator counts a running pod with a deletionTimestamp as a failed replica (1.9
    pkg/core/status.go). The consequence depends on the kind and its restartPolicy (UpdateJobStatus
    of each). A pod does not show whether that is ``ExitCode`` or ``Never``.
    """
    restarts = owner.kind in _RESTARTING and restart_policy != "Never"
    if restarts or group(owner) != "kubeflow.org":
        return ""
    return f"the {owner.kind} would fail: its operator counts a pod that is deleted as failed"


class JobApi(msgspec.Struct, frozen=True):
    """An API of Jobs."""

    version: str
    manager: str  # ``managedBy`` of Jobs that the API's own controller manages.


BATCH = JobApi("batch/v1", "kubernetes.io/job-controller")
# 1.9 common_types.go. mpi-operator's API is kubeflow.org/v2beta1.
_TRAINING = JobApi("kubeflow.org/v1", "kubeflow.org/training-operator")
# All kinds of Job whose API is known.
KINDS: Mapping[str, JobApi] = {
    "Job": BATCH,
    **dict.fromkeys(sorted(TRAINING_KINDS), _TRAINING),
    "JobSet": JobApi("jobset.x-k8s.io/v1alpha2", "jobset.sigs.k8s.io/jobset-controller"),
    "TrainJob": JobApi("trainer.kubeflow.org/v1alpha1", "trainer.kubeflow.org/trainjob-controller"),
}


def api_of(owner: OwnerReference | None) -> JobApi | None:
    """The API of a Job, if it is known."""
    api = KINDS.get(owner.kind) if owner else None
    return api if owner and api and api.version == owner.api_version else None


class FailureRule(Struct, frozen=True):
    """One of ``podFailurePolicy.rules``."""

    on_exit_codes: dict[str, object] | None = None


class PodFailurePolicy(Struct, frozen=True):
    """``spec.podFailurePolicy``."""

    rules: tuple[FailureRule, ...] | None = None


class JobCounts(NamedTuple):
    """What a Job of Kubernetes' own counts as a failure beside native sidecars."""

    exits: bool = False  # Whether their exit codes count.
    restarts: bool = False  # Whether one restart in each pod at once fails the Job.

    @classmethod
    def of(cls, spec: JobSpec) -> JobCounts:
        """Read a spec (k8s@1.36 job_controller.go pastBackoffLimitOnFailure, matchOnExitCodes).

        A rule for istio-validation's exit code alone is about no sidecar: see `ending`.
        """
        policy = spec.pod_failure_policy
        exits = any(
            (codes.get("operator"), codes.get("values")) != ("In", [NOT_SET_UP])
            for rule in (policy and policy.rules) or ()
            if (codes := rule.on_exit_codes) is not None and not codes.get("containerName")
        )
        least = [1 if each is None else each for each in (spec.parallelism, spec.completions)]
        at_once = least[0] if spec.completions is None else min(least)
        return cls(
            exits,
            restarts=(6 if spec.backoff_limit is None else spec.backoff_limit) <= at_once,
        )


class RunPolicy(Struct, frozen=True):
    """``spec.runPolicy`` of the training operator's kinds."""

    suspend: bool | None = None
    managed_by: str | None = None


class JobSpec(RunPolicy, frozen=True):
    """``spec``; only the training operator's kinds have `RunPolicy` in a field of its own."""

    run_policy: RunPolicy | None = None
    backoff_limit: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None


class JobStatus(Struct, frozen=True):
    """``status``."""

    conditions: tuple[Condition, ...] | None = None


class Job(Resource, frozen=True):
    """A Job of any kind, reduced to the fields that are read."""

    spec: JobSpec = JobSpec()
    status: JobStatus | None = None

    @property
    def run_policy(self) -> RunPolicy:
        """The part of the spec with ``suspend`` and ``managedBy``."""
        return self.spec.run_policy or self.spec


# Conditions of a Job that makes no pods; the first true one counts.
_NO_PODS = ("Failed", "FailureTarget", "Complete", "Completed", "Succeeded", "Suspended")


def podless(job: Job, api: JobApi | None) -> str:
    """Why a Job has no pods, or makes no more; empty if it does not say."""
    said = list[str]()
    conditions = {
        it.type: it for it in (job.status and job.status.conditions) or () if it.status == "True"
    }
    if found := next((conditions[name] for name in _NO_PODS if name in conditions), None):
        at = zoned(found.last_transition_time)
        when = f" since {in_utc(at):%Y-%m-%d %H:%M}Z" if at else ""
        said.append(
            one_line(
                ": ".join(filter(None, (f"it is {found.type}{when}", found.reason, found.message))),
                longest=300,
            )
        )
    elif job.run_policy.suspend:
        said.append("it is suspended")
    manager = job.run_policy.managed_by
    if manager and api and manager != api.manager:
        said.append(f"{one_line(manager)} manages it (managedBy), perhaps in another cluster")
    return "; ".join(said)
