"""What people hand over: documents in any layout, manifests, and the file of applications."""

from __future__ import annotations

import json
import time
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from istio_aux.model import templates
from istio_aux.model.annotations import QUIT
from istio_aux.model.applications import Application, Applications, parse
from istio_aux.model.documents import Document, read, shallow
from istio_aux.model.owners import KINDS, TRAINING_KINDS, JobCounts
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.templates import WORKLOADS
from unit.process import steps
from unit.rules.pods import INJECT, pod

# Files that people hand over, in every layout of JSON and YAML, and JSON that is nested deeply.

A, B = {"kind": "Pod", "metadata": {"name": "a"}}, {"kind": "Pod", "metadata": {"name": "b"}}
LINE_A, LINE_B = json.dumps(A), json.dumps(B)


def values(text: str) -> list[Any]:
    """Documents by value; for a bad one, its line."""
    return [
        json.loads(item.body.decode())
        if isinstance(item, Document)
        else f"{item.place}: {item.why}"
        for item in read(text.encode())
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"\n{LINE_A}\n\n\n{LINE_B}",
        f"{json.dumps(A, indent=2)}\n{json.dumps(B, indent=2)}",
        f"{LINE_A}{LINE_B}",
        "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata:\n  name: b",
        f"---\n{LINE_A}\n---\n# nothing\n---\n{LINE_B}\n---\n",
        json.dumps({"kind": "List", "items": [A, B]}),
        f"kind: PodList\nitems: [{LINE_A}, {LINE_B}]",
        f"\ufeff{LINE_A}\n{LINE_B}",
    ],
    ids=[
        "JSON lines", "JSON in a row", "JSON without space between", "YAML", "YAML with gaps",
        "a List", "a PodList in YAML", "a byte order mark",
    ],
)  # fmt: skip
def test_two_documents_are_found(text: str) -> None:
    assert values(text) == [A, B]


@pytest.mark.parametrize("text", ["", "\n \n", "---\n---\n", "# nothing"])
def test_nothing_is_no_document(text: str) -> None:
    """`kubectl get pods -o json | jq -c '.items[]'` of an empty namespace is fine."""
    assert values(text) == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("a: [", "4: did not find expected node content"),
        ("? {a: b}\n: c", "3: found unhashable key"),
        ("\n\n!!python/object:x {}", "5: could not determine a constructor"),
        ("# odd\n&a [*a]", "3: "),
    ],
    ids=["incomplete", "a mapping as a key", "a foreign tag", "a list that holds itself"],
)
def test_a_bad_document_does_not_stop_the_others(bad: str, why: str) -> None:
    """It is an item in its place, with one line on what is wrong."""
    first, second, third = values(f"{LINE_A}\n---\n{bad}\n---\n{LINE_B}")
    assert (first, third) == (A, B)
    assert second.startswith(why)


def repeated(first: str, each: str, levels: int) -> str:
    """YAML of a few hundred bytes, of which each line stands for nine of the line before it."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, levels):
        nine = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {each % (level, nine)}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (repeated("{x: y}", "{b%d: [%s]}", 12), "excessive aliasing"),
        (repeated("{x: y}", "{b%d: x, <<: [%s]}", 12), "excessive aliasing"),
        ("&a [*a]", "excessive aliasing"),
        ("[" * 100_000, "nested more than 500 levels"),
        ("- " * 100_000, "nested more than 500 levels"),
    ],
    ids=["aliases", "merge keys", "a list that holds itself", "brackets", "dashes"],
)
def test_a_small_text_that_would_take_all_memory_is_bad(text: str, why: str) -> None:
    """CVE-2019-11253; libyaml's composer ends the process of a text that is nested so deeply."""
    [told] = values(text)
    assert why in told


def test_aliases_that_people_write_are_expanded() -> None:
    text = "a: &usual {cpu: 1, memory: 1Gi}\nb: *usual\nc: {<<: *usual, cpu: 2}"
    usual = {"cpu": 1, "memory": "1Gi"}
    assert values(text) == [{"a": usual, "b": usual, "c": {**usual, "cpu": 2}}]


