"""Command lines of hook tools: Go-style flags, in any order, up to a bare ``--``."""

from __future__ import annotations

from .context import Context, ToolError

# Half a hook's time goes into starting these programs, so they import next to nothing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


class Call:
    """One parsed call: flags that take a value, switches, and what remains."""

    def __init__(
        self, values: Mapping[str, str], switches: frozenset[str], rest: tuple[str, ...]
    ) -> None:
        self.values, self.switches, self.rest = values, switches, rest

    def value(self, *names: str) -> str | None:
        """Return the value of the first of the flags that was given."""
        return next((self.values[name] for name in names if name in self.values), None)

    def only(self) -> str:
        """Return the single positional argument."""
        if len(self.rest) != 1:
            raise ToolError(f"expected one argument, got {list(self.rest)}")
        return self.rest[0]


class Tool:
    """A hook tool: what it does and the flags it knows, separated by blanks."""

    def __init__(
        self, run: Callable[[Context, Call], Any], values: str = "", switches: str = ""
    ) -> None:
        self.run, self.values, self.switches = run, values, switches

    def parse(self, arguments: Sequence[str]) -> Call:
        """Parse as Juju's gnuflag does; a flag that the tool does not know is an error."""
        takes_value, is_switch = self.values.split(), self.switches.split()
        values: dict[str, str] = {}
        switches: set[str] = set()
        rest: list[str] = []
        queue = list(arguments)
        while queue:
            argument = queue.pop(0)
            flag, equals, given = argument.partition("=")
            if argument == "--":
                rest += queue
                break
            if argument == "-" or not argument.startswith("-"):
                rest.append(argument)
            elif flag in takes_value and (equals or queue):
                values[flag] = given if equals else queue.pop(0)
            elif flag in is_switch and not equals:
                switches.add(flag)
            else:
                raise ToolError(f"flag provided but not defined: {argument}")
        return Call(values, frozenset(switches), tuple(rest))
