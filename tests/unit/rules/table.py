"""Decision tables: rows with an English name, and what they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import pytest
from istio_aux.model.kubelet import Kubelet
from istio_aux.model.moment import Moment
from istio_aux.model.pod import Pod
from istio_aux.model.policy import QuitPolicy
from istio_aux.quit import rules
from istio_aux.quit.facts import PodFacts
from unit.rules.pods import RUNNING, State, exited, job

POLICY = QuitPolicy()
Kind = TypeVar("Kind", bound=rules.Decision)


class Row(NamedTuple):
    """A sentence, the pod it is about, words that the reason must have, and who blocks the pod."""

    sentence: str
    pod: Pod
    because: str = ""
    by: tuple[str, ...] | None = None
    policy: QuitPolicy = POLICY


def table(*rows: Row) -> Any:
    """Parametrise a test with rows; their sentences are the ids."""
    return pytest.mark.parametrize("row", [pytest.param(each, id=each.sentence) for each in rows])


def row(sentence: str, *values: Any) -> Any:
    """A row of another table, by its sentence."""
    return pytest.param(*values, id=sentence)


def decide(
    pod: Pod,
    policy: QuitPolicy = POLICY,
    now: Moment | None = None,
    *,
    seen: Moment | None = None,
    obeyed: bool | None = True,
) -> rules.Action:
    """Read a pod and decide; without ``now`` every grace period is over."""
    found = rules.decide(PodFacts(pod, policy, Kubelet(obeyed)), now, seen=seen)
    says = isinstance(found, rules.Quit | rules.Report) or bool(found.blocked_by)
    assert (found.code is not None) == says, "what may be a finding has a code, and nothing else"
    return found


def decided(kind: type[Kind], pod: Pod, policy: QuitPolicy = POLICY, **more: Any) -> Kind:
    """The decision on a pod, which is one of this kind; see `decide` for what else it rests on."""
    found = decide(pod, policy, **more)
    assert isinstance(found, kind), found
    return found


def met(row: Row, action: type[rules.Action]) -> None:
    """Decide on the pod of a row: action, reason and blockers are as it says."""
    decision = decided(action, row.pod, row.policy)
    assert row.because in decision.reason
    assert row.by in {None, blockers(decision)}


def pair(
    main: State, proxy: State = RUNNING, /, others: Mapping[str, State] = {}, **fields: Any
) -> Pod:
    """A pod with a payload container and a proxy in these states, and others."""
    return job({"main": main, "istio-proxy": proxy, **others}, **fields)


def done(**fields: Any) -> Pod:
    """A pod whose payload is finished, and whose proxy runs."""
    return pair(exited(0), **fields)


def blockers(decision: rules.Action) -> tuple[str, ...]:
    """What blocks the pod, as `/status` shows it."""
    return tuple(map(str, decision.blocked_by))