def places(text: str) -> list[tuple[str, str, str]]:
    found = [item for item in read(text.encode()) if isinstance(item, Document)]
    return [(item.place, item.api_version, item.kind) for item in found]


def test_the_indices_of_list_items_are_named_with_the_kind_that_they_may_lack() -> None:
    """The second document is a list of two."""
    text = f"\n{LINE_A}\n\n{json.dumps({'kind': 'JobList', 'apiVersion': 'v2', 'items': [A, B]})}"
    assert places(text) == [("2", "", ""), ("4: item 1", "v2", "Job"), ("4: item 2", "v2", "Job")]
    menu = {"kind": "Menu", "items": [A, B]}
    assert values(json.dumps(menu)) == [menu], "only what calls itself a list is taken apart"


@pytest.mark.parametrize(
    "text",
    [
        f"\n\n{json.dumps(A, indent=2)}\n\n{{\n}}",
        f"\n\n{LINE_A}\n\n\n\n\n\n\n\n\n{LINE_B}",
        f"# for a\n---\n{LINE_A}\n{' ' * 9}\n---\n\n\n\n\n---\n\n{LINE_B}",
    ],
    ids=["JSON in a row", "JSON lines", "YAML"],
)
def test_the_line_of_each_document_is_known(text: str) -> None:
    lines = text.split("\n")
    begins = [str(number) for number, line in enumerate(lines, 1) if line.startswith("{")]
    assert [place for place, *_ in places(text)] == begins


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [("2024-01-01 10:00:00", "2024-01-01 10:00:00"), ("12:30:45", "12:30:45"), ("08a", "08a"),
     ("0644", 0o644), ("1_000", 1000), (".5", 0.5), ("1e3", 1000.0), ("yes", True), ("~", None)],
)  # fmt: skip
def test_yaml_scalars_are_read_as_kubernetes_reads_them(scalar: str, expected: object) -> None:
    """Dates and times of day are strings; the rest is what YAML 1.1 says."""
    [value] = values(f"a: {scalar}")
    assert value == {"a": expected}


@given(
    st.binary(max_size=40)
    | st.text(st.sampled_from('{}[]":,a-\n ?&*'), max_size=40).map(str.encode)
)
def test_no_input_breaks_it(body: bytes) -> None:
    for item in read(body):
        assert isinstance(item, Document) or "\n" not in item.why


WORDS = st.sampled_from(
    ['"', "\\", "]", "}{", "managedFields", "a", '"managedFields":[', "\n", "é"]
)
TEXTS = st.lists(WORDS, max_size=4).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def cut(value: Any, deepest: int) -> Any:
    """The same by recursion."""
    if isinstance(value, dict | list) and deepest == 0:
        return None
    if isinstance(value, list):
        return [cut(item, deepest - 1) for item in value]
    if isinstance(value, dict):
        return {
            key: None
            if key == "managedFields" and isinstance(item, list)
            else cut(item, deepest - 1)
            for key, item in value.items()
        }
    return value


