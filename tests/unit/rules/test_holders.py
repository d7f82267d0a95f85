"""Pods that do not complete, by what holds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial

from istio_aux.model.resources import Requests, group
from istio_aux.quit.state import TroubledPod
from unit.rules import pods

EARLY = datetime(2026, 11, 20, 7, 12, tzinfo=UTC)
LATE = EARLY + timedelta(days=1)
EIGHT = Requests(gpus=8, millicpu=500)


held = partial(pods.held, since=LATE, requests=EIGHT)


def texts(*pods: TroubledPod) -> list[str]:
    return [one.text for one in group(pods)]


def test_pods_with_the_same_holder_are_one_line() -> None:
    """Since when the first of them is held, and what all of them hold."""
    assert texts(held("vault-agent"), held("vault-agent", since=EARLY), held("vault-agent")) == [
        "3 pods are held by vault-agent since 2026-11-20 07:12Z: 24 GPUs, 1.5 CPUs"
    ]


def test_the_holder_of_most_gpus_comes_first_then_that_of_most_pods() -> None:
    none = Requests()
    found = group((
        held("b", requests=none), held("c", requests=none), held("c", requests=none),
        held("a", requests=none), held("z"),
    ))  # fmt: skip
    assert [one.by for one in found] == [("z",), ("c",), ("a",), ("b",)]


def test_the_order_of_containers_in_a_pod_makes_no_other_holder() -> None:
    (one,) = group((held("a", "b"), held("b", "a")))
    assert (one.by, one.pods) == (("a", "b"), 2)


def test_what_is_not_known_is_said() -> None:
    assert texts(held("a", since=None, requests=None)) == [
        "1 pod is held by a; the requests of 1 cannot be read"
    ]
    (one,) = group((held("a", requests=None), held("a")))
    assert (one.unreadable, one.requests) == (1, EIGHT)


def test_times_are_shown_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    assert "since 2026-11-20 07:12Z" in texts(held("a", since=EARLY.astimezone(there)))[0]


def test_a_pod_with_many_holders_has_a_short_line() -> None:
    (text,) = texts(held(*(f"c{number}" for number in range(9)), requests=Requests()))
    assert text == "1 pod is held by c0, c1, c2 and 6 more since 2026-11-21 07:12Z"


def test_the_setting_that_ends_it_is_named_and_divides_holders() -> None:
    other = held("a", since=None, requests=Requests(), fix="set x: false")
    assert texts(held("a"), other) == [
        "1 pod is held by a since 2026-11-21 07:12Z: 8 GPUs, 0.5 CPUs",
        "1 pod is held by a; set x: false",
    ]


def test_a_pod_without_another_holder_is_held_by_its_proxy() -> None:
    assert texts(held(requests=Requests())) == [
        "1 pod is held by istio-proxy since 2026-11-21 07:12Z"
    ]
