"""How answers are shown: formats, without headers, in an order, of several clusters at once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Thread
from typing import Any, NamedTuple, TextIO

import msgspec
from msgspec import structs

from istio_aux.cli.jsonpath import Path, Template
from istio_aux.cli.terminal import Cell, Style, Terminal
from istio_aux.model import documents
from istio_aux.model.text import alternatives, printable, printable_json

FORMATS = ("text", "wide", "json", "yaml", "name")
_TEMPLATE = "jsonpath="
_COMMANDS = {"free", "restart", "change", "run"}  # Fields of objects that are to be pasted.

Row = Sequence[str | Cell]


class Part(NamedTuple):
    """What a cluster answered: objects, and the function and the facts that make text of them."""

    items: Sequence[msgspec.Struct]
    text: Callable[..., str]
    facts: dict[str, Any]
    cluster: str = ""
    flags: str = ""  # What `reached_by` adds to its commands.


_CLUSTER = ContextVar[str]("cluster", default="")
_FLAGS = ContextVar[str]("flags", default="")
_PARTS = ContextVar[list[Part] | None]("parts", default=None)


class Output(msgspec.Struct, frozen=True):
    """How an answer is shown."""

    format: str = "text"
    template: Template | None = None
    headers: bool = True  # Without them a table is its rows alone.
    order: Path | None = None  # By which value of each object.

    @classmethod
    def read(cls, text: str) -> Output:
        """What ``-o`` says. Raises ValueError: it is no format, or a bad template."""
        if text.startswith(_TEMPLATE):
            return cls("jsonpath", Template.parse(text.removeprefix(_TEMPLATE)))
        if text not in FORMATS:
            raise ValueError(f"{text}: expected {alternatives([*FORMATS, f'{_TEMPLATE}TEMPLATE'])}")
        return cls(text)

    @classmethod
    def unnamed(cls, text: str) -> Output:
        """The same, for an answer whose objects have no names."""
        if text == "name":
            raise ValueError("name: what this command shows has no names")
        return cls.read(text)

    @property
    def at_once(self) -> bool:
        """Whether an object is shown when it is known, before the next one is."""
        return self.format in {"text", "json"} and not self.order

    def show(self, part: Part, stream: TextIO) -> None:
        """Print an answer, or keep it while others are `gathered`."""
        part = part._replace(cluster=_CLUSTER.get(), flags=_FLAGS.get())
        if (parts := _PARTS.get()) is not None:
            parts.append(part)
        else:
            stream.buffer.write(b"".join(self._shown([part], stream)))

    @contextmanager
    def gathered(self, stream: TextIO) -> Generator[None]:
        """Show what is answered meanwhile at the end, as one answer."""
        parts = list[Part]()
        token = _PARTS.set(parts)
        try:
            yield
        finally:
            _PARTS.reset(token)
            stream.buffer.write(b"".join(self._shown(_merged(parts), stream)))

    def fleet(self, ask: Callable[[str], int], clusters: Sequence[str], stream: TextIO) -> int:
        """Ask clusters at once, each in a thread, and show one answer; the worst exit status."""
        statuses = dict.fromkeys(clusters, 1)

        def asked(cluster: str) -> None:
            _CLUSTER.set(cluster)
            statuses[cluster] = ask(cluster)

        with self.gathered(stream):
            threads = [
                Thread(target=copy_context().run, args=(asked, cluster), daemon=True)
                for cluster in statuses
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (_PARTS.get() or []).sort(key=lambda part: clusters.index(part.cluster))
        return max(statuses.values())

    def _shown(self, parts: Sequence[Part], stream: TextIO) -> Iterator[bytes]:
        parts = [part._replace(items=self._sorted(part.items)) for part in parts]
        told = [_told(part, item) for part in parts for item in part.items]
        match self.format:
            case "json":
                yield from (printable_json(msgspec.json.encode(each)) + b"\n" for each in told)
            case "yaml":
                yield documents.to_yaml({"items": msgspec.to_builtins(told)}).encode()
            case "jsonpath" if self.template:
                text = self.template.render({"items": msgspec.to_builtins(told)})
                yield text.encode(stream.encoding, "replace")
            case "name":
                names = (getattr(item, "name", "") for part in parts for item in part.items)
                yield from (f"pod/{printable(name)}\n".encode() for name in names if name)
            case _:
                text = self._text(parts, Terminal.of(stream))
                yield f"{text}\n".encode(stream.encoding, "replace") if text else b""

    def _sorted(self, items: Sequence[msgspec.Struct]) -> Sequence[msgspec.Struct]:
        """The objects by their first value at ``order``; those without one come last."""
        if not (order := self.order):
            return items
        values = [next(iter(order.of(msgspec.to_builtins(item))), None) for item in items]
        ranked = [
            (0, each, "") if isinstance(each, int | float) else (1 + (each is None), 0, str(each))
            for each in values
        ]
        return [items[at] for at in sorted(range(len(items)), key=ranked.__getitem__)]

    def _text(self, parts: Sequence[Part], terminal: Terminal) -> str:
        """The text of an answer; of clusters, a table of all, and what else each says."""
        if self.format == "wide":
            terminal = terminal._replace(width=None)
            parts = [part._replace(items=[*map(_alone, part.items)]) for part in parts]
        if self.headers and len(parts) == 1 and not parts[0].cluster:
            terminal = terminal._replace(flags=parts[0].flags)
            return parts[0].text(parts[0].items, terminal, **parts[0].facts)
        tables, others = dict[str, list[Row]](), list[str]()
        for part in parts:
            kept, of = _Kept(*terminal._replace(flags=part.flags)), part.cluster
            kept.tables = {}
            said = part.text(part.items, kept, **part.facts).strip("\n").splitlines()
            for titles, rows in kept.tables.items():
                named = [["" if _to_paste(row) else of, *row] for row in rows] if of else rows
                tables.setdefault("CLUSTER " * bool(of) + titles, []).extend(named)
            if of:  # A command stays one that can be pasted.
                said = [line if part.flags in line else f"{of}: {line}" for line in said if line]
            if self.headers or not kept.tables:
                others += said
        lines = [
            line
            for titles, rows in tables.items()
            for line in terminal.table(titles if self.headers else "", rows)
        ]
        return "\n".join([*lines, *([""] if lines and others else ()), *others])


class _Kept(Terminal):
    """Keeps the rows of tables with titles, for one table of all clusters, or of rows alone."""

    tables: dict[str, list[Row]]

    def table(self, titles: str, rows: Iterable[Row], *, indent: str = "") -> list[str]:
        """Keep the rows, and leave an empty line in their place."""
        if not titles or indent:
            return super().table(titles, rows, indent=indent)
        rows = [*rows]
        self.tables.setdefault(titles, []).extend(rows)
        return [""] if rows else []


def _merged(parts: Iterable[Part]) -> list[Part]:
    """The answers that only differ in their objects, as one: `explain` shows pods one by one."""
    merged = list[Part]()
    for part in parts:
        for at, each in enumerate(merged):
            if each[1:] == part[1:]:
                merged[at] = each._replace(items=[*each.items, *part.items])
                break
        else:
            merged.append(part)
    return merged


def _told(part: Part, item: msgspec.Struct) -> object:
    told = {"cluster": part.cluster} if part.cluster else dict[str, object]()
    told |= msgspec.to_builtins(item)
    for name in _COMMANDS & told.keys():
        told[name] = "\n".join(line + part.flags for line in str(told[name]).splitlines())
    return told


def reached_by(**flags: object) -> None:
    """Add these flags, if they were given, to each command that is shown from now on."""
    given = [f" --{name} {shlex.quote(str(value))}" for name, value in flags.items() if value]
    _FLAGS.set("".join(given))


def _to_paste(row: Row) -> bool:
    return isinstance(row[-1], Cell) and row[-1].style is Style.COMMAND


def _alone(item: msgspec.Struct) -> msgspec.Struct:
    """The object as if it had no owner: it gets a row of its own."""
    return structs.replace(item, owner="") if getattr(item, "owner", "") else item


def of_cluster() -> str:
    """What stands before a line about the cluster that is asked, if there are several."""
    return f"{cluster}: " if (cluster := _CLUSTER.get()) else ""
