"""The lab's harness: how its threads decode objects, and what its images are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab import images

TESTS = Path(__file__).parents[2]

# Threads change as often as they can while the first of them learns what a pod is.
RACE = """
import threading, sys
import lab
from lightkube.core import decoders
from lightkube.resources.core_v1 import Pod

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)


def decode():
    together.wait()
    decoders.decode_list(b'{"items": [{"spec": {"containers": [{"name": "main"}]}}]}', Pod)
    Pod.from_dict({"metadata": {"name": "p"}})


threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_four_threads_that_decode_their_first_pods_at_once_all_succeed() -> None:
    """`lab` mends lightkube, whose decoders are made by whichever thread comes first."""
    race = [sys.executable, "-c", RACE]
    assert subprocess.run(race, cwd=TESTS, check=False, capture_output=True).returncode == 0


def test_the_same_content_makes_the_same_archive_and_other_content_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that is there is not made again: a stale one would run unseen."""

    def make(cache: str, content: bytes) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        return images.image("example/tool:1", {"/tool": content}, entrypoint=["/tool"])

    first, second, other = make("a", b"a"), make("b", b"a"), make("a", b"b")

    assert first.name == second.name != other.name
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()
