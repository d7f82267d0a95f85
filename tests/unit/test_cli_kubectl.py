"""The habits of kubectl: names of workloads, `-o`, manifests, and commands to paste."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import given, strategies as st
from istio_aux.cli import files, main, workloads
from istio_aux.cli.output import Output, Terminal
from istio_aux.cli.page import page
from istio_aux.cli.report import Audit, audit_text
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.kube.client import Client
from istio_aux.model import selectors
from istio_aux.model.pod import Pod
from istio_aux.model.text import command, commands
from msgspec.structs import replace
from simulation.store import Json as Object
from sizes import ROOT
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, document, exited, job
from unit.screens import Ask, Run, install, objects, put_pod
from unit.test_cli_audit import NOON, Istio, finding
from unit.test_cli_cluster import found

# From what a user names to pods: `istio-aux explain tfjob/mnist`.

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
def owned() -> ApiServer:
    """A TFJob, a CronJob with a Job, a TrainJob with its JobSet and Job, a pod of nobody."""
    api = ApiServer()
    tree = [TFJOB], [CRONJOB], [JOB, CRONJOB], [TRAINJOB], [JOBSET, TRAINJOB], [PART, JOBSET]
    for owner, *above in tree:
        put(api, owner, *above)
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
    owned: ApiServer, targets: list[str], pods: list[str]
) -> None:
    """By plural, singular, short name, kind or group, over any number of owners; a pod once."""
    found, problems = await find(owned, *targets)
    assert {request.split()[0] for request in owned.requests} == {"GET"}
    assert (found if targets else sorted(found), problems) == (pods, [])


async def test_a_selector_chooses_pods_in_one_namespace_or_in_all(owned: ApiServer) -> None:
    assert await find(owned, "tfjob/mnist", selector="app=mnist") == (MNIST[:1], [])
    assert sorted((await find(owned, selector="app=mnist"))[0]) == ["alone", "mnist-worker-0"]
    assert "elsewhere" in (await find(owned, "pods", everywhere=True))[0]
    assert await find(owned, "tfjob", everywhere=True) == (MNIST, [])


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
    owned: ApiServer, target: str, problem: str
) -> None:
    put(owned, ("batch/v1", "Job", "idle"))
    assert await find(owned, target) == ([], [problem])


async def test_who_may_not_read_a_workload_is_told_of_one_with_a_similar_name(
    owned: ApiServer,
) -> None:
    """Not of the other types that may not be listed."""
    for path in ("jobs", "cronjobs", "tfjobs", "tfjobs/mnits", "jobsets"):
        group = "kubeflow.org/v1" if "tfjob" in path else "batch/v1"
        owned.refuse(f"GET /apis/{group}/namespaces/team/{path}", 403)
    (problem,) = (await find(owned, "tfjob/mnits"))[1]
    assert problem.startswith("tfjob/mnits: no pods in namespace team: this account may not get")
    assert problem.endswith('; did you mean "tfjob/mnist"?')
    assert "list" not in problem


async def test_why_the_pods_of_a_job_were_refused_is_read_from_its_last_event(
    owned: ApiServer,
) -> None:
    put(owned, ("batch/v1", "Job", "refused"))
    for name, at in (("second", "05:55:00Z"), ("first", "05:50:00Z")):
        why = f"exceeded quota: {name}"
        refused_pod(owned, "refused", why=why, at=f"2026-11-28T{at}", name=name)
    told = "its pods were refused, last at 05:55:00Z: exceeded quota: second"
    problem = f"job/refused: no pods in namespace team: {told}"
    assert await find(owned, "job/refused") == ([], [problem])
    owned.refuse("GET /api/v1/namespaces/team/events", 403)
    assert await find(owned, "job/refused") == ([], ["job/refused: no pods in namespace team"])


@pytest.mark.parametrize(
    ("minutes", "has_pod", "told"), [(1, False, True), (60, False, False), (1, True, False)]
)
async def test_audit_names_jobs_whose_pods_were_refused_lately(
    owned: ApiServer, ask: Ask, *, minutes: int, has_pod: bool, told: bool
) -> None:
    """Unless they have one now."""
    at = datetime.now(UTC) - timedelta(minutes=minutes)
    refused_pod(owned, "mnist", why="exceeded quota: gpus", at=at.isoformat())
    if has_pod:
        pod(owned, "mnist-x", ("batch/v1", "Job", "mnist"))
    shown = await ask(owned, "audit")
    without = await ask(owned, "audit", "--ignore", "IA0114")
    assert (without.err, "ignored: 1 (IA0114)" in without.out) == ("", told)
    why = f"its pods were refused, last at {at:%H:%M:%S}Z: exceeded quota: gpus"
    assert (f"IA0114: team: job/mnist: {why}" in shown.err) == told


async def test_a_name_goes_with_one_namespace(owned: ApiServer) -> None:
    found = await find(owned, "job/night-1", "other/elsewhere", everywhere=True)
    assert found == (["elsewhere"], ["job/night-1: expected no name with -A"])


async def test_an_object_that_may_not_be_read_is_found_by_its_name_in_its_pods(
    owned: ApiServer,
) -> None:
    """Who may free pods of a namespace need not have rights to its TFJobs."""
    for path in ("/tfjobs/mnist", "/tfjobs/none", "/tfjobs", "/jobs"):
        owned.refuse(path, 403, "Forbidden", "no")
    found, problems = await find(owned, "tfjob/mnist", "tfjob/none")
    assert found == MNIST
    rights = ("get tfjob/none", "list jobs", "list tfjobs")
    why = "; ".join(f"this account may not {right}" for right in rights)
    assert problems == [f"tfjob/none: no pods in namespace team: {why}"]


async def test_owners_in_a_circle_end_and_cost_one_list_for_each_kind(owned: ApiServer) -> None:
    """Tenants write ownerReferences; of a Secret that they name, only metadata is read."""
    loop = [("batch/v1", "Job", "a"), ("batch/v1", "Job", "b"), ("v1", "Secret", "c")]
    accepted = list[str]()
    for number, each in enumerate(loop):
        put(owned, each, loop[number - 1], ("x.org/v1", "Unknown", "y"))
        pod(owned, f"pod-{number}", each)

    async def note(request: web.Request) -> None:
        if request.path.endswith("/secrets"):
            accepted.append(request.headers["Accept"])

    owned.faults.append(note)
    found, problems = await find(owned, "job/a")
    lists = [each for each in owned.requests if each.endswith(("/jobs", "/secrets"))]
    assert (sorted(found), problems) == (["pod-0", "pod-1", "pod-2"], [])
    assert len(lists) == 2
    assert ["PartialObjectMetadataList" in each for each in accepted] == [True]


# The habits of kubectl: `-o`, and --kubeconfig and --context in commands to paste.


@pytest.fixture
def api() -> ApiServer:
    """Two pods that hang, the first one for a day less, and one that works."""
    api = ApiServer()
    owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    about = {"ownerReferences": [{**owner, "apiVersion": "batch/v1"}]}
    for name, day in (("a", 20), ("b", 19)):
        ended = exited(0, at=f"2026-11-{day}T08:00:00Z")
        put_pod(api, name, {"main": ended, "istio-proxy": RUNNING}, about=about)
    put_pod(api, "works", {"main": RUNNING, "istio-proxy": RUNNING})
    return api


async def test_audit_and_explain_have_the_formats_of_kubectl(api: ApiServer, ask: Ask) -> None:
    async def said(*argv: str, **screens: int | None) -> list[str]:
        return (await ask(api, *argv, **screens)).out.splitlines()

    assert await said("audit", "-o", "name") == ["pod/a", "pod/b"]
    found = yaml.safe_load("\n".join(await said("audit", "-o", "yaml")))
    assert found["items"] == objects(await ask(api, "audit", "-o", "json"))
    assert "NODE" not in (await said("audit", columns=None))[0]
    titles, *wide = await said("audit", "-o", "wide", columns=None)
    assert titles.split()[-2:] == ["NODE", "REASON"]
    assert [line.split()[1:4] for line in wide[:2]] == [
        ["pod/a", "1", "stuck"],
        ["pod/b", "1", "stuck"],
    ]
    assert await said("explain", "-A", "-o", "name") == ["pod/a", "pod/b", "pod/works"]
    explained = yaml.safe_load("\n".join(await said("explain", "-A", "-o", "yaml")))
    assert [each["name"] for each in explained["items"]] == ["a", "b", "works"]


@pytest.mark.parametrize(
    ("command", "given"),
    [("audit", "jsonpath={.items}"), ("audit", "table"), ("check", "name")],
    ids=["of kubectl alone", "unknown", "what has no names is not shown as nothing"],
)
def test_another_format_is_refused(run: Run, command: str, given: str) -> None:
    with pytest.raises(SystemExit) as raised:
        run(command, "-o", given)
    assert raised.value.code == 2


async def test_a_command_to_paste_is_for_the_cluster_that_was_asked(
    api: ApiServer, run: Run, tmp_path: Path
) -> None:
    """By a context with a space in its name."""
    async with api:
        config = api.kubeconfig(tmp_path)
        config.write_text(config.read_text().replace('"name": "here"', '"name": "the east"'))
        flags = ["--kubeconfig", str(config), "--context", "the east"]
        text = await asyncio.to_thread(run, "audit", *flags, columns=None)
        named = await asyncio.to_thread(run, "audit", "training/a", *flags, columns=None)
        [found, _] = objects(await asyncio.to_thread(run, "audit", *flags, "-o", "json"))
    [command] = [line for line in text.out.splitlines() if "istio-aux quit" in line]
    assert shlex.split(command) == ["istio-aux", "quit", "-n", "training", "--yes", *flags]
    free = ["istio-aux", "quit", "-n", "training", "a", "--yes", *flags]
    assert shlex.split(found["free"]) == free
    assert free in map(shlex.split, named.out.splitlines()), "and no other pod"


async def test_check_begins_with_the_versions_of_cluster_istio_and_installation(
    api: ApiServer, ask: Ask
) -> None:
    """By the tags of the images of their pods; another pod with such a container does not count."""
    install(api, {"lease": "mesh-jobs/istio-aux"})
    api.put("mutatingwebhookconfigurations", ISTIO)
    istiod = {"discovery": {"image": "a.b:5000/istio/pilot:1.28.10@sha256:0"}}
    put_pod(api, "istiod", {"discovery": RUNNING}, namespace="mesh", details=istiod)
    put_pod(api, "other", {"discovery": RUNNING}, details=istiod)
    ours = {"istio-aux": {"image": "localhost/istio-aux:0.1.0"}}
    for name in ("a", "b"):
        put_pod(api, name, {"istio-aux": RUNNING}, namespace="mesh-jobs", details=ours)
    shown = await ask(api, "check", "-o", "json")
    text = await ask(api, "check", columns=None)
    api.refuse("/api/v1/namespaces/mesh/pods", 403, "Forbidden", "no")
    refused = await ask(api, "check", "-o", "json")
    known = "Kubernetes not known; Istio 1.28.10 (1); istio-aux 0.1.0 (2)"
    assert (objects(shown)[0]["check"], objects(shown)[0]["what"]) == ("versions", known)
    assert [line.split()[0] for line in text.out.splitlines()[1:3]] == ["the", "versions"]
    assert "may not list pods of Istio and istio-aux, so it cannot see: versions" in refused.out


ISTIO = {
    "metadata": {"name": "istio-sidecar-injector"},
    "webhooks": [
        {
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {"service": {"namespace": "mesh", "name": "istiod"}},
        }
    ],
}


# `check --to`: workloads that a controller makes, too.


async def test_a_workload_is_judged_unless_the_templates_of_its_controller_are(ask: Ask) -> None:
    """The Job of a Trial, but not that of a CronJob; and the JobSet of a TrainJob."""
    api, trial = Istio(), ("kubeflow.org/v1beta1", "Trial", "tune")
    template = {
        "metadata": {"annotations": {"sidecar.istio.io/nativeSidecar": "false"}},
        "spec": {},
    }
    jobs = [{"name": "a", "template": {"spec": {"template": template}}}]
    for plural, name, owner in (
        ("jobs", "a", trial), ("jobs", "b", CRONJOB), ("jobsets", "c", TRAINJOB)
    ):  # fmt: skip
        about = {"name": name, "namespace": "shop", "uid": name, **owned_by(owner)}
        about["ownerReferences"][0]["controller"] = True
        api.put(plural, {"metadata": about, "spec": {"template": template, "replicatedJobs": jobs}})
    shown = await ask(api, "check", "--to", "native", "-o", "json", "--timeout", "10")
    assert [each["what"] for each in objects(shown) if each.get("code") == "IA0505"] == [
        "2 stay classic by their own annotation: Job/a, JobSet/c"
    ]


# `explain` and `mutate` of manifests of workloads, as people have them in files.


MANY = """\
apiVersion: v1
kind: Service
---
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist, namespace: team}
spec:
  tfReplicaSpecs:
    Worker:
      template: &pod
        spec: {containers: [{name: tensorflow, image: "1e3", command: ["a\\nb"]}]}
    PS: {template: *pod, restartPolicy: Always}
