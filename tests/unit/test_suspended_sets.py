"""A pod of a JobSet or a TrainJob: the one at the top is suspended, and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import MARK
from simulation.store import merged
from unit.apiserver import ApiServer
from unit.asynchronous import until
from unit.rules.unmeshed import raw
from unit.training import at_work, suspend

APIS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
}
NAMES = {"Job": "train-node-0", "JobSet": "train", "TrainJob": "train"}
FAILS = {"podFailurePolicy": {"rules": [{"action": "FailJob"}]}}


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


class Trainer(ApiServer):
    """TrainJob, JobSet and Job, and their controllers, which pass a suspension on and see to pods.

    Attributes:
        kinds: of the objects that there are, a pod's controller first.
        made: how often the pod was made.
    """

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.types = {api: {plural(kind): kind} for kind, api in APIS.items()}
        self.kinds, self.made = kinds, 0

    def fill(self) -> None:
        """Make the objects."""
        for kind, above in zip(self.kinds, (*self.kinds[1:], None), strict=True):
            owners = [owner(above)] if above else []
            about = {"name": NAMES[kind], "namespace": "training", "uid": f"uid-of-{kind}"}
            metadata = {**about, "ownerReferences": owners, "labels": {}}
            body = {"metadata": metadata, "spec": {"suspend": False}, "status": {}}
            self.put(plural(kind), body)
        self.operate()

    def answer(self, method: str, path: str, params: Mapping[str, str], body: bytes) -> bytes:
        answer = super().answer(method, path, params, body)
        if method == "PATCH":
            self.operate()
        return answer

    def object(self, kind: str) -> dict[str, Any]:
        found = self.get(plural(kind), "training", NAMES[kind])
        assert found is not None
        return found

    def operate(self) -> None:
        """All controllers see the object at the top."""
        top, there = self.object(self.kinds[-1]), self.get("pods", "training", "worker")
        if top["spec"].get("suspend"):
            status = {"conditions": [{"type": "Suspended", "status": "True"}]}
            self.put(plural(self.kinds[-1]), {**top, "status": status})
            if there:
                self.remove("pods", "training", "worker")
        elif not there:
            self.made += 1
            self.pod("worker", uid=f"pod-{self.made}", restart="Never")

    def pod(self, name: str, **fields: Any) -> None:
        """Make a pod of the Job, and of the set."""
        labels = {
            "batch.kubernetes.io/job-name": NAMES["Job"],
            "jobset.sigs.k8s.io/jobset-name": NAMES["JobSet"],
        }
        made = raw(name=name, namespace="training", labels=labels, **fields)
        made["metadata"]["ownerReferences"] = [owner(self.kinds[0])]
        self.put("pods", made)


def owner(kind: str) -> dict[str, Any]:
    about = {"apiVersion": APIS[kind], "kind": kind, "name": NAMES[kind]}
    return {**about, "uid": f"uid-of-{kind}", "controller": True}


@asynccontextmanager
async def filled(api: Trainer) -> AsyncGenerator[tuple[Trainer, SuspendedJobs]]:
    """These objects, and a process that leads, and may suspend Jobs."""
    async with at_work(api) as world:
        api.fill()
        yield api, world.process()


@pytest.mark.parametrize(
    "kinds", [("Job", "JobSet"), ("Job", "JobSet", "TrainJob")], ids=lambda kinds: kinds[-1]
)
async def test_the_one_at_the_top_is_suspended_and_resumed(kinds: tuple[str, ...]) -> None:
    """Its controller resumes what is below it: nothing else is written to."""
    async with filled(Trainer(*kinds)) as (api, jobs):
        api.pod("first", uid="first", phase="Succeeded")
        assert await suspend(api, jobs, "worker") == ""
        [shown] = jobs.status()
        assert (shown.kind, shown.name) == (kinds[-1], "train")
        await until(lambda: api.made == 2, "a new pod")
        assert MARK not in api.object(kinds[-1])["metadata"]["labels"]
        patched = {path.split("/")[-2] for path in api.requests if path.startswith("PATCH")}
        assert patched == {plural(kinds[-1])}


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
            api.put(plural(kind), merged(api.object(kind), fields))
        why = await suspend(api, jobs, "worker")
        assert why == f"its TrainJob is not suspended: {because}"
        assert not [path for path in api.requests if path.startswith("PATCH")]


async def test_owners_that_name_each_other_are_read_three_times_at_most() -> None:
    """Nobody validates references: a tenant may write a circle."""
    async with filled(Trainer("Job", "JobSet", "TrainJob")) as (api, jobs):
        owner = api.object("Job")["metadata"]["ownerReferences"]
        circle = merged(api.object("TrainJob"), {"metadata": {"ownerReferences": owner}})
        api.put("trainjobs", circle)
        why = await suspend(api, jobs, "worker")
        assert why == (
            "its TrainJob is not suspended: it is part of JobSet train, which might not expect that"
        )
        assert len([path for path in api.requests if "/namespaces/" in path]) == 3
