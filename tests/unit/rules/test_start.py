"""What admission changes in a pod: its start, before and after Istio, its label, and its text."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import jsonpatch
import msgspec
import pytest
import yaml
from fuzz import bodies
from hypothesis import given, strategies as st
from istio_aux.model import pod as pods
from istio_aux.model.annotations import (
    DATAPLANE,
    INCLUDED,
    INJECT,
    INJECTED,
    MIRROR,
    NATIVE_SIDECAR,
    NOT_NATIVE,
    PEERS,
    PROXY_CONFIG,
    SIDECARS,
    SIGNALLED_WITH,
    START,
    STARTED_WITH,
)
from istio_aux.model.pod import PROXY, Metadata, Pod
from istio_aux.model.policy import Capability, StartMode, StartPolicy
from istio_aux.model.selectors import parse
from istio_aux.start import patch, review
from istio_aux.start.hold import ANNOTATION, HOLD, HOLD_PROTO, Merge, merged, read
from istio_aux.start.plan import Plan, after_injection, before_injection, effective_start, plan
from istio_aux.start.review import Outcome
from lab import start_cases
from lab.start_cases import BRIEF, BY_HAND, CASES, HOLDING, TEXTS, Case, outcome
from unit.istiod import Template, admit
from unit.process import steps
from unit.rules.pods import (
    DATA,
    RUNNING,
    TO_HOLD,
    UNTOLD,
    annotations_of,
    document,
    job,
    patched,
    planned,
    reviewed,
)

# What admission changes in a pod: its start, before Istio and after it, and its label.
#
# Then for pods of any shape: the patch applies, changes what it says, and twice is once.


def new_pod(**fields: Any) -> dict[str, Any]:
    return document({"main": None}, phase="Pending", **fields)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pod_becomes_what_the_table_says(case: Case) -> None:
    """community-distribution#2040, and all else; `cluster/test_admission.py` asks the webhook."""
    made = copy.deepcopy(case.pod)

    made_so = planned(made, case.setting)
    patch.apply(made_so.ops, made)

    assert outcome(annotations_of(made), made["spec"]["containers"]) == case.expected
    assert made["metadata"]["labels"] == case.labelled
    assert case.warns in " ".join(made_so.warnings)
    assert bool(made_so.warnings) is bool(case.warns)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_pod_is_not_made_too_big_to_be_accepted(spare: int) -> None:
    """The API server refuses pods with more than 256 KiB of annotations."""
    ours = sum(len(key) + len(value) for key, value in start_cases.HELD.items())
    room = (256 << 10) - ours - len("é".encode()) - 1 + spare
    result = planned(new_pod(annotations={"é": "x" * room, "a": ""}))
    assert bool(result.ops) == (spare == 0)
    assert bool(result.warnings) == (spare == 1)


HELD_BY_US, NATIVE_BY_US = ({"istio-aux.io/started-with": way} for way in ("hold", "native"))
HELD = {PROXY: BRIEF}
DRAINED = {"istio-proxy": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}}
MAIN, SIDECAR = {"main": RUNNING}, {PROXY: RUNNING}
BOTH = SIDECAR | MAIN
UNHELD = "istio-proxy does not hold the payload back"
ABSENT = "no container is called istio-proxy"


