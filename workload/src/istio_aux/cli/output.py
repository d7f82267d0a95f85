"""Prints answers in the format of ``-o``, and completes the commands in them for pasting."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import msgspec

from istio_aux.cli.terminal import Terminal
from istio_aux.model import documents
from istio_aux.model.found import Found
from istio_aux.model.text import alternatives, printable, printable_json

FORMATS = ("text", "wide", "json", "yaml", "name")
_COMMANDS = {"free", "restart", "change", "run"}  # Fields of objects that are to be pasted.


class Output(msgspec.Struct, frozen=True):
    """How an answer is shown; ``flags`` make each command in it reach the same cluster."""

    format: str = "text"
    flags: str = ""

    @classmethod
    def read(cls, text: str) -> Output:
        """What ``-o`` says. Raises ValueError: it is no format."""
        if text not in FORMATS:
            raise ValueError(f"{text}: expected {alternatives(FORMATS)}")
        return cls(text)

    @classmethod
    def unnamed(cls, text: str) -> Output:
        """Parse ``-o`` for a command whose results have no names."""
        if text == "name":
            raise ValueError("name: what this command shows has no names")
        return cls.read(text)

    def reached_by(self, **flags: object) -> Output:
        """Return a copy that adds to each command those of ``flags`` that the user gave."""
        given = [f" --{name} {shlex.quote(str(value))}" for name, value in flags.items() if value]
        return msgspec.structs.replace(self, flags="".join(given))

    @property
    def at_once(self) -> bool:
        """Whether each object is shown before the next one is known."""
        return self.format in {"text", "json"}

    def show(
        self,
        items: Sequence[msgspec.Struct],
        text: Callable[..., str],
        facts: dict[str, Any],
        stream: TextIO,
    ) -> None:
        """Print objects; ``text`` gets them, the `Terminal` of ``stream``, and the ``facts``."""
        match self.format:
            case "json":
                shown = b"".join(
                    printable_json(msgspec.json.encode(self._told(item))) + b"\n" for item in items
                )
            case "yaml":
                shown = documents.to_yaml(
                    {"items": msgspec.to_builtins([*map(self._told, items)])}
                ).encode()
            case "name":
                names = filter(None, (getattr(item, "name", "") for item in items))
                shown = "".join(f"pod/{printable(name)}\n" for name in names).encode()
            case _:
                terminal = Terminal.of(stream)._replace(flags=self.flags)
                if self.format == "wide":
                    terminal = terminal._replace(width=None, wide=True)
                    items = [*map(_alone, items)]
                lines = text(items, terminal, **facts)
                shown = f"{lines}\n".encode(stream.encoding, "replace") if lines else b""
        stream.buffer.write(shown)

    def _told(self, item: msgspec.Struct) -> dict[str, object]:
        every = msgspec.structs.asdict(item) if type(item) is Found else item
        told: dict[str, object] = msgspec.to_builtins(every)
        for name in _COMMANDS & told.keys():
            told[name] = "\n".join(line + self.flags for line in str(told[name]).splitlines())
        return told


def _alone(item: msgspec.Struct) -> msgspec.Struct:
    """Return the object without its owner, so that it gets a row of its own."""
    return msgspec.structs.replace(item, owner="") if getattr(item, "owner", "") else item
