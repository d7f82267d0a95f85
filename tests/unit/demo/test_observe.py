"""A story is told from objects as an API server sent them (provenance: tests/data/README.md)."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from demo.observe import Line, Seen, job_story, moment, pod_story, refine
from demo.story import Run

DATA = Path(__file__).parents[2] / "data" / "demo"


def clock(text: str, microsecond: int = 0) -> datetime:
    """A time of the day of the recording."""
    hour, minute, second = map(int, text.split(":"))
    return datetime(2026, 11, 21, hour, minute, second, microsecond, tzinfo=UTC)


def recorded(name: str) -> Mapping[str, Any]:
    """One recorded pod."""
    return json.loads((DATA / f"{name}.json").read_text())


@pytest.fixture
def watched() -> tuple[Seen, ...]:
    """Every event of a classic-sidecar Job's pod; arrival is the time of its newest change."""
    events = (
        json.loads(line)
        for line in (DATA / "watch-classic-job.jsonstream").read_text().splitlines()
    )
    objects = [event["object"] for event in events]
    return tuple(
        Seen(max(moment(m["time"]) for m in o["metadata"]["managedFields"]), o) for o in objects
    )


def test_a_watched_classic_job_hangs_until_its_proxy_is_told_to_quit(
    watched: tuple[Seen, ...],
) -> None:
    endings = [pod_story(watched[: count + 1]).result for count in range(len(watched))]
    assert endings == [
        *["never started"] * 6,
        *["still running"] * 4,
        "hangs",
        # Every container is over, the phase is not: still running, and no second quit.
        *["still running"] * 2,
        *["succeeded"] * 2,
    ]


def test_start_and_end_of_payload_and_proxy_are_those_of_the_container_statuses(
    watched: tuple[Seen, ...],
) -> None:
    story = pod_story(watched)
    assert story.payload == (Run(clock("08:16:26"), clock("08:16:29"), 0),)
    assert story.proxy == (Run(clock("08:16:26"), clock("08:16:51"), 0),)


def test_without_a_log_the_proxy_is_ready_when_its_status_is_first_seen_to_say_so(
    watched: tuple[Seen, ...],
) -> None:
    assert pod_story(watched).proxy_ready == clock("08:16:27")


def test_the_proxys_own_word_that_it_is_ready_goes_before_what_the_kubelet_saw(
    watched: tuple[Seen, ...],
) -> None:
    log = (
        Line(clock("08:16:26", 100_000), "info\tstarting"),
        Line(clock("08:16:26", 700_000), "info\tEnvoy proxy is ready"),
    )
    assert pod_story(watched, {"istio-proxy": log}).proxy_ready == clock("08:16:26", 700_000)


def test_a_log_that_agrees_with_the_whole_seconds_gives_the_fraction(
    watched: tuple[Seen, ...],
) -> None:
    log = (Line(clock("08:16:26", 400_000), "hello"), Line(clock("08:16:29", 500_000), "done"))
    story = pod_story(watched, {"main": log})
    assert story.payload == (Run(clock("08:16:26", 400_000), clock("08:16:29", 500_000), 0),)
    assert story.first_word == clock("08:16:26", 400_000)


def test_a_native_sidecar_is_found_among_the_init_containers() -> None:
    pod = recorded("pod-native")
    assert pod_story((Seen(clock("08:17:40"), pod),)).proxy == (
        Run(clock("08:17:34"), clock("08:17:39"), 0),
    )


def test_a_pod_that_was_never_seen_ready_has_no_ready_time() -> None:
    pod = recorded("pod-classic-after-quit")
    assert pod_story((Seen(clock("08:16:52"), pod),)).proxy_ready is None


def test_every_run_of_a_restarted_payload_is_shown_once_and_in_order() -> None:
    first = json.loads(json.dumps(recorded("pod-classic-before-quit")))
    status = next(s for s in first["status"]["containerStatuses"] if s["name"] == "main")
    status["state"]["terminated"] |= {"exitCode": 1, "containerID": "containerd://one"}
    status["containerID"] = "containerd://one"
    second = copy.deepcopy(first)
    restarted = next(s for s in second["status"]["containerStatuses"] if s["name"] == "main")
    restarted["lastState"] = restarted["state"]
    restarted["containerID"] = "containerd://two"
    restarted["state"] = {"running": {"startedAt": "2026-11-21T08:16:40Z"}}
    story = pod_story((Seen(clock("08:16:30"), first), Seen(clock("08:16:41"), second)))
    assert story.payload == (
        Run(clock("08:16:26"), clock("08:16:29"), 1),
        Run(clock("08:16:40")),
    )


def test_a_pod_with_two_payload_containers_is_refused_by_name() -> None:
    pod = copy.deepcopy(dict(recorded("pod-hold")))
    pod["spec"]["containers"].append({"name": "second"})
    with pytest.raises(ValueError, match=f"mesh/{pod['metadata']['name']}: 2 payload containers"):
        pod_story((Seen(clock("08:17:40"), pod),))


def test_a_pod_of_which_nothing_was_seen_has_no_story() -> None:
    with pytest.raises(ValueError, match="nothing was seen"):
        pod_story(())


def tfjob(*conditions: tuple[str, str]) -> dict[str, Any]:
    """A TFJob with two workers and these conditions."""
    return {
        "kind": "TFJob",
        "metadata": {"name": "m", "namespace": "n", "creationTimestamp": "2026-11-21T08:16:24Z"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}},
        "status": {"conditions": [{"type": t, "status": s} for t, s in conditions]},
    }


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [
        ((), ""),
        ((("Created", "True"), ("Running", "True")), "Running"),
        ((("Created", "True"), ("Running", "False"), ("Succeeded", "True")), "Succeeded"),
        ((("Created", "True"), ("Succeeded", "False")), "Created"),
    ],
)
def test_the_condition_of_a_job_is_its_newest_true_one(
    conditions: tuple[tuple[str, str], ...], condition: str
) -> None:
    now = clock("08:16:24", 300_000)
    story = job_story(tfjob(*conditions), (), helped=True, created=now, until=now)
    assert story.condition == condition
    assert (story.workers, story.created) == (2, now)


@pytest.mark.parametrize(
    ("hint", "refined"),
    [
        (clock("08:16:24", 900_000), clock("08:16:24", 900_000)),
        (clock("08:16:25"), clock("08:16:24")),
        (clock("08:16:23", 999_999), clock("08:16:24")),
        (None, clock("08:16:24")),
    ],
)
def test_a_fraction_counts_only_within_the_second_that_kubernetes_reports(
    hint: datetime | None, refined: datetime
) -> None:
    assert refine(clock("08:16:24"), hint) == refined


def test_the_nanoseconds_of_a_container_log_are_read_as_microseconds() -> None:
    assert moment("2026-11-21T08:16:24.123456789Z") == clock("08:16:24", 123_456)
