"""Jobs that the workload has suspended until their pods are gone, as the charm sees them.

As long as there is one, the workload keeps the right to resume it. When the last unit goes, the
charm resumes with its own account what is left.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx2
from lightkube import ApiError, Client, operators
from lightkube.generic_resource import create_namespaced_resource  # pyright: ignore[reportUnknownVariableType]
from lightkube.types import PatchType

import cluster
import jobrules
from cluster import Problem
from inputs import Inputs

# Of pods, anything but their metadata would be checked against a schema.
_POD: Final = create_namespaced_resource("", "v1", "Pod", "pods")

_REFUSED: Final = frozenset({401, 403})
# How often a Job is read and patched again that somebody else changes at the same time.
_ATTEMPTS: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kind:
    """A kind of Job: its resource, the label of its pods, and where `suspend` is in its spec."""

    resource: type[Any]
    name: str
    pods: str
    policy: tuple[str, ...]

    def patch(self) -> dict[str, Any]:
        """Return the spec that resumes a Job, to be merged."""
        spec: dict[str, Any] = {"suspend": False}
        for field in reversed(self.policy):
            spec = {field: spec}
        return spec

    @property
    def path(self) -> str:
        return ".".join(("spec", *self.policy, "suspend"))


_KINDS: Final = (
    _Kind(
        create_namespaced_resource("batch", "v1", "Job", "jobs"),
        "Job",
        "batch.kubernetes.io/job-name",
        (),
    ),
    *(
        _Kind(
            create_namespaced_resource("kubeflow.org", "v1", kind, f"{kind.lower()}s"),
            kind,
            "training.kubeflow.org/job-name",
            ("runPolicy",),
        )
        for kind in jobrules.TRAINING_KINDS
    ),
)


@dataclass(frozen=True)
class Patience:
    """Bounds in seconds.

    Attributes:
        settle: between the end of a Job's last pod and its resumption, for its controller to learn
            of both in this order.
        longest: after which a Job is resumed although there still are pods of it.
        pause: between two looks.
    """

    settle: float = 2.0
    longest: float = 30.0
    pause: float = 1.0


@dataclass(frozen=True)
class _Job:
    """A Job with our mark."""

    kind: _Kind
    namespace: str
    name: str
    uid: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


def resolve(client: Client, inputs: Inputs) -> Inputs | Problem:
    """Return the leader's `inputs` with whether a Job is suspended that nobody may resume else."""
    if not inputs.leader or inputs.config is None or inputs.config.restart_jobs:
        return inputs
    left = cluster.attempt("suspended Jobs", lambda: any(_marked(client)))
    if isinstance(left, Problem):
        return left
    return dataclasses.replace(inputs, jobs_suspended=left)


def resume(client: Client, patience: Patience) -> None:
    """Resume every Job that the workload has suspended, each once its pods are gone.

    A Job that the API server refuses to change is named in the log and left as it is.

    Raises:
        httpx2.HTTPError: the API server fails, or does not answer; Juju tries the hook again.
    """
    begun = time.monotonic()
    gone: dict[str, float] = {}
    attempts: dict[str, int] = {}
    while jobs := [job for job in _marked(client) if attempts.get(job.uid, 0) < _ATTEMPTS]:
        for job in jobs:
            left, now = _pods(client, job), time.monotonic()
            if left:
                gone.pop(job.uid, None)
            late = now - begun >= patience.longest
            if late or (not left and now - gone.setdefault(job.uid, now) >= patience.settle):
                done = _resume(client, job, left)
                attempts[job.uid] = attempts.get(job.uid, 0) + (1 if done else _ATTEMPTS)
        # A hook has no loop: the last unit goes when this returns (`Patience.longest`).
        time.sleep(patience.pause)


def _marked(client: Client) -> Iterator[_Job]:
    """Yield the Jobs with our mark, of each kind that is served and may be listed."""
    labels: dict[str, Any] = {jobrules.SUSPENDED: operators.exists()}
    for kind in _KINDS:
        try:
            for metadata in _listed(client, kind.resource, "*", labels):
                yield _Job(
                    kind,
                    metadata["namespace"],
                    metadata["name"],
                    metadata["uid"],
                    metadata["resourceVersion"],
                )
        except httpx2.HTTPStatusError as error:
            # What is not served is no ApiError, for its answer is not the API server's own.
            code = error.response.status_code
            if code in _REFUSED:
                logger.warning("%s: suspended ones not listed: %s", kind.name, error)
            elif code != 404:
                raise
        except RecursionError:
            # An author may have the API server store a document thousands of levels deep.
            logger.warning("%s: suspended ones not listed: nested too deeply", kind.name)


def _pods(client: Client, job: _Job) -> list[str]:
    """Return the names of the pods that the Job controls."""
    labels: dict[str, Any] = {job.kind.pods: job.name}
    try:
        found = _listed(client, _POD, job.namespace, labels)
    except RecursionError:
        return ["pods that are nested too deeply"]
    return [
        pod["name"]
        for pod in found
        if any(owner["uid"] == job.uid for owner in pod.get("ownerReferences") or ())
    ]


def _resume(client: Client, job: _Job, left: list[str]) -> bool:
    """Resume the Job, only as it was read; return False if the API server refuses it."""
    nothing = {jobrules.SUSPENDED: None}
    metadata = {"uid": job.uid, "resourceVersion": job.version}
    patch = {
        "metadata": {**metadata, "labels": nothing, "annotations": nothing},
        "spec": job.kind.patch(),
    }
    try:
        client.patch(  # pyright: ignore[reportUnknownMemberType]  as in `_listed`
            job.kind.resource, job.name, patch, namespace=job.namespace, patch_type=PatchType.MERGE
        )
    except ApiError as error:
        code = error.response.status_code
        if code in {404, 409}:
            return True  # It is gone, or not as it was read: the next look finds out.
        logger.error("%s: stays suspended: %s; set %s to false yourself", job, error, job.kind.path)
        if code >= 500:
            raise
        return False
    if left:
        # A training job may fail with a pod that is on its way out when it is resumed.
        logger.warning("%s: resumed although %d of its pods are still there", job, len(left))
    else:
        logger.info("%s: resumed", job)
    return True


def _listed(
    client: Client, kind: type[Any], namespace: str, labels: dict[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the metadata of all objects of `kind` with `labels`, `*` being every namespace.

    Here lightkube's untyped maps end, as in `found`.
    """
    objects = client.list(kind, namespace=namespace, labels=labels)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [each.to_dict()["metadata"] for each in objects]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
