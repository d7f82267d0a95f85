"""`explain` and `mutate` of files: pods, and the pods of the workloads that people write.

Each document has an answer, or a line on stderr with its file and line.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from istio_aux.cli import report
from istio_aux.cli.output import Cell, Style, Terminal
from istio_aux.judge.installation import Installation, Installations
from istio_aux.model import documents, templates
from istio_aux.model.findings import Code
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod, convert
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.sidecars import SidecarRule
from istio_aux.model.text import quoted
from istio_aux.start import patch, review
from istio_aux.start.plan import Plan, after_injection, plan

BAD_INPUT = 2  # Exit status when a document or file is bad; all others are answered.

Answer = Callable[[documents.Document, bytes], Iterable[str]]
"""Prints the answer to a document of a file, and returns lines for stderr about it."""

_POD = ("", "Pod")
_REVIEW = (review.API_VERSION.partition("/")[0], review.KIND)


class _Kind(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""


class _NoPodsError(Exception):
    """The kind of a document has no pods, or is not known to have some."""


def explain(
    files: Iterable[str],
    ours: Installation,
    sidecars: tuple[SidecarRule, ...] | None,
    show: Callable[..., None],
) -> int:
    """Explain each pod in ``files``, also those that workloads make; return the exit status.

    ``show`` gets each pod, its `Judgement`, and how it will ``start`` if it does not exist yet. A
    file does not show namespaces, so all count as selected. Its newest time decides only which
    containers the kubelet forgot: the file may be old, so every grace period counts as over.
    """
    options, found = ours.settings, Installations((ours,))
    how = msgspec.structs.replace(
        options.start(Capability.UNKNOWN),
        pods=options.pod_selector,
        sidecars=ours.policy(sidecars).sidecars,
    )

    def answer(document: documents.Document, body: bytes) -> Iterable[str]:
        kind, manifest = _read(document, document.readable)
        notes = list[str]()
        for new, planned, of in _planned(manifest, kind, how):
            notes += map(str, of.unread)
            pod, order = new, None
            if kind != _POD or not (pod.metadata.uid or pod.status.phase or pod.names_proxy):
                pod = after_injection(pod, planned)
                order = f"{planned.started_with or 'as it is'}: {planned.reason}"
                if pod.has_native_proxy and planned.started_with == "hold":
                    order = "native, as its annotation asks; where Istio makes it classic, hold"
            judged = found.judge(pod, None, newest(body) if pod.exits else None, sidecars)
            if judged.decision.code is not Code.FORGOTTEN:
                judged = found.judge(pod, None, None, sidecars)
            show(pod, judged, start=order)
        return notes

    return answer_each(files, answer)


_TIME = re.compile(rb"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@lru_cache(maxsize=1)
def newest(body: bytes) -> Moment | None:
    """The newest time in a file that is not in the future; None if there is none."""
    for text in sorted({*_TIME.findall(body)}, reverse=True):
        with suppress(ValueError):
            at = datetime.fromisoformat(text.decode())
            if at <= datetime.now(UTC):
                return Moment(at.timestamp(), at.timestamp())
    return None


def present() -> Moment:
    """The present time, for commands that run no event loop."""
    now = datetime.now(UTC).timestamp()
    return Moment(now, now)


def mutate(files: Iterable[str], how: StartPolicy, output: str) -> int:
    """Print each manifest with its pods as admission would change them, and answer each review.

    ``output`` is ``yaml``, ``json`` or ``diff``; a review is answered in JSON.
    """
    shown = False

    def answer(document: documents.Document, _body: bytes) -> Iterable[str]:
        nonlocal shown
        if kind_of(document)[0] == _REVIEW:
            answered = review.answer(document.body, lambda _pod: how)
            report.write_json(answered.body)
            if answered.outcome is review.Outcome.MALFORMED:
                raise ValueError("; ".join(answered.warnings))
            return answered.warnings
        kind, manifest = _read(document, document.body)
        if document.cut:
            raise ValueError("something in its list is nested too deeply: give it alone")
        given = deepcopy(manifest)
        notes = [note for each in _planned(manifest, kind, how) for note in _apply(*each, how)]
        if output == "yaml" and shown:
            report.write("---")
        _write(given, manifest, output)
        shown = True
        return notes

    return answer_each(files, answer)


def _read(
    document: documents.Document,
    body: bytes,
) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return (API group, kind) of a document that has pods, and its content."""
    kind, version = kind_of(document)
    if kind in templates.WORKLOADS:
        if why := review.too_much(body):
            raise ValueError(f"the {kind[1]} {why}")
        return kind, msgspec.json.decode(body)
    raise _NoPodsError(
        f"{quoted(kind[1])} ({version or 'no apiVersion'}): no kind whose pods are known"
    )


