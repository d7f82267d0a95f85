"""The processes in containers, by their host process id, for tests that kill one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def of(namespace: str, pod: str, *words: str) -> Iterator[int]:
    """The pids of the processes of a pod's proxy whose command line has these words in this order.

    A proxy is told by its environment which pod it is in, and what is executed beside it as well.
    """
    told = {f"POD_NAME={pod}".encode(), f"POD_NAMESPACE={namespace}".encode()}
    wanted = " ".join(words).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            # Of other programs it need not be readable.
            if b" ".join(command[: len(words)]) != wanted:
                continue
            environment = (process / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended in between.
        if told <= {*environment}:
            yield int(process.name)
