"""Decision tables: rows with an English name, and what they are about."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import Policy
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import Kubelet, PodFacts
from unit.rules.pods import RUNNING, exited, job

POLICY = Policy()


class Row(NamedTuple):
    """A sentence, the pod it is about, and words that the reason must have."""

    sentence: str
    pod: Pod
    because: str = ""


def table(*rows: Row) -> Any:
    """Parametrise a test with rows; their sentences are the ids."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.sentence) for row in rows])


def decide(
    pod: Pod,
    policy: Policy = POLICY,
    now: Moment | None = None,
    *,
    seen: Moment | None = None,
    obeyed: bool | None = True,
) -> quitting.Action:
    """Read a pod and decide; without ``now`` every grace period is over."""
    return quitting.decide(PodFacts(pod, policy, Kubelet(obeyed)), now, seen=seen)


def done(**fields: Any) -> Pod:
    """A pod whose payload is finished, and whose proxy runs."""
    return job({"main": exited(0), "istio-proxy": RUNNING}, **fields)


def blockers(decision: quitting.Action) -> tuple[str, ...]:
    """What blocks the pod, as `/status` shows it."""
    return tuple(map(str, decision.blocked_by))
