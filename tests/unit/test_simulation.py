"""The simulation: its short run; a seed repeats; what is broken on purpose is found."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from lab.nightly import NIGHT, sampled
from simulation import breaks, deaths, faults
from simulation.cluster import Cluster
from simulation.faults import lone_pod
from simulation.kubelet import Plan, Run
from simulation.play import play, shrink
from simulation.store import Change
from simulation.world import World

SEEDS = range(40)
FRESH = range(400 * NIGHT, 400 * NIGHT + 400)
PARTS = 2
"""Two processes share the unit tests, and a part is what one of them does at a time."""

HANDOVERS = 40
"""A unit looks at the Lease at another moment in each of them."""

_STORY = """
import hashlib
from simulation.play import play
told = "".join("\\n".join(play(seed, trace=True).story) for seed in range(8))
print(len(told), hashlib.sha256(told.encode()).hexdigest())
"""


def violations(seeds: range, *, meshed: bool = False) -> list[str]:
    results = [play(seed, meshed=meshed) for seed in seeds]
    assert sum(result.seconds for result in results) > 60 * len(results)
    return [
        f"--seed {result.seed} --trace: {violation}"
        for result in results
        for violation in result.violations
    ]


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_of_the_short_run_breaks_a_property(part: int) -> None:
    """`tox -e simulate` plays as many as one likes."""
    assert violations(SEEDS[part::PARTS]) == []


def test_no_seed_with_an_ambient_mesh_breaks_a_property() -> None:
    """No captured pod is evicted or named; who is outside is told; nothing is kept."""
    assert violations(SEEDS, meshed=True) == []


@pytest.mark.nightly("the same 40 seeds every day")
@pytest.mark.parametrize("kind", ["", "--ambient "], ids=["any mesh", "an ambient mesh"])
def test_no_seed_of_this_night_breaks_a_property(kind: str) -> None:
    again = f"tox -e simulate -- {kind}--from {FRESH.start} --seeds {len(FRESH)}"
    assert sampled(again, violations(FRESH, meshed=bool(kind))) == []


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


def broken_by(found: list[deaths.Death]) -> dict[str, str]:
    """What each death breaks, if anything; `python -m simulation --death N:at --trace` tells it."""
    results = {str(death): deaths.play(death)[0].violations for death in found}
    return {death: str(broken[0]) for death, broken in results.items() if broken}


@pytest.mark.nightly("a death that finds a break")
def test_a_unit_may_die_before_it_hears_of_any_write() -> None:
    found = deaths.deaths("at", renewals=False)
    assert len(found) > 20
    assert broken_by(found) == {}


@pytest.mark.nightly("a death that finds a break")
@pytest.mark.parametrize("how", deaths.HOW)
def test_a_unit_may_die_in_each_way_at_each_request(how: str) -> None:
    """Sieve's question: killed before, at or after it, twice, frozen; its watches lost."""
    assert broken_by(deaths.deaths(how)) == {}


def recalls_nothing(*_: object, **__: object) -> None:
    """What the Lease says is lost."""


def test_a_death_finds_what_a_new_leader_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("istio_aux.repair.controller.RepairController.recall", recalls_nothing)

    found = broken_by(deaths.deaths("at", renewals=False))
    assert "restart that did not help is repeated" in " ".join(found.values())


@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_break_of_the_product_is_found(name: str) -> None:
    assert breaks.find(name).seed >= 0


def test_a_violation_is_shrunk_to_the_faults_that_it_needs() -> None:
    """Where the restart policy does not count, a payload has to fail, and nothing else."""
    broken = breaks.BREAKS["a restart policy does not count"]
    (kind,) = broken.guards
    chosen = [seed for seed in range(200) if broken.faults < faults.choose(seed)]
    with broken.apply():
        assert broken.faults in (shrink(seed, kind) for seed in chosen if kind in play(seed).kinds)


def test_a_pod_that_finishes_as_the_leader_gets_sigterm_is_freed_within_two_seconds() -> None:
    assert max(_handover(seed) for seed in range(HANDOVERS)) < 2


def _handover(seed: int) -> float:
    """Seconds from the end of a payload, when the leader gets SIGTERM, to the quit of its proxy."""
    random.seed(seed)
    world = World(seed, frozenset())
    cluster = Cluster(world, units=2)
    ended, told = list[float](), list[float]()

    def looked(resource: str, change: Change) -> None:
        """End the leader before its watch shows that the payload is finished."""
        status = change.after.object["status"] if resource == "pods" and change.after else {}
        states = {each["name"]: each["state"] for each in status.get("containerStatuses", ())}
        if "terminated" in states.get("main", ()) and not ended:
            ended.append(world.now)
            held, units = cluster.judge.held, cluster.units
            leader = next(unit for unit in units if unit.process and unit.process.name in held)
            leader.terminate(renamed=True)

    cluster.server.watchers.append(looked)
    cluster.nodes.told = lambda *_: told.append(world.now)
    cluster.install_istio()
    for unit in cluster.units:
        unit.start()
    world.at(10, lone_pod, cluster, "task", Plan({"main": [Run(10.0 + seed / 8)]}))
    world.run(60)
    for unit in cluster.units:
        if unit.process:
            unit.process.end()
    return told[0] - ended[0] - cluster.settings.quit_policy.grace
