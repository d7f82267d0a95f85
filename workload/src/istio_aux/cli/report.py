"""What the commands about a cluster report, as text and as JSON lines.

The decisions are those of the controllers, as of now. A terminal gets colour, and text that wraps
where its columns do. In a pipe or a file the text is plain, one line a thing.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, TypeVar, get_args

import msgspec

from istio_aux.cli import preflight, sentences
from istio_aux.cli.installation import Installations, Judgement, Labels
from istio_aux.cli.output import Output
from istio_aux.cli.terminal import COLOURS, Cell, Style, Terminal, age, minute
from istio_aux.injector.injection import Expectation
from istio_aux.model.answers import HELD, MOST, Holder, TroubledPod, group
from istio_aux.model.documents import run_now
from istio_aux.model.ending import cut_off, killed
from istio_aux.model.failed import failure
from istio_aux.model.findings import Code, Remark, ignored
from istio_aux.model.injection_request import InjectionRequest
from istio_aux.model.owners import controller
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import RacePolicy
from istio_aux.model.resources import Requests, total
from istio_aux.model.text import NO_COMMAND, Command, listed, printable, printable_json
from istio_aux.quit.facts import ContainerVerdict
from istio_aux.quit.rules import Action, Quit, Report, Wait
from istio_aux.repair.candidate import Candidate
from istio_aux.repair.rules import (
    SETTLED,
    NotKnown,
    RepairAction,
    ReportUnmeshed,
    as_admitted,
    decide,
)
from istio_aux.start.plan import bad_values, effective_start

T = TypeVar("T", bound="Finding | QuitVerdict")

# `audit --help` says what they mean.
AuditState = Literal["stuck", "blocked", "lost", "unstarted", "unmeshed", "failed"]

QuitResult = Literal["freed", "would-free", "stuck", "kept", "gone", "ended"]  # `quit --help`, too.


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of `explain`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    action: str
    reason: str
    containers: dict[str, ContainerVerdict]
    start: str | None = None
    end: str = ""  # What the pod loses, or has lost, at its end.
    installation: str = ""  # Whose settings these are.
    state: AuditState | None = None  # The word of `audit`.
    code: Code | None = None  # Of that state.
    codes: tuple[
        Code, ...
    ] = ()  # The codes of all findings: also of the annotations, and of the end.
    ignored: tuple[Code, ...] = ()
    verdict: str = ""  # What the pod alone asks for, if the ``action`` is another one.
    left_out: str = ""  # As in `Finding`; likewise below.
    free: Command = NO_COMMAND
    restart: Command = NO_COMMAND
    change: Command = NO_COMMAND
    policy: str = ""  # YAML for the spec of its next Job.


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `audit`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    owner: str = ""  # The pod's controller, such as TFJob/mnist.
    created: datetime | None = None
    state: AuditState
    code: Code
    # When the last finished payload container ended, or the proxy of a lost pod, or when an
    # unstarted pod could have started, or an unmeshed one was created; None: unknown.
    since: datetime | None
    action: str  # What is done about the pod: see `installation.Judgement`.
    reason: str
    # What a blocked pod waits for: containers, or an invalid annotation. Of a stuck pod the
    # containers that keep it after its proxy.
    by: tuple[str, ...] = ()
    containers: dict[str, ContainerVerdict] = {}
    configuration: str = ""  # The webhook configuration that selects an unmeshed pod.
    requests: Requests | None = None  # What a stuck or blocked pod holds; None: it is not known.
    fix: str = ""  # The setting that ends what blocks the pod, or how it gets its sidecar.
    left_out: str = ""  # Why no installation looks after the pod, or why that is not known.
    # Commands, to be pasted: to free a pod which no installation looks after, to restart one that
    # lacks its sidecar, to have an installation look after it.
    free: Command = NO_COMMAND
    restart: Command = NO_COMMAND
    change: Command = NO_COMMAND


class Audit(msgspec.Struct, frozen=True):
    """The findings among all pods that were read."""

    findings: list[Finding]
    pods: int
    namespaces: int | None = None  # How many are selected; None without a selector.
    unknown: int = 0  # Pods without a sidecar, or unreadable ones, that may or may not need one.
    installations: Installations = Installations()  # Whose settings these are.
    among: str = ""  # Where pods were looked for.
    ignored: Sequence[Code] = ()  # Of findings.
    notes: tuple[str, ...] = ()  # What is not known, a line each.

    def holders(self) -> list[Holder]:
        """What holds pods; the JSON names of each are a contract."""
        return run_now(
            group(
                msgspec.convert(each, TroubledPod, from_attributes=True)
                for each in self.findings
                if each.state in HELD
            )
        )


class RestartVerdict(msgspec.Struct, frozen=True):
    """One line of `restart-unmeshed`; its JSON names are a contract."""

    namespace: str
    name: str
    outcome: Literal["restarted", "would-restart", "kept"]
    reason: str


class QuitVerdict(msgspec.Struct, frozen=True):
    """One line of `quit`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    outcome: QuitResult
    reason: str
    requests: Requests | None = None  # What the pod holds, or gave back; None: it is not known.
    owner: str = ""  # As in `Finding`.
    seconds: float | None = None  # From the payload's end to the proxy's, of a freed pod.


