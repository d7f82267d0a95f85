"""What a dead cluster left is removed, and nothing of a living one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import supervisor

NAME = "lab-unit00"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """A process of each of two clusters of one name, in a cache and in its copy."""
    found = {
        cache: subprocess.Popen(
            ["sleep", "600"], env={supervisor.MARK: str(tmp_path / cache / "run" / NAME)}
        )
        for cache in ("cache", "copy")
    }
    yield found
    for process in found.values():
        process.kill()
        process.wait()


def test_a_copied_cache_ends_no_cluster_of_the_other_one(
    processes: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    state = tmp_path / "copy" / "run" / NAME
    (state / "pki").mkdir(parents=True)

    supervisor.clean(NAME, state)

    assert processes["copy"].wait(30) == -9
    assert processes["cache"].poll() is None
    assert not state.exists()
