"""What most people see who try the project first: they are not root, and pods cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from lab import clusters, tools
from lab.user import user

ROOT = Path(__file__).resolve().parents[2]
REASON = "pods need root: this is user id"


TIER = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]


@dataclass(frozen=True)
class Runs:
    """What came of the demo and of a test of the node tier, at home and in CI, and the user's home.

    They run at the same time: the demo waits most of it.
    """

    home: Path
    demo: Future[CompletedProcess[str]]
    tier: dict[str, Future[CompletedProcess[str]]]


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    """By a user who is not root, and who finds what the api level needs built."""
    tools.ensure(clusters.CONTROL_PLANE)
    test = str(ROOT / "tests/node/test_image.py")
    with contextlib.ExitStack() as stack:
        try:
            somebody = stack.enter_context(user())
        except PermissionError as error:
            pytest.skip(str(error))
        pool = stack.enter_context(ThreadPoolExecutor())
        demo = pool.submit(somebody.python, "-m", "demo")
        tier = {
            ci: pool.submit(somebody.python, "-m", "pytest", *TIER, test, CI=ci)
            for ci in ("", "true")
        }
        yield Runs(somebody.home, demo, tier)


@pytest.mark.parametrize(
    ("ci", "status", "ends"),
    [("", 0, "skipped"), ("true", 1, "error")],
    ids=["at home", "CI"],
)
def test_the_node_tier_is_skipped_with_its_reason_and_in_ci_it_fails(
    runs: Runs, ci: str, status: int, ends: str
) -> None:
    """What nobody looks at must not be green because nothing was tested."""
    done = runs.tier[ci].result()

    assert done.returncode == status, done.stdout + done.stderr
    assert f"1 {ends}" in done.stdout
    assert REASON in done.stdout


def test_the_scripted_demo_keeps_the_promise_and_says_what_is_scripted(runs: Runs) -> None:
    """As `make demo` runs it, from its first line to its exit status."""
    done = runs.demo.result()

    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(f"cannot run pods: {REASON}")
    assert "the promise was kept" in done.stdout
    report = runs.home / "demo-report/index.html"
    assert "Pod status on this page is scripted" in report.read_text()