def explain(
    pod: Pod,
    judged: Judgement,
    start: str | None = None,
    *,
    notes: Sequence[Remark] = (),
    meshed: RepairAction | None = None,
    held: str = "",
    now: datetime | None = None,
    ignore: Collection[str] = (),
) -> Explanation:
    """Explain one pod, which was judged; ``notes`` add to how it starts.

    ``start`` says how a pod of a template starts, which does not exist yet, ``meshed`` whether the
    pod is in its mesh, and ``held`` who holds what it waits for. Without ``now`` there are no ages.
    Findings with codes to ``ignore`` are left out.
    """
    decision = judged.decision
    about = pod.metadata
    reason = sentences.cause(judged.facts, decision, judged.reason, now) + held
    restart = NO_COMMAND
    waits = start and isinstance(decision, Wait) and not decision.blocked_by
    if waits and not judged.left_out:
        reason = f"{PROXY} is told to exit once every payload container is finished"
    state = state_of(pod, decision)
    code = decision.code
    if isinstance(meshed, ReportUnmeshed):
        if meshed.unmeshed:
            state, code = "unmeshed", meshed.code
        reason, restart = sentences.outside(pod, meshed, reason)
    elif isinstance(meshed, NotKnown):
        reason = f"{reason}; not known whether the pod is in its mesh: {meshed.reason}"
    mishap = None if state else failure(pod)
    if mishap:
        state, code, reason = "failed", mishap.code, mishap.text
    if pod.has_proxy and pod.status.phase not in {"Succeeded", "Failed"}:
        end = Remark(Code.CUT_OFF, cut_off(pod))
    else:
        end = Remark(Code.PROXY_KILLED, killed(pod))
    notes = [*notes, *bad_values(pod)]
    others = [each.code for each in (*notes, end) if each.text]
    codes = [*dict.fromkeys([code, *others] if state and code else others)]
    if code in ignore:
        state = None
    told = (str(each) for each in notes if each.code not in ignore)
    return Explanation(
        **about.key._asdict(),
        action=judged.action,
        reason=reason,
        containers=judged.facts.table,
        start="; ".join(filter(None, (start or effective_start(pod), *told))) or None,
        end=str(end) if end.text and end.code not in ignore else "",
        installation=judged.installation.name,
        state=state,
        code=code if state else None,
        codes=tuple(each for each in codes if each not in ignore),
        ignored=tuple(each for each in codes if each in ignore),
        verdict="" if decision.action == judged.action else decision.action,
        left_out=judged.left_out,
        change=judged.change,
        restart=restart,
        free=(
            sentences.free(about.namespace, about.name)
            if judged.left_out and isinstance(decision, Quit)
            else NO_COMMAND
        ),
        policy=mishap.policy if mishap and state else "",
    )