@pytest.mark.parametrize(
    ("pod", "asked", "but"),
    [
        (job(BOTH, details=HELD), None, ""),
        (job(BOTH, details=HELD, annotations={STARTED_WITH: "luck"}), None, ""),
        (job(BOTH, details=HELD, annotations=HELD_BY_US), "hold", ""),
        (job(BOTH, details={PROXY: HOLDING}, annotations=HELD_BY_US), "hold", ""),
        (job(BOTH, details=HELD, annotations={**HELD_BY_US, NOT_NATIVE: "a quota"}),
         "hold, not native: a quota", ""),
        (job(MAIN | SIDECAR, details=HELD, annotations=HELD_BY_US), "hold", UNHELD),
        (job(BOTH, annotations=HELD_BY_US), "hold", UNHELD),
        (job(BOTH, details=DRAINED, annotations=HELD_BY_US), "hold",
         "hold has no effect: istio-proxy has a lifecycle of its own, without postStart"),
        (job(MAIN, sidecars=SIDECAR, annotations=HELD_BY_US), "hold",
         "the sidecar is a native one"),
        (job(MAIN, annotations=HELD_BY_US), "hold", ABSENT),
        (job(MAIN, sidecars=SIDECAR, annotations=NATIVE_BY_US), "native", ""),
        (job(BOTH, details=HELD, annotations=NATIVE_BY_US), "native",
         "the sidecar is a classic one"),
        (job(MAIN, annotations=NATIVE_BY_US), "native", ABSENT),
    ],
)  # fmt: skip
def test_the_start_says_what_admission_asked_for_and_whether_it_took_effect(
    pod: Any, asked: str | None, but: str
) -> None:
    """istio#37541: hold has no effect beside hooks of the mesh and in native mode."""
    assert effective_start(pod) == (f"asked for {asked}, but {but}" if but else asked)


def ask(found: dict[str, Any]) -> Plan:
    """What is done to a pod whose application asks for a sidecar, and of which nothing is held."""
    pod = pods.decode(msgspec.json.encode(found))
    return plan(pod, StartPolicy(mode=StartMode.NONE), requested=True, excluded=lambda _: "")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        *({"labels": labels} for labels in (None, {}, {"a/b~c": "d"}, {DATAPLANE: "none"})),
    ],
    ids=str,
)
def test_a_pod_without_a_wish_gets_the_label(metadata: dict[str, Any]) -> None:
    """Go clients send null for an empty map: adding into it would refuse the pod."""
    found = {**new_pod(), "metadata": {"generateName": "web-", **metadata}}
    after = jsonpatch.apply_patch(found, patch.encode(ask(found).ops).decode())
    assert after["metadata"]["labels"] == {**(metadata.get("labels") or {}), INJECT: "true"}
    assert ask(after).ops == ()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (new_pod(spec={"hostNetwork": True}), "hostNetwork: Istio gives it no sidecar"),
        (new_pod(annotations={MIRROR: "x"}), "the pod mirrors a static pod"),
        (new_pod(annotations={INJECTED: "{}"}), "the sidecar is already injected"),
        (new_pod(labels={DATAPLANE: "ambient"}), f'label {DATAPLANE}: "ambient"'),
        ({"kind": "Pod", "spec": {}}, "the object has no metadata"),
    ],
    ids=["hostNetwork", "mirror", "injected", "ambient", "no metadata"],
)
def test_a_pod_that_istio_does_not_inject_is_left_alone(found: dict[str, Any], reason: str) -> None:
    """Its namespace has `istio.io/rev`."""
    assert ask(found) == Plan(ops=(), reason=reason)
    assert planned(found).ops == ()


def test_an_ambient_pod_of_a_file_starts_after_a_sidecar_that_it_asks_for() -> None:
    """Nothing else is known of it."""
    assert planned(new_pod(labels={DATAPLANE: "ambient", INJECT: "true"})).started_with == "hold"


