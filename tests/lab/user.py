"""Runs programs as a user who is not root, with a home directory of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lab import cache, toolchain

TESTS = Path(__file__).resolve().parents[1]
# No account of a distribution has this id.
ID = "64123"
# Reads the checkout, its environment, the interpreter and the built programs. The interpreter also
# starts itself: `setpriv` starts one that the user may not.
READING = """
import subprocess, sys, demo, istio_aux
from lab import tools
tools.missing()
subprocess.run([sys.executable, "-c", ""], check=True)
"""


@dataclass(frozen=True)
class User:
    """Somebody who is not root; `home` is theirs alone.

    Attributes:
        home: the user's folder, beside which they may write nothing.
        becoming: the prefix of a command that runs it as the user; empty if this is not root.
        environment: of their programs.
    """

    home: Path
    becoming: Sequence[str]
    environment: Mapping[str, str]

    def python(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the running interpreter from the user's home; keywords extend the environment."""
        return subprocess.run(
            [*self.becoming, sys.executable, *argv],
            cwd=self.home,
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            check=False,
        )


@contextlib.contextmanager
def user() -> Iterator[User]:
    """A user without root who reads this checkout and the lab's programs, and writes to neither.

    If checkout or interpreter lie in a folder of root's, the user gets the capability to read every
    file, and no other.

    Raises:
        PermissionError: this root may not give that capability, as in a container without it.
    """
    # Not in the caller's folder for temporary files, which others may not enter.
    with tempfile.TemporaryDirectory(prefix="lab-user-", dir="/tmp") as place:
        home = Path(place)
        made = User(home, (), _environment(home))
        if os.geteuid() == 0:
            for path in (home, *home.rglob("*")):
                os.chown(path, int(ID), int(ID), follow_symlinks=False)
            ids = ("setpriv", "--reuid", ID, "--regid", ID, "--clear-groups")
            right = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
            made = next(filter(_reads, (_as(made, *ids), _as(made, *ids, *right))), None)
            if made is None:
                raise PermissionError(f"user id {ID} may not read what the lab needs")
        yield made


def _as(user: User, *becoming: str) -> User:
    return replace(user, becoming=becoming)


def _reads(user: User) -> bool:
    return user.python("-c", READING).returncode == 0


def _environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "LANG", "TERM"} or k[:2] == "GO"}
    built = home / "cache/istio-aux/lab"
    for name in ("tools", "go"):
        (built / name).mkdir(parents=True)
        # One by one: beside what is built already lie the user's own locks.
        for entry in cache.folder(name).iterdir():
            if entry.is_dir():
                (built / name / entry.name).symlink_to(entry)
    return {
        **kept,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        # A go.mod may ask for a newer Go, which lies there.
        "GOMODCACHE": toolchain.module_cache(),
        "PYTHONPATH": str(TESTS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
