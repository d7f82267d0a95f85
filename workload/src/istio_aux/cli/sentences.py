"""Sentences for the author of a pod about its state, and the commands that help.

A command is bare, and on a line of its own, so that it can be pasted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from istio_aux.cli.output import Cell, Style, Terminal
from istio_aux.judge.pods import mesh_again
from istio_aux.model import owners
from istio_aux.model.answers import MOST
from istio_aux.model.findings import Code
from istio_aux.model.found import Found
from istio_aux.model.pod import Pod
from istio_aux.model.resources import total
from istio_aux.model.text import NO_COMMAND, Command, command, commands
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import FINISHED, Action, Quit
from istio_aux.repair.rules import NotKnown, RepairAction, ReportUnmeshed


def cause(facts: PodFacts, decision: Action, reason: str) -> str:
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


def owner(reference: str, created: datetime | None) -> str:
    """The owner of a pod as TYPE/NAME. For a Job that a CronJob made, it is the CronJob.

    Whether one did is judged by the Job's name and by when the pod was ``created``.
    """
    kind, _, name = reference.partition("/")
    if kind == "Job" and (cron := owners.cron_job(name, created)):
        kind, name = "CronJob", cron
    return f"{kind.lower()}/{name}" if name else ""


def delete(pod: Pod) -> Command:
    """The command that deletes the Job of a pod, or a pod without an owner; else none."""
    about = pod.metadata
    maker = owners.controller(about)
    if maker and not owners.controls(maker, about.name).is_job:
        return NO_COMMAND
    kind, name = (maker.kind.lower(), maker.name) if maker else ("pod", about.name)
    return command("kubectl delete {} {} -n {}", kind, name, about.namespace)


def outside(pod: Pod, meshed: RepairAction | None, reason: str) -> tuple[str, Command]:
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


def to_paste(text: Cell | str, run: Command, terminal: Terminal, indent: str = "") -> list[str]:
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


def policy(text: str, terminal: Terminal) -> list[str]:
    """The lines of a podFailurePolicy, to be pasted; none if it is empty."""
    if not text:
        return []
    title = "its next Job may have this in its spec, so that it does not count such a pod:"
    return [
        *terminal.beside("  ", 2, Cell(title)),
        *(f"    {terminal.paint(Cell(line, Style.COMMAND))}" for line in text.splitlines()),
    ]


def left_out(findings: Sequence[Found], terminal: Terminal, *, narrowed: bool) -> list[str]:
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
        lines += to_paste(
            f"{whether} installation looks after {len(pods)} of these pods"
            f"{held and f' ({held})'}: {why}",
            change,
            terminal,
        )
    if (more := len(ordered) - MOST) > 0:
        lines.append(f"and {more} more reasons")
    if freed := [each for each in findings if each.free]:
        spaces = sorted({each.namespace for each in freed})
        every = "istio-aux quit -n {} --yes" if len(spaces) == 1 else "istio-aux quit -A --yes"
        run = command(every, spaces[0])
        if narrowed:
            names = {at: [each.name for each in freed if each.namespace == at] for at in spaces}
            by_name = (command("istio-aux quit -n {} {} --yes", *each) for each in names.items())
            run = commands(*by_name) if len(freed) <= MOST else NO_COMMAND
        lines += to_paste(f"free the stuck {'pods' if len(freed) > 1 else 'pod'}", run, terminal)
    return lines


def unmeshed(findings: Sequence[Found], terminal: Terminal) -> list[str]:
    """Say how the pods that are outside their mesh get into it."""
    ways = Counter((it.fix, it.restart) for it in findings if it.state == "unmeshed")
    lines = list[str]()
    for (fix, restart), number in ways.most_common(MOST):
        lines += to_paste(
            f"{number} of these pods {'are' if number > 1 else 'is'} outside the mesh: {fix}",
            restart,
            terminal,
        )
    return lines


def pages(codes: Iterable[str], terminal: Terminal, indent: str = "") -> list[str]:
    """What each code says, and where its page is."""
    return terminal.table(
        "",
        [(code, f"{code.what}: {code.page}") for code in map(Code, dict.fromkeys(codes))],
        indent=indent,
    )
