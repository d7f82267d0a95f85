"""Read and change Jobs that can be suspended, and find those with our mark.

Only the requests and the reading of their answers may live here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from istio_aux.core import ownership, suspension
from istio_aux.core.pod import Pod
from istio_aux.core.suspension import Job, Release, Resume, Suspend
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import ApiError
from istio_aux.kube.lists import Lister
from istio_aux.kube.reader import Reader
from istio_aux.kube.resources import key_of

_GROUP = f"/apis/{ownership.TRAINING}"


class Key(NamedTuple):
    """Which Job, for good."""

    namespace: str
    kind: str
    name: str
    uid: str

    @property
    def path(self) -> str:
        """Where the API server has it; all plurals are formed like that (1.9 manifests/base)."""
        api = suspension.KINDS[self.kind].api_version
        return actions.object_path(api, f"{self.kind.lower()}s", self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class _Resource(msgspec.Struct, frozen=True):
    name: str
    kind: str


class _Resources(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] | None = None


_job = Reader(Job, "training job")
_resources = Reader(_Resources, "list of resources")


class TrainingJobs:
    """All verbs raise `KubeError`."""

    def __init__(self, client: Client) -> None:
        """Ask ``client``, which is open."""
        self._client = client

    async def read(self, key: Key) -> Job | None:
        """The Job; None when it is gone or its name is another's."""
        job = await actions.read(self._client, key.path, _job)
        return job if job and job.metadata.uid == key.uid else None

    async def pods(self, key: Key, job: Job) -> list[Pod]:
        """The Job's own pods, in any phase, deleted or not."""
        path = actions.collection("v1", "pods", key.namespace)
        label = suspension.KINDS[key.kind].job_name
        selector = {"labelSelector": f"{label}={actions.object_name(key.name)}"}
        # One that cannot be read may be one of the Job's that is still there.
        return suspension.own(job, await actions.list_all(self._client, path, Pod, selector))

    async def protected(self, pods: Iterable[Pod]) -> str | None:
        """Say why one of the pods may not be disrupted now, or None if each of them may be.

        The operator deletes them, whatever a PodDisruptionBudget says, so the API server is asked
        before by dry runs of their evictions. How many may go at a time they do not tell.
        """
        for pod in pods:
            version = pod.metadata.resource_version
            try:
                await actions.evict(self._client, key_of(pod), version, dry_run=True)
            except ApiError as error:
                if error.code != 404:
                    return f"{pod.metadata.name}: {error}"
        return None

    async def change(self, key: Key, job: Job, action: Suspend | Resume | Release) -> None:
        """Suspend, resume or release the Job, only as it was read."""
        body = msgspec.json.encode(suspension.patch(suspension.KINDS[key.kind], job, action))
        await self._client.patch(key.path, body, actions.STRICT)

    async def marked(self) -> AsyncGenerator[Key]:
        """Yield all Jobs with our mark, of each kind that is served."""
        for resource in (*await self._served(), _Resource("jobs", "Job")):
            kind = suspension.KINDS.get(resource.kind)
            # A subresource has a slash in its name.
            if kind is None or "/" in resource.name:
                continue
            lister = Lister(self._client, actions.collection(kind.api_version, resource.name), Job)
            async with aclosing(lister.pages({"labelSelector": suspension.MARK})) as pages:
                async for page in pages:
                    for found in page.unreadable:  # Whoever looks after it tells of it.
                        yield Key(found.key.namespace, resource.kind, found.key.name, found.key.uid)
                    for job in page.items:
                        if job.marked:
                            meta = job.metadata
                            yield Key(meta.namespace, resource.kind, meta.name, meta.uid)

    async def _served(self) -> tuple[_Resource, ...]:
        found = await actions.read(self._client, _GROUP, _resources)
        return (found and found.resources) or ()  # None: there is no training operator.
