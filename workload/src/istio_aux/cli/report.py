"""What the commands about a cluster report, as text and as JSON lines.

The rules of the controllers decide, as of now. In a terminal the text has colour and wraps within
its column. In a pipe or a file it is plain, with a line for each object.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from istio_aux.cli.output import COLOURS, Cell, Style, Terminal, age, minute
from istio_aux.injector.injection import Expectation
from istio_aux.judge import preflight
from istio_aux.judge.installation import Installations, Judgement
from istio_aux.judge.pods import about, command_to_select, judge, mesh_again
from istio_aux.model import owners
from istio_aux.model.answers import MOST, Holder, group
from istio_aux.model.documents import run_now
from istio_aux.model.findings import Code, Remark, ignored
from istio_aux.model.found import HELD, Found, State
from istio_aux.model.names import REPOSITORY
from istio_aux.model.pod import PROXY, Pod
from istio_aux.model.resources import Requests, total
from istio_aux.model.sidecars import REMEDY
from istio_aux.model.text import (
    NO_COMMAND,
    Command,
    command,
    commands,
    listed,
    printable,
    printable_json,
)
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import FINISHED, Action, Quit, Wait
from istio_aux.repair.rules import NotKnown, RepairAction, ReportUnmeshed
from istio_aux.start.plan import effective_start

NEXT_TIME = f"and next time: {REPOSITORY}/blob/main/docs/how-to/free-my-job.md#and-next-time"


class Explanation(Found, frozen=True, kw_only=True):
    """The answer of `explain`: the finding with a state, if there is one, and all else."""

    start: str | None = None
    end: str = ""  # What the pod loses, or has lost, at its end.
    installation: str = ""  # The installation whose settings count.
    codes: tuple[str, ...] = ()  # Codes of all findings, also about annotations and the end.
    ignored: tuple[str, ...] = ()
    verdict: str = ""  # The action that the pod alone asks for, if ``action`` is another one.


class PodOutcome(Found, frozen=True, kw_only=True, omit_defaults=False):
    """One line of `quit` or `restart-unmeshed`: what became of a pod, or would."""

    outcome: Literal[
        "freed",
        "would-free",
        "would-cut-off",
        "stuck",
        "kept",
        "gone",
        "ended",
        "restarted",
        "would-restart",
    ]  # `--help` says what they mean.
    seconds: float | None = None  # From the payload's end to the proxy's, of a freed pod.


class Audit(msgspec.Struct, frozen=True):
    """The findings among all pods that were read."""

    findings: list[Found]
    pods: int
    unknown: int = 0  # Pods that cannot be read, or may hang, or may lack their sidecar.
    installations: Installations = Installations()  # Those whose settings count.
    among: str = ""  # Where pods were looked for.
    narrowed: bool = False  # Whether only pods of some names or labels were looked for.
    ignored: Sequence[str] = ()  # Codes of the findings that are left out.
    notes: tuple[str, ...] = ()  # What is not known, a line each.

    def holders(self) -> list[Holder]:
        """What holds pods; the JSON names of each are a contract."""
        return run_now(group(each for each in self.findings if each.state in HELD))


def explain(
    pod: Pod,
    judged: Judgement,
    start: str | None = None,
    *,
    notes: Sequence[Remark] = (),
    meshed: tuple[RepairAction, Expectation] | None = None,
    held: str = "",
    ignore: Collection[str] = (),
) -> Explanation:
    """Explain a pod that was judged; ``notes`` are more findings, shown with its start.

    ``start`` says how the future pod of a template starts, ``meshed`` is the result of
    `judge.pods.outside`, and ``held`` says who holds the GPUs for which the pod waits. Findings
    with codes to ``ignore`` are left out.
    """
    decision = judged.decision
    found = judge(pod, judged, meshed, notes)
    first = found[0] if found and found[0].state else about(pod)
    reason = _cause(judged.facts, decision, judged.reason) + held
    waits = start and isinstance(decision, Wait) and not decision.blocked_by
    if waits and not judged.left_out:
        reason = f"{PROXY} is told to exit once every payload container is finished"
    reason, restart = _outside(pod, meshed and meshed[0], reason)
    free = first.free
    if first.code == str(Code.KEPT) and not first.fix:
        reason += f"; if {listed(first.by)} does no work of yours, {REMEDY}"
        free = _delete(pod)
    if first.state == "failed":
        reason = "; ".join(filter(None, (first.reason, first.fix)))
    told = [each for each in found if each.code not in ignore]
    starts = (_line(it) for it in told if not (it.state or it.code in _NOT_OF_THE_START))
    shown = first if first in told else about(pod)
    explained: dict[str, Any] = {
        **msgspec.structs.asdict(shown),
        "action": judged.action,
        "reason": reason,
        "containers": judged.facts.table,
        "left_out": judged.left_out,
        "change": command_to_select(first.state, judged),
        "restart": restart,
        "free": free,
    }
    return Explanation(
        **explained,
        start="; ".join(filter(None, (start or effective_start(pod), *starts))) or None,
        end="".join(_line(it) for it in told if it.code in _OF_THE_END),
        installation=judged.installation.name,
        codes=tuple(dict.fromkeys(each.code for each in told)),
        ignored=tuple(dict.fromkeys(each.code for each in found if each.code in ignore)),
        verdict="" if decision.action == judged.action else decision.action,
    )


_OF_THE_END = {Code.CUT_OFF, Code.PROXY_KILLED}
_NOT_OF_THE_START = {*_OF_THE_END, Code.MESH_UNKNOWN}


def _line(found: Found) -> str:
    return f"{found.code}: {found.reason}"


def explain_text(explanations: Iterable[Explanation], terminal: Terminal) -> str:
    """A headline and a table of the containers for each pod."""
    lines = list[str]()
    for each in explanations:
        lines += [""] if lines else []
        key = "/".join(filter(None, (each.namespace, each.name))) or "(unnamed)"
        word = each.state or each.verdict or each.action
        since = f", since {minute(each.since)}" if each.state == "stuck" and each.since else ""
        lines += terminal.table(
            "",
            [(Cell(key, Style.HEADING), Cell(word.upper(), COLOURS[word]), each.reason + since)],
        )
        deletes = each.free.startswith("kubectl delete ")
        for title, run in (
            ("if its work may be lost, delete it" if deletes else "free it", each.free),
            ("restart it", each.restart),
        ):
            lines += _to_paste(title, run, terminal, "  ") if run else []
        who = each.installation and f", by {each.installation}"
        if each.left_out:
            whether = "not known whether an" if each.action == "unknown" else "no"
            who = f": {whether} installation looks after the pod: {each.left_out}"
        if who or each.state:
            text = Cell(f"istio-aux: {each.action}{who}", Style.FAINT)
            lines += _to_paste(text, each.change, terminal, "  ")
            if each.left_out and each.state == "stuck":
                lines.append(f"  {NEXT_TIME}")
        for title in ("start", "end"):
            if text := getattr(each, title):
                lines += terminal.beside(f"  {title}: ", len(title) + 4, Cell(text))
        containers = [
            (name, verdict.role, "yes" if verdict.finished else "no", verdict.why)
            for name, verdict in each.containers.items()
        ]
        lines += [
            *_policy(each.policy, terminal),
            *_pages(each.codes, terminal, indent="  "),
            *([f"  {ignored(each.ignored)}"] if each.ignored else []),
            *terminal.table("CONTAINER ROLE FINISHED WHY", containers, indent="  "),
        ]
    return "\n".join(lines)


def audit_text(
    findings: Sequence[Found],
    terminal: Terminal,
    *,
    audit: Audit,
    now: datetime,
) -> str:
    """A table, what holds pods and why no installation looks after them, and a summary.

    Ages count until ``now``.
    """
    columns = (
        _NAMESPACE,
        _NAME,
        _PODS,
        Column("STATE", lambda row: row.word),
        Column("CODE", lambda row: min(pod.code for pod in row.pods)),
        Column("AGE", lambda row: age(earliest(pod.created for pod in row.pods), now)),
        Column("SINCE", lambda row: minute(row.since)),
        Column("NODE", lambda row: row.pods[0].node or "none", wide=True),
        _REASON,
    )
    counted = Counter(finding.state for finding in findings)
    counts = [
        terminal.paint(
            Cell(
                f"{state}: {counted[state]}",
                COLOURS[state] if counted[state] else Style.PLAIN,
            )
        )
        for state in get_args(State)
    ]
    summary = f"pods: {audit.pods}; {', '.join(counts)}"
    if audit.unknown:
        summary += f" (unknown: {audit.unknown})"
    if names := audit.installations.names:
        summary = f"installation: {listed(names)}; {summary}"
    return _sections(
        _table(terminal, columns, by_owner(findings, "state"))
        or [f"no pod hangs or lacks its sidecar {audit.among}"],
        _most([each.text for each in audit.holders()], "holders", terminal),
        _left_out(findings, terminal, narrowed=audit.narrowed),
        _unmeshed(findings, terminal),
        _pages((finding.code for finding in findings), terminal),
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

    ``to`` is the value of `--to`, if given; ``ignored`` says which findings are left out.
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
        bad = preflight.Verdict.PROBLEM, preflight.Verdict.UNKNOWN
        how = "istio-aux may not work" if bad[0] in verdicts else "not known if istio-aux works"
        summary = f"{how} here; {_counts(verdicts, *bad)}"
    summary = "; ".join(filter(None, (summary, ignored)))
    return _sections(terminal.table("CHECK RESULT CODE WHAT", rows), [summary])


def restarts_text(
    verdicts: Sequence[PodOutcome],
    terminal: Terminal,
    *,
    dry_run: bool,
    installation: str,
    among: str,
) -> str:
    """A table, and a summary with the ``installation`` whose settings count."""
    where = f"installation: {installation}; " if installation else ""
    planned = any(each.outcome == "would-restart" for each in verdicts)
    counts = _counts(
        [each.outcome for each in verdicts],
        "would-restart" if dry_run else "restarted",
        "kept",
        zeros=True,
    )
    return _sections(
        _table(
            terminal,
            (_NAMESPACE, _NAME, _OUTCOME, _REASON),
            [Row(it.namespace, it.name, it.outcome, it.reason, [it]) for it in verdicts],
        )
        or [f"no pod lacks its sidecar {among}"],
        [where + counts, *(["nothing is changed yet: add --yes"] if planned else [])],
    )


def quits_text(
    verdicts: Sequence[PodOutcome],
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
    others = _counts(outcomes, "would-cut-off", "stuck", "kept", "gone", "ended")
    summary = [", ".join(filter(None, (first, others)))]
    if dry_run and not {done, "would-cut-off"}.isdisjoint(outcomes):
        summary.append("nothing is changed yet: add --yes")
    if "freed" in outcomes:
        summary.append(NEXT_TIME)
    return _sections(
        _table(
            terminal,
            (
                _NAMESPACE,
                _NAME,
                _PODS,
                _OUTCOME,
                Column("REQUESTS", _requested),
                Column("REASON", lambda row: row.reason + _waited(row)),
            ),
            by_owner(verdicts, "outcome"),
        ),
        summary,
    )


class Row(NamedTuple):
    """The pods of an owner that have the same ``word`` and reason, or one pod without an owner.

    The word is the state of a `Found`, or the outcome of a `PodOutcome`.
    """

    namespace: str
    owner: str
    word: str
    reason: str
    pods: list[Any]  # Of type `Found`.

    @property
    def since(self) -> datetime | None:
        """Since when the first of the pods is in its state."""
        return earliest(pod.since for pod in self.pods)

    @property
    def requests(self) -> Requests:
        """What the pods request, as far as it is known."""
        return total(pod.requests for pod in self.pods if pod.requests)


def by_owner(items: Iterable[Found], word: str) -> list[Row]:
    """Group pods by owner, reason, and the field that ``word`` names."""
    groups = defaultdict[tuple[str, str, str, str], list[Found]](list)
    for each in items:
        owner = _owner(each.owner, each.created) or f"pod/{each.name}"
        groups[each.namespace, owner, getattr(each, word), each.reason].append(each)
    return [Row(*key, pods) for key, pods in groups.items()]


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
    more = [f"and {len(texts) - MOST} more {what}"] if len(texts) > MOST else []
    return [line for text in (*texts[:MOST], *more) for line in terminal.beside("", 0, Cell(text))]


def _requested(row: Row) -> str:
    unknown = any(each.requests is None for each in row.pods)
    return "unknown" if unknown else str(row.requests) or "none"


def _waited(row: Row) -> str:
    seconds = {round(each.seconds) for each in row.pods if each.seconds is not None}
    most = "up to " if len(seconds) > 1 else ""
    return f", {most}{max(seconds)} s after the payload" if seconds else ""


def _cause(facts: PodFacts, decision: Action, reason: str) -> str:
    """The ``reason``; for a finished payload also with which exit code it ended."""
    if why := facts.pod.unschedulable:
        return why
    if not (isinstance(decision, Quit) and reason.startswith(FINISHED)):
        return reason
    names = facts.finished_payload
    programs = "the program" if len(names) == 1 else f"all {len(names)} programs"
    codes = sorted({facts.exits[name].exit_code for name in names if name in facts.exits})
    how = f" (exit {', '.join(map(str, codes))})" if codes else ""
    return f"{programs} finished{how}; {decision.target} still runs{reason[len(FINISHED) :]}"


def _owner(reference: str, created: datetime | None) -> str:
    """The owner of a pod as TYPE/NAME. For a Job that a CronJob made, it is the CronJob.

    Whether one did is judged by the Job's name and by when the pod was ``created``.
    """
    kind, _, name = reference.partition("/")
    if kind == "Job" and (cron := owners.cron_job(name, created)):
        kind, name = "CronJob", cron
    return f"{kind.lower()}/{name}" if name else ""


def _delete(pod: Pod) -> Command:
    """The command that deletes the Job of a pod, or a pod without an owner; else none."""
    its = pod.metadata
    maker = its.controller
    if maker and not owners.is_job(maker):
        return NO_COMMAND
    kind, name = (maker.kind.lower(), maker.name) if maker else ("pod", its.name)
    return command("kubectl delete {} {} -n {}", kind, name, its.namespace)


def _outside(pod: Pod, meshed: RepairAction | None, reason: str) -> tuple[str, Command]:
    """Why a pod is or may be outside its mesh, else ``reason``; and the command to restart it.

    ``meshed`` is None if nobody asked.
    """
    if isinstance(meshed, NotKnown):
        return f"{reason}; not known whether the pod is in its mesh: {meshed.reason}", NO_COMMAND
    if not isinstance(meshed, ReportUnmeshed):
        return reason, NO_COMMAND
    do, restart = mesh_again(pod, meshed)
    if not meshed.unmeshed:
        return f"{reason}; {meshed.reason}; if it should, {do}", restart
    reasons = (pod.unschedulable, meshed.reason, "" if restart else do)
    return "; ".join(filter(None, reasons)), restart


def _to_paste(text: Cell | str, run: Command, terminal: Terminal, indent: str = "") -> list[str]:
    """The lines of a text, then those of its commands, one each, which never wrap."""
    title, style = text if isinstance(text, Cell) else (text, Style.PLAIN)
    if run:
        title += ":"
    return [
        *terminal.beside(indent, len(indent), Cell(title, style)),
        *(
            f"{indent}  {terminal.paint(Cell(line + terminal.flags, Style.COMMAND))}"
            for line in run.splitlines()
        ),
    ]


def _policy(text: str, terminal: Terminal) -> list[str]:
    """The lines of a podFailurePolicy, to be pasted; none if it is empty."""
    title = "its next Job may have this in its spec, so that it does not count such a pod:"
    return [
        *(terminal.beside("  ", 2, Cell(title)) if text else ()),
        *(f"    {terminal.paint(Cell(line, Style.COMMAND))}" for line in text.splitlines()),
    ]


def _left_out(findings: Sequence[Found], terminal: Terminal, *, narrowed: bool) -> list[str]:
    """Say how many pods no installation looks after, by reason, and which commands help.

    ``narrowed``: there are others, which a command for a whole namespace would free, too.
    """
    groups: dict[tuple[str, str, Command], list[Found]] = defaultdict(list)
    for each in findings:
        if each.left_out:
            groups[each.left_out, each.action, each.change].append(each)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = list[str]()
    for (why, action, change), pods in ordered[:MOST]:
        whether = "not known whether an" if action == "unknown" else "no"
        held = str(total(each.requests for each in pods if each.requests))
        lines += _to_paste(
            f"{whether} installation looks after {len(pods)} of these pods"
            f"{held and f' ({held})'}: {why}",
            change,
            terminal,
        )
    if (more := len(ordered) - MOST) > 0:
        lines.append(f"and {more} more reasons")
    if freed := [each for each in findings if each.free]:
        spaces = sorted({each.namespace for each in freed})
        one = command("istio-aux quit -n {} --yes", spaces[0])
        run = one if len(spaces) == 1 else command("istio-aux quit -A --yes")
        if narrowed:
            names = {at: [each.name for each in freed if each.namespace == at] for at in spaces}
            by_name = (command("istio-aux quit -n {} {} --yes", *each) for each in names.items())
            run = commands(*by_name) if len(freed) <= MOST else NO_COMMAND
        lines += _to_paste(f"free the stuck {'pods' if len(freed) > 1 else 'pod'}", run, terminal)
    return lines


def _unmeshed(findings: Sequence[Found], terminal: Terminal) -> list[str]:
    """Say how the pods that are outside their mesh get into it."""
    ways = Counter((it.fix, it.restart) for it in findings if it.state == "unmeshed")
    lines = list[str]()
    for (fix, restart), number in ways.most_common(MOST):
        lines += _to_paste(
            f"{number} of these pods {'are' if number > 1 else 'is'} outside the mesh: {fix}",
            restart,
            terminal,
        )
    return lines


def _pages(codes: Iterable[str], terminal: Terminal, indent: str = "") -> list[str]:
    """What each code says, and where its page is."""
    return terminal.table(
        "",
        [(code, f"{code.what}: {code.page}") for code in map(Code, dict.fromkeys(codes))],
        indent=indent,
    )


class Column(msgspec.Struct, frozen=True):
    """A column of a list: what it says of a row, and whether only `-o wide` has it."""

    title: str
    says: Callable[[Row], str]
    wide: bool = False


_NAMESPACE = Column("NAMESPACE", lambda row: row.namespace)
_NAME = Column("NAME", lambda row: row.owner)
_PODS = Column("PODS", lambda row: str(len(row.pods)))
_OUTCOME = Column("OUTCOME", lambda row: row.word)
_REASON = Column("REASON", lambda row: row.reason)


def _table(terminal: Terminal, columns: Iterable[Column], rows: Iterable[Row]) -> list[str]:
    shown = [each for each in columns if terminal.wide or not each.wide]
    titles = " ".join(each.title for each in shown)
    return terminal.table(titles, [[each.says(row) for each in shown] for row in rows])


def write(text: str) -> None:
    """Print a line; a character that the encoding of stdout lacks becomes ``?``."""
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding, "replace") + b"\n")


def write_json(line: bytes) -> None:
    """Print a line of JSON in UTF-8, whatever the locale; control characters are escaped."""
    sys.stdout.buffer.write(printable_json(line) + b"\n")


def complain(*texts: str) -> None:
    """Write lines to stderr, after what was printed so far."""
    sys.stdout.flush()
    for text in texts:
        sys.stderr.write(f"{printable(' '.join(text.split()))}\n")
