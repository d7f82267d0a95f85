"""What pods hold by their requests, as the scheduler counts, and who holds pods."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from istio_aux.model import kept, resources
from istio_aux.model.answers import group
from istio_aux.model.documents import run_now
from istio_aux.model.found import Found
from istio_aux.model.limits import MOST, Limit, LimitRange, Limits, ResourceQuota
from istio_aux.model.pod import Key
from istio_aux.model.policy import Capability, StartPolicy
from istio_aux.model.resources import Requests, quantity, requests
from unit.rules import pods
from unit.rules.pods import RUNNING, exited, job, planned, row

COUNTED = Path(__file__).parents[2] / "data" / "requests" / "pods.jsonl"
GPU = "nvidia.com/gpu"


def requested(main: dict[str, object]) -> Requests | None:
    """What a pod with one container holds by the requests of that container."""
    details = {"main": {"resources": {"requests": main}}}
    return requests(job({"main": exited(0), "istio-proxy": RUNNING}, details=details))


@pytest.mark.parametrize("line", COUNTED.read_text().splitlines())
def test_requests_are_what_the_scheduler_counts(line: str) -> None:
    """Sixty pods, with what `resource.PodRequests` of Kubernetes said of each."""
    pod = json.loads(line)
    spec = pod.pop("spec")

    assert requests(job({}, spec=spec)) == Requests(**pod)


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        (3, ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu",
             "amd.com/cpx_nps4", "gpu.intel.com/i915", "example.com/gpu"]),
        (0, ["nvidia.com/hostdev", "amd.com/xilinx_u30", "gpu.intel.com/millicores", "rdma/hca",
             "ephemeral-storage"]),
    ],
)  # fmt: skip
def test_devices_are_gpus_by_their_name(counts: int, names: list[str]) -> None:
    """A share or a slice of a GPU counts as one."""
    found = {name: requested({name: "3"}) for name in names}
    assert found == dict.fromkeys(names, Requests(gpus=counts))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("100m", Fraction(1, 10)), ("1.5Gi", 1536 * 2**20), (".5", Fraction(1, 2)),
        ("3.", 3), ("+2", 2), ("1e3", 1000), ("12E2", 1200), ("2E", 2 * 10**18), ("1E-1", 0.1),
        ("7n", Fraction(7, 10**9)), ("5u", Fraction(5, 10**6)), ("1k", 1000), ("0", 0),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: Fraction) -> None:
    assert quantity(text) == pytest.approx(value * 10**9, rel=1e-12)


HOSTILE = [
    "", " 1", "1 ", "-1", "1K", "1ki", "1KI", "1e", "1e999", "1e1000000000", "0x10", "1_000",
    "\u0661", "NaN", "inf", "1Gi1", "1.2.3", ".", "9" * 41, "9" * 5000, "1\n",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        quantity(text)


@pytest.mark.parametrize(
    "bad", [*HOSTILE, ["1"], {}, True, 10**400, 1e300, "9223372036854775808", "1e99"]
)
def test_a_hostile_request_costs_the_numbers_of_its_pod_alone(bad: object) -> None:
    assert requested({"cpu": "1", GPU: bad}) is None


@pytest.mark.parametrize(
    ("own", "held"),
    [
        *((wrong, None) for wrong in (
            [], "all", {"requests": 5}, {"requests": {"cpu": {"x": {}}}}, {"requests": [[[[]]]]},
        )),
        # Where only limits are written, the API server adds the requests.
        *((none, Requests()) for none in (
            {"limits": {"cpu": "9"}}, {"requests": None}, None,
            {"requests": {"ephemeral-storage": "not looked at"}},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_resources_of_another_shape_are_unreadable_and_limits_and_null_are_no_requests(
    own: object, held: Requests | None
) -> None:
    assert requests(job({"main": RUNNING}, details={"main": {"resources": own}})) == held


OWN = {"cpu": "500m", "memory": "512Mi"}
DEFAULT = ", if Istio's proxy has its default size"
ROOM = {"requests": {"cpu": "600m", "memory": "640Mi"}}
BOTH, CPU, MEMORY = "0.6 CPUs, 640Mi of memory", {"cpu": "2"}, {"memory": "128Mi"}


@pytest.mark.parametrize(
    ("whole", "main", "native", "classic"),
    [
        row("no room for the proxy", {"requests": OWN}, {"requests": OWN},
            f"requests of {BOTH} or more{DEFAULT}", None),
        row("room enough", ROOM, {"requests": OWN}, "", ""),
        row("nothing is written", {}, {"requests": OWN}, "", ""),
        row("only of one of them", {"requests": {"cpu": "50m"}}, {},
            f"requests of 0.1 CPUs or more{DEFAULT}", None),
        row("only limits: the API server makes requests of what the containers request",
            {"limits": CPU}, {"requests": OWN}, f"requests of {BOTH} or more{DEFAULT}", None),
        row("only limits, and no requests of containers", {"limits": CPU}, {}, "", ""),
        row("a limit of a container is its request", {"requests": {"cpu": "1"}}, {"limits": CPU},
            f"requests of 2.1 CPUs or more{DEFAULT}", None),
        row("a limit that a classic proxy exceeds alone",
            {"limits": {"memory": "512Mi"}, "requests": MEMORY}, {}, "",
            f"limits of 1Gi of memory or more{DEFAULT}; limits of a native one do not count"),
        row("a limit that is the request", {"limits": OWN, "requests": OWN}, {"requests": OWN},
            f"requests of {BOTH} and limits of {BOTH} or more{DEFAULT}",
            f"requests of {BOTH} and limits of 2 CPUs, 1Gi of memory or more{DEFAULT}"
            "; limits of a native one do not count"),
        row("what no API server stores", {"requests": {"cpu": "much"}}, {}, "", ""),
    ],
)  # fmt: skip
def test_a_pod_says_what_its_own_resources_need_for_its_sidecar(
    whole: object, main: object, native: str, classic: str | None
) -> None:
    """KEP-2837, istio#57393, istio#58769. ``classic`` is None where both need the same."""
    pod = job({"main": None}, spec={"resources": whole}, details={"main": {"resources": main}})
    begin = "refused with a sidecar unless spec.resources has "
    for is_native, says in ((True, native), (False, native if classic is None else classic)):
        assert resources.too_small(pod, native=is_native) == (begin + says if says else "")


