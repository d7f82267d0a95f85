"""How long is waited after consecutive failures."""

from __future__ import annotations

from istio_aux.kube.errors import Backoff


def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    backoff = Backoff(first=1, longest=8)
    waits = [backoff.next() for _ in range(6)]
    for wait, step in zip(waits, (1, 2, 4, 8, 8, 8), strict=True):
        assert step / 2 <= wait <= step


def test_a_success_makes_the_next_failure_the_first_again() -> None:
    backoff = Backoff(first=1, longest=8)
    for _ in range(5):
        backoff.next()
    backoff.reset()
    assert backoff.next() <= 1


def test_those_who_failed_together_do_not_come_back_together() -> None:
    assert len({Backoff(first=1, longest=8).next() for _ in range(20)}) > 1


def test_a_pod_that_fails_for_years_does_not_overflow_the_wait() -> None:
    backoff = Backoff(first=1, longest=300)
    assert max(backoff.next() for _ in range(5000)) <= 300
