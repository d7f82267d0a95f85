"""Links that a module lost on its way: Go puts no symbolic link into the archive of a module.

Where one of its source files is such a link, a program does not compile from the archive. It is
compiled from a copy that has the link again; go.mod and go.sum still say what is copied.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import cache, toolchain


@dataclass(frozen=True)
class LostLink:
    """A link at `path` of a module, to `target` beside it."""

    module: str
    path: str
    target: str


@contextlib.contextmanager
def restored(folder: Path, lost: LostLink) -> Iterator[Path]:
    """A go.mod like that of `folder`, in which the module is a copy with its link.

    Raises:
        lab.toolchain.ToolchainError: the module cannot be had.
    """
    source = toolchain.module(folder, lost.module)
    with tempfile.TemporaryDirectory(dir=cache.folder("tools")) as place:
        copy, changed = Path(place) / "module", Path(place) / "go.mod"
        # Go keeps its modules read-only; the copy is to be removed again.
        argv = ["cp", "-r", "--no-preserve=mode", source, copy]
        subprocess.run(argv, check=True)
        (copy / lost.path).symlink_to(lost.target)
        text = (folder / "go.mod").read_text()
        changed.write_text(f"{text}\nreplace {lost.module} => {copy}\n")
        shutil.copy(folder / "go.sum", place)
        yield changed
