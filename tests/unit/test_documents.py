"""What people write: documents in any layout, manifests, a file of applications, selectors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from istio_aux.cli import main
from istio_aux.model import templates
from istio_aux.model.annotations import QUIT
from istio_aux.model.applications import (
    Application,
    Applications,
    PodOptions,
    parse as applications,
)
from istio_aux.model.documents import Document, read, shallow
from istio_aux.model.owners import KINDS, TRAINING_KINDS, JobCounts
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.selectors import (
    LabelSelector,
    NamespaceSelectors,
    Operator,
    Requirement,
    Selector,
    convert,
    parse,
    parse_namespaces,
)
from istio_aux.model.templates import WORKLOADS
from lab.selector_cases import INVALID, VALID
from unit.controllers import repairing
from unit.process import steps
from unit.rules.pods import ENABLED, INJECT, NAME, REPORT, RUNNING, document, exited, pod

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

FILE = """\
# Written by the charm.
shop/web   # on request

  bank/*
"""


def test_a_file_names_applications_and_whole_models() -> None:
    found, problems = applications(FILE)
    assert found == Applications(frozenset({Application("shop", "web"), Application("bank", "*")}))
    assert problems == ()


@pytest.mark.parametrize(
    "entry", ["web", "shop/", "/web", "shop/web/0", "Shop/web", "shop/we*", "*/web", "shop web"]
)
def test_an_invalid_entry_is_reported_and_the_others_count(entry: str) -> None:
    found, problems = applications(f"shop/a\n{entry}\nshop/b")
    assert {each.name for each in found.named} == {"a", "b"}
    expected = "expected model/app, model/* for all its applications, or namespace/** for all pods"
    assert problems == (f'line 2: "{entry}": {expected}',)


@given(st.text() | st.text(st.sampled_from("ab*/#- \n")))
def test_any_text_can_be_read(text: str) -> None:
    """An entry is understood, or it is a problem; no entry is lost."""
    found, problems = applications(text)
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
    found, problems = applications(f"{FILE}\nteam/**\nkube-system/**")
    assert problems == ()
    assert (found.asks(namespace, name), found.covers(namespace, name)) == (asks, covered)


def test_a_pod_is_judged_as_admission_would_make_it() -> None:
    found, _ = applications(FILE)
    judged = InjectionRequest.of(pod({NAME: "web"}, namespace="shop")).admitted(found)
    assert judged.labels == {NAME: "web", INJECT: "true"}
    own = InjectionRequest.of(pod({NAME: "web"}, {INJECT: "maybe"}, namespace="shop"))
    assert own.admitted(found) is own, "it says itself what it wants"


# Label selectors: kubectl's syntax in, two forms out, one line for each mistake.

ALL = "a=b,c!=d,e in (x,y),f notin (w,z),g,!h"


def test_every_operator_is_understood_with_whatever_space() -> None:
    spaced = " a == b , c!= d,e  in(y , x),f notin(z,w) ,g, ! h "
    assert str(parse(spaced)) == str(parse(ALL)) == ALL


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("!a,b!=c", {}),
        ("a in (x,y),b,c=z", {"a": "x", "b": "true", "c": "z"}),
        ("a,a=x", {"a": "x"}),
        ("a=x,!a", None),
    ],
)
def test_labels_that_are_selected_are_found(text: str, expected: dict[str, str] | None) -> None:
    assert parse(text).sample() == expected


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {"a": "b"}, True),
        ("  ", {}, True),
        ("a=b,a=c", {"a": "c"}, False),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a=", {"a": ""}, True),
        ("a in (b,c)", {"a": "c"}, True),
        ("a in (b,c)", {"a": "d"}, False),
        ("a in (,c)", {"a": ""}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a notin (b,c)", {}, True),
        ("a", {"a": ""}, True),
        ("a", {"b": "a"}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a=b,!c", {"a": "b", "c": "d"}, False),
        ("in in (in),notin", {"in": "in", "notin": ""}, True),
        ("io.datastrophic/istio-aux=enabled", {"io.datastrophic/istio-aux": "enabled"}, True),
    ],
)
def test_matching(text: str, labels: dict[str, str], expected: bool) -> None:
    assert parse(text).matches(labels) is expected


