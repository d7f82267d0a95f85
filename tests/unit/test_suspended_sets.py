"""A pod of a JobSet or a TrainJob: the one at the top is suspended, and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import MARK
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer
from unit.asynchronous import until
from unit.leading import Led
from unit.rules.pods import RUNNING
from unit.rules.unmeshed import raw
from unit.store import merged
from unit.training import FAST, suspend

APIS = {
    "jobs": ("batch/v1", "Job"),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    "trainjobs": ("trainer.kubeflow.org/v1alpha1", "TrainJob"),
}
KIND = {kind: plural for plural, (_, kind) in APIS.items()}
NAMES = {"Job": "train-node-0", "JobSet": "train", "TrainJob": "train"}
FAILS = {"podFailurePolicy": {"rules": [{"action": "FailJob"}]}}


class Trainer(ApiServer):
    """TrainJob, JobSet and Job, and their controllers, which pass a suspension on and see to pods.

    Attributes:
        kinds: of the objects that there are, a pod's controller first.
        made: how often the pod was made.
    """

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.kinds, self.made = kinds, 0

    async def fill(self) -> None:
        """Make the objects."""
        for kind, above in zip(self.kinds, (*self.kinds[1:], None), strict=True):
            body = {
                "metadata": {
                    "name": NAMES[kind], "namespace": "training", "uid": f"uid-of-{kind}",
                    "ownerReferences": [self._owner(above)] if above else [], "labels": {},
                },
                "spec": {"suspend": False}, "status": {},
            }  # fmt: skip
            await self.put(KIND[kind], body)
        await self.operate()

    def _owner(self, kind: str) -> dict[str, Any]:
        api, _ = APIS[KIND[kind]]
        uid = f"uid-of-{kind}"
        return {
            "apiVersion": api, "kind": kind, "name": NAMES[kind], "uid": uid, "controller": True,
        }  # fmt: skip

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["apis", group, version]:
                plurals = {k: p for p, (api, k) in APIS.items() if api == f"{group}/{version}"}
                resources = [{"kind": kind, "name": plural} for kind, plural in plurals.items()]
                return web.json_response({"resources": resources})
        return await super()._route(request)

    async def patch(
        self, request: web.Request, resource: str, found: dict[str, Any]
    ) -> web.StreamResponse:
        answer = await super().patch(request, resource, found)
        await self.operate()
        return answer

    def object(self, kind: str) -> dict[str, Any]:
        found = self.get(KIND[kind], "training", NAMES[kind])
        assert found is not None
        return found

    async def operate(self) -> None:
        """All controllers see the object at the top."""
        top = self.object(self.kinds[-1])
        if top["spec"].get("suspend"):
            status = {"conditions": [{"type": "Suspended", "status": "True"}]}
            await self.put(KIND[self.kinds[-1]], {**top, "status": status})
            if self.get("pods", "training", "worker"):
                await self.remove("pods", "training", "worker")
        elif not self.get("pods", "training", "worker"):
            self.made += 1
            owner = APIS[KIND[self.kinds[0]]]
            labels = {
                "batch.kubernetes.io/job-name": NAMES["Job"],
                "jobset.sigs.k8s.io/jobset-name": NAMES["JobSet"],
            }
            pod = raw(
                {"main": RUNNING}, name="worker", namespace="training", uid=f"pod-{self.made}",
                owner=owner, owner_uid=f"uid-of-{self.kinds[0]}", labels=labels, restart="Never",
            )  # fmt: skip
            pod["metadata"]["ownerReferences"] = [self._owner(self.kinds[0])]
            await self.put("pods", pod)

    async def finished_pod(self) -> None:
        """A pod of another Job of the set, which has succeeded."""
        pod = raw({"main": RUNNING}, name="first", namespace="training", uid="first")
        pod["metadata"]["labels"] = {"jobset.sigs.k8s.io/jobset-name": NAMES["JobSet"]}
        pod["status"]["phase"] = "Succeeded"
        await self.put("pods", pod)


@asynccontextmanager
async def filled(api: Trainer) -> AsyncGenerator[tuple[Trainer, SuspendedJobs]]:
    """These objects, and a process that leads, and may suspend Jobs."""
    async with api, Client(api.access()) as client:
        recorder = RepairRecorder(Telemetry(), Events(client, "host"))
        jobs = SuspendedJobs(
            client, Telemetry(), recorder, allowed=True, leadership=Led(), limits=FAST
        )
        jobs.lead(True)
        await api.fill()
        try:
            yield api, jobs
        finally:
            await jobs.stop(0)


@pytest.mark.parametrize(
    "kinds", [("Job", "JobSet"), ("Job", "JobSet", "TrainJob")], ids=lambda kinds: kinds[-1]
)
async def test_the_one_at_the_top_is_suspended_and_resumed(kinds: tuple[str, ...]) -> None:
    """Its controller resumes what is below it: nothing else is written to."""
    async with filled(Trainer(*kinds)) as (api, jobs):
        await api.finished_pod()
        assert await suspend(api, jobs, "worker") == ""
        [shown] = jobs.status()
        assert (shown.kind, shown.name) == (kinds[-1], "train")
        await until(lambda: api.made == 2, "a new pod")
        assert MARK not in api.object(kinds[-1])["metadata"]["labels"]
        patched = {path.split("/")[-2] for path in api.requests if path.startswith("PATCH")}
        assert patched == {KIND[kinds[-1]]}


@pytest.mark.parametrize(
    ("more", "because"),
    [
        ({"TrainJob": {"spec": {"suspend": True}}}, "another client has suspended it"),
        ({"JobSet": {"metadata": {"deletionTimestamp": "2026-11-21T09:00:00Z"}}},
         "it is being deleted"),
        ({"JobSet": {"spec": {"replicatedJobs": [{"template": {"spec": FAILS}}]}}},
         "a podFailurePolicy may fail it for the way in which a pod ends"),
        ({"TrainJob": {"metadata": {"ownerReferences": [
            {"apiVersion": "a.test/v1", "kind": "Study", "name": "s", "uid": "s",
             "controller": True}]}}},
         "it is part of Study s, which might not expect that"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_a_set_that_is_not_ours_to_suspend_is_left_alone(
    more: dict[str, Any], because: str
) -> None:
    async with filled(Trainer("Job", "JobSet", "TrainJob")) as (api, jobs):
        for kind, fields in more.items():
            await api.put(KIND[kind], merged(api.object(kind), fields))
        why = await suspend(api, jobs, "worker")
        assert why == f"its TrainJob is not suspended: {because}"
        assert not [path for path in api.requests if path.startswith("PATCH")]


async def test_owners_that_name_each_other_are_read_three_times_at_most() -> None:
    """Nobody validates references: a tenant may write a circle."""
    async with filled(Trainer("Job", "JobSet", "TrainJob")) as (api, jobs):
        owner = api.object("Job")["metadata"]["ownerReferences"]
        circle = merged(api.object("TrainJob"), {"metadata": {"ownerReferences": owner}})
        await api.put("trainjobs", circle)
        why = await suspend(api, jobs, "worker")
        assert why == (
            "its TrainJob is not suspended: it is part of JobSet train, which might not expect that"
        )
        assert len([path for path in api.requests if "/namespaces/" in path]) == 3
