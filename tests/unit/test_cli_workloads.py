"""From what a user names to pods: `istio-aux explain tfjob/mnist`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from istio_aux.cli import workloads
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.kube.client import Client
from istio_aux.model import selectors
from istio_aux.model.pod import Pod
from simulation.store import Json as Object
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING
from unit.screens import Ask, put_pod

Owner = tuple[str, str, str]  # apiVersion, kind and name; the UID is made of both.

TFJOB = ("kubeflow.org/v1", "TFJob", "mnist")
CRONJOB, JOB = ("batch/v1", "CronJob", "night"), ("batch/v1", "Job", "night-1")
TRAINJOB = ("trainer.kubeflow.org/v1alpha1", "TrainJob", "llm")
JOBSET, PART = ("jobset.x-k8s.io/v1alpha2", "JobSet", "llm"), ("batch/v1", "Job", "llm-node-0")


def owned_by(*owners: Owner) -> dict[str, Any]:
    fields = ("apiVersion", "kind", "name")
    references = [dict(zip(fields, each, strict=True)) | {"uid": uid(each)} for each in owners]
    return {"ownerReferences": references} if owners else {}


def uid(owner: Owner) -> str:
    return f"{owner[1]}-{owner[2]}"


def put(api: ApiServer, owner: Owner, *above: Owner) -> None:
    """An object of a workload's kind, in the namespace ``team``."""
    version, kind, name = owner
    body: Object = {"apiVersion": version, "kind": kind}
    body["metadata"] = {"name": name, "namespace": "team", "uid": uid(owner), **owned_by(*above)}
    api.put(f"{kind.lower()}s", body)


def pod(api: ApiServer, name: str, *owners: Owner, **metadata: object) -> None:
    about = {"namespace": "team", "uid": name, **owned_by(*owners), **metadata}
    put_pod(api, name, {"main": RUNNING, "istio-proxy": RUNNING}, about=about)


def refused_pod(api: ApiServer, job: str, *, why: str, at: str, name: str = "one") -> None:
    """The Event that the Job controller writes when the API server refuses a pod."""
    about = {"kind": "Job", "namespace": "team", "name": job, "uid": f"Job-{job}"}
    api.put("events", {
        "metadata": {"name": name, "namespace": "team"}, "involvedObject": about,
        "type": "Warning", "reason": "FailedCreate", "message": why, "lastTimestamp": at,
    })  # fmt: skip


@pytest.fixture
def api() -> ApiServer:
    """A TFJob, a CronJob with a Job, a TrainJob with its JobSet and Job, a pod of nobody."""
    api = ApiServer()
    put(api, TFJOB)
    put(api, CRONJOB)
    put(api, JOB, CRONJOB)
    put(api, TRAINJOB)
    put(api, JOBSET, TRAINJOB)
    put(api, PART, JOBSET)
    pod(api, "mnist-worker-0", TFJOB, labels={"app": "mnist"})
    pod(api, "mnist-worker-1", TFJOB)
    pod(api, "night-1-x", JOB)
    pod(api, "llm-node-0-x", PART)
    pod(api, "alone", labels={"app": "mnist"})
    pod(api, "elsewhere", namespace="other")
    return api


async def find(
    api: ApiServer, *targets: str, selector: str = "", everywhere: bool = False
) -> tuple[list[str], list[str]]:
    """Names of the pods, and the problems."""
    chosen, names, problems = selectors.parse(selector), list[str](), list[str]()
    async with api, Client(api.access()) as client:
        asked = ClusterRequest(
            targets=targets, namespace="team", all_namespaces=everywhere, selector=chosen
        )
        async for each in workloads.find(client, asked):
            if isinstance(each, Pod):
                names.append(each.metadata.name)
            else:
                problems.append(str(each))
    return names, problems


NONE = "404 NotFound: tfjobs"
NO_TYPE = (
    "is no type of this cluster either; types with pods: pod, replicaset, job, cronjob, tfjob, "
    "jobset, trainjob"
)
MNIST = ["mnist-worker-0", "mnist-worker-1"]


@pytest.mark.parametrize(
    ("targets", "pods"),
    [
        (["tfjob/mnist"], MNIST),
        (["tfjobs.kubeflow.org/mnist"], MNIST),
        (["cj/night"], ["night-1-x"]),
        (["trainjob/llm"], ["llm-node-0-x"]),
        (["pod/alone", "po/mnist-worker-1"], ["alone", "mnist-worker-1"]),
        (["alone", "other/elsewhere"], ["alone", "elsewhere"]),
        (["pod", "alone", "mnist-worker-1"], ["alone", "mnist-worker-1"]),
        (["job", "night-1", "llm-node-0"], ["night-1-x", "llm-node-0-x"]),
        (["tfjob"], MNIST),
        (["jobset/llm", "trainjob/llm", "llm-node-0-x"], ["llm-node-0-x"]),
        ([], ["alone", "llm-node-0-x", *MNIST, "night-1-x"]),
    ],
)
async def test_a_workload_is_named_as_for_kubectl(
    api: ApiServer, targets: list[str], pods: list[str]
) -> None:
    """By plural, singular, short name, kind or group, over any number of owners; a pod once."""
    found, problems = await find(api, *targets)
    assert {request.split()[0] for request in api.requests} == {"GET"}
    assert (found if targets else sorted(found), problems) == (pods, [])


