"""The habits of kubectl: `-o`, and --kubeconfig and --context in commands to paste."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest
import yaml
from istio_aux.cli import files, main
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, document, exited
from unit.screens import Ask, Run, install, objects, put_pod


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


# `explain` and `mutate` of manifests of workloads, as people have them in files.


NEW = document({"main": None}, phase=None)

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
    text = json.dumps({**NEW, "spec": {"restartPolicy": "Never", "containers": [{"name": "a"}]}})
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
    assert (line.count("\n"), "--debug" in line) == (1, True)
    with pytest.raises(KeyError):
        main(["--debug", "mutate", "-f", "none"])
