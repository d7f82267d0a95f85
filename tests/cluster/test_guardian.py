"""Nothing outlives a harness, however it ends; without Kubernetes and without root."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator

import lab
import pytest
from lab import cache, leftovers, sweep
from lab.harness import Harness, running


@pytest.fixture
def harness() -> Iterator[Harness]:
    with running("tree") as harness:
        # The shell, the one that runs away, and their two sleeps.
        await_processes(harness.name, 4)
        yield harness


def await_processes(name: str, count: int) -> None:
    lab.until(
        lambda: len(leftovers.processes(name)) == count,
        timeout=30,
        what=f"{count} processes of {name}",
    )


def await_nothing_left(name: str) -> None:
    lab.until(lambda: not leftovers.of(name), timeout=30, what=f"the end of {name}")


def test_a_harness_that_ends_leaves_nothing_and_no_logs(harness: Harness):
    assert harness.process.stdin
    harness.process.stdin.close()

    assert harness.process.wait(30) == 0
    assert leftovers.of(harness.name) == []
    assert not (cache.root() / "logs" / harness.name).exists()


def test_a_killed_harness_leaves_nothing_but_logs(harness: Harness):
    harness.process.kill()

    await_nothing_left(harness.name)
    logs = cache.root() / "logs" / harness.name
    assert {log.name for log in logs.iterdir()} == {"escape.log", "guardian.log"}
    shutil.rmtree(logs)


def test_what_a_killed_guardian_leaves_is_swept(harness: Harness):
    os.kill(harness.guardian, signal.SIGKILL)
    await_processes(harness.name, 3)

    assert harness.name in sweep.sweep()

    await_nothing_left(harness.name)
    shutil.rmtree(cache.root() / "logs" / harness.name)


def test_a_sweep_spares_the_living(harness: Harness):
    assert harness.name not in sweep.sweep()

    assert len(leftovers.processes(harness.name)) == 4
    assert harness.name in sweep.running()
