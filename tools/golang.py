"""Programs that are built from pinned Go modules, and where each of them is.

A folder with a go.mod pins other projects' programs, or holds one of our own. A program is kept in
the cache under a key of all that goes into it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tools import cache, toolchain
from tools.errors import ToolError

# -trimpath: the same program from every checkout. Without debug information, which the linker would
# drop, Pebble takes 34 s of CPU instead of 40 s.
FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false")


class BuildError(ToolError):
    """A program could not be built; the message names it and the log."""


@dataclass(frozen=True)
class Mend:
    """What an archive of a module lacks at `path`: a symbolic link, which Go leaves out, or `more`.

    The program is compiled from a mended copy; go.mod and go.sum still say what is copied.
    """

    module: str
    path: str
    target: str = ""
    more: str = ""


@dataclass(frozen=True)
class Program:
    """A program, its go.mod's folder, its package, and its cold build's seconds on two cores."""

    name: str
    folder: Path
    package: str
    seconds: int
    ldflags: str = "-s -w"
    # Built on first use: neither `make demo` nor `make test` needs it.
    on_demand: bool = False
    mend: Mend | None = None


PEBBLE = Program(
    "pebble", Path(__file__).parent / "pebble", "github.com/canonical/pebble/cmd/pebble", 10
)
"""The only one that ships, in the image."""


def path(program: Program) -> Path:
    """A program, built if the cache does not have it. Raises BuildError."""
    return ensure([program])[program.name]


def ensure(programs: Iterable[Program]) -> dict[str, Path]:
    """Programs by name; builds the missing ones in their order, saying how long it takes."""
    places = {program: place(program) for program in programs}
    if not all(path.exists() for path in places.values()):
        lock = cache.folder("tools") / "lock"
        with cache.lock(lock, waiting="waiting for another process that builds the tools"):
            missing = [program for program, path in places.items() if not path.exists()]
            for index, program in enumerate(missing):
                ahead = missing[index:]
                rest = _time(sum(p.seconds for p in ahead))
                names = ", ".join(p.name for p in ahead)
                cache.say(f"building {names}: about {rest} on two free cores, and the downloads")
                _build(program, places[program])
    return {program.name: path for program, path in places.items()}


def place(program: Program) -> Path:
    digest = hashlib.sha256()
    sources = [program.folder / "go.mod", program.folder / "go.sum", *program.folder.rglob("*.go")]
    for source in sorted(source for source in sources if source.exists()):
        digest.update(f"{source.relative_to(program.folder)}\0".encode() + source.read_bytes())
    for part in (program.package, program.ldflags, *FLAGS, toolchain.version(program.folder)):
        digest.update(f"\0{part}".encode())
    if program.mend:
        digest.update(f"\0{program.mend}".encode())
    return cache.root() / "tools" / digest.hexdigest()[:16] / program.name


def _build(program: Program, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    log = place.with_suffix(".log")
    # Built beside its place and renamed: nobody finds half a program.
    new = place.with_suffix(".new")
    argv = [str(toolchain.go()), "build", *FLAGS, "-ldflags", program.ldflags, "-o", str(new)]
    started = time.monotonic()
    with log.open("w") as output, contextlib.ExitStack() as stack:
        if program.mend:
            changed = stack.enter_context(_mended(program.folder, program.mend))
            argv.append(f"-modfile={changed}")
        built = subprocess.run(
            [*argv, program.package],
            cwd=program.folder,
            env=toolchain.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if built.returncode:
        last = (log.read_text().strip().splitlines() or ["no output"])[-1]
        raise BuildError(
            f"{program.name}: go build: exit status {built.returncode}: {last} (all of it in {log})"
        )
    new.rename(place)
    log.unlink()
    cache.say(f"built {program.name} in {time.monotonic() - started:.0f} s")


@contextlib.contextmanager
def _mended(folder: Path, mend: Mend) -> Iterator[Path]:
    """A go.mod like that of `folder`, in which the module is a copy with what it lacks."""
    source = toolchain.module(folder, mend.module)
    with tempfile.TemporaryDirectory(dir=cache.folder("tools")) as place:
        copy, changed = Path(place) / "module", Path(place) / "go.mod"
        # Go keeps its modules read-only; the copy is to be removed again.
        argv = ["cp", "-r", "--no-preserve=mode", source, copy]
        subprocess.run(argv, check=True)
        if mend.target:
            (copy / mend.path).symlink_to(mend.target)
        else:
            with (copy / mend.path).open("a") as file:
                file.write(mend.more)
        text = (folder / "go.mod").read_text()
        changed.write_text(f"{text}\nreplace {mend.module} => {copy}\n")
        shutil.copy(folder / "go.sum", place)
        yield changed


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