SIZED = {
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    "initContainers": [{"name": "fetch", "resources": {"requests": {"cpu": "950m"}}}],
}


@pytest.mark.parametrize(
    ("native", "sizes", "says"),
    [
        (True, {}, f"requests of 1.05 CPUs or more{DEFAULT}"),
        (False, {}, ""),
        (True, {"CPU": "50m"}, ""),
        (False, {"CPULimit": "1500m"}, "requests of 1.5 CPUs or more"),
        (True, {"Memory": "2Gi"}, "requests of 2Gi of memory or more"),
        (True, {"CPU": "much", "CPULimit": "9" * 99}, f"requests of 1.05 CPUs or more{DEFAULT}"),
    ],
)
def test_the_proxy_has_the_size_of_its_annotations_and_runs_before_init_containers(
    native: bool, sizes: dict[str, str], says: str
) -> None:
    annotations = {f"sidecar.istio.io/proxy{key}": value for key, value in sizes.items()}
    pod = job({"main": None}, spec=SIZED, annotations=annotations)
    assert resources.too_small(pod, native=native).partition(" has ")[2] == says


def test_resources_of_a_pod_that_has_its_proxy_are_large_enough() -> None:
    assert (
        resources.too_small(job({"main": None, "istio-proxy": None}, spec=SIZED), native=True) == ""
    )


