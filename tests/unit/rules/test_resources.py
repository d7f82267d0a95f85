"""What a pod holds by its requests, as the scheduler counts."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from istio_aux.model import resources
from istio_aux.model.resources import Requests, quantity, requests
from unit.rules.pods import RUNNING, exited, job

COUNTED = Path(__file__).parents[2] / "data" / "requests" / "pods.jsonl"
GPU = "nvidia.com/gpu"


def held(main: dict[str, object]) -> Requests | None:
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
    ("name", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/hostdev", False),
        ("amd.com/gpu", True),
        ("amd.com/cpx_nps4", True),
        ("amd.com/xilinx_u30", False),
        ("gpu.intel.com/i915", True),
        ("gpu.intel.com/millicores", False),
        ("example.com/gpu", True),
        ("rdma/hca", False),
        ("ephemeral-storage", False),
    ],
)
def test_devices_are_gpus_by_their_name(name: str, counts: bool) -> None:
    """A share or a slice of a GPU counts as one."""
    assert held({name: "3"}) == Requests(gpus=3 if counts else 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("100m", Fraction(1, 10)), ("1.5Gi", 1536 * 2**20), (".5", Fraction(1, 2)),
        ("3.", 3), ("+2", 2), ("1e3", 1000), ("12E2", 1200), ("2E", 2 * 10**18), ("1E-1", 0.1),
        ("7n", Fraction(7, 10**9)), ("5u", Fraction(5, 10**6)), ("1k", 1000), ("0", 0),
    ],
)  # fmt: skip
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: Fraction) -> None:
    assert quantity(text) == pytest.approx(value, rel=1e-12)


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
    """The pod is read all the same, and nothing is guessed."""
    assert held({"cpu": "1", GPU: bad}) is None


@pytest.mark.parametrize(
    "wrong", [[], "all", {"requests": 5}, {"requests": {"cpu": {"x": {}}}}, {"requests": [[[[]]]]}]
)
def test_resources_of_another_shape_are_unreadable(wrong: object) -> None:
    pod = job({"main": RUNNING}, details={"main": {"resources": wrong}})

    assert requests(pod) is None


def test_a_pod_that_requests_nothing_holds_nothing() -> None:
    assert requests(job({"main": RUNNING})) == Requests()
    assert held({"ephemeral-storage": "not looked at"}) == Requests()


def test_limits_and_null_are_no_requests() -> None:
    """Where only limits are written, the API server adds the requests."""
    for none in ({"limits": {"cpu": "9"}}, {"requests": None}, None):
        pod = job({"main": RUNNING}, details={"main": {"resources": none}})
        assert requests(pod) == Requests()


def test_what_all_pods_hold_is_one_line() -> None:
    pods = (Requests(millicpu=1500, memory=2**30, gpus=1), Requests(memory=2**29), Requests())
    assert str(resources.total(pods)) == "1 GPU, 1.5 CPUs, 1.5Gi of memory"
    assert str(Requests(millicpu=1000)) == "1 CPU"
    assert str(Requests(gpus=24, memory=1023)) == "24 GPUs, 1023 of memory"
    assert str(Requests(memory=2**63 - 1)) == "8Ei of memory"
    assert str(Requests()) == ""
