"""What most people see who try the project first: they are not root, and pods cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import clusters, tools
from lab.user import User, user

ROOT = Path(__file__).resolve().parents[2]
REASON = "pods need root: this is user id"


@pytest.fixture(scope="module")
def somebody() -> Iterator[User]:
    """A user who is not root, and who finds what the api level needs built."""
    tools.ensure(clusters.CONTROL_PLANE)
    with contextlib.ExitStack() as stack:
        try:
            somebody = stack.enter_context(user())
        except PermissionError as error:
            pytest.skip(str(error))
        yield somebody


def test_the_scripted_demo_keeps_the_promise_and_says_what_is_scripted(somebody: User) -> None:
    """As `make demo` runs it, from its first line to its exit status."""
    done = somebody.python("-m", "demo")

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(f"cannot run pods: {REASON}")
    assert "the promise was kept" in done.stdout
    report = somebody.home / "demo-report/index.html"
    assert "Pod status on this page is scripted" in report.read_text()


@pytest.mark.parametrize(
    ("ci", "status", "ends"),
    [("", 0, "skipped"), ("true", 1, "error")],
    ids=["at home", "CI"],
)
def test_the_node_tier_is_skipped_with_its_reason_and_in_ci_it_fails(
    somebody: User, ci: str, status: int, ends: str
) -> None:
    """What nobody looks at must not be green because nothing was tested."""
    tier = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]

    done = somebody.python("-m", "pytest", *tier, str(ROOT / "tests/node/test_trainer.py"), CI=ci)

    assert done.returncode == status, done.stdout + done.stderr
    assert f"1 {ends}" in done.stdout
    assert REASON in done.stdout
