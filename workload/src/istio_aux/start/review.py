"""AdmissionReview v1: bytes to a request, a plan to bytes.

Whatever comes in, the answer is well-formed and allows the pod: an admission helper must never be
the reason why a pod is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

import msgspec

from istio_aux.model.annotations import NATIVE_SIDECAR
from istio_aux.model.pod import OwnerReference, Pod, Struct
from istio_aux.model.policy import StartPolicy
from istio_aux.model.text import UNDECODABLE
from istio_aux.start import hold, patch, plan

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
_MAX_LINE = 256  # Runes of a warning (apiserver endpoints/filters/warning.go).
_MAX_KEY = 63 + 1 + 253 + 1  # Characters of namespace/name. Names are not validated yet.

_MAX_BODY = 2 << 20
_MAX_OBJECTS, _MAX_STRINGS, _MAX_VALUES = 50_000, 30_000, 100_000
"""Reviews with more would take over 10 ms, in which all other reviews wait. etcd stores pods of up
to 1.5 MB. A body of up to `_SMALL` bytes cannot take as long."""
_SMALL = 64 << 10

_HEAD = re.compile(
    rb'\{"kind":"AdmissionReview","apiVersion":"admission\.k8s\.io/v1",'
    rb'"request":\{"uid":"([0-9a-f-]{36})"'
)
"""How the API server begins a review. If the rest cannot be decoded, only the uid is read."""


class GroupVersionKind(Struct, frozen=True):
    """Kind of the object under review."""

    kind: str = ""


class Request(Struct, frozen=True):
    """The part of ``request`` that we read."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind()
    sub_resource: str | None = None
    namespace: str = ""
    operation: str = "CREATE"
    dry_run: bool | None = None
    object: Pod | None = None


class Malformed(ValueError):  # noqa: N818 - reads as what it says of the body: raise Malformed
    """The body is no AdmissionReview v1 of a pod; ``uid`` is empty if it could not be read."""

    def __init__(self, why: str, uid: str = "") -> None:
        super().__init__(why)
        self.uid = uid


class Outcome(StrEnum):
    """How a review was answered."""

    NATIVE = "native"
    HOLD = "hold"
    MOVED = "moved"  # Istio had injected the pod already; it gets hold.
    LABELLED = "labelled"  # The pod asks for a sidecar now, with or without a start order.
    DIRECT = "direct"  # Inbound ports of its proxy change, and perhaps other sidecars.
    SIDECARS = "sidecars"  # Only other sidecars become native.
    CLASSIC = "classic"  # The pod only asks for a classic proxy.
    LONGER = "longer"  # Only the hook of its hold waits longer.
    UNCHANGED = "unchanged"
    MALFORMED = "malformed"  # Allowed with a warning: it could not be read, or we failed.


class ReviewResult(Struct, frozen=True):
    """What to send, and what to log and count; ``pod`` is ``namespace/name``."""

    body: bytes
    uid: str
    pod: str
    outcome: Outcome
    reason: str
    warnings: tuple[str, ...] = ()
    job: OwnerReference | None = None  # The Job of the plan.
    dry_run: bool = False


