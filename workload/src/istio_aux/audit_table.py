"""How the result of an audit looks: JSON lines for programs, a table and a summary for people."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec

from istio_aux.audit import Audit, Finding
from istio_aux.terminal import Cell, Style, Terminal

_STATES = {"stuck": Style.BAD, "blocked": Style.ODD, "lost": Style.LOST, "unmeshed": Style.LOST}
_TITLES = ("NAMESPACE", "NAME", "STATE", "AGE", "REASON")
_HEADER = [Cell(title, Style.HEADING) for title in _TITLES]

_UNITS = {1: "s", 60: "m", 3600: "h", 86400: "d"}
_SIZES = (
    (2 * 60, 1, 1),
    (10 * 60, 60, 1),
    (3 * 3600, 60, 60),
    (8 * 3600, 3600, 60),
    (2 * 86400, 3600, 3600),
    (8 * 86400, 86400, 3600),
    (math.inf, 86400, 86400),
)
"""Below how many seconds an age is counted in which unit, and the rest in which smaller one."""


def as_json(audit: Audit) -> bytes:
    """One JSON object a line for each finding."""
    return b"\n".join(map(msgspec.json.encode, audit.findings))


def as_table(audit: Audit, terminal: Terminal, now: datetime | None = None) -> str:
    """A table, fitted to the terminal, and below it what was looked at and how many were found.

    ``now`` is the present time with a zone, from which ages are counted; None: the clock's.
    """
    moment = now or datetime.now(UTC)
    rows = [_row(finding, moment) for finding in audit.findings]
    table = [*terminal.table([_HEADER, *rows], fit=True), ""] if rows else []
    return "\n".join([*table, _summary(audit, terminal)])


def age(since: datetime | None, now: datetime) -> str:
    """A duration as kubectl writes it (apimachinery duration.HumanDuration), up to days."""
    if since is None:
        return "unknown"
    seconds = max(0, (now - since) // timedelta(seconds=1))  # Clocks differ a little.
    size, smaller = next(sizes for below, *sizes in _SIZES if seconds < below)
    rest = seconds % size // smaller
    return f"{seconds // size}{_UNITS[size]}{f'{rest}{_UNITS[smaller]}' if rest else ''}"


def _row(finding: Finding, now: datetime) -> list[Cell]:
    return [
        Cell(finding.namespace),
        Cell(finding.name),
        Cell(finding.state, _STATES[finding.state]),
        Cell(age(finding.since, now)),
        Cell(finding.reason),
    ]


def _summary(audit: Audit, terminal: Terminal) -> str:
    found = Counter(finding.state for finding in audit.findings)
    counts = ", ".join(
        terminal.paint(Cell(f"{state}: {found[state]}", style if found[state] else Style.PLAIN))
        for state, style in _STATES.items()
    )
    where = "" if audit.namespaces is None else f"selected namespaces: {audit.namespaces}; "
    unknown = f" (not known of {audit.unknown})" if audit.unknown else ""
    return f"{where}pods: {audit.looked_at}; {counts}{unknown}"
