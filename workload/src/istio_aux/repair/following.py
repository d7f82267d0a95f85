"""Follow the file that names the applications whose pods are to have a sidecar.

Only the reading may live here; `core.applications` says what the text means. A file that is not
there names nobody, and one that cannot be read changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from istio_aux.core.applications import Applications, parse

_log = logging.getLogger(__name__)

POLL = 2.0
"""Seconds between looks at the file."""


class ApplicationsFile:
    """The file. A class because it remembers what it read.

    Attributes:
        applications: those that the file named when it was read last.
    """

    def __init__(self, path: Path | None, changed: Callable[[Applications], None]) -> None:
        """Prepare; ``changed`` is told of all that `follow` finds. No path: nobody asks."""
        self.applications = Applications()
        self._path, self._changed = path, changed
        self._text: str | None = None

    def read(self) -> bool:
        """Read the file; returns whether it names others than before."""
        if self._path is None:
            return False
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        except OSError as error:
            if self._text is not None:
                _log.error("%s", error, extra={"event": "applications", "outcome": "kept"})
            self._text = None
            return False
        if text == self._text:
            return False
        self._text, before = text, self.applications
        self.applications, problems = parse(text)
        for problem in problems:
            _log.error("%s: %s", self._path, problem, extra={"event": "applications"})
        return self.applications != before

    async def follow(self, interval: float = POLL) -> None:
        """Tell of every change of the file until cancelled, and first of what it names now."""
        while True:
            if self.read():
                self._changed(self.applications)
            await asyncio.sleep(interval)
