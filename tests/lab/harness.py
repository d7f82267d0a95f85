"""A harness in a process of its own, for the tests that kill it: `python -m lab.harness`.

It has a supervisor with processes that try to get away, and no Kubernetes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lab
from lab.processes import Tree

# A session of its own, a parent that ends at once, a signal that is ignored.
ESCAPE = "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000; true' &) ; sleep 1000"


@dataclass(frozen=True)
class Harness:
    """A running harness, the name of its processes, and the pid of its supervisor."""

    process: subprocess.Popen[str]
    name: str
    supervisor: int


@contextlib.contextmanager
def running() -> Iterator[Harness]:
    """A harness, ready; it is killed at the end of the block."""
    argv = [sys.executable, "-m", "lab.harness"]
    place = Path(__file__).parents[2]
    with subprocess.Popen(
        argv, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield Harness(process, *json.loads(process.stdout.readline()))
        process.kill()


if __name__ == "__main__":
    tree = Tree(isolate=False)
    escape = tree.spawn("escape", ["sh", "-c", ESCAPE])
    lab.until(lambda: escape.running, timeout=10, what="the process")
    print(json.dumps([tree.name, tree.supervisor]), flush=True)
    sys.stdin.read()
