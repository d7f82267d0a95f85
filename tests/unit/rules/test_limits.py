"""What ResourceQuotas and LimitRanges allow: what is kept of them, and what is not known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.model import kept
from istio_aux.model.limits import MOST, Limit, LimitRange, Limits, ResourceQuota
from istio_aux.model.pod import Key
from istio_aux.model.resources import quantity

GI, ONE = quantity("1Gi"), quantity("1")
MANY = {f"requests.nvidia.com/{'x' * 200}-{number}": "1" for number in range(1000)}


def quota(name: str = "a", hard: Any = None, used: Any = None, **spec: Any) -> ResourceQuota:
    about = {"namespace": "team", "name": name, "uid": name}
    document = {"metadata": about, "spec": spec, "status": {"hard": hard, "used": used}}
    return msgspec.convert(document, ResourceQuota)


def limit_range(*limits: dict[str, Any], name: str = "b") -> LimitRange:
    about = {"namespace": "team", "name": name, "uid": name}
    return msgspec.convert({"metadata": about, "spec": {"limits": [*limits]}}, LimitRange)


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        (quota(), Limit(name="ResourceQuota a")),
        (
            quota(hard={"limits.memory": "3Gi", "pods": "9"}, used={"limits.memory": "1Gi"}),
            Limit(name="ResourceQuota a", most={"limits.memory": 2 * GI}),
        ),
        (
            quota(hard={"cpu": "2", "requests.cpu": "3"}, used={"cpu": "1", "requests.cpu": "1"}),
            Limit(name="ResourceQuota a", most={"requests.cpu": ONE}),
        ),
        (
            quota(hard={"memory": "1Gi"}, used={"memory": "2Gi"}),
            Limit(name="ResourceQuota a", most={"requests.memory": 0}),
        ),
        (quota(scopes=["Terminating"]), Limit(name="ResourceQuota a", deadline=True)),
        (quota(scopes=["NotTerminating"]), Limit(name="ResourceQuota a", deadline=False)),
        (quota(hard=MANY, used=MANY), Limit(name="ResourceQuota a")),
        (
            limit_range(
                {"type": "Pod", "max": {"memory": "2Gi"}},
                {"type": "Pod", "max": {"memory": "1Gi"}, "maxLimitRequestRatio": {"cpu": "2"}},
                {"type": "Container", "max": {"memory": "1"}},
            ),
            Limit(
                name="LimitRange b",
                most={"requests.memory": GI, "limits.memory": GI},
                ratio={"cpu": 2 * ONE},
            ),
        ),
    ],
)
def test_what_pods_may_add_or_have_is_kept_of_each(
    found: ResourceQuota | LimitRange, limit: Limit
) -> None:
    limits = Limits()

    limits.apply(found)

    assert limits.of("team") == (limit,)
    assert kept.size(limit) < 512
    assert limits.of("other") == ()


def test_the_limits_of_a_namespace_follow_their_objects() -> None:
    limits = Limits()
    for found in (quota("a", {"cpu": "1"}), limit_range(), quota("a", {"cpu": "2"})):
        limits.apply(found)

    assert [each.most for each in limits.of("team") or ()] == [{"requests.cpu": 2 * ONE}, {}]
    for name in ("a", "b", "unknown"):
        limits.delete(Key("team", name, name))
    assert limits.of("team") == ()


def test_what_cannot_be_read_or_is_too_much_is_not_known() -> None:
    unreadable, many = Limits(), Limits()
    unreadable.apply(quota(hard={"cpu": "much"}))
    for number in range(MOST + 1):
        assert many.of("team") is not None
        many.apply(quota(f"a{number}"))

    assert (unreadable.of("team"), many.of("team")) == (None, None)


@pytest.mark.parametrize(
    ("needs", "refused"),
    [
        ({"limits.memory": GI}, ""),
        ({"limits.memory": GI + 1}, "limits.memory, by x"),
        ({"requests.cpu": ONE, "limits.cpu": 2 * ONE}, ""),
        ({"requests.cpu": ONE, "limits.cpu": 2 * ONE + 1}, "the ratio of limits.cpu, by x"),
        ({"limits.cpu": 9 * ONE}, ""),
    ],
)
def test_a_pod_that_needs_more_is_refused(needs: dict[str, int], refused: str) -> None:
    limit = Limit(name="x", most={"limits.memory": GI}, ratio={"cpu": 2 * ONE})
    assert limit.refuses(needs) == refused