FORMS = "expected KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUES) or KEY notin (VALUES)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a in b", f'"a in b": {FORMS}, found "a in b"'),
        ("a in ()", '"a in ()": expected at least one value after "in"'),
        ("a,b in (c", f'"a,b in (c": {FORMS}, found "b in (c"'),
        ("a in (b c)", '"a in (b c)": label value "b c": expected at most 63 letters'),
        ("a,", f'"a,": {FORMS}, found the end'),
        ("!", f'"!": {FORMS}, found "!"'),
        ("a=b c", f'"a=b c": {FORMS}, found "a=b c"'),
        ("a>1", f'"a>1": {FORMS}, found "a>1"'),
        ("a\nb", f'"a\\nb": {FORMS}, found "a\\nb"'),
        ("A/b=c", "\"A/b=c\": label key \"A/b\": expected a DNS subdomain before the '/'"),
        ("a." * 126 + "bc/d", "expected a DNS subdomain before the '/'"),
        ("/b", "\"/b\": label key \"/b\": expected a DNS subdomain before the '/'"),
        ("-a", '"-a": label key "-a": expected at most 63 letters'),
        ("a" * 64, 'expected at most 63 letters'),
        ("a=b!", f'"a=b!": {FORMS}, found "a=b!"'),
        ("a=é", 'label value "é": expected at most 63 letters'),
    ],
)  # fmt: skip
def test_a_mistake_gives_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


DEFAULT = (
    "io.datastrophic/istio-aux=enabled; "
    "app.kubernetes.io/part-of=kubeflow-profile,!io.datastrophic/istio-aux"
)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("a;b=c", {"a": ""}, True),
        ("a;b=c", {"b": "c"}, True),
        ("a ; b=c", {"b": "d"}, False),
        ("", {}, True),
        (DEFAULT, {"app.kubernetes.io/part-of": "kubeflow-profile"}, True),
        (DEFAULT, {"io.datastrophic/istio-aux": "enabled"}, True),
        (DEFAULT, {"istio-injection": "enabled"}, False),
    ],
)
def test_one_of_the_selectors_of_namespaces_must_match(
    text: str, labels: dict[str, str], expected: bool
) -> None:
    assert parse_namespaces(text).matches(labels) is expected


@pytest.mark.parametrize("text", INVALID)
def test_a_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


@pytest.mark.parametrize("text", VALID)
def test_no_selector_selects_kube_system(text: str) -> None:
    found = parse_namespaces(text)

    for labels in ({}, {"key": "value"}, {"key": ""}, {"a": "b", "f": "", "g": "h"}):
        assert found.matches(labels) is parse(text).matches(labels)
        assert not found.matches({**labels, "kubernetes.io/metadata.name": "kube-system"})


def test_selectors_of_namespaces_are_written_as_they_are_read_and_each_counts_once() -> None:
    assert str(parse_namespaces(f"{DEFAULT};io.datastrophic/istio-aux == enabled")) == DEFAULT
    assert str(parse_namespaces(" ")) == ""
    assert parse_namespaces("") == NamespaceSelectors()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a;b in c", f'"b in c": {FORMS}, found "b in c"'),
        ("a;;b", '"a;;b": expected a selector on both sides of each ";"'),
        ("a;", '"a;": expected a selector on both sides of each ";"'),
        (";", '";": expected a selector on both sides of each ";"'),
        (";".join("a" * 17), f'"{"a;" * 16}a": expected 16 selectors at most'),
        (f"a;{'b,' * 1000}b", f'"{"b," * 30}…": expected 2000 characters at most'),
    ],
)
def test_a_mistake_in_selectors_of_namespaces_is_named_with_what_is_allowed(
    text: str, message: str
) -> None:
    """An empty selector would select every namespace."""
    with pytest.raises(ValueError, match="expected") as caught:
        parse_namespaces(text)
    assert str(caught.value) == message


NAMES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,4}[A-Za-z0-9])?", fullmatch=True)
REQUIREMENTS = st.one_of(
    st.builds(
        Requirement,
        key=NAMES,
        operator=st.sampled_from([Operator.IN, Operator.NOT_IN]),
        values=st.sets(NAMES | st.just(""), min_size=1).map(lambda found: tuple(sorted(found))),
    ),
    st.builds(
        Requirement,
        key=NAMES,
        operator=st.sampled_from([Operator.EXISTS, Operator.DOES_NOT_EXIST]),
    ),
)


@given(st.sets(REQUIREMENTS, max_size=4))
def test_the_canonical_text_means_the_same(requirements: set[Requirement]) -> None:
    selector = Selector(tuple(sorted(requirements)))
    assert parse(str(selector)) == selector


