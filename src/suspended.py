"""Jobs that the workload has suspended until their pods are gone.

While there is one, the workload keeps the right to resume it. When the last unit is removed, the
charm resumes the rest with its own account.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import httpx2
from istio_aux.model.names import SUSPENDED, SUSPENDED_FOR
from istio_aux.model.owners import KINDS, JobApi, resource
from lightkube import ApiError, Client, operators
from lightkube.generic_resource import create_namespaced_resource  # pyright: ignore[reportUnknownVariableType]
from lightkube.types import PatchType

# A generic resource: lightkube checks the fields of its own Pod, and only metadata is needed.
_POD: Final = create_namespaced_resource("", "v1", "Pod", "pods")

_REFUSED: Final = frozenset({401, 403})
# How often a Job that changes at the same time is read and patched again.
_ATTEMPTS: Final = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kind:
    """A kind of Job that can be suspended, and how lightkube reads and changes it."""

    name: str
    api: JobApi
    resource: type[Any]

    def patch(self) -> dict[str, Any]:
        """Return the merge patch of the spec that resumes a Job."""
        suspend = {"suspend": False}
        return {self.api.policy: suspend} if self.api.policy else suspend

    @property
    def path(self) -> str:
        return ".".join(filter(None, ("spec", self.api.policy, "suspend")))


def _kind(name: str, api: JobApi) -> _Kind:
    group, _, version = api.version.partition("/")
    return _Kind(name, api, create_namespaced_resource(group, version, name, resource(name)))


_KINDS: Final = tuple(_kind(name, api) for name, api in KINDS.items())
# Pods that are finished stay while a Job is suspended; the training operator deletes them, too.
_UNFINISHED: Final = {"status.phase": operators.not_in(("Succeeded", "Failed"))}


@dataclass(frozen=True)
class Patience:
    """Bounds in seconds."""

    # From the end of a Job's last pod to its resumption: the Job's controller learns of both in
    # this order.
    settle: float = 2.0
    # A Job is resumed then even if it has pods left, counted from the end of their grace periods.
    longest: float = 30.0
    # How much of a grace period is waited for, as by the workload: its author chooses it.
    grace: float = 3600.0
    pause: float = 1.0  # Between two rounds.
    # Until API servers know that a webhook is gone. Measured: 0.33 s at most, on 2 busy cores.
    webhook_gone: float = 1.0


@dataclass(frozen=True)
class _Job:
    """A Job that has the label `SUSPENDED`."""

    kind: _Kind
    namespace: str
    name: str
    uid: str
    version: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


@dataclass(frozen=True)
class _Pod:
    """A pod of such a Job."""

    uid: str
    grace: int | None = None  # Seconds that it has to end once it is being deleted.


def any_left(client: Client) -> bool:
    """Tell whether a Job is suspended that the workload has to resume."""
    return any(_marked(client))


def resume(
    client: Client, patience: Patience, tell: Callable[[list[str]], None] = lambda _jobs: None
) -> None:
    """Resume every Job that the workload has suspended, each when its pods are gone.

    Pods have until the end of their grace periods, and a little more. `tell` gets the Jobs whose
    pods are waited for, whenever they change. A Job that the API server refuses to change, or that
    has changed at each of some attempts, stays suspended, and the log names it.

    Raises:
        httpx2.HTTPError: the API server fails or does not answer; Juju retries the hook.
    """
    begun = time.monotonic()
    gone: dict[str, float] = {}
    attempts: dict[str, int] = {}
    ends: dict[str, float] = {}  # Of grace periods, by the UID of the pod.
    told: list[str] = []
    while jobs := [job for job in _marked(client) if attempts.get(job.uid, 0) < _ATTEMPTS]:
        waits: list[str] = []
        for job in jobs:
            left, now = _pods(client, job), time.monotonic()
            if left:
                gone.pop(job.uid, None)
            # By this clock: a deletionTimestamp is by the API server's.
            for pod in left:
                if pod.grace is not None:
                    ends.setdefault(pod.uid, now + pod.grace)
            end = max((ends[pod.uid] for pod in left if pod.uid in ends), default=begun)
            late = now >= min(end, begun + patience.grace) + patience.longest
            if late or (not left and now - gone.setdefault(job.uid, now) >= patience.settle):
                done = _resume(client, job, left)
                attempts[job.uid] = attempts.get(job.uid, 0) + (1 if done else _ATTEMPTS)
            elif left:
                waits.append(str(job))
        if waits and waits != told:
            tell(waits)
            told = waits
        # The hook has to wait here: the last unit is removed when it returns.
        time.sleep(patience.pause)


def _marked(client: Client) -> Iterator[_Job]:
    """Yield the Jobs with the label, of each kind that is served and may be listed.

    Anybody may set the label; with another value it is not the workload's.
    """
    labels: dict[str, Any] = {SUSPENDED: SUSPENDED_FOR}
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
            # For a kind that is not served this is no ApiError: the answer is not a Status.
            code = error.response.status_code
            if code in _REFUSED:
                logger.warning("%s: suspended Jobs not listed: %s", kind.name, error)
            elif code != 404:
                raise
        except RecursionError:
            # The API server stores documents that are thousands of levels deep.
            logger.warning("%s: suspended Jobs not listed: nested too deeply", kind.name)


def _pods(client: Client, job: _Job) -> list[_Pod]:
    """Return the pods that the Job made and deletes."""
    labels: dict[str, Any] = {job.kind.api.job_name: job.name}
    fields = _UNFINISHED if job.kind.api.keeps_finished else {}
    try:
        listing = _listed(client, _POD, job.namespace, labels, fields)
    except RecursionError:
        return [_Pod("nested too deeply")]
    return [
        _Pod(pod["uid"], pod.get("deletionGracePeriodSeconds"))
        for pod in listing
        if job.kind.api.makes_jobs
        or any(owner["uid"] == job.uid for owner in pod.get("ownerReferences") or ())
    ]


def _resume(client: Client, job: _Job, left: list[_Pod]) -> bool:
    """Resume the Job if it has not changed; return False if the API server refuses it."""
    nothing = {SUSPENDED: None}
    metadata = {"uid": job.uid, "resourceVersion": job.version}
    patch = {
        "metadata": {**metadata, "labels": nothing, "annotations": nothing},
        "spec": job.kind.patch(),
    }
    try:
        client.patch(  # pyright: ignore[reportUnknownMemberType]  lightkube's untyped maps
            job.kind.resource, job.name, patch, namespace=job.namespace, patch_type=PatchType.MERGE
        )
    except ApiError as error:
        code = error.response.status_code
        if code in {404, 409}:  # It is gone or has changed; the next round finds out.
            logger.warning("%s: not resumed: %s", job, error)
            return True
        logger.error("%s: stays suspended: %s: set %s to false", job, error, job.kind.path)
        if code >= 500:
            raise
        return False
    if left:
        # A training job may fail if it is resumed while one of its pods terminates.
        logger.warning("%s: resumed although %d of its pods still exist", job, len(left))
    else:
        logger.info("%s: resumed", job)
    return True


def _listed(
    client: Client,
    kind: type[Any],
    namespace: str,
    labels: dict[str, Any],
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> list[Mapping[str, Any]]:
    """Return the metadata of objects with `labels`; the namespace `*` stands for all."""
    objects = client.list(kind, namespace=namespace, labels=labels, fields=dict(fields))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [each.to_dict()["metadata"] for each in objects]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
