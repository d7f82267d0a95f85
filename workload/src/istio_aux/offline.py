"""Answer documents without a cluster: what `explain` and `mutate` say of files.

Only this may live here: documents in, one answer each out, and a line on stderr for each that is
bad. The rules are those of the core; arguments are the command line's business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from istio_aux import explanation, terminal
from istio_aux.core import documents, patch, review, start
from istio_aux.core import pod as pods
from istio_aux.core.policy import Policy, Start

BAD_INPUT = 2
"""Exit status when any input was bad; the rest was answered all the same."""


class Reply(msgspec.Struct, frozen=True):
    """What a document leads to: an answer to print, lines for stderr, and whether it was bad."""

    show: Callable[[], None] = lambda: None
    notes: tuple[str, ...] = ()
    bad: bool = False


def explain(files: Iterable[str], policy: Policy, show: explanation.Show) -> int:
    """Show what would be done about each pod in ``files``; returns the exit status.

    Grace periods count as over: a file may be older than they are long.
    """

    def explained(document: documents.Document) -> Reply:
        _expect_kind(document, {"Pod": "v1"})
        answer = explanation.of(_pod(document.body), policy, None)
        return Reply(lambda: show(answer))

    return _answer_each(files, explained)


def mutate(files: Iterable[str], how: Start) -> int:
    """Print each pod as it would be created, and the answer to each AdmissionReview in ``files``.

    Returns the exit status: 0, or 2 when a document was bad.
    """
    return _answer_each(files, lambda document: _mutated(document, how))


def _mutated(document: documents.Document, how: Start) -> Reply:
    kinds = {"Pod": "v1", review.KIND: review.API_VERSION}
    if _expect_kind(document, kinds) == review.KIND:
        answer = review.answer(document.body, how)
        return Reply(
            _line(answer.body), answer.warnings, bad=answer.outcome is review.Outcome.MALFORMED
        )
    plan = start.plan(_pod(document.body), how)
    mutated = cast("dict[str, Any]", msgspec.json.decode(document.body))
    patch.apply(plan.ops, mutated)
    return Reply(_line(msgspec.json.encode(mutated)), plan.warnings)


def _line(body: bytes) -> Callable[[], None]:
    return lambda: terminal.write_bytes(sys.stdout, body)


class _Kind(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""


def _expect_kind(document: documents.Document, kinds: dict[str, str]) -> str:
    """Return the document's kind, one of ``kinds``, which map to their apiVersion."""
    found = msgspec.json.decode(document.body, type=_Kind)
    kind = found.kind or ("Pod" if document.listed else "")
    if kind not in kinds:
        raise ValueError(f'kind is "{found.kind}", expected {" or ".join(kinds)}')
    if found.api_version not in {"", kinds[kind]}:
        raise ValueError(
            f'apiVersion of the {kind} is "{found.api_version}", expected {kinds[kind]}'
        )
    return kind


def _pod(body: bytes) -> pods.Pod:
    try:
        return pods.decode(body)
    except msgspec.ValidationError:
        # People write `annotations:` with nothing after it; only then is the slower way needed.
        return pods.convert(msgspec.json.decode(body))


def _answer_each(files: Iterable[str], answer: Callable[[documents.Document], Reply]) -> int:
    bad = False
    for name in files:
        shown = "stdin" if name == "-" else name
        try:
            body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except OSError as error:
            sys.stderr.write(f"{shown}: {error.strerror}\n")
            bad = True
            continue
        for document in documents.read(body):
            reply = _reply(document, answer)
            reply.show()
            for note in reply.notes:
                sys.stderr.write(f"{shown}: {document.place}: {' '.join(note.split())}\n")
            bad = bad or reply.bad
    return BAD_INPUT if bad else 0


def _reply(
    document: documents.Document | documents.BadDocument,
    answer: Callable[[documents.Document], Reply],
) -> Reply:
    if isinstance(document, documents.BadDocument):
        return Reply(notes=(document.why,), bad=True)
    try:
        return answer(document)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Reply(notes=(str(error),), bad=True)