def test_an_object_with_nothing_in_it_selects_everything() -> None:
    """The API server sends null for empty maps and lists."""
    empty = msgspec.json.decode(b'{"matchLabels":null,"matchExpressions":null}', type=LabelSelector)
    assert convert(empty) == convert(LabelSelector()) == Selector()


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        *(
            ({"matchExpressions": [{"key": "a"} | expression]}, message)
            for expression, message in (
                ({"operator": "Like", "values": ["b"]},
                 "expected one of: In, NotIn, Exists, DoesNotExist"),
                ({"operator": "In"}, "expected at least one value with In, for a"),
                ({"operator": "Exists", "values": ["b"]}, "expected no values with Exists, for a"),
                ({"key": "-a", "operator": "Exists"},
                 'label key "-a": expected at most 63 letters'),
                ({"operator": "In", "values": ["b c"]},
                 'label value "b c": expected at most 63 letters'),
            )
        ),
        ({"matchLabels": {"-a": "b"}}, 'label key "-a": expected at most 63 letters'),
        ({"matchLabels": {"a": "b c"}}, 'label value "b c": expected at most 63 letters'),
    ],
)  # fmt: skip
def test_an_object_that_kubernetes_would_not_take_gives_one_clear_line(
    wire: dict[str, object], message: str
) -> None:
    """apimachinery LabelSelectorAsSelector and labels.NewRequirement."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        convert(msgspec.convert(wire, LabelSelector))

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(st.sampled_from("ab=!,() in\n<é"), max_size=12))
def test_no_text_breaks_it(text: str) -> None:
    try:
        selector = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert parse(str(selector)) == selector


# Options `pod-selector` and `inject-selector`: which pods start, quit and repair are for.

CHOOSE = ("--pod-selector", "team in (a,b),!hands-off")
OTHER: Mapping[str, str] = {"team": "c"}
WEB: Mapping[str, str] = {"app.kubernetes.io/name": "web"}
LABEL = "kubectl label{} pod job-x7k2p -n training team=a"
WHY = "pod-selector !hands-off,team in (a,b) does not match the pod's labels"
AUTHOR = f"{WHY}: its author labels the pod"


@pytest.mark.parametrize(
    ("labels", "asked", "expected"),
    [
        ({"team": "a"}, "", ("quit", None, None)),
        (OTHER, "", ("ignore", AUTHOR, LABEL.format(" --overwrite"))),
        ({}, "", ("ignore", AUTHOR, LABEL.format(""))),
        (WEB, "training/web", ("quit", None, None)),
    ],
    ids=["matched", "other labels", "no labels", "an injected application's"],
)
def test_explain_says_that_it_does_not_match(
    labels: dict[str, str],
    asked: str,
    expected: tuple[str, str | None, str | None],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "applications").write_text(asked)
    config = tmp_path / "config.yaml"
    config.write_text(f"pod-selector: {CHOOSE[1]!r}\napplications: {tmp_path}/applications\n")
    pod = document({"main": exited(0), "istio-proxy": RUNNING}, labels=labels)

    assert main(["explain", *as_file(tmp_path, pod), "--config", str(config), "-o", "json"]) == 0

    found = json.loads(capfd.readouterr().out)
    assert (found["action"], found.get("left_out"), found.get("change")) == expected
    assert found["containers"]["main"]["finished"]


def test_mutate_leaves_a_pod_that_it_does_not_match_and_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pod = document({"main": None}, labels=OTHER)
    argv = as_file(tmp_path, pod)

    assert main(["mutate", "-o", "json", *argv, *CHOOSE]) == 0

    out, err = capfd.readouterr()
    assert json.loads(out) == pod
    assert err == f"{argv[1]}:1: left alone: {WHY}\n"


def as_file(folder: Path, pod: dict[str, Any]) -> list[str]:
    """The arguments for a file with the pod."""
    file = folder / "pod.json"
    file.write_text(json.dumps(pod))
    return ["-f", str(file)]


# Option `inject-selector`: pods that get a sidecar although their annotation says no.

STEP = {"step": "train"}
NO = {INJECT: "false"}


async def test_inject_selector_counts_where_the_namespace_or_the_application_is_selected() -> None:
    chosen = PodOptions(namespaces=parse_namespaces("team"), inject=parse("step"))
    async with repairing(policy=REPORT, options=chosen) as world:
        await world.pod("step", labels=STEP, annotations=NO)
        await world.pod("says-nothing")
        await world.known(2)
        await world.found("says-nothing")
        await world.relabel("shop", {**ENABLED, "team": "a"})
        await world.found("step", "says-nothing")
        await world.relabel("shop", ENABLED)
        await world.found("says-nothing")
        await world.pod("web-0", labels={**STEP, **WEB}, annotations=NO)
        world.repair.store.set_applications(applications("shop/web")[0])
        await world.found("says-nothing", "web-0")


@pytest.mark.parametrize(("selector", "value"), [("step", "true"), ("", None), ("!step", None)])
def test_mutate_shows_the_label_that_it_gives(
    selector: str, value: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = as_file(tmp_path, document({"main": None}, labels=STEP, annotations=NO))
    assert main(["mutate", "-o", "json", *file, "--inject-selector", selector]) == 0
    metadata = json.loads(capfd.readouterr().out)["metadata"]
    assert metadata["labels"].get(INJECT) == value
    assert ("istio-aux.io/started-with" in metadata["annotations"]) is (value == "true")