async def test_a_selector_chooses_pods_in_one_namespace_or_in_all(api: ApiServer) -> None:
    assert await find(api, "tfjob/mnist", selector="app=mnist") == (MNIST[:1], [])
    assert sorted((await find(api, selector="app=mnist"))[0]) == ["alone", "mnist-worker-0"]
    assert "elsewhere" in (await find(api, "pods", everywhere=True))[0]
    assert await find(api, "tfjob", everywhere=True) == (MNIST, [])


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("tfjob/none", 'team: tfjob/none: 404 NotFound: tfjobs "none" not found'),
        ("none", 'team/none: 404 NotFound: pods "none" not found'),
        (
            "tfjob/mnits",
            f'team: tfjob/mnits: {NONE} "mnits" not found; did you mean "tfjob/mnist"?',
        ),
        ("mnist", 'team/mnist: 404 NotFound: pods "mnist" not found; did you mean "tfjob/mnist"?'),
        ("alon", 'team/alon: 404 NotFound: pods "alon" not found; did you mean "alone"?'),
        ("tfjobz/mnist", f'tfjobz/mnist: 404 NotFound: pods "mnist" not found; "tfjobz" {NO_TYPE}'),
        ("node/n1", "node/n1: a Node is in no namespace, so it owns no pods"),
        ("job/idle", "job/idle: no pods in namespace team"),
        ("job/a_b", 'team: job/a_b: name "a_b": no object can have it (RFC 1123)'),
    ],
)
async def test_what_has_no_pods_is_a_line_that_says_why(
    api: ApiServer, target: str, problem: str
) -> None:
    put(api, ("batch/v1", "Job", "idle"))
    assert await find(api, target) == ([], [problem])


async def test_who_may_not_read_a_workload_is_told_of_one_with_a_similar_name(
    api: ApiServer,
) -> None:
    """Not of the other types that may not be listed."""
    for path in ("jobs", "cronjobs", "tfjobs", "tfjobs/mnits", "jobsets"):
        group = "kubeflow.org/v1" if "tfjob" in path else "batch/v1"
        api.refuse(f"GET /apis/{group}/namespaces/team/{path}", 403)
    (problem,) = (await find(api, "tfjob/mnits"))[1]
    assert problem.startswith("tfjob/mnits: no pods in namespace team: this account may not get")
    assert problem.endswith('; did you mean "tfjob/mnist"?')
    assert "list" not in problem


async def test_why_the_pods_of_a_job_were_refused_is_read_from_its_last_event(
    api: ApiServer,
) -> None:
    put(api, ("batch/v1", "Job", "refused"))
    for name, at in (("second", "05:55:00Z"), ("first", "05:50:00Z")):
        why = f"exceeded quota: {name}"
        refused_pod(api, "refused", why=why, at=f"2026-11-28T{at}", name=name)
    told = "its pods were refused, last at 05:55:00Z: exceeded quota: second"
    problem = f"job/refused: no pods in namespace team: {told}"
    assert await find(api, "job/refused") == ([], [problem])
    api.refuse("GET /api/v1/namespaces/team/events", 403)
    assert await find(api, "job/refused") == ([], ["job/refused: no pods in namespace team"])


@pytest.mark.parametrize(
    ("minutes", "has_pod", "told"), [(1, False, True), (60, False, False), (1, True, False)]
)
async def test_audit_names_jobs_whose_pods_were_refused_lately(
    api: ApiServer, ask: Ask, *, minutes: int, has_pod: bool, told: bool
) -> None:
    """Unless they have one now."""
    at = datetime.now(UTC) - timedelta(minutes=minutes)
    refused_pod(api, "mnist", why="exceeded quota: gpus", at=at.isoformat())
    if has_pod:
        pod(api, "mnist-x", ("batch/v1", "Job", "mnist"))
    shown = await ask(api, "audit")
    without = await ask(api, "audit", "--ignore", "IA0114")
    assert (without.err, "ignored: 1 (IA0114)" in without.out) == ("", told)
    why = f"its pods were refused, last at {at:%H:%M:%S}Z: exceeded quota: gpus"
    assert (f"IA0114: team: job/mnist: {why}" in shown.err) == told


async def test_a_name_goes_with_one_namespace(api: ApiServer) -> None:
    found = await find(api, "job/night-1", "other/elsewhere", everywhere=True)
    assert found == (["elsewhere"], ["job/night-1: expected no name with -A"])


async def test_an_object_that_may_not_be_read_is_found_by_its_name_in_its_pods(
    api: ApiServer,
) -> None:
    """Who may free pods of a namespace need not have rights to its TFJobs."""
    for path in ("/tfjobs/mnist", "/tfjobs/none", "/tfjobs", "/jobs"):
        api.refuse(path, 403, "Forbidden", "no")
    found, problems = await find(api, "tfjob/mnist", "tfjob/none")
    assert found == MNIST
    rights = ("get tfjob/none", "list jobs", "list tfjobs")
    why = "; ".join(f"this account may not {right}" for right in rights)
    assert problems == [f"tfjob/none: no pods in namespace team: {why}"]


async def test_owners_in_a_circle_end_and_cost_one_list_for_each_kind(api: ApiServer) -> None:
    """Tenants write ownerReferences; of a Secret that they name, only metadata is read."""
    loop = [("batch/v1", "Job", "a"), ("batch/v1", "Job", "b"), ("v1", "Secret", "c")]
    accepted = list[str]()
    for number, each in enumerate(loop):
        put(api, each, loop[number - 1], ("x.org/v1", "Unknown", "y"))
        pod(api, f"pod-{number}", each)

    async def note(request: web.Request) -> None:
        if request.path.endswith("/secrets"):
            accepted.append(request.headers["Accept"])

    api.faults.append(note)
    found, problems = await find(api, "job/a")
    lists = [each for each in api.requests if each.endswith(("/jobs", "/secrets"))]
    assert (sorted(found), problems) == (["pod-0", "pod-1", "pod-2"], [])
    assert len(lists) == 2
    assert ["PartialObjectMetadataList" in each for each in accepted] == [True]
