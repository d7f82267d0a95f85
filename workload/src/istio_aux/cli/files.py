"""`explain` and `mutate` of files: one answer a document, and a line on stderr for a bad one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from istio_aux.cli import report
from istio_aux.model import documents
from istio_aux.model import pod as pods
from istio_aux.model.policy import Start
from istio_aux.model.text import alternatives
from istio_aux.start import patch, review
from istio_aux.start import plan as start

BAD_INPUT = 2  # Exit status when a document or file is bad; all others are answered.


Answer = Callable[[documents.Document], Sequence[str]]
"""Prints the answer to a document, and returns lines for stderr about it."""


class _Kind(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""


_kind = msgspec.json.Decoder(_Kind)


def explain(files: Iterable[str], show: Callable[[pods.Pod], None]) -> int:
    """Explain each pod in ``files``; return the exit status."""

    def answer(document: documents.Document) -> Sequence[str]:
        _expect_kind(document, {"Pod": "v1"})
        show(_pod(document))
        return ()

    return _answer_each(files, answer)


def mutate(files: Iterable[str], how: Start) -> int:
    """Print each pod as admission would change it, and answer each AdmissionReview."""

    def answer(document: documents.Document) -> Sequence[str]:
        kinds = {"Pod": "v1", review.KIND: review.API_VERSION}
        if _expect_kind(document, kinds) == review.KIND:
            answered = review.answer(document.body, how)
            report.write_json(sys.stdout, answered.body)
            if answered.outcome is review.Outcome.MALFORMED:
                raise ValueError("; ".join(answered.warnings))
            return answered.warnings
        if document.cut:
            raise ValueError("something in its list is nested too deeply: give it alone")
        pod = _pod(document)
        plan = start.plan(pod, how)
        mutated = cast("dict[str, Any]", msgspec.json.decode(document.body))
        patch.apply(plan.ops, mutated)
        report.write_json(sys.stdout, msgspec.json.encode(mutated))
        if not how.pods.matches(pod.labels):
            return [f"left alone: {plan.reason}"]
        return plan.warnings

    return _answer_each(files, answer)


def _expect_kind(document: documents.Document, kinds: dict[str, str]) -> str:
    """Return the document's kind, which must be one of ``kinds`` (kind to apiVersion)."""
    given = _kind.decode(document.readable)
    kind = given.kind or ("Pod" if document.listed else "")
    if kind not in kinds:
        raise ValueError(f'kind is "{given.kind}", expected {alternatives(kinds)}')
    if given.api_version not in {"", kinds[kind]}:
        raise ValueError(
            f'apiVersion of the {kind} is "{given.api_version}", expected {kinds[kind]}'
        )
    return kind


def _pod(document: documents.Document) -> pods.Pod:
    try:
        return pods.decode(document.readable)
    except msgspec.ValidationError:
        # People write `annotations:` with nothing after it, which is null.
        return pods.convert(msgspec.json.decode(document.readable))


def _answer_each(files: Iterable[str], answer: Answer) -> int:
    """Answer all documents; one that cannot be used raises a ValueError."""
    status = 0
    for file in files:
        name = "stdin" if file == "-" else file
        try:
            body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as error:
            report.complain(f"{name}: {error.strerror}")
            status = BAD_INPUT
            continue
        for document in documents.read(body):
            if isinstance(document, documents.BadDocument):
                notes, status = [document.why], BAD_INPUT
            else:
                try:
                    notes = answer(document)
                except RecursionError:
                    notes, status = ["it is nested too deeply"], BAD_INPUT
                except (msgspec.MsgspecError, ValueError) as error:
                    notes, status = [str(error)], BAD_INPUT
            for note in notes:
                report.complain(f"{name}: {document.place}: {note}")
    return status
