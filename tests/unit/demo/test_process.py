"""The demo's process: the steps that it prints, and the cluster that it keeps (DEMO_KEEP)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]

# The child tells its pid, reports 7, and says on a pipe of the test's own that it ended.
STAYS = """
import os, sys
from demo import keeping

def play(stay):
    print(os.getpid(), flush=True)
    stay(7)
    os.write(int(sys.argv[1]), b"told")

sys.exit(keeping.in_child(play))
"""
FAILS = """
import sys
from demo import keeping

def play(stay):
    raise SystemExit("no cluster")

sys.exit(keeping.in_child(play))
"""


def test_the_demo_returns_its_status_and_its_child_stays_until_a_signal() -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-c", STAYS, str(writing)]
    done = subprocess.run(
        command, cwd=TESTS, pass_fds=[writing], stdout=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert done.returncode == 7

    os.kill(int(done.stdout), 15)

    assert os.read(reading, 10) == b"told"
    os.close(reading)


def test_a_child_that_ends_without_a_report_means_status_2() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILS], cwd=TESTS, check=False, capture_output=True
    )
    assert done.returncode == 2
