"""A harness in a process of its own, for the tests that kill it.

    python -m lab.harness tree|node

`tree` is a supervisor with processes that try to get away, without Kubernetes.
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
from lab import images
from lab.processes import END, Tree

# A session of its own, a parent that ends at once, a signal that is ignored.
ESCAPE = "(setsid sh -c 'trap \"\" TERM HUP; sleep 1000; true' &) ; sleep 1000"


@dataclass(frozen=True)
class Harness:
    """A running harness, the cluster it made, and the pid of its supervisor."""

    process: subprocess.Popen[str]
    name: str
    supervisor: int


@contextlib.contextmanager
def running(what: str) -> Iterator[Harness]:
    """A harness of this kind, ready; if it still runs at the end of the block, it is ended."""
    argv = [sys.executable, "-m", "lab.harness", what]
    place = Path(__file__).parents[1]
    with subprocess.Popen(
        argv, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield Harness(process, *json.loads(process.stdout.readline()))
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(END)
            except subprocess.TimeoutExpired:
                process.kill()


def _main(what: str) -> None:
    if what == "node":
        with lab.cluster("node") as cluster:
            cluster.load(images.busybox())
            _announce(cluster.tree)
        return
    tree = Tree(isolate=False)
    process = tree.spawn("escape", ["sh", "-c", ESCAPE])
    lab.until(lambda: process.running, timeout=10, what="the process")
    _announce(tree)
    tree.close(keep_logs=False)


def _announce(tree: Tree) -> None:
    print(json.dumps([tree.name, tree.supervisor]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main(sys.argv[1])