def audit(
    pod: Pod,
    labels: Labels | None,
    judged: Judgement,
    expected: Callable[[InjectionRequest], Expectation],
    listens: bool | None = None,
    *,
    now: datetime,
) -> Finding | str | None:
    """Return what is wrong with one pod, which was judged; None when all is well.

    ``labels`` are those of its namespace, and a pod as admission would make it now is `expected` to
    have a sidecar. The text says why it is unknown whether the pod is in its mesh. ``listens``: see
    `decide`. ``now`` is of the clock that the answer goes by: of this moment, or of a file.
    """
    action, expectation = outside(pod, labels, judged, expected, listens, now=now)
    match action:
        case ReportUnmeshed(unmeshed=True, reason=reason, code=code):
            fix, restart = sentences.mesh_again(pod)
            return Finding(
                **about_pod(pod),
                state="unmeshed",
                code=code,
                since=pod.metadata.creation_timestamp,
                action="report",
                reason=reason,
                configuration=expectation.configuration,
                fix=fix,
                restart=restart,
            )
        case ReportUnmeshed():
            return action.reason if action.doubted else expectation.reason
        case _:
            facts = judged.facts
    decision = judged.decision
    if (state := state_of(pod, decision)) is None or decision.code is None:
        return action.reason if isinstance(action, NotKnown) else None
    by = decision.blocked_by or (facts.outlasting if state == "stuck" else ())
    return Finding(
        **about_pod(pod),
        action=judged.action,
        reason=decision.reason,
        containers=facts.table,
        left_out=judged.left_out,
        change=judged.change,
        free=(
            sentences.free(pod.metadata.namespace, pod.metadata.name)
            if judged.left_out and state == "stuck" and not by
            else NO_COMMAND
        ),
        state=state,
        code=decision.code,
        since=facts.ended(PROXY) if state == "lost" else facts.held_since,
        by=tuple(by),
        requests=None if state == "lost" else facts.requests,
        fix=decision.fix,
    )


def outside(
    pod: Pod,
    labels: Labels | None,
    judged: Judgement,
    expected: Callable[[InjectionRequest], Expectation],
    listens: bool | None = None,
    *,
    now: datetime,
) -> tuple[RepairAction, Expectation]:
    """Decide whether a pod is in its mesh, and in which it should be; see `audit`."""
    settings, asking = judged.installation.settings, judged.installation.applications
    candidate = Candidate.of(pod)
    new, expectation = as_admitted(candidate, labels, settings.pod_options, asking, expected)
    policy = settings.repair_policy
    if policy.race is RacePolicy.RESTART:  # Whether it is restarted depends on more than this pod.
        policy = msgspec.structs.replace(policy, race=RacePolicy.REPORT)
    return (
        decide(
            new,
            expectation,
            policy,
            live=None,
            settled=now.timestamp() >= candidate.addressed + SETTLED,
            listens=listens,
        ),
        expectation,
    )


def state_of(pod: Pod, decision: Action) -> AuditState | None:
    """The state of a pod; None when all is well."""
    phase = pod.status.phase
    if phase not in {"Pending", "Running"}:  # The quit controller handles no other one.
        return None
    if decision.blocked_by:
        return "unstarted" if decision.stage in {"unstarted", "held"} else "blocked"
    if isinstance(decision, Quit):
        return "stuck"
    return "lost" if isinstance(decision, Report) and phase == "Running" else None


def about_pod(pod: Pod) -> dict[str, Any]:
    """The fields of a `Finding` by which its pod is known."""
    about = pod.metadata
    return {
        **about.key._asdict(),
        "owner": str(controller(about) or ""),
        "created": about.creation_timestamp,
    }


def show(
    output: Output,
    items: Iterable[msgspec.Struct],
    text: Callable[..., str],
    **facts: object,
) -> None:
    """Print an answer: its items as ``output`` says, or as ``text``.

    ``text`` gets the items, what stdout leads to, and the ``facts``.
    """
    output.show([*items], text, facts, sys.stdout)


def explain_text(explanations: Iterable[Explanation], terminal: Terminal) -> str:
    """A headline and a table of the containers for each pod."""
    lines = list[str]()
    for each in explanations:
        lines += [""] if lines else []
        key = "/".join(filter(None, (each.namespace, each.name))) or "(unnamed)"
        word = each.state or each.verdict or each.action
        lines += terminal.table(
            "",
            [(Cell(key, Style.HEADING), Cell(word.upper(), COLOURS[word]), each.reason)],
        )
        for title in ("free", "restart"):
            if command := getattr(each, title):
                lines += sentences.to_paste(f"{title} it", command, terminal, "  ")
        who = each.installation and f", by {each.installation}"
        if each.left_out:
            whether = "not known whether an" if each.action == "unknown" else "no"
            who = f": {whether} installation looks after the pod: {each.left_out}"
        if who or each.state:
            text = Cell(f"istio-aux: {each.action}{who}", Style.FAINT)
            lines += sentences.to_paste(text, each.change, terminal, "  ")
        for title in ("start", "end"):
            if text := getattr(each, title):
                lines += terminal.beside(f"  {title}: ", len(title) + 4, Cell(text))
        lines += sentences.policy(each.policy, terminal)
        lines += sentences.pages(each.codes, terminal, indent="  ")
        if each.ignored:
            lines.append(f"  {ignored(each.ignored)}")
        lines += terminal.table(
            "CONTAINER ROLE FINISHED WHY",
            [
                (name, verdict.role, "yes" if verdict.finished else "no", verdict.why)
                for name, verdict in each.containers.items()
            ],
            indent="  ",
        )
    return "\n".join(lines)