@pytest.mark.parametrize(
    ("how", "classic"),
    [
        (StartPolicy(capability=Capability.NATIVE), False),
        (StartPolicy(capability=Capability.CLASSIC), True),
    ],
)
def test_admission_warns_of_a_pod_that_will_be_refused(how: StartPolicy, classic: bool) -> None:
    spec = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "resources": ROOM}],
        "resources": {"requests": OWN, "limits": OWN},
    }

    [warning] = planned({"metadata": {}, "spec": spec}, how).warnings

    assert warning.startswith("IA0114: refused with a sidecar unless spec.resources has requests")
    assert warning.endswith("a native one do not count") is classic
    assert len(f"istio-aux: {warning}") <= 256, "the API server cuts what is longer"
    refuses = {"annotations": {"sidecar.istio.io/inject": "false"}}
    assert planned({"metadata": refuses, "spec": spec}).warnings == ()


@pytest.mark.parametrize(
    ("held", "line"),
    [
        (resources.total((Requests(millicpu=1500, memory=2**30, gpus=1), Requests(memory=2**29),
                          Requests())), "1 GPU, 1.5 CPUs, 1.5Gi of memory"),
        (Requests(millicpu=1000), "1 CPU"),
        (Requests(gpus=24, memory=1023), "24 GPUs, 1023 of memory"),
        (Requests(memory=2**63 - 1), "8Ei of memory"),
        (Requests(), ""),
    ],
)  # fmt: skip
def test_what_all_pods_hold_is_one_line(held: Requests, line: str) -> None:
    assert str(held) == line


EARLY = datetime(2026, 11, 20, 7, 12, tzinfo=UTC)
held = partial(pods.held, since=EARLY + timedelta(days=1), requests=Requests(gpus=8, millicpu=500))


def test_the_holder_of_most_gpus_comes_first_then_that_of_most_pods() -> None:
    none = Requests()
    found = run_now(group((
        held("b", requests=none), held("c", requests=none), held("c", requests=none),
        held("a", requests=none), held("z"),
    )))  # fmt: skip
    assert [one.by for one in found] == [("z",), ("c",), ("a",), ("b",)]


FIX, SINCE = "set x: false", "since 2026-11-21 07:12Z"


@pytest.mark.parametrize(
    ("pods", "lines"),
    [
        ([held("a"), held("a", since=EARLY), held("a")],
         ["3 pods are kept by a since 2026-11-20 07:12Z: 24 GPUs, 1.5 CPUs"]),
        ([held("a", "b"), held("b", "a", requests=None)],
         [f"2 pods are kept by a, b {SINCE}: 8 GPUs, 0.5 CPUs; the requests of 1 cannot be read"]),
        ([held("a", since=None, requests=None)],
         ["1 pod is kept by a; the requests of 1 cannot be read"]),
        ([held("a", since=EARLY.astimezone(timezone(timedelta(hours=2))))],
         ["1 pod is kept by a since 2026-11-20 07:12Z: 8 GPUs, 0.5 CPUs"]),
        ([held(*(f"c{number}" for number in range(9)), requests=Requests())],
         ["1 pod is kept by c0, c1, c2 and 6 more since 2026-11-21 07:12Z"]),
        ([held("a"), held("a", since=None, requests=Requests(), fix=FIX)],
         ["1 pod is kept by a since 2026-11-21 07:12Z: 8 GPUs, 0.5 CPUs",
          f"1 pod is kept by a; {FIX}"]),
        ([held(requests=Requests())], ["1 pod is kept by istio-proxy since 2026-11-21 07:12Z"]),
    ],
    ids=["since the first, all together", "whatever their order", "unknown requests",
          "times in UTC", "many holders", "fixes divide holders", "the proxy"],
)  # fmt: skip
def test_holders_are_told_in_short_lines(pods: list[Found], lines: list[str]) -> None:
    assert [one.text for one in run_now(group(pods))] == lines


# What ResourceQuotas and LimitRanges allow: what is kept of them, and what is not known.


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
