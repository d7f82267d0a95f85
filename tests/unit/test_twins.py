"""The generator of pairs draws by its seed alone, and the judge sees who is worse off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from twins import judge, manifests
from twins.judge import Half, again, half, losses, may_still_matter, verdict
from twins.manifests import GRAMMAR, MOMENTS, WORLDS, Pair

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