def injected(
    *containers: str, annotations: dict[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """A pod with the mark of the injector; where nothing else is said, it holds nothing back."""
    named = dict.fromkeys(containers or ("main", PROXY))
    return document(named, annotations={**BY_HAND, **(annotations or {})}, phase=None, **fields)


def recording(case: str) -> dict[str, Any]:
    """The pod that a real istiod made."""
    record = json.loads((DATA / f"istio/inject-{case}.json").read_text())
    pod = record["request"]["request"]["object"]
    # istiod compares with the pod as Go writes it.
    pod["spec"]["containers"][0]["resources"] = {}
    answer = json.loads(base64.b64decode(record["response"]["response"]["patch"]))
    return jsonpatch.apply_patch(pod, answer)


def names(found: dict[str, Any]) -> list[str]:
    return [container["name"] for container in found["spec"]["containers"]]


def without_environment(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in container.items() if key != "env"}
        for container in found["spec"]["containers"]
    ]


def test_it_starts_as_if_istio_had_been_asked_for_hold() -> None:
    """The same containers in the same order as in the recording of hold; the hook waits longer."""
    found, held = patched(recording("classic")), recording("hold")
    assert held["spec"]["containers"][0]["lifecycle"] == BRIEF["lifecycle"]
    held["spec"]["containers"][0]["lifecycle"] = HOLDING["lifecycle"]
    assert without_environment(found) == without_environment(held)
    assert annotations_of(found)[PROXY_CONFIG] == TO_HOLD
    assert annotations_of(found)[STARTED_WITH] == "hold"


@pytest.mark.parametrize(
    ("found", "how"),
    [
        (recording("hold"), UNTOLD),
        (recording("native"), UNTOLD),
        (injected(PROXY), UNTOLD),
        (injected("main"), UNTOLD),
        (
            injected(annotations={PROXY_CONFIG: "hold_application_until_proxy_starts: false"}),
            UNTOLD,
        ),
        (injected(), StartPolicy(mode=StartMode.NONE)),
    ],
    ids=["held by Istio", "native", "a gateway", "only its mark", "hold refused", "none"],
)
def test_a_pod_that_is_to_stay_as_istio_made_it_stays(
    found: dict[str, Any], how: StartPolicy
) -> None:
    """An explicit false is also about what hold would have done."""
    assert planned(found, how).ops == ()


@pytest.mark.parametrize("lifecycle", [None, {}, {"postStart": None, "preStop": None}])
def test_an_empty_lifecycle_counts_as_none(lifecycle: dict[str, Any] | None) -> None:
    """However the JSON spells it."""
    found = patched(injected(details={PROXY: {"lifecycle": lifecycle}}))
    hook = found["spec"]["containers"][0]["lifecycle"]["postStart"]
    assert hook == HOLDING["lifecycle"]["postStart"]


def test_a_hook_of_somebody_else_is_kept() -> None:
    """The mesh may have given the proxy another way to wait (Helm global.proxy.lifecycle)."""
    own = {
        "postStart": {"exec": {"command": ["wait-for-it"]}},
        "preStop": {"sleep": {"seconds": 3}},
    }
    found = patched(injected(details={PROXY: {"lifecycle": own}}))
    assert names(found) == [PROXY, "main"]
    assert found["spec"]["containers"][0]["lifecycle"] == own


@pytest.mark.parametrize("case", ["classic", "native", "hold"])
def test_the_next_pod_of_a_controller_is_this_one_without_what_istio_added(case: str) -> None:
    """`check` judges by it how a pod would start."""
    pod = before_injection(pods.convert(recording(case)))
    assert [container.name for container in pod.containers] == ["main"]
    assert pod.init_containers == ()
    assert INJECTED not in (pod.metadata.annotations or {})


CONFIGS = ["a: b", "{a: b}", *(case.annotations[PROXY_CONFIG] for case in TEXTS)]
SEEDS = st.integers(0, 2**32)
HOWS = st.builds(
    StartPolicy, mode=st.sampled_from(StartMode), capability=st.sampled_from(Capability)
)


def fuzzed(seed: int) -> dict[str, Any]:
    """A pod as anybody may send it, but that it says nothing of its own sidecars."""
    found = bodies.review(Random(seed))["request"]["object"]
    annotations_of(found).pop(SIDECARS, None)
    return found


def bare(found: dict[str, Any]) -> dict[str, Any]:
    """The pod without what we may change."""
    rest = copy.deepcopy(found)
    annotations = rest["metadata"].pop("annotations", None) or {}
    for container in (listed := rest["spec"].get("containers") or []):
        if container.get("name") == PROXY:
            container.pop("lifecycle", None)
    listed.sort(key=lambda container: container.get("name") == PROXY)
    ours = {PROXY_CONFIG, INCLUDED, NATIVE_SIDECAR, NOT_NATIVE, SIGNALLED_WITH, STARTED_WITH}
    return {**rest, "kept": {key: annotations[key] for key in annotations.keys() - ours}}


@given(SEEDS, HOWS)
def test_every_patch_applies_and_changes_nothing_but_the_start(seed: int, how: StartPolicy) -> None:
    """A patch that fails would refuse the pod, even with failurePolicy Ignore."""
    found = fuzzed(seed)
    assert bare(patched(found, how)) == bare(found)


@given(SEEDS, HOWS)
def test_twice_is_once(seed: int, how: StartPolicy) -> None:
    """The API server calls again whenever another webhook changed something."""
    assert planned(patched(fuzzed(seed), how), how).ops == ()


@given(SEEDS, HOWS, st.booleans(), st.sampled_from(CONFIGS))
def test_once_is_enough_also_when_istio_was_called_in_between(
    seed: int, how: StartPolicy, native: bool, text: str
) -> None:
    """A claim of hold that a native sidecar makes untrue is corrected, and a hook waits longer."""
    found = fuzzed(seed)
    annotations_of(found).pop(INJECTED, None)
    if PROXY_CONFIG in annotations_of(found):
        annotations_of(found)[PROXY_CONFIG] = text
    found["spec"]["containers"] = [{"name": "main", "image": "x"}, {"name": "aux", "image": "x"}]
    once = patched(found, how)
    request = {"request": {"uid": "1", "namespace": "training", "object": once}}
    native = native or how.capability is Capability.UNASKED
    answer, _ = admit(request, Template("istio-system", "proxyv2"), native=native)
    if "patch" not in answer["response"]:
        return
    between = jsonpatch.apply_patch(once, json.loads(base64.b64decode(answer["response"]["patch"])))
    again = patched(between, how)
    assert bare(again) == bare(between)
    assert names(again) == names(between)
    assert len(planned(between, how).ops) <= 1
    assert planned(again, how).ops == ()


# AdmissionReview v1 on the wire: every body that has a uid gets an answer that allows the pod.


LABELLED = 'added label sidecar.istio.io/inject: "true"'

UNCHANGED = {"uid", "allowed", "auditAnnotations"}


def request(**fields: Any) -> dict[str, Any]:
    """A review as the API server sends it at the creation of a pod."""
    return reviewed(**{"uid": "705ab4f5", "object": new_pod(), **fields})


def response(body: bytes, uid: str = "705ab4f5") -> dict[str, Any]:
    """The ``response`` of an answer, after the checks that the API server makes of any answer."""
    answer = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found = answer["response"]
    assert found["uid"] == uid
    assert found["allowed"] is True
    assert ("patch" in found) == ("patchType" in found)
    return found


def answer(found: dict[str, Any], how: StartPolicy = UNTOLD, **more: Any) -> review.ReviewResult:
    return review.answer(json.dumps(found).encode(), lambda _: how, **more)


def admitted(found: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a pod after the patch, which is base64 of a JSON Patch."""
    assert sent["patchType"] == "JSONPatch"
    pod = found["request"]["object"]
    return jsonpatch.apply_patch(pod, base64.b64decode(sent["patch"]).decode())["metadata"]


def test_a_pod_is_patched_and_the_server_learns_what_to_log() -> None:
    """One line and one counter per review come from these facts. The audit log has the reason."""
    result = answer(found := request())
    sent = response(result.body)
    assert sent["auditAnnotations"] == {
        "reason": "added holdApplicationUntilProxyStarts",
        "started-with": "hold",
    }
    assert admitted(found, sent)["annotations"] == {PROXY_CONFIG: TO_HOLD, STARTED_WITH: "hold"}
    assert "warnings" not in sent
    assert (result.uid, result.pod) == ("705ab4f5", "training/job-x7k2p")


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        (document({"main": None}, annotations={START: "native"}), Outcome.NATIVE),
        (document({"main": None}), Outcome.HOLD),
        (document({"main": None, "istio-proxy": None}, annotations=BY_HAND), Outcome.MOVED),
        (document({"istio-proxy": None, "main": None}, annotations=BY_HAND), Outcome.HOLD),
        (document({"istio-proxy": None, "main": None}, annotations=BY_HAND | start_cases.HELD,
                  details={"istio-proxy": start_cases.BRIEF}), Outcome.LONGER),
        (document({"istio-proxy": None}, annotations=BY_HAND), Outcome.UNCHANGED),
        (document({"main": None}, annotations={START: "none", PEERS: "direct"}),
         Outcome.DIRECT),
    ],
    ids=["native", "hold", "after Istio", "after Istio, but first already", "held by Istio for us",
         "a gateway", "ports"],
)  # fmt: skip
def test_the_outcome_says_what_was_done(pod: dict[str, Any], outcome: Outcome) -> None:
    assert answer(request(object=pod)).outcome is outcome


NATIVE, OFF = StartPolicy(capability=Capability.NATIVE), StartPolicy(mode=StartMode.NONE)
ASKS, REFUSES = {"labels": {INJECT: "true"}}, {"annotations": {INJECT: "false"}}


@pytest.mark.parametrize(
    ("pod", "how", "reason", "started_with", "outcome"),
    [
        ({}, UNTOLD, f"{LABELLED}; added hold", "hold", Outcome.LABELLED),
        ({}, NATIVE, f"{LABELLED}; added native sidecar", "native", Outcome.LABELLED),
        ({}, OFF, LABELLED, None, Outcome.LABELLED),
        (ASKS, UNTOLD, "added holdApplication", "hold", Outcome.HOLD),
        (REFUSES, UNTOLD, 'annotation sidecar.istio.io/inject: "false"', None, Outcome.UNCHANGED),
    ],
    ids=["label and hold", "label and native", "label alone", "it asks itself", "it refuses"],
)
def test_the_other_webhook_gives_pods_a_label_and_their_start(
    pod: dict[str, Any], how: StartPolicy, reason: str, started_with: str | None, outcome: Outcome
) -> None:
    """In any namespace. One that says something itself is left alone, and the audit log has why."""
    found = request(object=document({"main": None}, **pod))
    result = answer(found, how, requested=True)
    sent = response(result.body)
    assert (sent.keys() == UNCHANGED) is (outcome is Outcome.UNCHANGED)
    after = admitted(found, sent) if "patch" in sent else found["request"]["object"]["metadata"]
    assert after.get("labels") == (None if pod == REFUSES else {INJECT: "true"})
    assert after.get("annotations", {}).get(STARTED_WITH) == started_with
    assert sent["auditAnnotations"].get("started-with") == started_with
    assert sent["auditAnnotations"]["reason"].startswith(reason)
    assert result.outcome is outcome


def test_a_pod_that_refuses_and_gets_the_label_will_have_a_sidecar() -> None:
    found = pods.convert(
        document({"main": None}, labels={"app": "x"}, annotations={INJECT: "false"})
    )
    assert after_injection(found, plan(found, StartPolicy(inject=parse("app=x")))).has_proxy
    assert not after_injection(found, plan(found, StartPolicy())).has_proxy


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"generateName": "mnist-"}, "training/mnist-*"),
        ({"name": "x\n" * 100_000}, "training/x x x x"),
    ],
    ids=["a prefix", "a very long name"],
)
def test_a_pod_is_named_in_one_short_line(metadata: dict[str, str], shown: str) -> None:
    """At admission neither name nor namespace need be in the object, and no name is validated."""
    pod = answer(request(object={**new_pod(), "metadata": metadata})).pod
    assert pod.startswith(shown)
    assert pod.isprintable()
    assert len(pod) <= 318


def test_what_the_user_wrote_cannot_flood_or_break_a_line() -> None:
    """The reason quotes it: in a log, in the audit log and in a header."""
    text = "holdApplicationUntilProxyStarts: |\n  a\n  \x85b" + "c" * 1000
    result = answer(request(object=document({"main": None}, annotations={PROXY_CONFIG: text})))
    for line in (result.reason, *result.warnings, *response(result.body)["warnings"]):
        assert line.isprintable()
        assert len(line) <= 256
    assert all(line.startswith("istio-aux: ") for line in response(result.body)["warnings"])


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"operation": "UPDATE"}, id="an update"),
        pytest.param({"operation": "DELETE", "object": None}, id="a deletion"),
        pytest.param({"subResource": "ephemeralcontainers"}, id="a subresource"),
    ],
)
def test_only_the_creation_of_a_pod_is_touched(fields: dict[str, Any]) -> None:
    """A configuration that sends more than it should does no harm."""
    assert response(answer(request(**fields)).body).keys() == UNCHANGED


def test_an_object_of_another_kind_is_left_alone_with_a_warning() -> None:
    """The webhook was configured wrongly; the warning says what arrived."""
    found = request(kind={"group": "apps", "version": "v1", "kind": "Deployment"})
    [warning] = response(answer(found).body)["warnings"]
    assert 'the object is no Pod: kind "Deployment"' in warning


@pytest.mark.parametrize(
    ("found", "why"),
    [
        pytest.param(
            request(object={"kind": "Pod", "metadata": {"labels": {"a": 1}}}),
            "Expected `str`, got `int` - at `$.request.object.metadata.labels[...]`",
            id="a pod with a number for a label",
        ),
        pytest.param(request(object=[]), "Expected `object | null`, got `array`", id="no object"),
        pytest.param(
            {**request(), "apiVersion": "admission.k8s.io/v1beta1"},
            '"admission.k8s.io/v1beta1" "AdmissionReview", expected admission.k8s.io/v1',
            id="an old version",
        ),
        pytest.param({"request": {"uid": "705ab4f5"}}, '"" ""', id="no apiVersion"),
        pytest.param(request(more=[{}] * 50_000), "objects, not at most 50000", id="objects"),
        pytest.param(request(more=["a"] * 30_000), "strings, not at most 30000", id="strings"),
        pytest.param(request(more=[1] * 100_000), "values, not at most 100000", id="numbers"),
    ],
)
def test_a_malformed_review_with_a_uid_is_allowed_with_a_warning(
    found: dict[str, Any], why: str
) -> None:
    """We must not be the reason why a pod is refused."""
    result = answer(found)
    sent = response(result.body)
    assert "patch" not in sent
    assert why in sent["warnings"][0]
    assert result.outcome is Outcome.MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"request": {"uid": 7}}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":""}}',
        b'{"request": {"uid": "u"}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=lambda body: body[:60].decode(errors="replace"),
)
def test_without_a_uid_there_is_no_valid_answer(body: bytes) -> None:
    """The server answers HTTP 400 with this one line."""
    with pytest.raises(ValueError, match="malformed AdmissionReview") as caught:
        review.answer(body, lambda _: StartPolicy())
    assert "\n" not in str(caught.value)


LONG_UID = "705ab4f5-0000-4000-8000-000000000000"


def buried(fields: str) -> bytes:
    """A review of a pod with managedFields that say this, as the API server writes it."""
    found = request(uid=LONG_UID)
    found["request"]["object"]["metadata"]["managedFields"] = "@"
    text = json.dumps(found, separators=(",", ":"))
    return text.replace('"@"', f'[{{"manager":"me","fieldsV1":{fields}}}]').encode()


@pytest.mark.parametrize("sibling", ["", '"x":{},', '"[[[":[],'])
def test_a_review_that_is_nested_deeply_is_allowed_with_a_warning_and_not_read_again(
    sibling: str,
) -> None:
    """With more levels than any Python decodes, and whatever stands between them."""
    body = buried(f'{{{sibling}"f:a":' * 14_000 + '{"v:[]":{}}' + "}" * 14_000)
    assert steps(lambda: review.answer(body, lambda _: StartPolicy())) < 1000
    found = response(review.answer(body, lambda _: StartPolicy()).body, LONG_UID)
    assert "patch" not in found
    assert found["warnings"] == [
        "istio-aux: left alone: malformed AdmissionReview: it is nested too deeply"
    ]


# How hold gets into the user's own text, and how that text survives.

GOLDEN = DATA / "hold"
MEANING = json.loads((GOLDEN / "meaning.json").read_text())

KEYS = st.one_of(
    st.text("abcXYZ-_.", min_size=1, max_size=8), st.sampled_from(["proxyMetadata", "concurrency"])
)
SCALARS = st.one_of(
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=12),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from(["12:30:45", "2024-01-01", "yes", "1e3", "- x", "# no comment", "a: b\nc\n\n"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
STYLES: list[Callable[[Any], str]] = [
    lambda value: yaml.safe_dump(value, default_flow_style=False, allow_unicode=True),
    lambda value: yaml.safe_dump(value, default_flow_style=True, width=40),
    lambda value: yaml.safe_dump(value, explicit_start=True, explicit_end=True),
    lambda value: yaml.safe_dump(value).rstrip("\n"),
    lambda value: "# a comment\n" + yaml.safe_dump(value) + "# the end",
    lambda value: yaml.safe_dump(value, default_style='"', indent=6),
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(value, ensure_ascii=False, indent=2) + "\n",
]


def strings(text: str) -> Any:
    """What a text means, with every scalar as it is spelt: an oracle without a schema."""
    return yaml.load(text, Loader=yaml.BaseLoader)


def golden(folder: str) -> Any:
    """The texts of a folder of tests/data/hold, each a row of a table."""
    files = sorted((GOLDEN / folder).glob("*.in"))
    return pytest.mark.parametrize("file", files, ids=[file.stem for file in files])


def text_of(file: Path) -> str:
    return file.read_bytes().decode()


def meaning(file: Path) -> Any:
    """What Istio's own reader makes of a text; a string that it refuses it."""
    found = MEANING[str(file.relative_to(GOLDEN))]
    return found["json"] if "json" in found else f"refused: {found['error']}"


@golden("merged")
def test_hold_is_added_and_all_else_is_kept(file: Path) -> None:
    """Comments, order, indent, quotes and line ends stay; one key comes in."""
    assert merged(text_of(file)) == Merge(
        text=text_of(file.with_suffix(".out")), reason=f"added {HOLD}", holds=True
    )


@golden("merged")
def test_istio_reads_the_old_mapping_and_our_key(file: Path) -> None:
    """As its own library reads both texts, not as ours does."""
    assert meaning(file.with_suffix(".out")) == {**(meaning(file) or {}), HOLD: True}


@golden("kept")
def test_an_explicit_value_is_left_alone(file: Path) -> None:
    """The author has decided, in whichever spelling; ``false`` is an opt-out."""
    merge = merged(text_of(file))
    assert (merge.text, merge.warning) == (None, None)
    found = meaning(file)
    assert merge.holds == bool(found.get(HOLD, found.get(HOLD_PROTO)))


@golden("refused")
def test_what_istio_refuses_stays_byte_for_byte_and_is_reported(file: Path) -> None:
    """Istio refuses such a pod with its own message; we say that we kept away."""
    merge = merged(text_of(file))
    assert not isinstance(meaning(file), dict)
    assert merge.text is None
    assert merge.warning is not None
    assert merge.warning.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        *("null: 1", "a: .inf", "a: *nobody", "a: &x [*x]", "<<: a", "# why?\na: b"),
        "\n".join(f"a{number}: {'b' * 50}" for number in range(250)),
    ],
    ids=lambda text: text[:12],
)
def test_what_only_istios_own_reader_refuses_gets_the_key(text: str) -> None:
    """Istio refuses the pod with the key or without it, and says why. Long texts get it, too."""
    assert merged(text).text == f"{text}\n{HOLD}: true"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f'{HOLD}: "true"', "expected true or false"),
        (f"{HOLD}: [true]", "expected true or false"),
        (f"<<: {{{HOLD}: false}}", "merge key"),
        (f"a: &x {HOLD}\n*x : false", "alias"),
        ("\ufeffa: 1", "byte order mark"),
        ("? a\n: 1", "no place was found"),
        ("[" * 16_000, "nested more than 100"),
        ("{a: " * 4_000, "nested more than 100"),
        ("? " * 8_000, "nested more than 100"),
        ("a: [" + "1, " * 1000 + "]", "more than 1000 keys"),
        ("a: 1\n  b: 2", "mapping values are not allowed in this context, line 2"),
    ],
    ids=[
        "a quoted boolean", "a list of booleans", "a decision in a merge key",
        "a decision behind an alias", "a byte order mark", "an explicit key", "a deep list",
        "a deep mapping", "a deep key", "many values", "a second value",
    ],
)  # fmt: skip
def test_what_may_be_misread_stays_and_is_reported(text: str, why: str) -> None:
    """Where it is not certain what Istio would make of it, and where to read it takes long."""
    merge = merged(text)
    assert merge.text is None
    assert why in (merge.warning or "")


