"""`audit --report`: one page of HTML for people who have no cluster: what hangs, and what it costs.

It has no script and loads nothing. Tenants write names and reasons, so every text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

from istio_aux.cli.output import age, minute
from istio_aux.cli.report import Audit, Row, by_owner, earliest
from istio_aux.judge.pods import free
from istio_aux.model.found import HELD, Found
from istio_aux.model.resources import Requests, total
from istio_aux.model.text import NO_COMMAND, Command, command, listed, printable, shortened

ROWS = 500  # On the page: those that hold most come first.

_MEANS = {
    "stuck": "finished, but its proxy still runs",
    "blocked": "finished or deleted, but something keeps it",
    "unstarted": "not started, because of a sidecar",
    "lost": "runs without network: its proxy ended",
    "unmeshed": "runs outside the mesh",
    "failed": "failed because of the mesh, or its proxy had to start again",
}
_HOLDS_NOTHING = {"failed": "", "lost": "in use", "unmeshed": "in use"}


def _to_do(row: Row) -> tuple[str, Command]:
    """What to do, and the command for it."""
    first: Found = row.pods[0]
    if first.fix:
        return first.fix, first.restart
    if row.word == "lost":
        return "Delete it and apply it again: it cannot finish its work.", NO_COMMAND
    if row.word == "stuck" and not first.by:
        if first.action == "quit":
            return "Nothing: istio-aux is about to end its proxy.", NO_COMMAND
        return "End its proxy now:", free(row.namespace, row.owner)
    return (
        "Look at its containers:",
        command("istio-aux explain -n {} {}", row.namespace, row.owner),
    )


def page(audit: Audit, now: datetime) -> str:
    """The whole file; ages count until ``now``."""
    rows = sorted(by_owner(audit.findings, "state"), key=_most)
    held = [each for each in audit.findings if each.state in HELD]
    body = "".join(_table_row(row, now) for row in rows[:ROWS])
    more = f"<p>And {len(rows) - ROWS} more rows.</p>" if len(rows) > ROWS else ""
    return Template(Path(__file__).with_name("page.html").read_text("utf-8")).substitute(
        head=_sentence(held, audit, now),
        tiles=_tiles(held, now),
        table=(
            "<table><thead><tr><th>Whose</th><th>State</th><th>Since</th><th>Holds</th><th>Why</th>"
            f"<th>What to do</th></tr></thead><tbody>{body}</tbody></table>{more}"
            if rows
            else ""
        ),
        foot=_foot(audit, now),
    )


def _most(row: Row) -> tuple[object, ...]:
    held = row.requests
    return -held.gpus, -held.millicpu, -held.memory, -len(row.pods), row.namespace, row.owner


def _sentence(held: Sequence[Found], audit: Audit, now: datetime) -> str:
    when = f"On {now.astimezone(UTC):%d %B %Y} at {now.astimezone(UTC):%H:%M} UTC"
    if not held:
        return f"{when}, no pod was kept by a sidecar, among {audit.pods} unfinished pods."
    hang, they = ("hangs", "it") if len(held) == 1 else ("hang", "they")
    spaces = len({each.namespace for each in held})
    where = f"{spaces} namespace{'' if spaces == 1 else 's'}"
    return (
        f"{when}, {len(held)} of {audit.pods} unfinished pods {hang} beside a sidecar: {they}"
        f" cannot start, finish or go. What {they} requested in {where} is not free for other work."
    )


def _tiles(held: Sequence[Found], now: datetime) -> str:
    amounts = total(each.requests for each in held if each.requests)
    cpus, memory = Requests(millicpu=amounts.millicpu), Requests(memory=amounts.memory)
    seconds = sum(
        each.requests.gpus * max(0.0, (now - each.since).total_seconds())
        for each in held
        if each.requests and each.since
    )
    tiles = {
        "pod kept" if len(held) == 1 else "pods kept": str(len(held)),
        "GPUs held": str(amounts.gpus),
        "GPU hours so far": f"{seconds / 3600:,.0f}",
        "CPUs held": (str(cpus) or "0").partition(" ")[0],
        "memory held": (str(memory) or "0").partition(" ")[0],
        "longest": age(earliest(each.since for each in held), now),
    }
    shown = [each for each in tiles.items() if each[1] not in {"0", "unknown"}]
    return "".join(f"<li><b>{_text(value)}</b> {name}</li>" for name, value in shown)


def _table_row(row: Row, now: datetime) -> str:
    unknown = any(each.requests is None for each in row.pods) and row.word in HELD
    holds = listed([*filter(None, (str(row.requests), "not all known" if unknown else ""))])
    number = f"{len(row.pods)} pod{'' if len(row.pods) == 1 else 's'}"
    what, run = _to_do(row)
    code = min(pod.code for pod in row.pods)
    cells = (
        f"<b>{_text(row.owner)}</b><br>{_text(row.namespace)}, {number}",
        f'<b class="{row.word}">{row.word}</b> {code}<br>{_MEANS[row.word]}',
        f"{age(row.since, now)}<br><small>{minute(row.since)}</small>",
        _text(holds or _HOLDS_NOTHING.get(row.word, "nothing")),
        _text(row.reason),
        _text(what) + (f"<code>{escape(run)}</code>" if run else ""),
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _foot(audit: Audit, now: datetime) -> str:
    lines = [f"Made by istio-aux audit, {minute(now)}."]
    if audit.unknown:
        lines.append(f"{audit.unknown} more pods cannot be judged.")
    names = audit.installations.names
    if names:
        lines.append(f"Installation: {listed(names)}.")
    elif not (audit.installations.gap or audit.installations.problems):
        lines.append("istio-aux is not installed.")
    left_out = dict.fromkeys(each.left_out for each in audit.findings if each.left_out)
    told = [*audit.notes, *(f"Not looked after: {why}" for why in left_out)]
    items = [f"<li>{_text(each)}</li>" for each in told]
    return f"{' '.join(map(_text, lines))}<ul>{''.join(items[:20])}</ul>"


def _text(text: str) -> str:
    return escape(printable(shortened(text, 400)))