---

apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
"""
NOTES = [
    'stdin:1: left out: "Service" (v1): no kind whose pods are known',
    "stdin:15: a TrainJob has no pod template: give its TrainingRuntime",
]


def test_the_pods_of_workloads_are_explained_before_they_exist(run: Run) -> None:
    """As their controllers will make them and Istio inject them; what has none has its line."""
    argv = ("explain", "-o", "json", "-f", "-")
    status, out, err = run(*argv, columns=None, errors=None, stdin=MANY)
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["name"], each["action"], each["start"]) for each in found] == [
        ("mnist-worker-*", "wait", "hold: added holdApplicationUntilProxyStarts"),
        ("mnist-ps-*", "ignore", "hold: added holdApplicationUntilProxyStarts"),
    ]
    assert found[0]["reason"].startswith("istio-proxy is told to exit once every payload")
    assert (status, err.splitlines()) == (2, NOTES)


def test_mutate_prints_the_manifest_with_its_pods_as_they_would_be_created(run: Run) -> None:
    """In YAML that means for Kubernetes what was written."""
    shown = run("mutate", "-f", "-", columns=None, errors=None, stdin=MANY)
    given, changed = (list(yaml.safe_load_all(text)) for text in (MANY, shown.out))
    for replica in given[1]["spec"]["tfReplicaSpecs"].values():
        annotations = {
            "proxy.istio.io/config": "holdApplicationUntilProxyStarts: true",
            "istio-aux.io/started-with": "hold",
        }
        replica["template"] = {**replica["template"], "metadata": {"annotations": annotations}}
    assert (changed, shown.err.splitlines()) == ([given[1]], NOTES)
    assert ("image: '1e3'" in shown.out, "&" in shown.out) == (True, False)


def test_mutate_shows_only_what_would_change(run: Run) -> None:
    new = document({"main": None}, phase=None)
    new["spec"] = {"restartPolicy": "Never", "containers": [{"name": "a"}]}
    text = json.dumps(new)
    shown = run("mutate", "-o", "diff", "-f", "-", "--start-mode", "native", stdin=text)
    changes = [line for line in shown.out.splitlines() if "\x1b[32m+ " in line]
    assert [change.split("+")[1].strip()[:-4] for change in changes] == [
        "annotations:",
        "sidecar.istio.io/nativeSidecar: 'true'",
        "istio-aux.io/started-with: native",
    ]
    assert run("mutate", "-o", "diff", "-f", "-", "--start-mode", "none", stdin=text).out == ""


QUOTES = """\
apiVersion: batch/v1
kind: Job
spec:
  template:
    metadata: {annotations: {istio-aux.io/quit: off}}
