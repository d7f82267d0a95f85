"""The rules for answers. Pure; a finding is a line of text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonpatch

from fuzz.bodies import INJECT, Ask
from fuzz.texts import deepest

DEPTH = 300
"""Levels of nesting. The webhook may refuse a deeper review; pods have about twenty."""

_NO_PATCH = (
    ValueError,
    LookupError,
    TypeError,
    jsonpatch.JsonPatchException,
    jsonpatch.JsonPointerException,
)


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes


def of(ask: Ask, answer: Answer) -> Iterator[str]:
    yield from of_any(answer)
    uid = uid_of(ask.body)
    expected = {200} if uid else {200, 400}
    if answer.status not in expected:
        yield f"status {answer.status}, expected {expected}: {answer.body[:200]!r}"
    if answer.status == 200:
        yield from _of_review(uid, ask, answer.body)


def of_any(answer: Answer) -> Iterator[str]:
    if not 200 <= answer.status < 500:
        yield f"status {answer.status}: {answer.body[:200]!r}"
    kind = "application/json" if answer.status == 200 else "text/plain; charset=utf-8"
    if answer.content_type != kind:
        yield f"status {answer.status}: Content-Type: {answer.content_type}"
    if answer.status != 200 and not re.fullmatch(rb"[^\r\n]*\n?", answer.body):
        yield f"status {answer.status}: more than a line: {answer.body[:200]!r}"


def of_slow(uid: str, answer: Answer) -> Iterator[str]:
    """Findings about the answer to a review whose beginning is valid."""
    yield from of_any(answer)
    if answer.status != 200:
        yield f"status {answer.status}, expected 200: {answer.body[:200]!r}"
        return
    response = json.loads(answer.body)["response"]
    if (response["uid"], response["allowed"]) != (uid, True):
        yield f"not allowed: {answer.body[:200]!r}"


def again(body: bytes, answer: Answer) -> bytes | None:
    """The review of the patched pod; None if there was no patch."""
    if answer.status != 200 or "patch" not in (response := json.loads(answer.body)["response"]):
        return None
    if (found := _read(body)) is None:
        return None
    found["request"]["object"] = jsonpatch.apply_patch(
        found["request"]["object"], base64.b64decode(response["patch"]).decode()
    )
    try:
        return json.dumps(found, allow_nan=False).encode()
    except ValueError:  # A number beyond those of Python.
        return None


def of_again(answer: Answer) -> Iterator[str]:
    """Findings about the answer to `again`."""
    if answer.status != 200 or "patch" in json.loads(answer.body)["response"]:
        yield f"a second review changes the pod again: {answer.body[:500]!r}"


def uid_of(body: bytes) -> str:
    """The uid that an answer must have; empty when the body does not say."""
    try:
        text = body.decode()
        if deepest(body) > DEPTH:
            return ""
        found = json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
        if "\\ud" in text.lower():
            json.dumps(found, ensure_ascii=False).encode()  # A lone surrogate is no text.
        uid = found["request"]["uid"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    return uid if isinstance(uid, str) else ""


def _read(body: bytes) -> Any:
    """The body as JSON, also with invalid text in it. None if it is nested too deeply."""
    text = body.decode(errors="replace")
    return json.loads(text, strict=False) if deepest(body) <= DEPTH else None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; refuse a key that occurs twice, because its meaning is not defined."""
    found = dict(members)
    if len(found) != len(members):
        raise ValueError("a key twice")
    return found


def _of_review(uid: str, ask: Ask, text: bytes) -> Iterator[str]:
    answer = json.loads(text)
    if (answer["apiVersion"], answer["kind"]) != ("admission.k8s.io/v1", "AdmissionReview"):
        yield f"no AdmissionReview: {text[:200]!r}"
        return
    response = answer["response"]
    if uid and response["uid"] != uid:
        yield f"uid {response['uid']!r}, expected {uid!r}"
    if response["allowed"] is not True:
        yield f"allowed: {response['allowed']}"
    for line in (*response.get("warnings", ()), *response["auditAnnotations"].values()):
        if not (line.isprintable() and len(line) <= 256):
            yield f"not a short line: {line!r}"
    if response.get("patchType") != ("JSONPatch" if "patch" in response else None):
        yield f"patchType {response.get('patchType')}"
    if "patch" in response:
        # Without the proxy's configuration it is not known whether the payload may be held.
        unread = any(
            "proxy.istio.io/config is left alone" in line for line in response.get("warnings", ())
        )
        # Its author may have declined that.
        unread |= "is already there" in response["auditAnnotations"].get("reason", "")
        yield from _of_patch(ask, response["patch"], unread=unread)


def _of_patch(ask: Ask, patch: str, *, unread: bool) -> Iterator[str]:
    try:
        ops = base64.b64decode(patch, validate=True).decode()
        if (found := _read(ask.body)) is None:
            return
        pod = jsonpatch.apply_patch(found["request"]["object"], ops)
    except _NO_PATCH as error:
        yield f"the patch does not apply: {error!r}"
        return
    if ask.path == INJECT:
        paths = [op["path"] for op in json.loads(ops)]
        labelled = [path for path in paths if path.startswith("/metadata/labels")]
        asked = {path.partition("/sidecar.istio.io~1inject")[0] for path in labelled}
        label = (pod["metadata"].get("labels") or {}).get("sidecar.istio.io/inject")
        if labelled and (asked, label) != ({"/metadata/labels"}, "true"):
            yield f"the labels are not the inject label alone: {ops}"
        if labelled == paths:
            return
    annotations = pod["metadata"].get("annotations") or {}
    started = annotations.get("istio-aux.io/started-with") in {"native", "hold"}
    if not (started or unread) and annotations.get("sidecar.istio.io/nativeSidecar") != "false":
        yield f"started-with is missing: {annotations}"
    if sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) > 256 << 10:
        yield "too many annotations for a pod"