def audit_text(
    findings: Sequence[Finding],
    terminal: Terminal,
    *,
    audit: Audit,
    now: datetime,
) -> str:
    """A table, what holds pods and why no installation looks after them, and a summary.

    Ages count until ``now``.
    """
    rows = [
        (
            namespace,
            owner,
            str(len(pods)),
            state,
            min(pod.code for pod in pods),
            age(earliest(pod.created for pod in pods), now),
            minute(earliest(pod.since for pod in pods)),
            reason,
        )
        for (namespace, owner, state, reason), pods in by_owner(findings, "state")
    ]
    counted = Counter(finding.state for finding in findings)
    counts = [
        terminal.paint(
            Cell(
                f"{state}: {counted[state]}",
                COLOURS[state] if counted[state] else Style.PLAIN,
            )
        )
        for state in get_args(AuditState)
    ]
    summary = f"pods: {audit.pods}; {', '.join(counts)}"
    if audit.unknown:
        summary += f" (unknown: {audit.unknown})"
    if audit.namespaces is not None:
        summary = f"selected namespaces: {audit.namespaces}; {summary}"
    if names := audit.installations.names:
        summary = f"installation: {listed(names)}; {summary}"
    return _sections(
        terminal.table("NAMESPACE NAME PODS STATE CODE AGE SINCE REASON", rows)
        or [f"no pod hangs or lacks its sidecar {audit.among}"],
        _most([each.text for each in audit.holders()], "holders", terminal),
        sentences.left_out(findings, terminal),
        sentences.unmeshed(findings, terminal),
        sentences.pages((finding.code for finding in findings), terminal),
        ["; ".join(filter(None, (summary, ignored(audit.ignored))))],
    )


def holders_text(holders: Sequence[Holder], terminal: Terminal, *, audit: Audit) -> str:
    """What each of the first holders holds."""
    lines = _most([each.text for each in holders], "holders", terminal)
    return "\n".join(lines) or f"nothing holds a pod {audit.among}"


def check_text(
    results: Sequence[preflight.CheckResult],
    terminal: Terminal,
    *,
    to: str = "",
    ignored: str = "",
) -> str:
    """A table, group by group, what to do below each line, and a summary.

    ``to`` is where the cluster goes, if that was asked; ``ignored`` says what was.
    """
    rows = list[tuple[str | Cell, ...]]()
    order = [*preflight.CHECKS, *(each.check for each in results)]
    ordered = sorted(results, key=lambda each: order.index(each.check))
    for title, some in groupby(ordered, lambda each: preflight.group(each.check)):
        rows.append((Cell(title, Style.FAINT), "", "", ""))
        for each in some:
            rows.append((f"  {each.check}", each.result, each.code, each.what))
            page = f" ({each.see})" if each.see else ""
            below = [Cell(f"to do: {each.do}{page}", Style.HEADING)] if each.do else []
            below += (Cell(it + terminal.flags, Style.COMMAND) for it in each.run.splitlines())
            rows += (("", "", "", cell) for cell in below)
    verdicts = [each.result for each in results]
    if to:
        summary = f"on the way to {to}: {_counts(verdicts, *preflight.Verdict)}"
    elif preflight.works(results):
        summary = "nothing keeps istio-aux from working here"
    else:
        bad = _counts(verdicts, preflight.Verdict.PROBLEM, preflight.Verdict.UNKNOWN)
        summary = f"istio-aux may not work here; {bad}"
    summary = "; ".join(filter(None, (summary, ignored)))
    return _sections(terminal.table("CHECK RESULT CODE WHAT", rows), [summary])


