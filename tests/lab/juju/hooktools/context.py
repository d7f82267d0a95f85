"""What a hook tool knows: the hook's working copy of the model's state, and who is asking.

A hook's folder holds ``state.json`` (the working copy), ``context.json`` (the event),
``trace.jsonl`` (one line a call) and ``log`` (juju-log). The agent promotes the copy when the
hook succeeds.
"""

from __future__ import annotations

import os

from . import texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ToolError(Exception):
    """A failure that the tool reports as ``ERROR ...`` on stderr with exit status 1."""


class Context:
    """The state as one unit sees it during one hook."""

    def __init__(self, folder: str, unit: str) -> None:
        self.folder = folder
        self.state: dict[str, Any] = self._read("state.json")
        self.event: dict[str, Any] = self._read("context.json")
        self.unit = unit
        self.app = unit.partition("/")[0]

    @classmethod
    def from_environment(cls) -> Context:
        """Open the context that the agent named in the environment of the dispatch."""
        return cls(os.environ["JUJU_CONTEXT_ID"], os.environ["JUJU_UNIT_NAME"])

    @property
    def application(self) -> dict[str, Any]:
        """The record of the unit's own application."""
        return self.state["applications"][self.app]

    @property
    def own(self) -> dict[str, Any]:
        """The record of the unit itself."""
        return self.state["units"][self.unit]

    @property
    def is_leader(self) -> bool:
        """Whether this unit is the application's leader."""
        return self.application["leader"] == self.unit

    def relation(self, reference: str | None) -> dict[str, Any]:
        """Return the relation that ``NAME:3`` or ``3`` names; without one, that of the event.

        Raises:
            ToolError: with Juju's words, from which ops makes RelationNotFoundError.
        """
        reference = reference or self.event.get("relation", "")
        relation = self.state["relations"].get(str(reference).rpartition(":")[2])
        if relation is None or self.app not in relation["endpoints"]:
            raise ToolError(f'invalid value "{reference}" for option -r: relation not found')
        return relation

    def check(self, tool: str) -> None:
        """Raise ToolError for a tool that fails in this hook, in the words that were chosen."""
        if words := self.state["failing"].get(tool):
            raise ToolError(words)

    def save(self) -> None:
        """Write the working copy back; the agent merges or drops it."""
        draft = f"{self.folder}/state.json.new"
        with open(draft, "w", encoding="utf-8") as file:  # noqa: PTH123 - see _read
            file.write(texts.dumps(self.state))
        os.rename(draft, f"{self.folder}/state.json")  # noqa: PTH104 - see _read

    def trace(self, call: dict[str, Any]) -> None:
        """Append a call to the hook's trace."""
        line = texts.dumps(call)
        with open(f"{self.folder}/trace.jsonl", "a", encoding="utf-8") as file:  # noqa: PTH123 - see _read
            file.write(line + "\n")

    def _read(self, name: str) -> Any:
        # pathlib takes as long to import as the rest of a tool takes to run.
        with open(f"{self.folder}/{name}", encoding="utf-8") as file:  # noqa: PTH123 - see above
            return texts.loads(file.read())
