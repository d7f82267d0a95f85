"""No order of events around the quit of one pod breaks a promise, and the search finds defects."""

from __future__ import annotations

import pytest
from istio_aux.model.moment import Moment
from istio_aux.quit import task as quit_task
from istio_aux.quit.state import QuitScope
from istio_aux.quit.task import End, QuitOutcome, Task
from simulation.exhaustive import LIVES, search
from simulation.onepod import report

BY_NAME = {life.name: life for life in LIVES}
ENDS = "a payload that ends"
FAILS = "a payload that is started again after a failure"
DELETED = "a proxy that crashes, and its pod is deleted"


# The others have up to 100,000 states each.
BY_DAY = {ENDS, FAILS, "a proxy that crashes and is started again", "a dry run"}
BY_NIGHT = pytest.mark.nightly("four of these lives")


@pytest.mark.parametrize(
    "life", [pytest.param(n, marks=[BY_NIGHT] * (n not in BY_DAY)) for n in BY_NAME]
)
def test_no_order_of_events_breaks_a_promise(life: str) -> None:
    found = search(BY_NAME[life])

    assert found.broken == "", "\n".join(found.story)
    assert found.states > 1000


def never_started_again(*_: object) -> tuple[bool, str]:
    return False, "a defect"


def believes_answers(task: Task, scope: QuitScope, now: Moment) -> quit_task.Action:
    return End(QuitOutcome.EXITED) if task.told else AWAKE(task, scope, now)


def deletes_any_version(_version: str) -> quit_task.Delete:
    return DELETE("")


AWAKE, DELETE = Task.awake, quit_task.Delete
DEFECTS = [
    pytest.param(
        FAILS, "model.kubelet.should_restart", never_started_again,
        "it tells the proxy to exit, and the payload needs it", id="restart policies are ignored",
    ),
    pytest.param(
        ENDS, "quit.task.Task.awake", believes_answers,
        "it says that istio-proxy has exited, which it has not", id="an answer counts as proof",
    ),
    pytest.param(
        DELETED, "quit.task.Delete", deletes_any_version,
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
