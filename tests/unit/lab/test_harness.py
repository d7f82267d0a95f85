"""The lab's harness: which clusters it ends, and how its threads decode objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab.__main__ import of_this_checkout

TESTS = Path(__file__).parents[2]


def test_make_lab_down_ends_the_clusters_of_this_checkout_alone() -> None:
    """Others share the cache. `python -m lab down NAME` ends any."""
    ours, theirs = {"checkout": str(TESTS.parent)}, {"checkout": "/x"}
    assert of_this_checkout({"ours": ours, "theirs": theirs, "starting": {}}) == ["ours"]


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
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_four_threads_that_decode_their_first_pods_at_once_all_succeed() -> None:
    """`lab` mends lightkube, whose decoders are made by whichever thread comes first."""
    race = [sys.executable, "-c", RACE]
    assert subprocess.run(race, cwd=TESTS, check=False, capture_output=True).returncode == 0
