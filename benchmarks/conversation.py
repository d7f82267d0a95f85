"""A program that obeys orders on its stdin and replies on its stdout, one JSON object a line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import lab.tools


class MeasurementError(Exception):
    """Something kept the benchmark from measuring; the message says what."""


class Conversation:
    """A running program of the lab's tools; every method returns once it has done its part."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def answer(self) -> dict[str, Any]:
        """The next reply. Raises MeasurementError for one that says what failed."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        reply = json.loads(line) if line else {"error": "it ended"}
        if "error" in reply:
            raise MeasurementError(f"{self._name}: {reply['error']}")
        return reply

    def order(self, **what: Any) -> dict[str, Any]:
        """Have something done and return the reply. Raises MeasurementError when it failed."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self.answer()


@contextmanager
def started(name: str, *arguments: object) -> Generator[Conversation]:
    """Run the program `name` of the lab's tools; ends with the block, or with this process."""
    argv = [lab.tools.path(name), *map(str, arguments)]
    # It ends with its stdin, so it cannot outlive this process.
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Conversation(name, process)
        except BaseException:
            process.kill()  # It may be in the middle of an order.
            raise
        finally:
            assert process.stdin
            process.stdin.close()
