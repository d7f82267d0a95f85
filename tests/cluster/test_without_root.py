"""What most people see who try the project first: they are not root, and pods cannot run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from lab import clusters, tools

from tools import cache, toolchain

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
    """Somebody who is not root; `home` is theirs alone."""

    home: Path  # The user's folder, beside which they may write nothing.
    # The prefix of a command that runs it as the user; empty if this is not root.
    becoming: Sequence[str]
    environment: Mapping[str, str]  # Of their programs.

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


@pytest.fixture(scope="module")
def somebody() -> Iterator[User]:
    """A user without root, who finds what the api level needs built.

    This user reads the checkout and the lab's programs, and writes to neither. If checkout or
    interpreter lie in a folder of root's, that needs the capability to read every file. The test
    is skipped where root may not give it.
    """
    tools.ensure(clusters.CONTROL_PLANE)
    # Not in the caller's folder for temporary files, which others may not enter.
    with tempfile.TemporaryDirectory(prefix="lab-user-", dir="/tmp") as place:
        home = Path(place)
        made = User(home, (), _environment(home))
        if os.geteuid() == 0:
            for path in (home, *home.rglob("*")):
                os.chown(path, int(ID), int(ID), follow_symlinks=False)
            ids = ("setpriv", "--reuid", ID, "--regid", ID, "--clear-groups")
            right = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
            candidates = [replace(made, becoming=each) for each in (ids, (*ids, *right))]
            reading = [each for each in candidates if each.python("-c", READING).returncode == 0]
            if not reading:
                pytest.skip(f"user id {ID} may not read what the lab needs")
            made = reading[0]
        yield made


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
        "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


ROOT = Path(__file__).resolve().parents[2]
REASON = "pods need root: this is user id"


TIER = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]


@pytest.mark.parametrize(
    ("ci", "status", "ends"),
    [("", 0, "skipped"), ("true", 1, "error")],
    ids=["at home", "CI"],
)
def test_the_node_tier_is_skipped_with_its_reason_and_in_ci_it_fails(
    somebody: User, ci: str, status: int, ends: str
) -> None:
    """What nobody looks at must not be green because nothing was tested."""
    done = somebody.python("-m", "pytest", *TIER, str(ROOT / "tests/node/test_image.py"), CI=ci)

    assert done.returncode == status, done.stdout + done.stderr
    assert f"1 {ends}" in done.stdout
    assert REASON in done.stdout


@pytest.mark.nightly("node/test_demo.py, and that the tier is skipped")
def test_the_scripted_demo_keeps_the_promise_and_says_what_is_scripted(somebody: User) -> None:
    """As `make demo` runs it, from its first line to its exit status."""
    done = somebody.python("-m", "demo")

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(f"cannot run pods: {REASON}")
    assert "a script plays their status" in done.stdout
    assert "the promise was kept" in done.stdout
    assert (somebody.home / "demo-report/timeline.svg").exists()


def test_a_playground_that_cannot_be_had_says_what_it_needs(somebody: User) -> None:
    done = somebody.python("-m", "demo", "--playground")

    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(rf"a playground needs Linux, root, \d+ GB of disk, .+: {REASON}", done.stderr)
