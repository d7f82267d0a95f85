"""What the commands about a cluster report, as text and as JSON lines.

The decisions are those of the controllers, as of now. A terminal gets colour, and text that wraps
where its columns do. In a pipe or a file the text is plain, one line a thing.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec
from msgspec import structs

from istio_aux.cli.installation import Installations, Judgement
from istio_aux.cli.preflight import GROUPS, CheckResult, Verdict, works
from istio_aux.cli.terminal import Cell, Style, Terminal, age, header, minute, row
from istio_aux.injector.injection import Expectation
from istio_aux.model.answers import MOST, Holder, TroubledPod, group
from istio_aux.model.documents import whole
from istio_aux.model.owners import controller
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.policy import RacePolicy
from istio_aux.model.resources import Requests, total
from istio_aux.model.text import listed, printable, printable_json
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import ContainerVerdict
from istio_aux.repair import rules as repair
from istio_aux.start.plan import bad_values, effective_start

State = Literal["stuck", "blocked", "lost", "unmeshed"]  # `audit --help` says what they mean.

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
    installation: str = ""  # Whose settings these are.
    state: State | None = None  # The word of `audit`.
    free: str = ""  # The command that frees a pod without installation.


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `audit`; its JSON names are a contract."""

    namespace: str
    name: str
    uid: str
    owner: str = ""  # The pod's controller, such as TFJob/mnist.
    created: datetime | None = None
    state: State
    # When the last finished payload container ended, or the proxy of a lost pod, or when an
    # unmeshed pod was created; None if the kubelet does not say.
    since: datetime | None
    action: str  # What is done about the pod: see `installation.Judgement`.
    reason: str
    # What a blocked pod waits for: containers, or an invalid annotation. Of a stuck pod the
    # containers that keep it after its proxy.
    by: tuple[str, ...] = ()
    containers: dict[str, ContainerVerdict] = {}
    configuration: str = ""  # The webhook configuration that selects an unmeshed pod.
    requests: Requests | None = None  # What a stuck or blocked pod holds; None: it is not known.
    fix: str = ""  # The setting that ends what blocks the pod, if one is known.
    left_out: str = ""  # Why no installation looks after it, or why that is unknown.


class Audit(msgspec.Struct, frozen=True):
    """The findings among all pods that were read."""

    findings: list[Finding]
    pods: int
    namespaces: int | None = None  # How many are selected; None without a selector.
    unknown: int = 0  # Pods without a sidecar, or unreadable ones, that may or may not need one.
    gaps: tuple[str, ...] = ()  # Why that is unknown, one line each.
    installations: Installations = Installations()  # Whose settings these are.
    unlabelled: tuple[str, ...] = ()  # Why labels of namespaces are not known.
    refused: tuple[str, ...] = ()  # Workloads that have no pods because these were refused.

    def since(self, earlier: Audit) -> Audit:
        """The findings that are new or have changed."""
        known = {each.uid: each for each in earlier.findings}
        new = [each for each in self.findings if known.get(each.uid) != each]
        return msgspec.structs.replace(self, findings=new)

    def holders(self) -> Holders:
        """What holds the stuck and the blocked pods."""
        return Holders(whole(group(
            TroubledPod(
                each.namespace, each.name, each.uid, each.reason, each.since,
                by=each.by, requests=each.requests, fix=each.fix,
            )
            for each in self.findings if each.state in {"stuck", "blocked"}
        )))  # fmt: skip


class Holders(msgspec.Struct, frozen=True):
    """What `audit --holders` shows; the JSON names of each are a contract."""

    holders: list[Holder]


class RestartVerdict(msgspec.Struct, frozen=True):
    """One line of `restart-unmeshed`; its JSON names are a contract."""

    namespace: str
    name: str
    outcome: Literal["restarted", "would-restart", "kept"]
    reason: str


class Restarts(msgspec.Struct, frozen=True):
    """All unmeshed pods, and what `restart-unmeshed` did about each, or would do."""

    verdicts: list[RestartVerdict]
    dry_run: bool
    installation: str = ""  # Whose settings these are.


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


class Quits(msgspec.Struct, frozen=True):
    """What `quit` did about each pod, or would do."""

    verdicts: list[QuitVerdict]
    dry_run: bool


