"""What searches for faults finds what is broken on purpose, and nothing else in a short run."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matrix
import msgspec
import pytest
from fuzz import play as fuzz, stored
from fuzz.bodies import INJECT, Ask
from fuzz.play import Answer, findings, serving
from istio_aux.model import sidecars
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy
from istio_aux.quit import attempt as quit_task, rules as quit_rules
from istio_aux.quit.attempt import End, QuitOutcome, QuitScope, Task
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Action
from lab import nightly
from lab.nightly import NIGHT, NIGHTLY, sampled
from oracle.play import KUBELETS, Explained, Judged, Verdict, compare
from simulation import breaks, deaths, faults, onepod
from simulation.cluster import Cluster
from simulation.exhaustive import LIVES, search
from simulation.faults import lone_pod
from simulation.kubelet import Plan, Run
from simulation.play import play, shrink
from simulation.store import Change
from simulation.world import World
from soak import play as soak
from twins import judge, manifests
from twins.judge import Half, again, half, losses, may_still_matter, verdict
from twins.manifests import GRAMMAR, MOMENTS, WORLDS, Pair
from unit import hooked
from unit.rules.pods import RUNNING, State, document, exited, waiting

from benchmarks import tables

# The simulation: its short run; a seed repeats; what is broken on purpose is found.

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


# No order of events around a quit breaks a promise, and the search finds defects.

BY_NAME = {life.name: life for life in LIVES}
BY_NIGHT = pytest.mark.nightly("one of these lives, and the small ones of the table")


# The others have up to 185,000 states each. By day a search of them ends at a defect.
@pytest.mark.parametrize(
    "life", [pytest.param(n, marks=[BY_NIGHT] * (n != "a dry run")) for n in BY_NAME]
)
def test_no_order_of_events_breaks_a_promise(life: str) -> None:
    found = search(BY_NAME[life])

    assert found.broken == "", "\n".join(found.story)
    assert found.states > 1000


# Together they lead to every row of the table but two, which `rules/test_quit` has, and those of a
# pod that is held, which `test_quit_failures` has.
SMALL = (
    onepod.Life("a grace period", deletes=False, policy=QuitPolicy(grace=2.0)),
    onepod.Life("two payload containers", ("main", "logger", PROXY), deletes=False),
    onepod.Life("another sidecar", ("main", "sql", PROXY), deletes=False,
                policy=QuitPolicy(sidecars=sidecars.parse("sql=9091/quit"))),
    onepod.Life("a dry run", mode=QuitMode.DRY_RUN),
    onepod.Life("a proxy that crashes", crashes=True, deletes=False),
    onepod.Life("a pod that is deleted", crashes=True, deletes=False, owner=("batch/v1", "Job"),
                policy=QuitPolicy(dead_proxy=DeadProxy.DELETE)),
)  # fmt: skip
ELSEWHERE = {
    ("no", "looked", "Retry"),
    ("yes", "looked", "End(GONE)"),
    ("no", "looked", "Ask"),
    *(("no", "asked", what) for what in ("End(BLOCKED)", "End", "Retry", "Send")),
}


def test_the_table_of_a_task_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = {*ELSEWHERE}
    row = re.compile(r" +(no|yes) +(`.*)  (\w+(?:\(\w+\))?)")
    rows = filter(None, map(row.fullmatch, (quit_task.__doc__ or "").splitlines()))
    table = {
        (found[1], name, found[3]) for found in rows for name in re.findall(r"`(\w+)`", found[2])
    }

    def noted(name: str) -> Callable[..., quit_task.Action]:
        real = getattr(Task, name)

        def answer(task: Task, *args: Any, **more: Any) -> quit_task.Action:
            told, action = "yes" if task.told else "no", real(task, *args, **more)
            ended = action.outcome.name if isinstance(action, End) and action.outcome else ""
            kind = type(action).__name__ + ended.join(["(", ")"] if ended else ["", ""])
            happened.add((told, name, kind.replace("_NONZERO", "")))
            return action

        return answer

    for name in {name for _, name, _ in table}:
        monkeypatch.setattr(Task, name, noted(name))
    assert [found.broken for life in SMALL if (found := search(life)).broken] == []
    assert happened == table


def never_started_again(*_: object) -> tuple[bool, str]:
    return False, "a defect"


def believes_answers(task: Task, scope: QuitScope, now: Moment) -> quit_task.Action:
    return End(QuitOutcome.EXITED) if task.told else AWAKE(task, scope, now)


def deletes_any_version(_version: str) -> quit_task.Delete:
    return DELETE("")


AWAKE, DELETE = Task.awake, quit_task.Delete


def ends_no_held_pod(facts: PodFacts) -> Action | None:
    return None if facts.pod.metadata.deletion_timestamp else HOLDS(facts)


HOLDS = quit_rules._held
DEFECTS = [
    pytest.param(
        "a payload that is held", "quit.rules._held", ends_no_held_pod,
        "a pod whose payload has never started is deleted, and stays", id="a held pod is left",
    ),
    pytest.param(
        "a payload that is started again after a failure",
        "model.kubelet.should_restart", never_started_again,
        "it tells the proxy to exit, and the payload needs it", id="restart policies are ignored",
    ),
    pytest.param(
        "a payload that ends", "quit.attempt.Task.awake", believes_answers,
        "it says that istio-proxy has exited, which it has not", id="an answer counts as proof",
    ),
    pytest.param(
        "a proxy that crashes, and its pod is deleted", "quit.attempt.Delete", deletes_any_version,
        "it deletes another version than it has read", id="a deletion has no precondition",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("life", "place", "defect", "broken"), DEFECTS)
def test_a_defect_is_found_and_told_as_a_story(
    life: str, place: str, defect: object, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"istio_aux.{place}", defect)
    onepod.report.cache_clear()

    found = search(BY_NAME[life])

    onepod.report.cache_clear()
    assert found.broken == broken
    assert found.story


# The fuzzer, the oracle and the benchmarks find what is wrong; short runs find nothing.

SCALE = Path(__file__).parents[2] / "benchmarks/results/scale.md"
CASES = 2_000 if NIGHTLY else 500
"""`tox -e fuzz` plays as many as one likes."""
MUTATION, INJECTION = Ask(hooked.review()), Ask(hooked.review(), INJECT)


def answer(status: int = 200, **response: Any) -> Answer:
    """A correct answer, changed by the arguments."""
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "u-1", "allowed": True, "auditAnnotations": {}, **response},
    }
    return Answer(status, "application/json", json.dumps(body).encode())


def patched(path: str, value: object) -> dict[str, Any]:
    """A patch that adds this below the metadata."""
    text = json.dumps([{"op": "add", "path": f"/metadata/{path}", "value": value}])
    return {"patchType": "JSONPatch", "patch": base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    ("ask", "faulty", "finding"),
    [
        (MUTATION, answer(400), "expected {200}"),
        (MUTATION, answer(allowed=False), "allowed: False"),
        (MUTATION, answer(warnings=["a\nb"]), "not a short line"),
        (MUTATION, answer(**patched("annotations/a", "b")), "does not apply"),
        (MUTATION, answer(**patched("annotations", {})), "started-with is missing"),
        (
            INJECTION,
            answer(**patched("labels", {"sidecar.istio.io/inject": "yes"})),
            "not the inject label alone",
        ),
    ],
)
def test_a_fault_in_an_answer_is_found(ask: Ask, faulty: Answer, finding: str) -> None:
    assert finding in " ".join(findings(ask, faulty))


async def test_a_few_hundred_cases_find_nothing(tmp_path: Path) -> None:
    """Nor do those of the corpus. The seed is fixed, so a finding is a regression."""
    assert {file.suffix for file in fuzz.CORPUS.iterdir()} == {".body", ".pod"}
    async with serving(tmp_path) as server:
        findings, answers = await fuzz.play(server, CASES, 42)
    assert findings == []
    assert answers.total() > CASES


async def test_stored_pods_are_read_and_judged_within_their_budget() -> None:
    """Random ones, those of the corpus, and some of those that were made to be slow."""
    assert await stored.play(CASES // 2, 42, nth=29 if NIGHTLY else 211) == []


AGAIN = f"tox -e fuzz -- --bodies 10000 --seed {NIGHT} --target"


@pytest.mark.nightly("500 reviews of one seed")
async def test_ten_thousand_reviews_of_this_night_find_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        findings, _ = await fuzz.play(server, 10_000, NIGHT)
    assert sampled(f"{AGAIN} reviews", findings) == []


@pytest.mark.nightly("250 pods of one seed")
async def test_ten_thousand_stored_pods_of_this_night_find_nothing() -> None:
    assert sampled(f"{AGAIN} pods", await stored.play(10_000, NIGHT, nth=29)) == []


PODS = 1_500
"""In one part. Each pod has several texts of its own, and caches hold 4,096."""


async def test_pods_that_come_and_go_leave_nothing_behind() -> None:
    _, warm, then = await soak(3 * PODS, 3)
    assert then.blocks - warm.blocks < PODS / 2


def test_what_a_night_finds_is_kept_with_the_command_that_finds_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "results" / "night.txt"
    monkeypatch.setattr(nightly, "_KEPT", kept)

    assert nightly.sampled("tox -e fuzz -- --seed 1", []) == []
    assert nightly.sampled("tox -e fuzz -- --seed 2", ["it exited: 1"]) == ["it exited: 1"]
    assert kept.read_text().splitlines() == [
        "tox -e fuzz -- --seed 1: good", "tox -e fuzz -- --seed 2: NOT GOOD", "it exited: 1",
    ]  # fmt: skip


# The oracle sees where the workload judges otherwise than the kubelet.


def of_kubelet(main: State, *, done: bool = False, **found: Any) -> Verdict:
    """Of a kubelet on a pod with this payload container and a running proxy."""
    stored = json.dumps(document({"main": main, "istio-proxy": RUNNING}))
    found = {"restarting": False, "completes": done, **found}
    states = {"main": done, "istio-proxy": False}
    return Verdict(done=states, phase="Running", pod=msgspec.Raw(stored.encode()), **found)


def explained(action: str, *, finished: bool) -> Explained:
    """The same by the workload."""
    judged = {
        "main": Judged("payload", finished, "why"),
        "istio-proxy": Judged("sidecar", finished=False, why="running"),
    }
    return Explained("u-1", action, "reason", judged)


@pytest.mark.parametrize(
    ("kubelet", "ours", "disagreements", "cautions"),
    [
        (of_kubelet(exited(1)), explained("wait", finished=True),
         ["main: finished (why), but the kubelet may start it again"], 0),
        (of_kubelet(exited(1)), explained("quit", finished=False),
         ["quit, but the kubelet may start again main"], 0),
        (of_kubelet(exited(0), done=True), explained("wait", finished=False),
         ["main: not finished (why), but the kubelet is done with it",
          "wait (reason), but only the proxy keeps the pod from completing"], 0),
        (of_kubelet(exited(0), done=True, completes=False), explained("quit", finished=True),
         ["quit, but the pod does not complete when only the proxy exits"], 0),
        (of_kubelet(waiting("CrashLoopBackOff"), done=True), explained("wait", finished=False),
         [], 1),
    ],
)  # fmt: skip
def test_a_wrong_decision_is_a_disagreement_and_caution_needs_a_reason(
    kubelet: Verdict, ours: Explained, disagreements: list[str], cautions: int
) -> None:
    """In both directions: too early, and without a reason too late."""
    found = compare(KUBELETS[-1], kubelet, ours)
    assert (list(found.disagreements), len(found.cautions)) == (disagreements, cautions)


# Benchmarks and the matrix of versions.


def test_a_benchmark_says_in_words_what_became_slower_beside_another_program() -> None:
    """A number that both programs share, such as that of a slow night, says nothing."""
    kept, now = (
        tables.table(
            ("", "controller-runtime", "istio-aux"),
            [
                ("CPU of a quit, ms", "2.0", f"{quits} ({quits / 2:.2f}x)"),
                ("resident at the start, MiB", "100", f"{memory} ({memory / 100:.2f}x)"),
                ("p99 ms, median of 6 rounds", "10", "10 (1.00x)"),
                ("taken by the API server, other 100/s", "100", f"{quits} ({quits / 100:.2f}x)"),
            ],
        )
        for quits, memory in ((3.0, 90), (4.0, 50))
    )
    assert tables.compared(kept, now).splitlines() == [
        "Beside the kept table, 3 costs compared:",
        "* slower by a third: CPU of a quit, ms: 2.00 of controller-runtime's, 1.50 kept",
        "* smaller by a third: resident at the start, MiB: 0.50 of controller-runtime's, 0.90 kept",
    ]
    assert tables.compared(kept, kept).endswith("compared:\n* as before")
    measured = tables.compared(SCALE.read_text(), SCALE.read_text())
    assert re.fullmatch(r"Beside the kept table, \d\d costs compared:\n\* as before", measured)


def test_the_table_of_versions_has_the_numbers_that_were_kept() -> None:
    numbers = json.loads(matrix.NUMBERS.read_text())
    document = matrix.TABLE.read_text()

    assert numbers.keys() <= set(matrix.ROWS)
    assert matrix.written(document, numbers) == document


# The generator of pairs draws by its seed alone, and the judge sees who is worse off.

USUAL = {dimension: next(iter(weights)) for dimension, weights in GRAMMAR.items()}
ONE_OTHER = [
    (dimension, value)
    for dimension, weights in GRAMMAR.items()
    for value in weights
    if value != USUAL[dimension]
]


def drawn(seed: int = 1) -> Iterator[dict[str, str]]:
    """The values of a night: 100 pairs in each world, with those of their batches."""
    for world in WORLDS:
        for number in range(100):
            batch = manifests.moment(seed, world, number // 40)
            yield {**manifests.draw(seed, world, number), **batch.values}


def test_a_seed_draws_the_same_pairs_again_and_another_one_draws_others() -> None:
    assert [*drawn(1)] == [*drawn(1)]
    one, other = ([manifests.draw(seed, "never", n) for n in range(9)] for seed in (1, 2))
    assert one != other


@pytest.mark.parametrize("seed", range(739_949, 739_957))
def test_each_value_is_in_at_least_ten_of_400_pairs(seed: int) -> None:
    """Also those of the batches, whichever of them the seed lets come first."""
    counted = Counter(item for values in drawn(seed) for item in values.items())
    of_pairs = {(dimension, value) for dimension, values in GRAMMAR.items() for value in values}
    of_batches = {item for moment in MOMENTS for item in moment.values.items()}
    assert {item: counted[item] for item in of_pairs | of_batches if counted[item] < 10} == {}


@pytest.mark.parametrize(("dimension", "value"), ONE_OTHER)
def test_each_value_changes_what_is_played(dimension: str, value: str) -> None:
    # What an init container requests needs one.
    base = {**USUAL, "init": "several"} if dimension == "resources" else USUAL
    one, other = (manifests.pair("p", each) for each in (base, {**base, dimension: value}))
    assert (one.text, one.labels) != (other.text, other.labels)


def test_a_failure_policy_is_only_with_the_restart_policy_that_it_needs() -> None:
    """The API server refuses such a Job otherwise."""
    counted = [values for values in drawn() if values["failure policy"] != "none"]
    assert counted
    assert {values["restart"] for values in counted} == {"Never"}


def test_every_name_in_a_pair_is_one_that_its_player_replaces() -> None:
    """A copy differs by its name alone: what is in its namespace has that name, too."""
    pair = manifests.pair("p1", {**USUAL, "ends the proxy": "ConfigMap"})
    assert (pair.copy("p1-0").name, pair.copy("p1-0").text) == ("p1-0", pair.text)
    assert "p1" not in pair.text
    assert [each["metadata"]["name"] for each in (pair.job, *pair.around)] == [manifests.NAME] * 2


def test_the_pairs_that_are_written_by_hand_have_different_names() -> None:
    every = (*manifests.BY_HAND, *manifests.LEFT_RUNNING)
    assert len({pair.name for pair in every}) == len(every)
    assert [pair.name for pair in every if not pair.ends] == []


# The judge.

COMPLETE = Half("Complete", 20, reached=frozenset({"fetch", "main"}), runs={"fetch": 1, "main": 1},
                succeeded=frozenset({"fetch", "main"}))  # fmt: skip
FAILED = Half("Failed: BackoffLimitExceeded", 30, failures=4, runs={"fetch": 4})
HANGS = Half("", 300, reached=frozenset({"main"}), runs={"main": 1})
IDLE = Half("", 300)
DONE = Half("", 300, runs={"main": 1}, succeeded=frozenset({"main"}))
TRIED = Half("Failed: BackoffLimitExceeded", 30, failures=4, runs={"fetch": 1, "main": 4},
             succeeded=frozenset({"fetch"}))  # fmt: skip
REFUSED = Half("", 300, refused="exceeded quota")


def but(of: Half, **changed: Any) -> Half:
    return Half(**{**vars(of), **changed})


@pytest.mark.parametrize(
    ("mine", "other", "rules"),
    [
        (COMPLETE, COMPLETE, set()),
        (COMPLETE, FAILED, set()),
        (COMPLETE, HANGS, set()),
        (FAILED, FAILED, set()),
        (HANGS, HANGS, set()),
        (REFUSED, COMPLETE, {"admitted", "completes", "reaches", "time"}),
        (REFUSED, HANGS, {"admitted", "reaches"}),
        (FAILED, COMPLETE, {"completes", "reaches", "runs", "failures"}),
        (HANGS, COMPLETE, {"completes", "reaches", "time"}),
        (IDLE, FAILED, {"time"}),
        # Its twin has failed before what it waits for.
        (HANGS, FAILED, set()),
        (but(IDLE, succeeded=frozenset({"fetch"})), FAILED, set()),
        (but(FAILED, seconds=300), FAILED, set()),
        # Both have succeeded in the end, one of them too late for its Job.
        (DONE, but(FAILED, runs={"main": 4}, succeeded=frozenset({"main"})), set()),
        # Its next container never starts.
        (but(DONE, runs={"fetch": 1}, succeeded=frozenset({"fetch"})), TRIED, {"time"}),
        (but(COMPLETE, reached=frozenset({"main"})), COMPLETE, {"reaches"}),
        (but(COMPLETE, runs={"fetch": 1, "main": 2}), COMPLETE, {"runs"}),
        (but(COMPLETE, failures=1), COMPLETE, {"failures"}),
        (but(COMPLETE, seconds=79), COMPLETE, set()),
        (but(COMPLETE, seconds=80), COMPLETE, {"time"}),
        # A container that had succeeded does its work again, although the other Job hangs.
        (but(COMPLETE, runs={"main": 2}), but(HANGS, succeeded=frozenset({"main"})), {"runs"}),
        # Its payload failed first, which the Job that hangs has not seen.
        (but(COMPLETE, runs={"fetch": 2, "main": 2}), but(HANGS, runs={"fetch": 1, "main": 1},
         succeeded=frozenset({"fetch"})), set()),
        # It has used up the tries that its author wrote, and the Job that hangs has not.
        (but(FAILED, runs={"fetch": 4, "main": 4}, succeeded=frozenset({"fetch"})), but(HANGS,
         reached=frozenset(), runs={"fetch": 1, "main": 1}, succeeded=frozenset({"fetch"})), set()),
        # The Job was over before its sidecar got through, and the other one hangs with its own.
        (but(FAILED, sidecars=frozenset({"helper"})), but(IDLE, reached=frozenset({"helper"})),
         set()),
        (but(IDLE, sidecars=frozenset({"helper"})), but(IDLE, reached=frozenset({"helper"})),
         {"reaches"}),
        # A Job that completes may take more tries than one that has failed before.
        (but(COMPLETE, runs={"fetch": 5}, failures=5, seconds=200), FAILED, set()),
        # A container that fails anyway is started again until its Job gives up.
        (but(FAILED, runs={"fetch": 6}), FAILED, set()),
        # A container that never ran beside the other proxy may run.
        (but(FAILED, runs={"fetch": 4, "main": 1}), FAILED, set()),
    ],
)  # fmt: skip
def test_one_of_a_pair_is_worse_off_by_these_rules(
    mine: Half, other: Half, rules: set[str]
) -> None:
    assert {*losses(mine, other)} == rules


@pytest.mark.parametrize(
    ("ours", "twin", "seen"),
    [
        (COMPLETE, COMPLETE, "same"),
        (COMPLETE, HANGS, "worse"),  # Its twin has done something that it has not.
        (COMPLETE, FAILED, "better"),
        (FAILED, REFUSED, "better"),
        (FAILED, COMPLETE, "worse"),
    ],
)
def test_a_pair_is_better_if_only_its_twin_has_lost_something(
    ours: Half, twin: Half, seen: str
) -> None:
    twin = but(twin, reached=frozenset({"other"})) if twin is HANGS else twin
    assert verdict(ours, twin) == seen


@pytest.mark.parametrize(
    ("plays", "worse", "text"),
    [
        ([(COMPLETE, COMPLETE)] * 5, False, "worse off in 5 plays, with and without: none"),
        ([(IDLE, FAILED)] * 5, True, "time 5:0"),
        ([(IDLE, FAILED), (FAILED, IDLE)], False, "time 1:1"),
        ([(IDLE, FAILED), (IDLE, FAILED), (FAILED, IDLE)], True, "time 2:1"),
        # More often in one way is worse, although its twin lost as often in another one.
        ([(FAILED, REFUSED), (FAILED, COMPLETE)], True, "completes 1:0"),
    ],
)
def test_a_pair_is_worse_if_it_loses_more_often_with_istio_aux(
    plays: list[tuple[Half, Half]], worse: bool, text: str
) -> None:
    counted = again(plays)
    assert counted.worse is worse
    assert text in str(counted)


@pytest.mark.parametrize(
    ("ours", "twin", "matters"),
    [
        (COMPLETE, HANGS, False),
        (FAILED, HANGS, True),  # Its twin may still complete.
        (HANGS, HANGS, True),
        (but(HANGS, seconds=70), but(COMPLETE, seconds=20), True),
        (but(HANGS, seconds=80), but(COMPLETE, seconds=20), False),
    ],
)
def test_a_pair_is_watched_while_time_may_change_the_verdict(
    ours: Half, twin: Half, matters: bool
) -> None:
    assert may_still_matter(ours, twin) is matters


def status(name: str, restarts: int = 0, last: int | None = None, **state: Any) -> dict[str, Any]:
    before = {} if last is None else {"terminated": {"exitCode": last}}
    return {"name": name, "restartCount": restarts, "state": state, "lastState": before}


def test_a_half_is_read_from_a_job_its_pods_and_the_calls() -> None:
    """Istio's own containers do not count, and pods that are gone do."""
    ended = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    job = {"status": {"failed": 2, "conditions": [{"type": "Complete", "status": "False"}, ended]}}
    pods = [
        {
            "metadata": {"annotations": {"istio-aux.io/started-with": "hold"}},
            "status": {
                "phase": "Running",
                "initContainerStatuses": [status("istio-init", terminated={"exitCode": 0})],
                "containerStatuses": [
                    status("main", 1, last=42, waiting={"reason": "CrashLoopBackOff"}),
                    status("istio-proxy", 3, running={}),
                ],
            },
        },
        {
            "metadata": {"deletionTimestamp": "2026-11-29T00:00:00Z"},
            "status": {
                "phase": "Failed",
                "containerStatuses": [
                    status("main", terminated={"exitCode": 0}),
                    status("helper", waiting={"reason": "PodInitializing"}),
                ],
            },
        },
    ]

    found = half(job, pods, {"main"}, seconds=12, refused="some of them")

    assert found.end == "Failed: BackoffLimitExceeded"
    assert (found.failures, found.reached, found.refused) == (2, {"main"}, "")
    assert (found.runs, found.succeeded) == ({"main": 3}, {"main"})
    istios = "istio-proxy=running (restarted 3 times)"
    main = "main=CrashLoopBackOff (restarted 1 times)"
    assert found.story == (
        f"Running: istio-init=0 {main} {istios} istio-aux.io/started-with=hold",
        "Failed (deleted): main=0 helper=PodInitializing",
    )


