"""Jobs are suspended until their pods are gone, and then resumed; of a set, the one at the top."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import MARK
from simulation.store import merged
from unit.apiserver import ApiServer
from unit.asynchronous import Late, until
from unit.rules.training import pod_document
from unit.rules.unmeshed import raw
from unit.training import Kubeflow, at_work, kubeflow, suspend

PATCH = "PATCH /apis/kubeflow.org/v1/namespaces/training/tfjobs/mnist"
LISTS = "GET /api/v1/namespaces/training/pods"


def patches(api: Kubeflow) -> int:
    return api.requests.count(PATCH)


def pod_lists(api: Kubeflow) -> int:
    return api.requests.count(LISTS)


async def test_a_job_stays_suspended_until_its_pods_are_gone_and_an_event_says_so() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(late=0.05)
        await world.restart(process)
        event = (await until(lambda: world.api.events, "an Event"))[0]
        assert event["reason"] == "StillSuspended"
        assert event["regarding"]["name"].startswith("mnist-worker-")
        assert event["note"] == (
            "IA0116: TFJob mnist stays suspended until its pods are gone, so that it does not fail:"
            " 2 of its pods are still there: mnist-worker-0, mnist-worker-1"
        )
        [shown] = process.status()
        assert (shown.namespace, shown.kind, shown.name) == ("training", "TFJob", "mnist")
        assert shown.reason.startswith("2 of its pods are still there")
        looks = pod_lists(world.api) + 5
        await until(lambda: pod_lists(world.api) > looks, "more looks")
        world.api.end()
        await world.resumed()
        await until(lambda: not process.status(), "nothing is under way")
        assert len(world.api.events) == 1


async def test_a_job_is_suspended_once_for_all_its_pods() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        for name in (*world.api.pods, *world.api.pods):
            assert await world.restart(process, name) == ""
        assert patches(world.api) == 1
        assert len(process.status()) == 1


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (True, "mnist-worker-0: 429 TooManyRequests: Cannot evict pod"),
        (False, "its pods are not known: 500 InternalError: etcd is away"),
    ],
)
async def test_a_job_is_not_suspended_while_a_disruption_budget_may_forbid_it(
    listed: bool, why: str
) -> None:
    """The operator would delete the pods whatever it says."""
    async with kubeflow() as world:
        world.api.budget = True
        if not listed:
            world.api.refuse("/training/pods", 500, "InternalError", "etcd is away")
        refused = await world.restart(world.process())
        assert refused == f"its TFJob is not suspended: {why}"
        assert not world.api.suspended


async def test_a_job_is_not_suspended_for_a_pod_that_has_finished_meanwhile() -> None:
    """The watch may be late."""
    async with kubeflow() as world:
        name, uid = next(iter(world.api.pods.items()))
        ended = merged(pod_document(name, uid=uid), {"status": {"phase": "Succeeded"}})
        world.api.put("pods", ended)
        refused = await world.restart(world.process(), name)
        assert refused == f"its TFJob is not suspended: {name} has finished"
        assert not world.api.suspended


async def test_a_long_error_is_shortened() -> None:
    text = 'patch: Invalid value: "' + "x" * 5000 + '": unknown field "spec.runPolicy.suspend"'
    async with kubeflow() as world:
        world.api.refuse(PATCH, 422, "Invalid", text)
        refused = await world.restart(world.process())
        assert refused.endswith('unknown field "spec.runPolicy.suspend"')
        assert len(refused) < 1100


async def test_a_job_that_changed_since_it_was_read_is_not_suspended() -> None:
    async def meddle(request: web.Request) -> web.Response | None:
        if request.method == "PATCH":
            world.api.faults.clear()
            world.api.change({"suspend": True})
        return None

    async with kubeflow() as world:
        world.api.faults.append(meddle)
        process = world.process()
        assert "409" in await world.restart(process)
        refused = await world.restart(process)
        assert refused == "its TFJob is not suspended: another client has suspended it"
        assert patches(world.api) == 1
        assert not world.api.marked


async def test_a_job_that_is_gone_is_forgotten() -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process()
        await world.restart(process)
        world.api.remove("tfjobs", "training", "mnist")
        await until(lambda: not process.status(), "nothing is under way")


async def test_a_refused_resumption_is_tried_again() -> None:
    """At the time that the API server names, where it does."""
    async with kubeflow() as world:
        process = world.process()
        await world.restart(process)
        world.api.refuse(PATCH, 403, "Forbidden", "not you", times=5)
        came = world.api.refuse(PATCH, 429, "TooManyRequests", "slow down", times=1, after=1)
        await until(lambda: "not you" in process.status()[0].reason, "the reason is shown")
        await world.resumed()
        assert came[1] - came[0] >= 1


# The leader resumes suspended Jobs, and a new leader finds them.

LONGEST = 2.0  # Seconds that a Job may be suspended.


def lists(api: Kubeflow) -> int:
    return api.requests.count("GET /apis/kubeflow.org/v1/tfjobs")


@pytest.mark.parametrize("allowed", [True, False])
async def test_the_next_leader_resumes_the_job(allowed: bool) -> None:
    """Also when the policy was changed meanwhile, so that nothing would be suspended now."""
    async with kubeflow() as world:
        await world.suspended()
        process = world.process(allowed=allowed)
        await until(lambda: world.gauge("istio_aux_suspended_jobs") == 1, "it is counted")
        world.api.end()
        await world.resumed()
        assert world.api.job["status"]["conditions"][0]["type"] == "Running"
        await until(lambda: world.gauge("istio_aux_suspended_jobs") == 0, "it is not any more")
        assert not process.status()


async def test_a_process_that_lost_the_lead_meanwhile_does_not_suspend_a_job() -> None:
    async def usurp(request: web.Request) -> web.Response | None:
        if request.path.endswith("/eviction"):
            process.lead(False)
        return None

    async with kubeflow() as world:
        process = world.process()
        world.api.faults.append(usurp)
        refused = await world.restart(process)
        assert refused == "its TFJob is not suspended: this process does not lead any more"
        assert not world.api.suspended


async def test_a_leader_whose_lease_has_lapsed_writes_to_no_job_until_it_holds_it_again() -> None:
    """Nobody has told it yet that another process leads."""
    leads = True
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(leads=lambda: leads)
        await world.restart(process)
        leads = False
        world.api.end()
        looks = pod_lists(world.api) + 20
        await until(lambda: pod_lists(world.api) > looks, "it is followed all the same")
        assert world.api.suspended
        assert await world.restart(process) == "this process may not suspend it"
        leads = True
        await world.resumed()


async def test_the_deadline_of_a_suspension_survives_a_change_of_leader() -> None:
    """It is resumed then, also if its pods do not go, and its owner is told."""
    async with kubeflow() as world:
        await world.suspended()
        begun = datetime.now(UTC) - timedelta(seconds=3 * LONGEST)
        world.api.change({}, annotations={MARK: f"{begun:%Y-%m-%dT%H:%M:%SZ} so"})
        process = world.process(longest=LONGEST)
        await world.resumed()
        await world.counted("failed")
        (event,) = await until(lambda: world.api.events, "an Event")
        assert (event["type"], event["reason"]) == ("Warning", "ResumedWithoutRestart")
        assert event["regarding"]["kind"] == "TFJob"
        assert event["regarding"]["name"] == "mnist"
        assert event["note"].startswith(
            "IA0117: TFJob mnist: it was suspended for too long, and 2 of its"
        )
        await until(lambda: not process.status(), "nothing is under way")


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_wall_clock_that_is_wrong_ends_no_suspension_and_extends_none(hours: int) -> None:
    async with kubeflow() as world:
        await world.suspended()
        process = world.process(longest=4.0, clock=Late(wall=3600.0 * hours))
        await until(process.status, "it is found")
        looks = pod_lists(world.api) + 3
        await until(lambda: pod_lists(world.api) > looks, "it is followed")
        assert world.api.suspended
        await world.resumed()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_job_is_resumed_once_jobs_may_be_listed_again(
    allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With another race-policy the charm grants that when it finds such a Job: no warning."""
    async with kubeflow() as world:
        await world.suspended(ends=True)
        refused = world.api.refuse("/v1/tfjobs", 403, "Forbidden", "no", times=3)
        world.process(allowed=allowed, search=600 if allowed else 0.02)
        await world.resumed()
        assert len(refused) > 3
        warned = [r for r in caplog.records if "403" in r.getMessage()]
        assert bool(warned) is allowed