def test_a_very_long_text_stays_and_is_reported() -> None:
    """What the author wrote is not even looked at; Istio may well take it."""
    long = Pod(metadata=Metadata(annotations={ANNOTATION: "a: " + "b" * 17_000}))
    assert read(long).text is None
    assert "longer than 16 KiB" in (read(long).warning or "")


def is_inserted(text: str, result: str) -> bool:
    """Whether the result is the text with something put in at one place."""
    more = len(result) - len(text)
    return any(text == result[:place] + result[place + more :] for place in range(len(text) + 1))


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), st.sampled_from(STYLES))
def test_the_result_is_the_old_mapping_plus_the_key(
    mapping: dict[str, Any], style: Callable[[Any], str]
) -> None:
    text = style(mapping)
    merge = merged(text)
    assert merge.text is not None, merge.reason
    assert is_inserted(text, merge.text)
    assert strings(merge.text) == {**strings(text), HOLD: "true"}
    assert merged(merge.text).text is None


def nodes(node: yaml.Node | None, above: tuple[int, ...] = ()) -> Any:
    """A node as nested tuples of tags and values; a node within itself is named by its depth."""
    if node is None or id(node) in above:
        return above.index(id(node)) if node else None
    path = (*above, id(node))
    if isinstance(node, yaml.MappingNode):
        return [(nodes(key, path), nodes(value, path)) for key, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return (node.tag, [nodes(item, path) for item in node.value])
    return (node.tag, node.value)


def first_document(text: str) -> Any:
    """The meaning of what Istio reads: the first document, by the scanner of Istio's kind."""
    return nodes(next(iter(yaml.compose_all(text, Loader=yaml.CSafeLoader)), None))


@given(st.text(st.sampled_from("ab:-{}[],#'\"|>&*!?% \n\t.é"), max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    merge = merged(text)
    if merge.text is None:
        return
    assert merged(merge.text).text is None
    [added] = first_document(f"{HOLD}: true")
    try:
        before = first_document(text) if text.strip() else None
    except yaml.YAMLError:  # An alias without its anchor, which Istio refuses.
        return
    if not isinstance(before, list):
        assert before in {None, ("tag:yaml.org,2002:null", ""), ("tag:yaml.org,2002:null", "~")}
        before = []
    assert first_document(merge.text) in ([*before, added], [added, *before])