def explain(pod: Pod, judged: Judgement, start: str | None = None, note: str = "") -> Explanation:
    """Explain one pod, which was judged.

    ``start`` says how a pod of a template starts, which does not exist yet. A ``note`` adds to how
    one starts.
    """
    decision, reason = judged.decision, judged.reason
    if (
        start
        and isinstance(decision, quitting.Wait)
        and not (decision.blocked_by or judged.left_out)
    ):
        reason = f"{PROXY} is told to exit once every payload container is finished"
    free = ""
    if isinstance(decision, quitting.Quit) and judged.left_out:
        free = f"`istio-aux quit -n {pod.metadata.namespace} {pod.metadata.name}`"
    notes = filter(None, (start or effective_start(pod), note, *bad_values(pod)))
    return Explanation(
        **_identity(pod), action=judged.action, reason=reason,
        containers=dict(judged.facts.containers), start="; ".join(notes) or None,
        installation=judged.installation.name,
        state=_state(decision) if pod.status.phase == "Running" else None, free=free,
    )  # fmt: skip


def audit(pod: Pod, judged: Judgement, expectation: Expectation) -> Finding | str | None:
    """Return what is wrong with one pod, which was judged; None when all is well.

    The text says why it is unknown whether the pod lacks a sidecar.
    """
    settings = judged.installation.settings
    policy = settings.repair_policy
    if policy.race.restarts:  # Whether it is restarted depends on more than this pod.
        policy = structs.replace(policy, race=RacePolicy.REPORT)
    match repair.decide(pod, expectation, policy, finished=False, live=None):
        case repair.ReportUnmeshed(unmeshed=True, reason=reason):
            return Finding(
                **_listed(pod),
                state="unmeshed",
                since=pod.metadata.creation_timestamp,
                action="report",
                reason=reason,
                configuration=expectation.configuration,
            )
        case repair.ReportUnmeshed():
            return expectation.reason
        case _ if pod.status.phase == "Running":  # The quit controller handles no other phase.
            return proxy_finding(pod, judged)
        case _:
            return None


def proxy_finding(pod: Pod, judged: Judgement) -> Finding | None:
    """Return what is wrong with the proxy of a running pod; None when all is well."""
    facts, decision = judged.facts, judged.decision
    if (state := _state(decision)) is None:
        return None
    by = decision.blocked_by or (facts.outlasting if state == "stuck" else ())
    return Finding(
        **_listed(pod),
        action=judged.action,
        reason=decision.reason,
        containers=dict(facts.containers),
        left_out=judged.left_out,
        state=state,
        since=facts.ended(PROXY) if state == "lost" else facts.payload_ended,
        by=tuple(map(str, by)),
        requests=None if state == "lost" else facts.requests,
        fix=decision.fix,
    )


def _state(decision: quitting.Action) -> State | None:
    """The state of a running pod; None when all is well."""
    match decision:
        case quitting.Quit():
            return "stuck"
        case quitting.Report():
            return "lost"
        case _:
            return "blocked" if decision.blocked_by else None


def _identity(pod: Pod) -> dict[str, Any]:
    return pod.metadata.key._asdict()


def _listed(pod: Pod) -> dict[str, Any]:
    return {
        **_identity(pod), "owner": owner_of(pod), "created": pod.metadata.creation_timestamp
    }  # fmt: skip


def owner_of(pod: Pod) -> str:
    """Return the pod's controller, such as TFJob/mnist; empty if it has none."""
    owner = controller(pod)
    return f"{owner.kind}/{owner.name}" if owner else ""


def _owner(each: Finding | QuitVerdict) -> str:
    """Name the owner of a pod, or a pod without one, as commands take it."""
    kind, _, name = each.owner.partition("/")
    return f"{kind.lower()}/{name}" if name else f"pod/{each.name}"


_ACTIONS = {
    "quit": Style.GOOD, "wait": Style.ODD, "ignore": Style.FAINT, "report": Style.BAD,
    "unknown": Style.LOST,
}  # fmt: skip
_VERDICTS = {
    Verdict.OK: Style.GOOD,
    Verdict.NOTE: Style.ODD,
    Verdict.PROBLEM: Style.BAD,
    Verdict.UNKNOWN: Style.LOST,
}
_STATES = {"stuck": Style.BAD, "blocked": Style.ODD, "lost": Style.LOST, "unmeshed": Style.LOST}


def show(
    stream: TextIO,
    answer: Explanation | Audit | Holders | Quits | Restarts | list[CheckResult],
    output: str,
) -> None:
    """Write one answer to ``stream``: as JSON lines if ``output`` is ``json``, else as text."""
    terminal = Terminal.of(stream)
    match answer:
        case Explanation():
            items, text = [answer], explanation_text(answer, terminal)
        case Audit():
            items, text = answer.findings, audit_text(answer, terminal)
        case Holders():
            shown = [*holders_text(answer, terminal)]
            items, text = answer.holders, shown or ["no pod is stuck or blocked"]
        case Quits():
            items, text = answer.verdicts, quits_text(answer, terminal)
        case Restarts():
            items, text = answer.verdicts, restarts_text(answer, terminal)
        case _:
            items, text = answer, check_text(answer, terminal)
    if output == "json":
        for item in items:
            write_json(stream, msgspec.json.encode(item))
    else:
        write(stream, "\n".join(text))