# What goes wrong with one Job, or with one request, keeps no other one waiting.


def looked(api: Kubeflow, name: str) -> int:
    """How often a Job was read."""
    return sum(r.startswith("GET") and r.endswith(f"/tfjobs/{name}") for r in api.requests)


def reason(process: SuspendedJobs) -> str:
    """What the one suspended Job waits for; empty if there is none."""
    return next((job.reason for job in process.status()), "")


async def test_a_kind_that_cannot_be_listed_hides_no_other_kind() -> None:
    async with kubeflow() as world:
        await world.suspended(ends=True)
        world.api.refuse("/batch/v1/jobs", 500, "InternalError", "etcd is away")
        world.process()
        await world.resumed()


@pytest.mark.parametrize("why", ["500 InternalError: etcd is away", "no list of pods within 1 s"])
async def test_a_job_is_resumed_at_its_deadline_although_its_pods_cannot_be_listed(
    why: str,
) -> None:
    async with kubeflow() as world:
        world.api.ends = False
        process = world.process(longest=3.0, answer=1.0, first_retry=60.0, last_retry=60.0)
        await world.restart(process)
        if why.startswith("500"):
            world.api.refuse(LISTS, 500, "InternalError", "etcd is away")
        else:
            world.api.hang(LISTS)
        await until(lambda: why in reason(process), "the reason is shown")
        await world.resumed()
        await world.counted("failed")
        (event,) = await until(lambda: world.api.events, "an Event")
        assert event["note"] == (
            "IA0117: TFJob mnist: it was suspended for too long, and it is not known whether its"
            f" pods are gone: {why}"
        )