def kind_of(document: documents.Document) -> tuple[tuple[str, str], str]:
    """(API group, kind) and ``apiVersion`` of a document; ValueError: it has no kind."""
    given = msgspec.json.decode(document.readable, type=_Kind)
    kind = given.kind or document.kind
    if not kind:
        raise ValueError("it has no kind")
    version = given.api_version or document.api_version
    return (version.rpartition("/")[0], kind), version


def _planned(
    manifest: dict[str, Any],
    kind: tuple[str, str],
    how: StartPolicy,
) -> Iterator[tuple[Pod, Plan, templates.PodTemplate]]:
    """Plan how the pods of a manifest start: those of its templates, or the pod itself."""
    for each in templates.read(manifest, *kind):
        pod = convert(each.pod)
        about: dict[str, Any] = manifest.get("metadata") or {}
        documents.check_names(kind[1], str(about.get("name") or ""), pod.metadata)
        yield pod, plan(pod, msgspec.structs.replace(how, job=each.job)), each


def _apply(pod: Pod, plan: Plan, of: templates.PodTemplate, how: StartPolicy) -> Iterator[str]:
    """Change a manifest; yields what its author should know."""
    yield from map(str, of.unread)
    if not how.pods.matches(pod.labels):
        yield f"left alone: {plan.reason}"
        return
    yield from plan.warnings
    ops = [op for op in plan.ops if not of.only_metadata or op.path.startswith("/metadata/")]
    if len(ops) < len(plan.ops):
        yield f"{pod.metadata.name}: not shown, as it is no part of the manifest: {plan.reason}"
    if ops:
        metadata: dict[str, Any] = {**(of.template.get("metadata") or {})}
        of.template["metadata"] = metadata
        for key in ("labels", "annotations"):  # A step lacks those of its workflow.
            if of.only_metadata and any(op.path.startswith(f"/metadata/{key}/") for op in ops):
                metadata[key] = metadata.get(key) or {}
    patch.apply(ops, of.template)


def _write(given: dict[str, Any], mutated: dict[str, Any], output: str) -> None:
    if output == "json":
        report.write_json(msgspec.json.encode(mutated))
    elif output == "yaml":
        report.write(documents.to_yaml(mutated).rstrip())
    else:
        old, new = (documents.to_yaml(each).splitlines() for each in (given, mutated))
        terminal = Terminal.stdout()
        styles = {"+": Style.GOOD, "-": Style.BAD, "@": Style.FAINT}
        for line in difflib.unified_diff(old, new, "given", "admitted", lineterm=""):
            report.write(terminal.paint(Cell(line, styles.get(line[:1], Style.PLAIN))))


def answer_each(files: Iterable[str], answer: Answer) -> int:
    """Answer all documents; return the exit status. ``answer`` raises ValueError for a bad one."""
    status = 0
    for file in files:
        name = "stdin" if file == "-" else file
        try:
            body = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        except OSError as error:
            report.complain(f"{name}: {error.strerror}")
            outcomes = ["bad"]
        else:
            outcomes = [_outcome(name, document, answer, body) for document in documents.read(body)]
        if not outcomes:
            report.complain(f"{name}: no pods")
        if "bad" in outcomes or (outcomes and "answered" not in outcomes):
            status = BAD_INPUT
    return status


def _outcome(
    name: str,
    document: documents.Document | documents.BadDocument,
    answer: Answer,
    body: bytes,
) -> str:
    """Answer one document: ``answered``, ``bad``, or ``left out`` for what has no known pods."""
    if isinstance(document, documents.BadDocument):
        outcome, notes = "bad", [document.why]
    else:
        try:
            outcome, notes = "answered", answer(document, body)
        except _NoPodsError as error:
            outcome, notes = "left out", [f"left out: {error}"]
        except RecursionError:
            outcome, notes = "bad", ["it is nested too deeply"]
        except ValueError as error:  # Those of msgspec are ValueErrors, too.
            outcome, notes = "bad", [str(error)]
    report.complain(*(f"{name}:{document.place}: {note}" for note in notes))
    return outcome
