"""What would be done about a pod now, and why, for programs and for people.

Only the answer of `explain` and its two forms may live here; the judgement is the core's, and where
the pod comes from is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Literal, TextIO

import msgspec

from istio_aux import terminal as terminals
from istio_aux.core import quit as quitting
from istio_aux.core import started
from istio_aux.core.pod import Pod
from istio_aux.core.policy import Policy
from istio_aux.terminal import Cell, Style, Terminal

Output = Literal["text", "json"]

_ACTIONS = {
    "quit": Style.GOOD,
    "wait": Style.ODD,
    "ignore": Style.FAINT,
    "report": Style.BAD,
}
_HEADER = [Cell(title, Style.HEADING) for title in ("CONTAINER", "ROLE", "FINISHED", "WHY")]


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One answer of `explain`; the names are a contract."""

    namespace: str
    name: str
    uid: str
    action: str
    reason: str
    containers: dict[str, quitting.ContainerVerdict]
    start: str | None = None


Show = Callable[[Explanation], None]


def of(pod: Pod, policy: Policy, now: datetime | None) -> Explanation:
    """Explain one pod; ``now`` None judges as if every grace period were over."""
    decision = quitting.decide(pod, policy, now)
    return Explanation(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        action=str(decision.__struct_config__.tag),
        reason=decision.reason,
        containers=dict(decision.containers),
        start=started.told(pod),
    )


def printer(stream: TextIO, output: Output | None) -> Show:
    """A function that prints explanations: text or one JSON object a line.

    ``output`` None is text in a terminal and JSON elsewhere.
    """
    if (output or ("text" if stream.isatty() else "json")) == "json":
        return lambda explanation: terminals.write_bytes(stream, msgspec.json.encode(explanation))
    terminal = terminals.of(stream)
    parts = 0

    def show(explanation: Explanation) -> None:
        nonlocal parts
        between = [""] if parts else []
        terminals.write(stream, "\n".join([*between, *as_text(explanation, terminal)]))
        parts += 1

    return show


def as_text(explanation: Explanation, terminal: Terminal) -> Iterator[str]:
    """Yield a headline and a table of the containers, line by line."""
    key = "/".join(filter(None, (explanation.namespace, explanation.name))) or "(unnamed)"
    action = Cell(explanation.action.upper(), _ACTIONS.get(explanation.action, Style.PLAIN))
    parts = (Cell(key, Style.HEADING), action, Cell(explanation.reason))
    yield "  ".join(map(terminal.paint, parts))
    if explanation.start:
        yield f"  start: {explanation.start}"
    rows = [
        [
            Cell(name),
            Cell(verdict.role, Style.PLAIN if verdict.role == "payload" else Style.FAINT),
            Cell("yes", Style.GOOD) if verdict.finished else Cell("no", Style.ODD),
            Cell(verdict.why),
        ]
        for name, verdict in explanation.containers.items()
    ]
    if rows:
        yield from terminal.table([_HEADER, *rows], indent="  ")