async def test_a_job_waits_for_a_pod_that_cannot_be_read_until_its_deadline() -> None:
    async with kubeflow() as world:
        await world.suspended(ends=True)
        strange = {**pod_document("strange"), "spec": {"containers": "none"}}
        world.api.put("pods", strange)
        # Its annotation says the time in seconds.
        process = world.process(longest=3.0)
        await until(lambda: "training/strange" in reason(process), "the pod is named")
        assert world.api.suspended
        await world.resumed()


async def test_many_suspended_jobs_are_asked_for_a_few_at_a_time() -> None:
    """And the one Job of another namespace is among the first."""
    under_way, most = Counter[str](), Counter[str]()

    async def count(request: web.Request) -> web.Response | None:
        match request.path.strip("/").split("/"):
            case ["apis", _, _, "namespaces", namespace, "tfjobs", _]:
                under_way[namespace] += 1
                most[namespace] = max(most[namespace], under_way[namespace])
                most["all"] = max(most["all"], under_way.total())
                await asyncio.sleep(0.01)
                under_way[namespace] -= 1
        return None

    async with kubeflow() as world:
        await world.suspended()
        for number in range(60):
            for namespace in ("a", "b", "c", "d", "e", "f"):
                await world.another(f"{namespace}-{number}", namespace)
        world.api.always(count)
        world.process(interval=0.5)
        await until(lambda: looked(world.api, "f-59"), "all of them were looked at")
        assert most["all"] <= 8
        assert most["a"] == 2
        first = [r for r in world.api.requests if "/tfjobs/" in r and r.startswith("GET")]
        place = next(n for n, r in enumerate(first) if r.endswith("/training/tfjobs/mnist"))
        assert place < 60, "it does not wait for 360 others"


async def test_of_too_many_marked_jobs_the_first_are_followed_and_then_the_others() -> None:
    """Anybody may mark Jobs: they must not fill the memory."""
    async with kubeflow() as world:
        for name in "abcdef":
            await world.another(name)
        await world.another("z", "elsewhere")
        process = world.process(adopted=2, search=0.02, settle=0.5)
        await until(lambda: len(process.status()) >= 3, "Jobs of both namespaces are found")
        assert {job.name for job in process.status()} == {"a", "b", "z"}

        def left() -> list[str]:
            jobs = [world.api.get("tfjobs", "other", name) or {} for name in "abcdef"]
            return [job["metadata"]["name"] for job in jobs if job["spec"]["runPolicy"]["suspend"]]

        await until(lambda: not left(), "all are resumed")


# A pod of a JobSet or a TrainJob.

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