@given(VALUES, st.integers(1, 5), st.sampled_from([None, 1]), st.booleans())
def test_all_stays_but_what_is_too_deep_and_managed_fields(
    value: Any, deepest: int, indent: int | None, plain: bool
) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=plain).encode()
    assert json.loads(shallow(body, deepest=deepest)) == cut(value, deepest)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"a":[', b"]]]", b'"', b'{"a', b'{"a\\', b'{"managedFields":[{"f', b"}{]["],
)
def test_what_is_no_json_stays_none(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra data|Invalid"):
        json.loads(shallow(body))


@pytest.mark.parametrize(
    "body",
    [b"[" * (1 << 20), b'"' + b"\\" * (1 << 20), b'"\\' * (1 << 19), b"1" * (1 << 20),
     b'{"managedFields":' * (1 << 16), b'"' * (1 << 20)],
    ids=["brackets", "backslashes", "quotes", "digits", "managedFields", "strings"],
)  # fmt: skip
def test_a_mebibyte_that_was_made_to_be_slow_takes_linear_time(body: bytes) -> None:
    began = time.process_time()
    shallow(body, most=1 << 30)
    assert time.process_time() - began < 5


def test_a_text_of_which_too_many_values_would_be_cut_out_is_refused() -> None:
    deep = b"[" * 70 + b"]" * 70
    with pytest.raises(ValueError, match="more than 5000 steps"):
        shallow(b"[" + b",".join([deep] * 5000) + b"]", most=5000)


@pytest.mark.parametrize(
    "unit",
    ["[" * 9000 + "]" * 9000, "[[[[[]]]]]", "[[[]]]", "[]", '{"a":"b"}', '{"[":{}}', r'"\"["'],
    ids=["9,000 levels", "five levels", "three levels", "lists", "texts", "brackets", "quotes"],
)
def test_a_mebibyte_of_managed_fields_is_passed_over_in_large_parts(unit: str) -> None:
    """A tenant writes them, and each process reads them whenever it lists pods."""
    units = ",".join([unit] * ((1 << 20) // len(unit)))
    body = f'{{"metadata":{{"managedFields":[{units}],"name":"a"}}}}'.encode()
    assert steps(lambda: shallow(body)) < 10_000
    assert shallow(body) == b'{"metadata":{"managedFields":null,"name":"a"}}'


# The pods that manifests of workloads ask for.

POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main"}]}}
JOBS = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": POD}}}]}
ONE = {"template": POD}
FIELDS = {
    "TFJob": "tf", "PyTorchJob": "pytorch", "XGBoostJob": "xgb", "MPIJob": "mpi",
    "PaddleJob": "paddle", "JAXJob": "jax",
}  # fmt: skip


def manifest(**spec: object) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "team"}, "spec": deepcopy(spec)}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "name", "restarts"),
    [
        *[("apps", kind, ONE, "x-*", None) for kind in
          ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")],
        ("", "ReplicationController", ONE, "x-*", None),
        ("batch", "Job", ONE, "x-*", None),
        ("batch", "CronJob", {"jobTemplate": {"spec": ONE}}, "x-*", None),
        *[("kubeflow.org", kind, {f"{field}ReplicaSpecs": {"Worker": ONE}}, "x-worker-*", "Never")
          for kind, field in FIELDS.items()],
        ("jobset.x-k8s.io", "JobSet", JOBS, "x-node-*", "OnFailure"),
        ("trainer.kubeflow.org", "TrainingRuntime", {"template": {"spec": JOBS}}, "x-node-*",
         "OnFailure"),
    ],
)  # fmt: skip
def test_the_pod_of_each_kind_is_found(
    group: str, kind: str, spec: dict[str, Any], name: str, restarts: str | None
) -> None:
    """The template is the manifest's own, so that a change of it changes the manifest."""
    given = manifest(**spec)
    ((pod, template, only_metadata, *_),) = templates.read(given, group, kind)
    assert pod["metadata"] == {"labels": {"a": "b"}, "name": name, "namespace": "team"}
    assert (pod["spec"].get("restartPolicy"), only_metadata) == (restarts, False)
    template["spec"]["containers"][0]["name"] = "changed"
    assert "changed" in str(given)


def test_each_kind_of_job_is_known() -> None:
    assert {kind for _, kind in WORKLOADS} >= {*KINDS, *TRAINING_KINDS}


@pytest.mark.parametrize(
    ("policy", "restarts"),
    [("ExitCode", "Never"), ("Always", "Always"), ("OnFailure", "OnFailure")],
)
def test_the_policy_of_a_replica_counts(policy: str, restarts: str) -> None:
    """training-operator 1.9 setRestartPolicy: whatever the template says."""
    template = {"spec": {"restartPolicy": "Always"}}
    given = manifest(tfReplicaSpecs={"PS": {"restartPolicy": policy, "template": template}})
    ((pod, *_),) = templates.read(given, "kubeflow.org", "TFJob")
    assert pod["spec"]["restartPolicy"] == restarts
    assert template["spec"] == {"restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [("Workflow", lambda it: it), ("CronWorkflow", lambda it: {"workflowSpec": it})],
)
def test_a_step_of_argo_has_the_labels_and_annotations_of_its_workflow(
    kind: str, wrap: Any
) -> None:
    """A DAG is no pod."""
    steps = [
        {"name": "main", "dag": {}},
        {"name": "a", "container": {"image": "x"}, "sidecars": [{"name": "side"}],
         "metadata": {"annotations": {"own": "2"}}},
        {"name": "b", "containerSet": {"containers": [{"name": "one"}, {"name": "two"}]}},
    ]  # fmt: skip
    common = {"labels": {"all": "1"}, "annotations": {"own": "1", "other": "3"}}
    given = manifest(**wrap({"podMetadata": common, "templates": steps}))
    first, second = templates.read(given, "argoproj.io", kind)
    assert first.pod["metadata"] == {
        "labels": {"all": "1"},
        "annotations": {"own": "2", "other": "3", "workflows.argoproj.io/node-name": "*"},
        "name": "x-a-*", "namespace": "team",
    }  # fmt: skip
    names = [[each["name"] for each in made.pod["spec"]["containers"]] for made in (first, second)]
    assert names == [["wait", "main", "side"], ["wait", "one", "two"]]
    assert first.pod["spec"]["restartPolicy"] == "Never"
    assert first.only_metadata


@pytest.mark.parametrize(
    ("kind", "spec", "error"),
    [
        ("Job", {}, "spec.template is missing"),
        ("Job", {"template": 7}, "spec.template: expected an object"),
        ("Job", {"template": {"spec": []}}, "spec: expected an object"),
        ("TFJob", {"tfReplicaSpecs": {"Worker": None}}, "spec.tfReplicaSpecs.Worker is missing"),
        ("TFJob", {"tfReplicaSpecs": "x"}, "spec.tfReplicaSpecs: expected an object"),
        ("JobSet", {"replicatedJobs": [{}]}, "spec.replicatedJobs.0.template is missing"),
        ("Workflow", {"templates": [{"container": 7}]}, "container: expected an object"),
    ],
)
def test_what_cannot_be_used_is_named(kind: str, spec: dict[str, Any], error: str) -> None:
    group = next(group for group, each in WORKLOADS if each == kind)
    with pytest.raises(ValueError, match=f"^{error}$"):
        list(templates.read(manifest(**spec), group, kind))


@pytest.mark.parametrize("named", [{}, {"containerName": "main"}], ids=str)
@pytest.mark.parametrize(
    ("group", "kind"), [("batch", "Job"), ("batch", "CronJob"), ("jobset.x-k8s.io", "JobSet")]
)
def test_a_failure_policy_that_names_no_container_counts_native_sidecars(
    group: str, kind: str, named: dict[str, str]
) -> None:
    """cloud-sql-proxy#1803: kubernetes pkg/controller/job matchOnExitCodes."""
    codes = {"operator": "In", "values": [143], **named}
    policy = {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            {"action": "FailJob", "onExitCodes": codes},
        ]
    }
    job = {"spec": {"template": {"spec": {"containers": []}}, "podFailurePolicy": policy}}
    spec = {
        "Job": job["spec"],
        "CronJob": {"jobTemplate": job},
        "JobSet": {"replicatedJobs": [{"name": "node", "template": job}]},
    }[kind]

    [found] = templates.read({"metadata": {"name": "x"}, "spec": spec}, group, kind)

    assert found.job == JobCounts(exits=not named)


