"""`istio-aux quit`: which pods it frees, which it leaves alone, and what it says of each."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.sidecars import REMEDY
from unit.apiserver import ApiServer, proxy_quits
from unit.rules.pods import RUNNING, State, exited
from unit.screens import Ask, Shown, objects, put_pod

DONE = exited(0)
PAGE = Path(__file__).parents[2] / "docs/how-to/free-my-job.md"
NONE: Mapping[str, State] = {}
TWO = {"nvidia.com/gpu": "2"}
LATER = "2026-11-21T08:16:30Z"


class Cluster(ApiServer):
    """A cluster in which every proxy exits when it is told to, but those of ``deaf`` pods."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask, self.deaf = ask, set[str]()
        self.on_exec = self.tell

    async def quits(self, *argv: str) -> Shown:
        """What the command says."""
        return await self._ask(self, "quit", *argv, columns=None, errors=None)

    def pod(
        self, name: str, main: State = DONE, namespace: str = "training", *, job: str = "",
        others: Mapping[str, State] = NONE, requests: Mapping[str, str] = TWO, **more: Any,
    ) -> None:  # fmt: skip
        """Create a pod; ``job`` is the name of its TFJob."""
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": job, "uid": "j"}
        put_pod(
            self, name, {"main": main, **others, "istio-proxy": RUNNING}, namespace=namespace,
            details={"main": {"resources": {"requests": requests}}},
            about={"ownerReferences": [{**owner, "controller": True}] if job else []}, **more,
        )  # fmt: skip

    async def tell(self, socket: web.WebSocketResponse, namespace: str, name: str) -> None:
        """Answer an exec."""
        await proxy_quits(socket, namespace, name)
        if name in self.deaf:
            return
        body: Any = deepcopy(self.get("pods", namespace, name))
        statuses = {each["name"]: each for each in body["status"]["containerStatuses"]}
        statuses["istio-proxy"]["state"] = exited(0, at=LATER)
        mounter = statuses.get("gke-gcsfuse-sidecar")
        if mounter and all("terminated" in s["state"] for s in statuses.values() if s != mounter):
            mounter["state"] = exited(0, at=LATER)
        if all("terminated" in each["state"] for each in statuses.values()):
            body["status"]["phase"] = "Succeeded"
        self.put("pods", body)

    @property
    def told(self) -> set[str]:
        """The pods whose proxy was told to exit."""
        return {pod for _, pod, _, _ in self.execs}


@pytest.fixture
def cluster(ask: Ask) -> Cluster:
    """It answers while a command runs."""
    return Cluster(ask)


def outcomes(shown: Shown) -> dict[str, str]:
    """The outcome of each pod, by its name."""
    return {each["name"]: each["outcome"] for each in objects(shown)}


async def test_a_pod_that_is_deleted_once_its_proxy_has_exited_is_waited_for(
    cluster: Cluster,
) -> None:
    """Its owner deletes it, or Kubernetes: its node takes some time."""
    cluster.pod("bare")

    async def delete(socket: web.WebSocketResponse, namespace: str, name: str) -> None:
        body: Any = cluster.get("pods", namespace, name)
        now = datetime.now(UTC).isoformat()
        body["metadata"] |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 30}
        await cluster.tell(socket, namespace, name)
        asyncio.get_running_loop().call_later(1.5, cluster.remove, "pods", namespace, name)

    cluster.on_exec = delete
    shown = await cluster.quits("-n", "training", "--yes", "-o", "json")
    assert (shown.status, outcomes(shown)) == (0, {"bare": "freed"})


async def test_free_my_job_shows_what_it_prints(cluster: Cluster) -> None:
    """Word by word: change both together. Without --yes nothing changes."""
    console = re.compile(r"^\$ istio-aux quit (.*)\n((?:(?!\$ |```).*\n)+)", re.MULTILINE)
    shown = console.findall(PAGE.read_text())
    assert len(shown) == 2
    large = {"nvidia.com/gpu": "8", "cpu": "16", "memory": "64Gi"}
    for number, end in enumerate(("07:06:19", "07:06:30")):
        done = exited(0, at=f"2026-11-21T{end}Z")
        cluster.pod(f"mnist-{number}", done, "my-profile", job="mnist", requests=large)
    for command, printed in shown:
        assert (await cluster.quits(*command.split())).out == printed
        assert bool(cluster.told or cluster.events) is ("--yes" in command)


async def test_it_frees_what_hangs_in_the_namespace_and_says_what_each_pod_gave_back(
    cluster: Cluster,
) -> None:
    """Whatever labels the namespace has, and with rights in it alone; JSON keys are a contract."""
    cluster.pod("mnist-0", job="mnist")
    cluster.pod("at-work", main=RUNNING)
    late = exited(1, at="2100-01-01T00:00:00Z")
    cluster.pod("restarted", main=late, restart="OnFailure")
    cluster.pod("service", restart="Always")
    cluster.pod("refuses", annotations={"istio-aux.io/quit": "false"})
    cluster.pod("elsewhere", namespace="other")
    shown = await cluster.quits("-n", "training", "--yes", "-o", "json")
    assert json.loads(shown.out).items() >= {
        "namespace": "training", "name": "mnist-0", "uid": "u-mnist-0", "outcome": "freed",
        "reason": "istio-proxy exited with 0", "requests": {"gpus": 2},
        "owner": "TFJob/mnist", "seconds": 1.0, "state": "stuck", "code": "IA0101",
    }.items()  # fmt: skip
    assert (shown.status, shown.err, cluster.told) == (0, "", {"mnist-0"})
    assert [event["reason"] for event in cluster.events] == ["ProxyQuit"]
    # Settings of an installation count where the account may read them.
    places = {"/namespaces/training/", "/selfsubjectaccessreviews", "webhookconfigurations"}
    asked = cluster.requests
    assert [path for path in asked if not any(each in path for each in places)] == []