def test_a_refusal_counts_only_if_no_pod_was_admitted() -> None:
    assert half({}, [], (), seconds=1, refused="exceeded quota").refused == "exceeded quota"


def test_a_pair_that_differs_is_told_with_its_manifests_and_what_happened() -> None:
    pair = Pair("p1", {"kind": "Job"}, {"grace": "0"})
    text = judge.told(pair, FAILED, COMPLETE, again([(FAILED, COMPLETE)] * 5))
    for line in (
        "WORSE: p1",
        "  does not complete: Failed: BackoffLimitExceeded",
        "  does not reach the service: fetch, main",
        "  runs more often: fetch 4 times, not 1",
        "  counts 4 failures, not 0",
        "  grace: 0",
        '  {"kind": "Job"}',
    ):
        assert line in text.splitlines()
    assert "with and without: completes 5:0, failures 5:0, reaches 5:0, runs 5:0" in text
    assert "with: Failed: BackoffLimitExceeded after 30 s; failures: 4; reached the" in text
    assert "without: Complete after 20 s; failures: 0; reached the service: fetch, main" in text


def test_the_table_has_a_row_for_each_world() -> None:
    count = judge.Count(seconds=61.4)
    count.add(COMPLETE, HANGS, "better")
    count.add(FAILED, FAILED, "same")
    head, row = judge.table({"never": count}).splitlines()
    assert head.split() == [word for cell in judge.HEAD for word in cell.split()]
    assert row.split() == ["never", "2", "1", "1", "0", "1", "0", "61"]