---
kind: Pod
metadata: {labels: {a: 1}}
---
kind: Pod
metadata: {name: x}
spec: {containers: [{name: main, env: [{name: a, value: 8}]}]}
"""


@pytest.mark.parametrize("command", ["explain", "mutate"])
def test_text_that_lacks_its_quotes_is_named(run: Run, command: str) -> None:
    """YAML reads `off` as a boolean."""
    path = "$.spec.containers[0].env[0].value"
    assert run(command, "-f", "-", errors=None, stdin=QUOTES).err.splitlines() == [
        "stdin:1: annotation istio-aux.io/quit: false is no text: put it in quotes",
        "stdin:7: label a: 1 is no text: put it in quotes",
        f"stdin:10: Expected `str | null`, got `int` - at `{path}`: put it in quotes",
    ]


ASTRAY = """\
apiVersion: batch/v1
kind: Job
metadata: {name: x, annotations: {istio-aux.io/quit: "false"}}
spec:
  template:
    metadata: {labels: {sidecar.istio.io.inject: "false"}}
    spec: {restartPolicy: Never, containers: [{name: main}]}
"""


def test_a_wish_that_nothing_reads_is_said(run: Run) -> None:
    above = (
        "stdin:1: IA0203: istio-aux.io/quit is on the Job, where nothing reads it: put it on"
        " spec.template.metadata"
    )
    near = (
        'IA0201: label "sidecar.istio.io.inject": nothing reads it: did you mean'
        " sidecar.istio.io/inject?"
    )
    explained = run("explain", "-f", "-", columns=None, errors=None, stdin=ASTRAY)
    changed = run("mutate", "-f", "-", columns=None, errors=None, stdin=ASTRAY)
    assert (explained.err.splitlines(), near in explained.out) == ([above], True)
    assert changed.err.splitlines() == [above, f"stdin:1: {near}"]


@pytest.mark.parametrize("uid", ["", "u-1"], ids=["new", "of a cluster"])
def test_explain_names_a_bad_value_of_an_annotation_about_the_start(run: Run, uid: str) -> None:
    """Peers are mentioned nowhere else."""
    pod = document({"main": None}, phase=None, annotations={"istio-aux.io/peers": "sideways"})
    pod["metadata"]["uid"] = uid
    shown = run("explain", "-o", "json", "-f", "-", columns=None, stdin=json.dumps(pod))
    why = 'annotation istio-aux.io/peers: "sideways": expected mesh or direct; no port is opened'
    assert json.loads(shown.out)["start"].endswith(why)
    plain = document({"main": None}, phase=None)
    assert "peers" not in run("explain", "-f", "-", columns=None, stdin=json.dumps(plain)).out


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("", 0, "stdin: no pods"),
        ('{"kind": "PodList", "items": []}', 0, "stdin: no pods"),
        ("kind: Secret\napiVersion: v1", 2, "stdin:1: left out: "),
        ("a: b", 2, "stdin:1: it has no kind"),
        ("kind: Job\napiVersion: batch/v1", 2, "stdin:1: spec is missing"),
    ],
)
def test_a_file_without_pods_says_so(run: Run, text: str, status: int, error: str) -> None:
    shown = run("explain", "-f", "-", errors=None, stdin=text)
    assert (shown.status, shown.out) == (status, "")
    assert shown.err.startswith(error)


COUNTS = """\
apiVersion: batch/v1
kind: Job
metadata: {name: x5-native-143, namespace: alice}
spec:
  podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: NotIn, values: [3]}}]}
  template:
    metadata: {annotations: {istio-aux.io/sidecars: cloud-sql-proxy=native}}
    spec:
      restartPolicy: Never
      containers: [{name: main}, {name: cloud-sql-proxy}]