async def test_a_pod_that_does_not_end_in_time_is_stuck_with_the_reason(cluster: Cluster) -> None:
    """One that waits for its grace period is not told."""
    cluster.deaf.add("deaf")
    cluster.pod("deaf")
    cluster.pod("hears")
    cluster.pod("waits", annotations={"istio-aux.io/quit-grace": "1000000000"})
    cluster.pod("later", main=exited(0, at="2999-01-01T00:00:00Z"),
                      annotations={"istio-aux.io/quit-grace": "3600"})  # fmt: skip
    shown = await cluster.quits("-n", "training", "--yes", "--timeout", "2")
    rows = [line.split(maxsplit=6) for line in shown.out.splitlines()[1:5]]
    assert [(row[1], row[3]) for row in rows] == [
        ("pod/deaf", "stuck"), ("pod/hears", "freed"), ("pod/later", "stuck"),
        ("pod/waits", "kept"),
    ]  # fmt: skip
    assert "the grace period ends at" in rows[2][-1]
    assert "istio-aux.io/quit-grace" in rows[3][-1]
    counted, next_time = shown.out.splitlines()[-2:]
    assert counted == "freed: 1 (2 GPUs), stuck: 2, kept: 1"
    assert next_time.endswith("/docs/how-to/free-my-job.md#and-next-time")
    assert (shown.status, cluster.told) == (1, {"deaf", "hears"})


async def test_what_an_ignored_container_keeps_is_freed_of_its_proxy_only_by_name(
    cluster: Cluster,
) -> None:
    """A dry run promises what the deed does: without its proxy this pod would be worse off."""
    ignoring = ("--sidecars", "logger=ignore", "-o", "json")
    cluster.pod("held", others={"logger": RUNNING})
    for named, outcome in ([], "kept"), (["held"], "would-cut-off"):
        shown = await cluster.quits("-n", "training", *named, *ignoring)
        reason = json.loads(shown.out)["reason"]
        assert (outcomes(shown), shown.status) == ({"held": outcome}, 0)
        assert reason.startswith("istio-proxy would exit, and logger would keep the pod")
        assert ("; quit pod/held does that; " in reason) is not bool(named)
        assert REMEDY in reason
    by_namespace = await cluster.quits("-n", "training", "--yes", *ignoring)
    assert (outcomes(by_namespace), cluster.told) == ({"held": "kept"}, set())
    by_name = await cluster.quits("-n", "training", "held", "--yes", *ignoring)
    assert (outcomes(by_name), by_name.status) == ({"held": "kept"}, 1)
    assert "the pod is kept by logger (running" in json.loads(by_name.out)["reason"]
    assert cluster.told == {"held"}


async def test_the_mounter_that_ends_after_all_others_keeps_no_pod(cluster: Cluster) -> None:
    """GCS FUSE's mounter waits for the proxy, and the proxy for it (gcs-fuse-csi-driver#1619)."""
    ignoring = ("--sidecars", "gke-gcsfuse-sidecar=ignore", "-o", "json")
    cluster.pod("train", others={"gke-gcsfuse-sidecar": RUNNING})
    planned = await cluster.quits("-n", "training", *ignoring)
    done = await cluster.quits("-n", "training", "--yes", *ignoring)
    assert (outcomes(planned), outcomes(done)) == ({"train": "would-free"}, {"train": "freed"})


async def test_each_named_pod_has_its_answer(cluster: Cluster) -> None:
    """And the exit status is 1 while one of them is still there; others are left alone."""
    cluster.pod("hangs", namespace="default")
    cluster.pod("unnamed", namespace="default")
    cluster.pod("at-work", main=RUNNING)
    cluster.pod("over", phase="Succeeded")
    shown = await cluster.quits("hangs", "training/at-work", "training/over", "--yes", "-o", "json")
    assert outcomes(shown) == {"hangs": "freed", "at-work": "kept", "over": "ended"}
    over = next(json.loads(line) for line in shown.out.splitlines() if '"over"' in line)
    assert (over["reason"], over["requests"]) == ("it had ended before: Succeeded", {})
    assert "not finished: main (running)" in shown.out
    assert (shown.status, shown.err, cluster.told) == (1, "", {"hangs"})
    assert (await cluster.quits("hangs", "--yes")).status == 0

    missing = await cluster.quits("none", "unnamed", "--yes", "-o", "json")
    assert missing.err == 'default/none: 404 NotFound: pods "none" not found\n'
    assert (missing.status, outcomes(missing)) == (1, {"unnamed": "freed"})
    assert (await cluster.quits("none"))[:2] == (1, "")


async def test_no_proxy_is_told_while_pods_of_a_namespace_cannot_be_watched(
    cluster: Cluster,
) -> None:
    """It would be told to exit, and be said to be stuck."""
    cluster.pod("near", namespace="a")
    cluster.pod("far", namespace="b")
    cluster.refuse("GET /api/v1/namespaces/b/pods", 403, "Forbidden", "not you")
    shown = await cluster.quits("a/near", "b/far", "--yes", "-o", "json")
    assert outcomes(shown) == {"near": "stuck", "far": "stuck"}
    assert (shown.status, cluster.told) == (1, set())
    assert shown.err.startswith("pods of b: ")
