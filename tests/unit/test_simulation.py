"""The simulation: its short run; a seed repeats; what is broken on purpose is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from lab.nightly import NIGHTLY
from simulation import breaks, faults
from simulation.play import play, shrink

SEEDS = 400 if NIGHTLY else 120
PARTS = 4
"""Two processes share the unit tests, and a part is what one of them does at a time."""

_STORY = """
import hashlib
from simulation.play import play
told = "".join("\\n".join(play(seed, trace=True).story) for seed in range(8))
print(len(told), hashlib.sha256(told.encode()).hexdigest())
"""


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_of_the_short_run_breaks_a_property(part: int) -> None:
    """`tox -e simulate` plays as many as one likes."""
    results = [play(seed) for seed in range(part, SEEDS, PARTS)]
    assert sum(result.seconds for result in results) > 60 * len(results)
    assert [
        f"--seed {result.seed} --trace: {violation}"
        for result in results
        for violation in result.violations
    ] == []


def test_a_seed_tells_the_same_story_in_each_process() -> None:
    """Sets of texts have another order in each process, and nothing may depend on that."""
    stories = {
        subprocess.run(
            [sys.executable, "-c", _STORY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(stories) == 1
    assert int(stories.pop().split()[0]) > 10_000


@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_break_of_the_product_is_found(name: str) -> None:
    assert breaks.find(name, range(breaks.SEEDS)).seed >= 0


def test_a_violation_is_shrunk_to_the_faults_that_it_needs() -> None:
    """Where the restart policy does not count, a payload has to fail, and nothing else."""
    name = "a restart policy does not count"
    found = breaks.find(name, range(breaks.SEEDS))
    with breaks.BREAKS[name].apply():
        needed = shrink(found.seed, found.kind)
    assert len(faults.choose(found.seed)) > 1
    assert needed == {"failing payloads"}
