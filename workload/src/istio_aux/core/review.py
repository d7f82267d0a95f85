"""AdmissionReview v1: bytes to a request, a plan to bytes.

Only the wire format may live here. Whatever comes in, what goes out is a well-formed answer that
allows the pod: an admission helper must never be the reason why a pod is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec import structs

from istio_aux.core import label, patch, start
from istio_aux.core.pod import NewPod, Struct
from istio_aux.core.policy import Start
from istio_aux.core.shallow import shallow

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
ALLOWED = True
"""There is no other answer: see the module's docstring."""
_MAX_LINE = 256
"""Runes; the API server cuts longer warnings off (apiserver endpoints/filters/warning.go)."""


class Outcome(StrEnum):
    """What became of a pod."""

    NATIVE = "native"
    HOLD = "hold"
    MOVED = "moved"
    """Hold, for a pod that Istio had injected already."""
    LABELLED = "labelled"
    """The pod asks for a sidecar now, and starts after it if it is to."""
    UNCHANGED = "unchanged"
    MALFORMED = "malformed"
    """Allowed unseen, with a warning: of the request only its uid could be read."""


class GroupVersionKind(Struct, frozen=True):
    """Kind of the object under review; the name is all that is read of it."""

    kind: str = ""


class Request(Struct, frozen=True):
    """The part of ``request`` that we read; ``name`` is empty for generated names."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str | None = None
    namespace: str = ""
    operation: str = "CREATE"
    dry_run: bool | None = None
    object: NewPod | None = None


class Malformed(ValueError):  # noqa: N818 - reads as what it says of the body: raise Malformed
    """The body is no AdmissionReview v1 of a pod; ``uid`` is empty when none could be read."""

    def __init__(self, why: str, uid: str = "") -> None:
        super().__init__(why)
        self.uid = uid


class Answer(Struct, frozen=True):
    """What to send, and what to log and count about it."""

    body: bytes
    uid: str
    pod: str
    """``namespace/name``, for people."""
    outcome: Outcome
    reason: str
    warnings: tuple[str, ...] = ()


class _Review(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class _Uid(Struct, frozen=True):
    uid: str = ""


class _Envelope(Struct, frozen=True):
    request: _Uid | None = None


class _Response(Struct, frozen=True):
    uid: str
    allowed: bool
    audit_annotations: dict[str, str]
    patch_type: str | None = None
    patch: bytes | None = None  # As JSON it is base64, which is what the API server expects.
    warnings: tuple[str, ...] = ()


class _Answer(Struct, frozen=True):
    api_version: str
    kind: str
    response: _Response


_MANAGED_FIELDS = b',"managedFields":['
_SPEC = b'},"spec":{'
"""What the API server writes before and behind the list: it comes last in an object's metadata
(apimachinery ObjectMeta), and the spec is next."""

_LONGEST_KEY = 63 + 1 + 253 + 1
"""Characters of namespace/name and a mark; no name has been validated when a review comes."""

_MOST = 20_000
"""Values of a review that cannot be decoded as it is: more would take over 10 ms."""

_MAX_BODY = 2 << 20
_SMALL = 64 << 10
_MAX_OBJECTS, _MAX_STRINGS = 50_000, 30_000
"""What is looked at: more takes over 10 ms, and all other reviews wait. Of pods etcd stores 1.5 MB;
a body that is `_SMALL` cannot have too much of anything."""

_UNREADABLE = (ValueError, RecursionError)
"""What decoding raises: no JSON, not of the wanted form, no UTF-8, or nested too deep."""

_HEAD = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"admission\.k8s\.io/v1",'
    rb'"request":\{"uid":"([0-9a-f-]{36})"'
)
"""How the API server begins a review; more of one that is no JSON for us cannot be read."""

_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
"""Calling the class would take as long as the rest of the counting."""
_review_decoder = msgspec.json.Decoder(_Review)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder()


def answer(body: bytes, how: Start) -> Answer:
    """Answer one AdmissionReview with what makes the pod start after its proxy.

    All that the server does with a body is to call this, or `answer_inject`.

    Raises:
        Malformed: not even the uid can be read, so that no valid answer exists (HTTP 400).
    """
    return _reviewed(body, lambda pod: start.plan(pod, how))


def answer_inject(body: bytes, how: Start) -> Answer:
    """Answer one AdmissionReview with what gives the pod a sidecar, and makes it start after it.

    Raises:
        Malformed: as `answer`.
    """
    return _reviewed(body, lambda pod: _inject(pod, how))


def _inject(pod: NewPod, how: Start) -> start.Plan:
    """Plan the label, and the start of the pod that has it: no selector is asked about that."""
    labelled, started = label.plan(pod), start.plan(pod, how)
    if not started.ops:
        return structs.replace(labelled, warnings=started.warnings)
    if not labelled.ops:
        return started
    reason = f"{labelled.reason}; {started.reason}"
    return structs.replace(started, ops=labelled.ops + started.ops, reason=reason)


def _reviewed(body: bytes, plan_for: Callable[[NewPod], start.Plan]) -> Answer:
    try:
        request = decode(body)
    except Malformed as error:
        return leave(body, error)
    name = request.object.key if request.object else ""
    if request.namespace and not name.startswith(f"{request.namespace}/"):
        name = f"{request.namespace}/{name}"
    plan = _plan(request, plan_for)
    return _answer(request.uid, _line(name, _LONGEST_KEY), plan, _outcome(plan))


def leave(body: bytes, why: Malformed) -> Answer:
    """Answer a review that could not be dealt with: the pod is allowed as it is.

    Raises:
        Malformed: as ``why`` is; there is no uid.
    """
    uid = why.uid or _uid(body)
    if not uid:
        raise why
    plan = start.Plan(ops=(), reason=str(why), warnings=(f"left alone: {why}",))
    return _answer(uid, "", plan, Outcome.MALFORMED)


def decode(body: bytes) -> Request:
    """Decode the request of an AdmissionReview v1.

    Raises:
        Malformed: with one line that says what is wrong, and with the uid if there is one.
    """
    if why := _too_much(body):
        raise Malformed(f"the AdmissionReview {why} are looked at", _uid(body))
    try:
        review = _read(body)
    except _UNREADABLE as error:
        raise Malformed(f"malformed AdmissionReview: {error}", _uid(body)) from error
    request = review.request
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        got = f'"{review.api_version}" "{review.kind}"'
        why = f"malformed AdmissionReview: apiVersion and kind are {got}, expected {API_VERSION}"
        raise Malformed(why, request.uid if request else "")
    if request is None or not request.uid:
        raise Malformed("malformed AdmissionReview: request.uid is missing")
    return request


def _too_much(body: bytes) -> str | None:
    """Say what of the body would take too long; None if nothing would."""
    if (size := len(body)) <= _SMALL:
        return None
    if size > _MAX_BODY:
        return f"has {size} bytes, and {_MAX_BODY}"
    # In strings, too, there are braces, but only few texts consist of them.
    if (objects := body.count(b"{")) > _MAX_OBJECTS:
        return f"has {objects} objects, and {_MAX_OBJECTS}"
    if (quotes := body.count(b'"')) > 2 * _MAX_STRINGS:
        # Those within strings have a backslash before them.
        strings = (quotes - body.count(b'\\"')) // 2
        if strings > _MAX_STRINGS:
            return f"has {strings} strings, and {_MAX_STRINGS}"
    return None


def _read(body: bytes) -> _Review:
    """Decode without ``metadata.managedFields`` where that is sure to change nothing else.

    They are up to half of a review, and passing over them is as much of its decoding.

    In JSON both quotes behind commas open a string: if they closed one, no letter could follow. So
    what is found is outside of strings. The first bracket that closes is the list's own, or that of
    a list within it; but then more is cut of what opens than of what closes, and the rest is no
    JSON.

    A body that is nested deeper than can be decoded is cut in another way (`shallow`).
    """
    begin = body.find(_MANAGED_FIELDS)
    end = body.find(b"]", begin) + 1
    if begin >= 0 and body.startswith(_SPEC, end):
        try:
            return _review_decoder.decode(body[:begin] + body[end:])
        except _UNREADABLE:
            pass  # The whole body may be right, and if not, the error is to tell of it.
    try:
        return _review_decoder.decode(body)
    except RecursionError:
        return _review_decoder.decode(shallow(body, most=_MOST))


def _plan(request: Request, plan_for: Callable[[NewPod], start.Plan]) -> start.Plan:
    """Only the creation of a pod itself is ours; our rules in the API server ask for no more."""
    pod = request.object
    if request.operation != "CREATE" or request.sub_resource:
        what = f"{request.operation} {request.sub_resource or ''}".strip()
        return start.Plan(ops=(), reason=f"{what} is left alone")
    if pod is None or (request.kind.kind or pod.kind) != "Pod":
        reason = f'the object is no Pod: kind "{request.kind.kind}"'
        return start.Plan(ops=(), reason=reason, warnings=(f"left alone: {reason}",))
    return plan_for(pod)


def _outcome(plan: start.Plan) -> Outcome:
    if not plan.ops:
        return Outcome.UNCHANGED
    if plan.started_with is None or plan.ops[0].path.startswith("/metadata/labels"):
        return Outcome.LABELLED
    if isinstance(plan.ops[0], patch.Move):
        return Outcome.MOVED
    return _OUTCOMES[plan.started_with]


def _answer(uid: str, name: str, plan: start.Plan, outcome: Outcome) -> Answer:
    reason = _line(plan.reason)
    warnings = tuple(_line(text) for text in plan.warnings) if plan.warnings else ()
    audit = {"reason": reason}
    if plan.started_with is not None:
        audit["started-with"] = plan.started_with
    response = _Response(
        uid=uid,
        allowed=ALLOWED,
        patch_type="JSONPatch" if plan.ops else None,
        patch=patch.encode(plan.ops) if plan.ops else None,
        warnings=tuple(f"istio-aux: {text}"[:_MAX_LINE] for text in warnings) if warnings else (),
        audit_annotations=audit,
    )
    body = _encoder.encode(_Answer(api_version=API_VERSION, kind=KIND, response=response))
    return Answer(body=body, uid=uid, pod=name, outcome=outcome, reason=reason, warnings=warnings)


def _line(text: str, longest: int = _MAX_LINE) -> str:
    """``text`` as one short line; parts of it are the user's."""
    if len(text) > longest or not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text[:longest])
    return text


def _uid(body: bytes) -> str:
    """Read the uid of a review whose rest cannot be decoded; empty when there is none."""
    if head := _HEAD.match(body):
        return head[1].decode()
    try:
        envelope = _envelope_decoder.decode(body)
    except _UNREADABLE:
        return ""
    return envelope.request.uid if envelope.request else ""
