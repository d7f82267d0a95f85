"""The lab's harness: how its threads decode objects, and how long a build is said to take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab import tools
from lab.__main__ import of_this_checkout

TESTS = Path(__file__).parents[2]


def test_make_lab_down_ends_the_clusters_of_this_checkout_alone() -> None:
    """Others share the cache. `python -m lab down NAME` ends any."""
    records = {
        "ours": {"checkout": str(TESTS.parent)},
        "theirs": {"checkout": "/x"},
        "starting": {},
    }
    assert of_this_checkout(records) == ["ours"]


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


@pytest.mark.parametrize(
    ("work", "spent", "elapsed", "said"),
    [
        (1080, 0, 0, "about 9 min on 2 free cores and the downloads"),
        (1080, 20, 300, "about 9 min on 2 free cores and the downloads"),
        (720, 360, 180, "about 6 min at the pace so far"),
        (720, 360, 1080, "about 36 min at the pace so far"),
        (0, 400, 1200, "about 5 s at the pace so far"),
    ],
    ids=["at first", "while it downloads", "on free cores", "on a busy machine", "at the end"],
)
def test_a_build_takes_as_long_as_the_machine_lets_it(
    work: float, spent: float, elapsed: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the work that a machine does is twice the time that is left."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)

    assert tools.remaining(work, spent, elapsed).startswith(said)
