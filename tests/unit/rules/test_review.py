"""AdmissionReview v1 on the wire: every body that has a uid gets an answer that allows the pod."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from istio_aux.model.annotations import INJECT, START, STARTED_WITH
from istio_aux.model.policy import Capability, StartMode, StartPolicy
from istio_aux.start import review
from istio_aux.start.peers import PEERS
from istio_aux.start.review import Outcome
from lab import start_cases
from unit.rules.pods import document
from unit.rules.starting import CONFIG, HOLD, UNKNOWN, reviewed
from unit.steps import steps

LABELLED = 'added label sidecar.istio.io/inject: "true"'

UNCHANGED = {"uid", "allowed", "auditAnnotations"}


def request(**fields: Any) -> dict[str, Any]:
    """A review as the API server sends it at the creation of a pod."""
    made = document({"main": None}, phase=None)
    return reviewed(**{"uid": "705ab4f5", "object": made, **fields})


def response(body: bytes, uid: str = "705ab4f5") -> dict[str, Any]:
    """The ``response`` of an answer, after the checks that the API server makes of any answer."""
    answer = json.loads(body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    found = answer["response"]
    assert found["uid"] == uid
    assert found["allowed"] is True
    assert ("patch" in found) == ("patchType" in found)
    return found


def answer(found: dict[str, Any], how: StartPolicy = UNKNOWN, **more: Any) -> review.ReviewResult:
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
    done = {"reason": "added holdApplicationUntilProxyStarts", "started-with": "hold"}
    assert sent["auditAnnotations"] == done
    assert admitted(found, sent)["annotations"] == {CONFIG: HOLD, STARTED_WITH: "hold"}
    assert "warnings" not in sent
    assert (result.uid, result.pod) == ("705ab4f5", "training/job-x7k2p")
    assert result.outcome is Outcome.HOLD


INJECTED = {"sidecar.istio.io/status": "{}"}


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        (document({"main": None}, annotations={START: "native"}), Outcome.NATIVE),
        (document({"main": None}), Outcome.HOLD),
        (document({"main": None, "istio-proxy": None}, annotations=INJECTED), Outcome.MOVED),
        (document({"istio-proxy": None, "main": None}, annotations=INJECTED), Outcome.HOLD),
        (document({"istio-proxy": None, "main": None}, annotations=INJECTED | start_cases.HELD,
                  details={"istio-proxy": start_cases.BRIEF}), Outcome.LONGER),
        (document({"istio-proxy": None}, annotations=INJECTED), Outcome.UNCHANGED),
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
        ({}, UNKNOWN, f"{LABELLED}; added hold", "hold", Outcome.LABELLED),
        ({}, NATIVE, f"{LABELLED}; added native sidecar", "native", Outcome.LABELLED),
        ({}, OFF, LABELLED, None, Outcome.LABELLED),
        (ASKS, UNKNOWN, "added holdApplication", "hold", Outcome.HOLD),
        (REFUSES, UNKNOWN, 'annotation sidecar.istio.io/inject: "false"', None, Outcome.UNCHANGED),
    ],
    ids=["label and hold", "label and native", "label alone", "it asks itself", "it refuses"],
)
def test_the_other_webhook_gives_pods_a_label_and_their_start(
    pod: dict[str, Any], how: StartPolicy, reason: str, started_with: str | None, outcome: Outcome
) -> None:
    """In any namespace. One that says something itself is left alone, and the audit log has why."""
    found = request(object=document({"main": None}, **pod))
    result = answer(found, how, inject=True)
    sent = response(result.body)
    assert (sent.keys() == UNCHANGED) is (outcome is Outcome.UNCHANGED)
    after = admitted(found, sent) if "patch" in sent else found["request"]["object"]["metadata"]
    assert after.get("labels") == (None if pod == REFUSES else {INJECT: "true"})
    assert after.get("annotations", {}).get(STARTED_WITH) == started_with
    assert sent["auditAnnotations"].get("started-with") == started_with
    assert sent["auditAnnotations"]["reason"].startswith(reason)
    assert result.outcome is outcome


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
    found = request()
    found["request"]["object"]["metadata"] = metadata
    pod = answer(found).pod
    assert pod.startswith(shown)
    assert pod.isprintable()
    assert len(pod) <= 318


def test_what_the_user_wrote_cannot_flood_or_break_a_line() -> None:
    """The reason quotes it: in a log, in the audit log and in a header."""
    text = "holdApplicationUntilProxyStarts: |\n  a\n  \x85b" + "c" * 1000
    found = request(object=document({"main": None}, annotations={CONFIG: text}))
    result = answer(found)
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


def buried(*values: str, **pod: Any) -> bytes:
    """A review of a pod with managedFields that say ``values``, as the API server writes it."""
    found = request(**pod)
    found["request"]["uid"] = "705ab4f5-0000-4000-8000-000000000000"
    found = {key: found[key] for key in ("kind", "apiVersion", "request")}
    found["request"]["object"]["metadata"]["managedFields"] = "@"
    fields = ",".join(f'{{"manager":"me","fieldsV1":{value}}}' for value in values)
    text = json.dumps(found, separators=(",", ":"))
    return text.replace('"@"', f"[{fields}]").encode()


def nested(levels: int, innermost: str = "{}") -> str:
    return '{"f:a":' * levels + innermost + "}" * levels


@pytest.mark.parametrize("sibling", ["", '"x":{},', '"[[[":[],'])
def test_a_review_that_is_nested_deeply_is_allowed_with_a_warning_and_not_read_again(
    sibling: str,
) -> None:
    """With more levels than any Python decodes, and whatever stands between them."""
    body = buried(nested(14_000, '{"v:[]":{}}').replace('{"f', f'{{{sibling}"f'))
    assert steps(lambda: review.answer(body, lambda _: StartPolicy())) < 1000
    answer = review.answer(body, lambda _: StartPolicy())
    found = response(answer.body, "705ab4f5-0000-4000-8000-000000000000")
    assert "patch" not in found
    assert found["warnings"] == [
        "istio-aux: left alone: malformed AdmissionReview: it is nested too deeply"
    ]