def explanation_text(explanation: Explanation, terminal: Terminal) -> Iterator[str]:
    """Yield a headline and a table of the containers, line by line."""
    key = "/".join(filter(None, (explanation.namespace, explanation.name))) or "(unnamed)"
    state = f" ({explanation.state})" if explanation.state else ""
    style = _ACTIONS.get(explanation.action, Style.PLAIN)
    action = Cell(f"{explanation.action.upper()}{state}", style)
    yield from terminal.table([[Cell(key, Style.HEADING), action, Cell(explanation.reason)]])
    for title in ("free", "start", "installation"):
        if text := getattr(explanation, title):
            yield from terminal.beside(f"  {title}: ", len(title) + 4, Cell(text))
    rows = [
        row(
            name,
            Cell(verdict.role, Style.PLAIN if verdict.role == "payload" else Style.FAINT),
            Cell("yes", Style.GOOD) if verdict.finished else Cell("no", Style.ODD),
            verdict.why,
        )
        for name, verdict in explanation.containers.items()
    ]
    if rows:
        yield from terminal.table([header("CONTAINER ROLE FINISHED WHY"), *rows], indent="  ")


def audit_text(audit: Audit, terminal: Terminal, now: datetime | None = None) -> Iterator[str]:
    """Yield a table and a summary; ages count until ``now``.

    Pods of an owner with the same state for the same reason are one row: how many, the age of the
    oldest, and since when the first one has this state.
    """
    moment = now or datetime.now(UTC)
    groups = defaultdict[tuple[str, str, State, str], list[Finding]](list)
    for each in audit.findings:
        groups[each.namespace, _owner(each), each.state, each.reason].append(each)
    rows = [
        row(namespace, name, str(len(pods)), Cell(state, _STATES[state]),
             age(min((pod.created for pod in pods if pod.created), default=None), moment),
             minute(min((pod.since for pod in pods if pod.since), default=None)), reason)
        for (namespace, name, state, reason), pods in groups.items()
    ]  # fmt: skip
    if rows:
        titles = header("NAMESPACE NAME PODS STATE AGE SINCE REASON")
        yield from terminal.table([titles, *rows])
        yield ""
    if held := [*holders_text(audit.holders(), terminal)]:
        yield from (*held, "")
    if left := [*_left_out(audit.findings)]:
        for line in left:
            yield from terminal.beside("", 0, Cell(line))
        yield ""
    counted = Counter(finding.state for finding in audit.findings)
    counts = ", ".join(
        terminal.paint(Cell(f"{state}: {counted[state]}", style if counted[state] else Style.PLAIN))
        for state, style in _STATES.items()
    )
    where = "" if audit.namespaces is None else f"selected namespaces: {audit.namespaces}; "
    unknown = f" (unknown: {audit.unknown})" if audit.unknown else ""
    if names := audit.installations.names:
        where = f"installation: {listed(names)}; {where}"
    yield f"{where}pods: {audit.pods}; {counts}{unknown}"


def _left_out(findings: Sequence[Finding]) -> Iterator[str]:
    """Say how many pods no installation looks after, by the reason."""
    groups = defaultdict[tuple[str, str], list[Finding]](list)
    for each in findings:
        if each.left_out:
            groups[each.left_out, each.action].append(each)
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    for (why, action), pods in ranked[:MOST]:
        whether = "not known whether an installation" if action == "unknown" else "no installation"
        held = str(total(each.requests for each in pods if each.requests))
        yield f"{whether} looks after {len(pods)} of these pods{held and f' ({held})'}: {why}"
    if (more := len(ranked) - MOST) > 0:
        yield f"and {more} more reasons"
    freed = [each for each in findings if each.left_out and each.state == "stuck" and not each.by]
    if spaces := {each.namespace for each in freed}:
        where = f"-n {min(spaces)}" if len(spaces) == 1 else "-A"
        yield f"free the {len(freed)} stuck ones: `istio-aux quit {where}`"


def holders_text(holders: Holders, terminal: Terminal) -> Iterator[str]:
    """Yield what each of the first holders holds."""
    listed = holders.holders
    for holder in listed[:MOST]:
        yield from terminal.beside("", 0, Cell(holder.text))
    if len(listed) > MOST:
        yield f"and {len(listed) - MOST} more holders"