"""


def test_a_job_that_counts_exit_codes_of_sidecars_keeps_them_as_they_are_and_is_told(
    run: Run,
) -> None:
    """cloud-sql-proxy#1803: 143 of a native cloud-sql-proxy failed such a Job for good."""
    why = "a rule of podFailurePolicy that names no container counts its exit code"

    argv = ("mutate", "-f", "-", "--capability", "native")
    shown = run(*argv, columns=None, errors=None, stdin=COUNTS)
    explained = run("explain", "-f", "-", columns=None, errors=None, stdin=COUNTS)

    assert shown.err.splitlines() == [
        f"stdin:1: istio-proxy: {why}, which is 137 if it is killed",
        f"stdin:1: sidecars: left alone: cloud-sql-proxy: {why}",
    ]
    spec = yaml.safe_load(shown.out)["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["containers"]] == ["main", "cloud-sql-proxy"]
    assert f"left alone: cloud-sql-proxy: {why}" in explained.out


def test_what_no_command_has_foreseen_is_one_line_and_debug_prints_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        raise KeyError("a\nb")

    monkeypatch.setattr(files, "mutate", broken)
    assert main(["mutate", "-f", "none"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("a fault of istio-aux: KeyError: ")
    assert line.partition(": run ")[2] == "`istio-aux --debug COMMAND` and report what it prints\n"
    with pytest.raises(KeyError):
        main(["--debug", "mutate", "-f", "none"])


# Commands that are to be pasted: what others write is a word of them, never an option or more.

HOSTILE = (
    "x;touch PWNED;:", "$(id)", "`id`", "a b", "'; id; '", '"', "a\nid", "\x1b[2J", "a\u202eb", "",
    "-A", "--all", "--context=arn:aws:eks:eu-west-1:1:cluster/prod", "é" * 900, "&& id", "#", "~",
)  # fmt: skip


def is_of(line: str, words: str) -> bool:
    """Whether a shell makes of a line these words, of which any may stand for one of others."""
    said, meant = shlex.split(line), words.split()
    pairs = zip(said, meant, strict=False)
    return len(said) == len(meant) and all(
        a == b or (b == "{}" and not a.startswith("-")) for a, b in pairs
    )


@given(st.sampled_from(HOSTILE) | st.text(max_size=20))
def test_a_word_of_others_stays_a_word_or_there_is_no_command(word: str) -> None:
    made = command("istio-aux explain -n {} {}", word, "pod")
    assert made == "" or shlex.split(made) == ["istio-aux", "explain", "-n", word, "pod"]
    assert (made == "") == (not made.isprintable() or not word or bad(word))
    assert "\n" not in made


def bad(word: str) -> bool:
    return word.startswith("-") or not word.isprintable() or len(word) > 500


def test_of_several_words_each_is_quoted() -> None:
    made = command("kubectl label namespace {} a=b", ["x", "y z"])
    assert shlex.split(made) == ["kubectl", "label", "namespace", "x", "y z", "a=b"]
    assert commands(made, command("kubectl get {}", "--all")) == made


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("state", ["stuck", "blocked", "lost", "unmeshed"])
def test_a_page_and_a_table_have_no_other_command(state: Any, word: str) -> None:
    """An ownerReference has a kind and a name that the API server does not check."""
    for field in ("owner", "name", "namespace"):
        for value in {word, f"{word}/prod", f"Job/{word}"}:
            audit = Audit([finding(state, **{"owner": "Job/x", field: value})], 1)
            shown = re.findall("<code>(.*?)</code>", page(audit, NOON), re.DOTALL)
            for each in map(unescape, shown):
                assert is_of(each, "istio-aux quit -n {} {} --yes") or is_of(
                    each, "istio-aux explain -n {} {}"
                ), each
            text = audit_text(audit.findings, Terminal(), audit=audit, now=NOON)
            for each in re.findall(r"(?m)^ *((?:istio-aux|kubectl) .*)$", text):
                assert is_of(each, "istio-aux quit -n {} --yes"), each


@pytest.mark.parametrize("word", HOSTILE)
def test_who_looks_after_a_pod_is_changed_by_no_other_command(word: str) -> None:
    told = {"namespace-selectors": "a=b", "pod-selector": "c=d"}
    over = job({"main": exited(0), "istio-proxy": RUNNING})
    for fields in ({"name": word}, {"namespace": word}):
        pod = replace(over, metadata=replace(over.metadata, **fields))
        for line in found(told).judge(pod, {}, None).change.splitlines():
            assert is_of(line, "kubectl label pod {} -n {} c=d") or is_of(
                line, "kubectl label namespace {} a=b"
            ), line


def test_only_one_function_makes_commands() -> None:
    files = [*(ROOT / "workload/src").rglob("*.py")]
    made = [str(file) for file in files if re.search(r"\bCommand\(", file.read_text())]
    assert [file.rpartition("/")[2] for file in made] == ["text.py"]
    assert Output.reached_by("text", context="a b").flags == " --context 'a b'"
