"""No order of events around a quit breaks a promise, and the search finds defects."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.moment import Moment
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import DeadProxy, QuitMode, QuitPolicy
from istio_aux.quit import attempt as quit_task
from istio_aux.quit import rules as quit_rules
from istio_aux.quit.attempt import End, QuitOutcome, QuitScope, Task
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Action
from simulation.exhaustive import LIVES, search
from simulation.onepod import Life, report

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


# Together they lead to every row of the table but two, which `test_quit_state` has, and those of a
# pod that is held, which `test_quit_held` has.
SMALL = (
    Life("a grace period", deletes=False, policy=QuitPolicy(grace=2.0)),
    Life("two payload containers", ("main", "logger", PROXY), deletes=False),
    Life("another sidecar", ("main", "sql", PROXY), deletes=False,
         policy=QuitPolicy(sidecars=sidecars.parse("sql=9091/quit"))),
    Life("a dry run", mode=QuitMode.DRY_RUN),
    Life("a proxy that crashes", crashes=True, deletes=False),
    Life("a pod that is deleted", crashes=True, deletes=False, owner=("batch/v1", "Job"),
         policy=QuitPolicy(dead_proxy=DeadProxy.DELETE)),
)  # fmt: skip
ASKED = {("no", "asked", what) for what in ("End(BLOCKED)", "End", "Retry", "Send")}
ELSEWHERE = {("no", "looked", "Retry"), ("yes", "looked", "End(GONE)"), ("no", "looked", "Ask")}


def test_the_table_of_a_task_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = ELSEWHERE | ASKED
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
    report.cache_clear()

    found = search(BY_NAME[life])

    report.cache_clear()
    assert found.broken == broken
    assert found.story