def check_text(results: Sequence[CheckResult], terminal: Terminal) -> Iterator[str]:
    """Yield a table, group by group, what to do below each line, and a summary."""
    rows = [header("CHECK RESULT WHAT")]
    for title, checks in GROUPS.items():
        members = [each for each in results if each.check in checks]
        if members:
            rows.append(row(Cell(title, Style.FAINT), "", ""))
        for each in members:
            rows.append(
                row(f"  {each.check}", Cell(each.result, _VERDICTS[each.result]), each.what)
            )
            if each.do:
                page = f" ({each.see})" if each.see else ""
                rows.append(row("", "", Cell(f"to do: {each.do}{page}", Style.HEADING)))
    yield from terminal.table(rows)
    yield ""
    counts = Counter(each.result for each in results)
    bad = ", ".join(
        f"{it}: {counts[it]}" for it in (Verdict.PROBLEM, Verdict.UNKNOWN) if counts[it]
    )
    fine = "nothing keeps istio-aux from working here"
    yield fine if works(results) else f"istio-aux may not work here; {bad}"


def restarts_text(restarts: Restarts, terminal: Terminal) -> Iterator[str]:
    """Yield a table and a summary."""
    styles = {"kept": Style.ODD}
    rows = [
        row(each.namespace, each.name, Cell(each.outcome, styles.get(each.outcome, Style.GOOD)),
             each.reason)
        for each in restarts.verdicts
    ]  # fmt: skip
    if rows:
        yield from terminal.table([header("NAMESPACE NAME OUTCOME REASON"), *rows])
        yield ""
    counts = Counter(verdict.outcome for verdict in restarts.verdicts)
    kinds = ("would-restart", "kept") if restarts.dry_run else ("restarted", "kept")
    where = f"installation: {restarts.installation}; " if restarts.installation else ""
    yield where + ", ".join(f"{kind}: {counts[kind]}" for kind in kinds)


def quits_text(quits: Quits, terminal: Terminal) -> Iterator[str]:
    """Yield a table, and a summary with what the pods gave back.

    Pods of an owner with the same outcome for the same reason are one row.
    """
    styles = {"stuck": Style.BAD, "kept": Style.ODD}
    groups = defaultdict[tuple[str, str, QuitResult, str], list[QuitVerdict]](list)
    for each in quits.verdicts:
        groups[each.namespace, _owner(each), each.outcome, each.reason].append(each)
    rows = [
        row(namespace, name, str(len(pods)), Cell(outcome, styles.get(outcome, Style.GOOD)),
             _requested(pods), reason + _waited(pods))
        for (namespace, name, outcome, reason), pods in groups.items()
    ]  # fmt: skip
    if rows:
        yield from terminal.table([header("NAMESPACE NAME PODS OUTCOME REQUESTS REASON"), *rows])
        yield ""
    counts = Counter(verdict.outcome for verdict in quits.verdicts)
    done = "would-free" if quits.dry_run else "freed"
    back = total(v.requests for v in quits.verdicts if v.requests and v.outcome == done)
    kinds = (done, *(kind for kind in ("stuck", "kept", "gone", "ended") if counts[kind]))
    yield ", ".join(
        f"{kind}: {counts[kind]}" + (f" ({back})" if kind == done and str(back) else "")
        for kind in kinds
    )
    if quits.dry_run and counts[done]:
        yield "nothing is changed yet: add --yes"


def _requested(pods: Sequence[QuitVerdict]) -> str:
    if any(each.requests is None for each in pods):
        return "unknown"
    return str(total(each.requests for each in pods if each.requests)) or "none"


def _waited(pods: Sequence[QuitVerdict]) -> str:
    seconds = {round(each.seconds) for each in pods if each.seconds is not None}
    most = "up to " if len(seconds) > 1 else ""
    return f", {most}{max(seconds)} s after the payload" if seconds else ""


def write(stream: TextIO, text: str) -> None:
    """Write a line; a character that the stream's encoding lacks becomes ``?``."""
    stream.buffer.write(text.encode(stream.encoding, "replace") + b"\n")


def write_diff(stream: TextIO, lines: Iterable[str]) -> None:
    """Write a unified diff (difflib)."""
    terminal = Terminal.of(stream)
    styles = {"+": Style.GOOD, "-": Style.BAD, "@": Style.FAINT}
    for line in lines:
        write(stream, terminal.paint(Cell(line, styles.get(line[:1], Style.PLAIN))))


def write_json(stream: TextIO, line: bytes) -> None:
    """Write a line of JSON, which is UTF-8 whatever the locale; a terminal obeys none of it."""
    stream.buffer.write(printable_json(line) + b"\n")


def complain(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{printable(' '.join(text.split()))}\n")