WISH = {"annotations": {QUIT: "false"}, "labels": {INJECT: "false", "app": "x"}}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "above", "place"),
    [
        ("apps", "Deployment", ONE, ["the Deployment"], "spec.template"),
        ("batch", "CronJob", {"jobTemplate": {"metadata": WISH, "spec": ONE}},
         ["the CronJob", "spec.jobTemplate"], "spec.jobTemplate.spec.template"),
        ("kubeflow.org", "TFJob", {"tfReplicaSpecs": {"PS": ONE, "Worker": ONE}}, ["the TFJob"],
         "spec.tfReplicaSpecs.*.template"),
        ("trainer.kubeflow.org", "TrainingRuntime", {"template": {"metadata": WISH, "spec": JOBS}},
         ["the TrainingRuntime", "spec.template"],
         "spec.template.spec.replicatedJobs.*.template.spec.template"),
    ],
)  # fmt: skip
def test_a_wish_above_the_template_is_named_with_its_place(
    group: str, kind: str, spec: dict[str, Any], above: list[str], place: str
) -> None:
    """mds-core#180, istio#11854, postgres-operator#3368: no controller copies it to a pod."""
    given = manifest(**spec)
    given["metadata"] |= WISH
    first, *others = templates.read(given, group, kind)

    assert tuple(map(str, first.unread)) == tuple(
        f"IA0203: {key} is on {where}, where nothing reads it: put it on {place}.metadata"
        for where in above
        for key in (QUIT, INJECT)
    )
    assert [each.unread for each in others] == [()] * len(others)