def restarts_text(
    verdicts: Sequence[RestartVerdict],
    terminal: Terminal,
    *,
    dry_run: bool,
    installation: str,
    among: str,
) -> str:
    """A table, and a summary with the ``installation`` whose settings count."""
    where = f"installation: {installation}; " if installation else ""
    counts = _counts(
        [each.outcome for each in verdicts],
        "would-restart" if dry_run else "restarted",
        "kept",
        zeros=True,
    )
    return _sections(
        terminal.table(
            "NAMESPACE NAME OUTCOME REASON",
            [(each.namespace, each.name, each.outcome, each.reason) for each in verdicts],
        )
        or [f"no pod lacks its sidecar {among}"],
        [where + counts],
    )


def quits_text(
    verdicts: Sequence[QuitVerdict],
    terminal: Terminal,
    *,
    dry_run: bool,
    among: str,
) -> str:
    """A table, and a summary with what the pods gave back."""
    if not verdicts:
        return f"no pod hangs {among}"
    outcomes = [each.outcome for each in verdicts]
    done = "would-free" if dry_run else "freed"
    back = str(total(v.requests for v in verdicts if v.requests and v.outcome == done))
    first = _counts(outcomes, done, zeros=True) + (f" ({back})" if back else "")
    others = _counts(outcomes, "stuck", "kept", "gone", "ended")
    summary = [", ".join(filter(None, (first, others)))]
    if dry_run and done in outcomes:
        summary.append("nothing is changed yet: add --yes")
    return _sections(
        terminal.table(
            "NAMESPACE NAME PODS OUTCOME REQUESTS REASON",
            [
                (
                    namespace,
                    owner,
                    str(len(pods)),
                    outcome,
                    _requested(pods),
                    reason + _waited(pods),
                )
                for (namespace, owner, outcome, reason), pods in by_owner(verdicts, "outcome")
            ],
        ),
        summary,
    )


def by_owner(items: Iterable[T], word: str) -> Iterable[tuple[tuple[str, str, str, str], list[T]]]:
    """Group the pods of an owner whose ``word`` is the same for the same reason: a row each."""
    groups = defaultdict[tuple[str, str, str, str], list[T]](list)
    for each in items:
        owner = sentences.owner(each.owner, getattr(each, "created", None)) or f"pod/{each.name}"
        groups[each.namespace, owner, getattr(each, word), each.reason].append(each)
    return groups.items()


def earliest(times: Iterable[datetime | None]) -> datetime | None:
    """The first of the times that are known; None if none is."""
    return min(filter(None, times), default=None)


def _counts(words: Sequence[str], *kinds: str, zeros: bool = False) -> str:
    counts = Counter(words)
    return ", ".join(f"{kind}: {counts[kind]}" for kind in kinds if zeros or counts[kind])


def _sections(*parts: Sequence[str]) -> str:
    """Join the parts that are not empty, with an empty line between."""
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _most(texts: Sequence[str], what: str, terminal: Terminal) -> list[str]:
    """The first texts, and how many more there are."""
    shown = [*texts[:MOST]]
    if (more := len(texts) - MOST) > 0:
        shown.append(f"and {more} more {what}")
    return [line for text in shown for line in terminal.beside("", 0, Cell(text))]


def _requested(pods: Sequence[QuitVerdict]) -> str:
    if any(each.requests is None for each in pods):
        return "unknown"
    return str(total(each.requests for each in pods if each.requests)) or "none"


def _waited(pods: Sequence[QuitVerdict]) -> str:
    seconds = {round(each.seconds) for each in pods if each.seconds is not None}
    most = "up to " if len(seconds) > 1 else ""
    return f", {most}{max(seconds)} s after the payload" if seconds else ""


def write(text: str) -> None:
    """Print a line; a character that the encoding of stdout lacks becomes ``?``."""
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "replace") + b"\n")


def write_json(line: bytes) -> None:
    """Print a line of JSON, which is UTF-8 whatever the locale; a terminal obeys none of it."""
    sys.stdout.buffer.write(printable_json(line) + b"\n")


def complain(*texts: str) -> None:
    """Write lines to stderr, after what was printed so far."""
    sys.stdout.flush()
    for text in texts:
        sys.stderr.write(f"{printable(' '.join(text.split()))}\n")
