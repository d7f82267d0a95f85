"""The lab's harness: how it ends, which ports it takes, and how its threads decode objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab import ports
from lab.waiting import ending


def test_a_failure_at_the_end_is_reported_only(capsys: pytest.CaptureFixture[str]) -> None:
    with ending("relay"):
        raise OSError("no such socket")

    assert capsys.readouterr().err == "lab: relay did not end well: OSError: no such socket\n"


# Another harness, which has one port to choose from.
RESERVE = "import sys; from lab import ports; n = int(sys.argv[1]); \
ports.RANGE = range(n, n + 1); print(ports.reserve())"


def test_another_harness_does_not_get_a_reserved_port() -> None:
    reserved = ports.reserve()

    other = subprocess.run(
        [sys.executable, "-c", RESERVE, str(reserved)], capture_output=True, text=True, check=False
    )

    assert other.stdout == ""
    assert f"OSError: no TCP port is free from {reserved} to {reserved}" in other.stderr


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