class _AdmissionReview(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class _Uid(Struct, frozen=True):
    uid: str = ""


class _Envelope(Struct, frozen=True):
    request: _Uid | None = None


_review_decoder = msgspec.json.Decoder(_AdmissionReview)
_envelope_decoder = msgspec.json.Decoder(_Envelope)
_encoder = msgspec.json.Encoder()


How = Callable[[Pod], StartPolicy]
"""Returns the policy for a new pod."""


def answer(
    body: bytes,
    how: How,
    *,
    requested: bool = False,
    excluded: plan.Excluded = plan.left_to_ambient,
) -> ReviewResult:
    """Answer an AdmissionReview with what makes the pod start after its proxy.

    ``requested``: the application asks for a sidecar. ``excluded`` says why a pod is left alone.
    Raises Malformed: not even the uid can be read, so no valid answer exists (HTTP 400).
    """
    try:
        request = decode(body)
    except Malformed as error:
        return allow_unchanged(body, error)
    name = request.object.key if request.object else ""
    if request.namespace and not name.startswith(f"{request.namespace}/"):
        name = f"{request.namespace}/{name}"
    planned = _plan(request, how, requested, excluded)
    return _answer(
        request.uid,
        _line(name, _MAX_KEY),
        planned,
        _outcome(planned),
        dry_run=bool(request.dry_run),
    )


def allow_unchanged(body: bytes, why: Malformed) -> ReviewResult:
    """Allow the pod unchanged if its review cannot be processed; raises ``why`` without a uid."""
    uid = why.uid or _uid(body)
    if not uid:
        raise why
    return _answer(
        uid,
        "",
        plan.Plan(ops=(), reason=str(why), warnings=(f"left alone: {why}",)),
        Outcome.MALFORMED,
    )


def decode(body: bytes) -> Request:
    """Decode the request of an AdmissionReview v1; raises Malformed."""
    if why := too_much(body):
        raise Malformed(f"the AdmissionReview {why}", _uid(body))
    try:
        review = _review_decoder.decode(body)
    except UNDECODABLE as error:  # A pod has 13 levels; authors may write more.
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise Malformed(f"malformed AdmissionReview: {why}", _uid(body)) from error
    request = review.request
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise Malformed(
            f'malformed AdmissionReview: apiVersion and kind are "{review.api_version}"'
            f' "{review.kind}", expected {API_VERSION}',
            request.uid if request else "",
        )
    if request is None or not request.uid:
        raise Malformed("malformed AdmissionReview: request.uid is missing")
    return request


def too_much(body: bytes) -> str | None:
    """What a review or a manifest has too much of, such as ``has 9 objects, not at most 8``."""
    if (size := len(body)) <= _SMALL:
        return None
    if size > _MAX_BODY:
        return f"has {size} bytes, not at most {_MAX_BODY}"
    # Strings may contain braces and commas, too, but few texts consist of them.
    if (objects := body.count(b"{")) > _MAX_OBJECTS:
        return f"has {objects} objects, not at most {_MAX_OBJECTS}"
    if (values := body.count(b",")) > _MAX_VALUES:  # Numbers count, too.
        return f"has {values} values, not at most {_MAX_VALUES}"
    if (quotes := body.count(b'"')) > 2 * _MAX_STRINGS:
        strings = (quotes - body.count(b'\\"')) // 2  # Quotes inside strings are escaped.
        if strings > _MAX_STRINGS:
            return f"has {strings} strings, not at most {_MAX_STRINGS}"
    return None


def _plan(request: Request, how: How, requested: bool, excluded: plan.Excluded) -> plan.Plan:
    """Plan for the creation of a pod; our webhook's rules ask for nothing else."""
    pod = request.object
    if request.operation != "CREATE" or request.sub_resource:
        what = f"{request.operation} {request.sub_resource or ''}".strip()
        return plan.Plan(ops=(), reason=f"{what} is left alone")
    if pod is None or (request.kind.kind or pod.kind) != "Pod":
        reason = f'the object is no Pod: kind "{request.kind.kind}"'
        return plan.Plan(ops=(), reason=reason, warnings=(f"left alone: {reason}",))
    return plan.plan(pod, how(pod), requested=requested, excluded=excluded)


def _outcome(planned: plan.Plan) -> Outcome:
    if not planned.ops:
        return Outcome.UNCHANGED
    if planned.labels:
        return Outcome.LABELLED
    if any(isinstance(op, patch.Move) and op.path == hold.FIRST for op in planned.ops):
        return Outcome.MOVED
    if planned.started_with:
        return Outcome(planned.started_with)
    if planned.writes:
        return Outcome.CLASSIC if NATIVE_SIDECAR in planned.writes else Outcome.DIRECT
    return Outcome.LONGER if planned.ops[0].path == hold.HOOK_COMMAND else Outcome.SIDECARS


def _answer(
    uid: str, name: str, planned: plan.Plan, outcome: Outcome, *, dry_run: bool = False
) -> ReviewResult:
    reason = _line(planned.reason)
    warnings = tuple(_line(text) for text in planned.warnings)
    audit = {"reason": reason}
    if planned.started_with is not None:
        audit["started-with"] = planned.started_with
    response: dict[str, object] = {"uid": uid, "allowed": True, "auditAnnotations": audit}
    if planned.ops:
        # JSON has bytes as base64, which the API server expects.
        response |= {"patchType": "JSONPatch", "patch": patch.encode(planned.ops)}
    if warnings:
        response["warnings"] = [f"istio-aux: {text}"[:_MAX_LINE] for text in warnings]
    return ReviewResult(
        body=_encoder.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response}),
        uid=uid,
        pod=name,
        outcome=outcome,
        reason=reason,
        warnings=warnings,
        job=planned.job,
        dry_run=dry_run,
    )


def _line(text: str, longest: int = _MAX_LINE) -> str:
    if len(text) > longest or not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text[:longest])
    return text


def _uid(body: bytes) -> str:
    """Read the uid of a review that cannot be decoded; empty if there is none."""
    if head := _HEAD.match(body):
        return head[1].decode()
    try:
        envelope = _envelope_decoder.decode(body)
    except UNDECODABLE:
        return ""
    return envelope.request.uid if envelope.request else ""
