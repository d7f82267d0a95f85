"""Threads may decode any Kubernetes object at once, also when each is the first to do so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]

# Threads change as often as they can while the first of them learns what a pod is.
RACE = """
import sys, threading
{first}
from lightkube.core import decoders
from lightkube.resources.core_v1 import Pod

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)


def decode():
    together.wait()
    decoders.decode_list(b'{{"items": [{{"spec": {{"containers": [{{"name": "main"}}]}}}}]}}', Pod)
    Pod.from_dict({{"metadata": {{"name": "p"}}}})


threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def exit_status(first: str) -> int:
    """How a process ends that runs the race after this line."""
    race = [sys.executable, "-c", RACE.format(first=first)]
    return subprocess.run(race, cwd=TESTS, check=False, capture_output=True).returncode


def test_four_threads_that_decode_their_first_pods_at_once_all_succeed() -> None:
    assert exit_status("import lab") == 0