@pytest.mark.parametrize(
    ("given", "group", "kind"),
    [
        ({"metadata": {"name": "x", **WISH}, "spec": {"template": {**POD, "metadata": WISH}}},
         "batch", "Job"),
        ({**POD, "metadata": WISH}, "", "Pod"),
    ],
    ids=["Job", "Pod"],
)  # fmt: skip
def test_a_wish_that_a_template_has_too_is_not_named(
    given: dict[str, Any], group: str, kind: str
) -> None:
    [found] = templates.read(given, group, kind)
    assert found.unread == ()


# Which applications ask for sidecars: the file that names them, and whom that means.

NAME = "app.kubernetes.io/name"
FILE = """\
# Written by the charm.
shop/web   # on request

  bank/*
"""


def test_a_file_names_applications_and_whole_models() -> None:
    found, problems = parse(FILE)
    named = {Application("shop", "web"), Application("bank", "*")}
    assert found == Applications(frozenset(named))
    assert problems == ()


@pytest.mark.parametrize(
    "entry", ["web", "shop/", "/web", "shop/web/0", "Shop/web", "shop/we*", "*/web", "shop web"]
)
def test_an_invalid_entry_is_reported_and_the_others_count(entry: str) -> None:
    found, problems = parse(f"shop/a\n{entry}\nshop/b")
    assert {each.name for each in found.named} == {"a", "b"}
    expected = "expected model/app, model/* for all its applications, or namespace/** for all pods"
    assert problems == (f'line 2: "{entry}": {expected}',)


@given(st.text() | st.text(st.sampled_from("ab*/#- \n")))
def test_any_text_can_be_read(text: str) -> None:
    """An entry is understood, or it is a problem; no entry is lost."""
    found, problems = parse(text)
    assert all("\n" not in problem for problem in problems)
    entries = sum(bool(line.partition("#")[0].strip()) for line in text.splitlines())
    counted = len(found.named) + len(problems)
    assert bool(counted) is bool(entries)
    assert counted <= entries


@pytest.mark.parametrize(
    ("namespace", "name", "asks", "covered"),
    [
        ("shop", "web", True, True),
        ("shop", "db", False, False),
        ("bank", "web", True, True),
        ("bank", "", False, False),
        ("team", "web", False, True),
        ("team", "", False, True),
        ("other", "web", False, False),
        ("kube-system", "web", False, False),
    ],
)
def test_who_asks_for_a_sidecar_and_who_gets_one_by_us(
    namespace: str, name: str, asks: bool, covered: bool
) -> None:
    """Those of a model, but not Juju's own pods; none in the namespaces that Istio ignores."""
    found, problems = parse(f"{FILE}\nteam/**\nkube-system/**")
    assert problems == ()
    assert (found.asks(namespace, name), found.covers(namespace, name)) == (asks, covered)


def test_a_pod_is_judged_as_admission_would_make_it() -> None:
    found, _ = parse(FILE)
    judged = InjectionRequest.of(pod({NAME: "web"}, namespace="shop")).admitted(found)
    assert judged.labels == {NAME: "web", INJECT: "true"}
    own = InjectionRequest.of(pod({NAME: "web"}, {INJECT: "maybe"}, namespace="shop"))
    assert own.admitted(found) is own, "it says itself what it wants"
