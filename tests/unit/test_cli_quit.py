"""Commands about pods that hang, wait, do not go, or failed because of their mesh; and of none."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from istio_aux.cli import cluster
from istio_aux.model.names import EVENT_CONTROLLER
from istio_aux.model.sidecars import REMEDY
from sizes import ROOT
from unit.apiserver import ApiServer, proxy_quits
from unit.rules.pods import DATA, LATE, NEW, RUNNING, State, document, exited, while_held
from unit.screens import Ask, Run, Shown, objects, put_pod

# `istio-aux quit`: which pods it frees, which it leaves alone, and what it says of each.

DONE = exited(0)
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
        others: Mapping[str, State] | None = None, requests: Mapping[str, str] = TWO, **more: Any,
    ) -> None:  # fmt: skip
        """Create a pod; ``job`` is the name of its TFJob."""
        owner = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "name": job, "uid": "j"}
        put_pod(
            self, name, {"main": main, **(others or {}), "istio-proxy": RUNNING},
            namespace=namespace, details={"main": {"resources": {"requests": requests}}},
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
def freed(ask: Ask) -> Cluster:
    """It answers while a command runs."""
    return Cluster(ask)


def outcomes(shown: Shown) -> dict[str, str]:
    """The outcome of each pod, by its name."""
    return {each["name"]: each["outcome"] for each in objects(shown)}


async def test_a_pod_that_is_deleted_once_its_proxy_has_exited_is_waited_for(
    freed: Cluster,
) -> None:
    """Its owner deletes it, or Kubernetes: its node takes some time."""
    freed.pod("bare")

    async def delete(socket: web.WebSocketResponse, namespace: str, name: str) -> None:
        body: Any = freed.get("pods", namespace, name)
        now = datetime.now(UTC).isoformat()
        body["metadata"] |= {"deletionTimestamp": now, "deletionGracePeriodSeconds": 30}
        await freed.tell(socket, namespace, name)
        asyncio.get_running_loop().call_later(1.5, freed.remove, "pods", namespace, name)

    freed.on_exec = delete
    shown = await freed.quits("-n", "training", "--yes", "-o", "json")
    assert (shown.status, outcomes(shown)) == (0, {"bare": "freed"})


async def test_free_my_job_shows_what_it_prints(freed: Cluster) -> None:
    """Word by word: change both together. Without --yes nothing changes."""
    console = re.compile(r"^\$ istio-aux quit (.*)\n((?:(?!\$ |```).*\n)+)", re.MULTILINE)
    shown = console.findall((ROOT / "docs/how-to/free-my-job.md").read_text())
    assert len(shown) == 2
    large = {"nvidia.com/gpu": "8", "cpu": "16", "memory": "64Gi"}
    for number, end in enumerate(("07:06:19", "07:06:30")):
        done = exited(0, at=f"2026-11-21T{end}Z")
        freed.pod(f"mnist-{number}", done, "my-profile", job="mnist", requests=large)
    for command, printed in shown:
        assert (await freed.quits(*command.split())).out == printed
        assert bool(freed.told or freed.events) is ("--yes" in command)


async def test_it_frees_what_hangs_in_the_namespace_and_says_what_each_pod_gave_back(
    freed: Cluster,
) -> None:
    """Whatever labels the namespace has, and with rights in it alone; JSON keys are a contract."""
    freed.pod("mnist-0", job="mnist")
    freed.pod("at-work", main=RUNNING)
    late = exited(1, at="2100-01-01T00:00:00Z")
    freed.pod("restarted", main=late, restart="OnFailure")
    freed.pod("service", restart="Always")
    freed.pod("refuses", annotations={"istio-aux.io/quit": "false"})
    freed.pod("elsewhere", namespace="other")
    shown = await freed.quits("-n", "training", "--yes", "-o", "json")
    assert json.loads(shown.out).items() >= {
        "namespace": "training", "name": "mnist-0", "uid": "u-mnist-0", "outcome": "freed",
        "reason": "istio-proxy exited with 0", "requests": {"gpus": 2},
        "owner": "TFJob/mnist", "seconds": 1.0, "state": "stuck", "code": "IA0101",
    }.items()  # fmt: skip
    assert (shown.status, shown.err, freed.told) == (0, "", {"mnist-0"})
    assert [event["reason"] for event in freed.events] == ["ProxyQuit"]
    # Settings of an installation count where the account may read them.
    places = {"/namespaces/training/", "/selfsubjectaccessreviews", "webhookconfigurations"}
    asked = freed.requests
    assert [path for path in asked if not any(each in path for each in places)] == []


async def test_a_pod_that_does_not_end_in_time_is_stuck_with_the_reason(freed: Cluster) -> None:
    """One that waits for its grace period is not told."""
    freed.deaf.add("deaf")
    freed.pod("deaf")
    freed.pod("hears")
    freed.pod("waits", annotations={"istio-aux.io/quit-grace": "1000000000"})
    freed.pod("later", main=exited(0, at="2999-01-01T00:00:00Z"),
                      annotations={"istio-aux.io/quit-grace": "3600"})  # fmt: skip
    shown = await freed.quits("-n", "training", "--yes", "--timeout", "2")
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
    assert (shown.status, freed.told) == (1, {"deaf", "hears"})


async def test_what_an_ignored_container_keeps_is_freed_of_its_proxy_only_by_name(
    freed: Cluster,
) -> None:
    """A dry run promises what the deed does: without its proxy this pod would be worse off."""
    ignoring = ("--sidecars", "logger=ignore", "-o", "json")
    freed.pod("held", others={"logger": RUNNING})
    for named, outcome in ([], "kept"), (["held"], "would-cut-off"):
        shown = await freed.quits("-n", "training", *named, *ignoring)
        reason = json.loads(shown.out)["reason"]
        assert (outcomes(shown), shown.status) == ({"held": outcome}, 0)
        assert reason.startswith("istio-proxy would exit, and logger would keep the pod")
        assert ("; quit pod/held --yes has it exit anyway; " in reason) is not bool(named)
        assert REMEDY in reason
    by_namespace = await freed.quits("-n", "training", "--yes", *ignoring)
    assert (outcomes(by_namespace), freed.told) == ({"held": "kept"}, set())
    by_name = await freed.quits("-n", "training", "held", "--yes", *ignoring)
    assert (outcomes(by_name), by_name.status) == ({"held": "kept"}, 1)
    assert "the pod is kept by logger (running" in json.loads(by_name.out)["reason"]
    assert freed.told == {"held"}


async def test_the_mounter_that_ends_after_all_others_keeps_no_pod(freed: Cluster) -> None:
    """GCS FUSE's mounter waits for the proxy, and the proxy for it (gcs-fuse-csi-driver#1619)."""
    ignoring = ("--sidecars", "gke-gcsfuse-sidecar=ignore", "-o", "json")
    freed.pod("train", others={"gke-gcsfuse-sidecar": RUNNING})
    planned = await freed.quits("-n", "training", *ignoring)
    done = await freed.quits("-n", "training", "--yes", *ignoring)
    assert (outcomes(planned), outcomes(done)) == ({"train": "would-free"}, {"train": "freed"})


async def test_each_named_pod_has_its_answer(freed: Cluster) -> None:
    """And the exit status is 1 while one of them is still there; others are left alone."""
    freed.pod("hangs", namespace="default")
    freed.pod("unnamed", namespace="default")
    freed.pod("at-work", main=RUNNING)
    freed.pod("over", phase="Succeeded")
    shown = await freed.quits("hangs", "training/at-work", "training/over", "--yes", "-o", "json")
    assert outcomes(shown) == {"hangs": "freed", "at-work": "kept", "over": "ended"}
    over = next(json.loads(line) for line in shown.out.splitlines() if '"over"' in line)
    assert (over["reason"], over["requests"]) == ("it had ended before: Succeeded", {})
    assert "not finished: main (running)" in shown.out
    assert (shown.status, shown.err, freed.told) == (1, "", {"hangs"})
    assert (await freed.quits("hangs", "--yes")).status == 0

    missing = await freed.quits("none", "unnamed", "--yes", "-o", "json")
    assert missing.err == 'default/none: 404 NotFound: pods "none" not found\n'
    assert (missing.status, outcomes(missing)) == (1, {"unnamed": "freed"})
    assert (await freed.quits("none"))[:2] == (1, "")


async def test_no_proxy_is_told_while_pods_of_a_namespace_cannot_be_watched(
    freed: Cluster,
) -> None:
    """It would be told to exit, and be said to be stuck."""
    freed.pod("near", namespace="a")
    freed.pod("far", namespace="b")
    freed.refuse("GET /api/v1/namespaces/b/pods", 403, "Forbidden", "not you")
    shown = await freed.quits("a/near", "b/far", "--yes", "-o", "json")
    assert outcomes(shown) == {"near": "stuck", "far": "stuck"}
    assert (shown.status, freed.told) == (1, set())
    assert shown.err.startswith("pods of b: ")


# Commands about pods that failed because of their mesh, are held, or do not go, and about none.

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "backup", "uid": "j", "controller": True}


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


def fail(api: ApiServer, name: str, minutes: float, **fields: Any) -> None:
    """A pod of a Job whose payload succeeded, and whose proxy did not."""
    states = {"main": exited(0, at=ago(minutes + 1)), "istio-proxy": exited(137, at=ago(minutes))}
    put_pod(api, name, states, phase="Failed", about={"ownerReferences": [JOB]}, **fields)


async def test_audit_names_pods_that_failed_in_the_last_hour_and_counts_no_other(
    api: ApiServer, ask: Ask, tmp_path: Path
) -> None:
    """An old failure is over; a pod that runs is named for as long as it does."""
    page = tmp_path / "page.html"
    fail(api, "backup-1", 1)
    fail(api, "backup-2", 59)
    fail(api, "backup-3", 61)
    fail(api, "elsewhere", 1, namespace="other")
    put_pod(api, "own", {"main": exited(1, at=ago(1))}, phase="Failed")
    main: Any = {"running": {"startedAt": ago(90)}}
    ended = {"name": "istio-proxy", "restartCount": 1, "state": RUNNING}
    ended["lastState"] = exited(0, at=ago(61))
    put_pod(api, "script", {"main": main}, sidecars={"istio-proxy": RUNNING},
            status={"initContainerStatuses": [ended]})  # fmt: skip
    shown = await ask(api, "audit", "-n", "training", "--report", str(page), columns=None)
    found = objects(await ask(api, "audit", "-n", "training", "-o", "json"))
    without = await ask(api, "audit", "--ignore", "IA0121", "-n", "training", "-o", "name")
    assert [(it["name"], it["state"], it["code"], it["action"]) for it in found] == [
        ("backup-1", "failed", "IA0121", "ignore"), ("backup-2", "failed", "IA0121", "ignore"),
        ("script", "failed", "IA0123", "ignore"),
    ]  # fmt: skip
    assert found[2]["fix"].startswith("take out what ends it")
    rows = [line.split()[:5] for line in shown.out.splitlines() if line.startswith("training")]
    assert rows == [["training", "job/backup", "2", "failed", "IA0121"],
                    ["training", "pod/script", "1", "failed", "IA0123"]]  # fmt: skip
    assert (
        "pods: 1; stuck: 0, blocked: 0, lost: 0, unstarted: 0, unmeshed: 0, failed: 3" in shown.out
    )
    assert "is kept by" not in shown.out
    assert without.out == "pod/script\n"
    assert "failed because of the mesh" in page.read_text()


async def test_explain_answers_for_a_pod_that_failed_at_any_time(api: ApiServer, ask: Ask) -> None:
    """And prints the podFailurePolicy as a person pastes it."""
    validation = {"name": "istio-validation", "state": exited(126, at=ago(9999))}
    put_pod(
        api, "new-node", {"main": None, "istio-proxy": None}, phase="Failed",
        about={"ownerReferences": [JOB]}, status={"initContainerStatuses": [validation]},
    )  # fmt: skip
    shown = await ask(api, "explain", "training/new-node", columns=None)
    assert "new-node  FAILED  istio-validation exited 126: Istio's CNI" in shown.out
    assert (
        """\
  its next Job may have this in its spec, so that it does not count such a pod:
    podFailurePolicy:
      rules:
      - action: Count
        onExitCodes:
          containerName: main
          operator: In
          values:
          - 126
      - action: Ignore
        onExitCodes:
          operator: In
          values:
          - 126
  IA0120 """
        in shown.out
    )


FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
          "message": "Job has reached the specified backoff limit",
          "lastTransitionTime": "2026-11-28T05:55:00Z"}  # fmt: skip
WHY = (
    "it is Failed since 2026-11-28 05:55Z: BackoffLimitExceeded: Job has reached the specified"
    " backoff limit"
)


def put_event(
    api: ApiServer, pod: str, reason: str, message: str, at: str, *, uid: str = ""
) -> None:
    api.put("events", {
        "metadata": {"name": f"{pod}.{reason}.{at}", "namespace": "training"},
        "involvedObject": {"kind": "Pod", "namespace": "training", "name": pod, "uid": uid},
        "type": "Warning", "reason": reason, "message": message,
        "reportingComponent": EVENT_CONTROLLER, "lastTimestamp": f"2026-11-28T{at}Z",
    })  # fmt: skip


def put_job(api: ApiServer, **fields: Any) -> None:
    api.put("namespaces", {"metadata": {"name": "training"}})
    api.put("jobs", {"metadata": {"name": "backup", "namespace": "training", "uid": "j"}, **fields})


async def test_a_job_whose_pods_are_gone_says_why_and_what_events_say_of_its_pods(
    api: ApiServer,
    ask: Ask,
) -> None:
    """Those of pods with its name alone, and of each reason the last one."""
    of_job = ("-n", "training", "job/backup")
    held = "IA0110: held, not native: its grace period is short"
    put_job(api, status={"conditions": [FAILED]})
    for event in (
        ("backup-x7k2p", "HeldNotNative", held, "05:50:00"),
        ("backup-x7k2p", "BackOff", "an old one", "05:50:00"),
        ("backup-0-abcde", "BackOff", "restarting container\nfetch", "05:51:00"),
        ("backup-all-abcde", "BackOff", "of another Job", "05:52:00"),
        ("backup-x7k2p", "Pulled", "not of interest", "05:52:00"),
    ):
        put_event(api, *event)
    gone = await ask(api, "explain", *of_job, errors=None)
    fail(api, "backup-x7k2p", 1)
    there = await ask(api, "explain", *of_job, columns=None, errors=None)
    assert (gone.status, gone.out) == (1, "")
    assert "job/backup: it is Failed" not in gone.err
    assert gone.err.splitlines()[0] == (
        f"job/backup: no pods in namespace training: {WHY};"
        f" pod backup-x7k2p: HeldNotNative at 05:50:00Z: {held};"
        " pod backup-0-abcde: BackOff at 05:51:00Z: restarting container fetch"
    )
    assert (there.status, there.err.splitlines()[0]) == (0, f"job/backup: {WHY}")
    assert "backup-x7k2p  FAILED" in there.out


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"spec": {"suspend": True}}, ": it is suspended"),
        ({"spec": {"managedBy": "x.org/y"}}, ": x.org/y manages it (managedBy)"),
        ({}, ""),
        ({"status": {"conditions": "none"}}, ""),
    ],
    ids=["suspended", "managed", "new", "unreadable"],
)  # fmt: skip
async def test_a_job_that_has_no_pods_yet_says_why(
    api: ApiServer, ask: Ask, fields: dict[str, Any], says: str
) -> None:
    put_job(api, **fields)
    api.refuse("/events", 403)
    shown = await ask(api, "explain", "-n", "training", "job/backup", errors=None)
    told = shown.err.splitlines()[0]
    assert told.startswith(f"job/backup: no pods in namespace training{says}")
    assert says or told.endswith("training")


# Of files.

FORGOTTEN = document(
    {
        "main": exited(1, at="2026-11-21T08:00:00Z"),
        "istio-proxy": {"running": {"startedAt": "2026-11-21T07:00:00Z"}},
    },
    restart="OnFailure",
)


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ("2026-11-21T08:20:00Z", "IA0113"), ("2026-11-21T08:10:00Z", None),
        ("2099-01-01T00:00:00Z", None), ("2026-99-21T08:20:00Z", None),
    ],
    ids=["late", "not yet", "not over", "no time"],
)  # fmt: skip
def test_a_file_is_judged_as_of_its_newest_time(run: Run, other: str, code: str | None) -> None:
    """kubernetes#137146: a container that the kubelet forgot to start."""
    note = {"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"a": other}}}
    text = "\n".join(map(json.dumps, (FORGOTTEN, note)))
    shown = run("explain", "-f", "-", "-o", "json", columns=None, stdin=text)
    assert objects(shown)[0].get("code") == code


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"initContainers": [{"name": "istio-proxy", "restartPolicy": "Always"}]}, None),
        ({}, "native, as its annotation asks; where Istio makes it classic, hold"),
    ],
    ids=["it has one", "it asks for one"],
)
def test_a_native_sidecar_of_a_file_is_not_said_to_hold(
    run: Run, fields: dict[str, Any], start: str | None
) -> None:
    pod = document(
        {"main": None}, phase=None, annotations={"sidecar.istio.io/nativeSidecar": "true"}
    )
    pod["metadata"].pop("uid")
    pod["spec"] |= fields
    shown = run("explain", "-f", "-", "-o", "json", columns=None, stdin=json.dumps(pod))
    [answer] = objects(shown)
    assert answer["reason"].startswith("istio-proxy is a native sidecar")
    assert answer.get("start") == start


# `audit` and `explain` of pods whose payload is held, and of those whose hold gave up.


ISTIOD = {
    "name": "namespace.sidecar-injector.istio.io",
    "clientConfig": {
        "service": {"namespace": "istio-system", "name": "istiod"},
        "caBundle": "Y",
        "url": None,
    },
    "rules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    ],
}
AWAY = "istio-sidecar-injector: its caBundle holds no certificate that can be read"
WAITS = "the payload waits for istio-proxy since 08:16:29Z, until 08:21:29Z at most"


def held(api: ApiServer, answer: str) -> None:
    async def says(socket: web.WebSocketResponse, *_: str) -> None:
        await socket.send_bytes(f"\x00HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())

    api.on_forward = says
    metadata = {"name": "istio-sidecar-injector", "labels": {"istio.io/rev": "default"}}
    api.put("mutatingwebhookconfigurations", {"metadata": metadata, "webhooks": [ISTIOD]})


@pytest.mark.parametrize(
    ("answer", "word", "says"),
    [
        ("503 Service Unavailable", "UNSTARTED", f"{WAITS}; the proxy is not ready; {AWAY}"),
        ("200 OK", "WAIT", f"{WAITS}; the proxy is ready"),
        ("404 Not Found", "WAIT", f"{WAITS}; not known whether the proxy is ready"),
    ],
)
async def test_a_held_payload_is_a_finding_if_its_proxy_says_that_it_is_not_ready(
    api: ApiServer, ask: Any, answer: str, word: str, says: str
) -> None:
    """Else the kubelet may pull an image: the status is the same."""
    held(api, answer)
    put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **while_held())
    explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    found = objects(await ask(api, "audit", "-o", "json"))
    [named] = objects(await ask(api, "quit", "-n", "training", "pod/job", "-o", "json"))
    assert (named["outcome"], named.get("state"), named["reason"]) == ("kept", "", WAITS)
    assert f"  {word}" in explained.out
    assert says in explained.out
    finding = [(each["state"], each["code"], each["reason"]) for each in found]
    assert finding == ([("unstarted", "IA0119", says)] if word == "UNSTARTED" else [])


async def test_of_many_held_pods_the_first_are_asked_and_nothing_is_said_of_others(
    api: ApiServer,
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "ASKED", 2)
    held(api, "503 Service Unavailable")
    for number in range(3):
        put_pod(api, f"job-{number}", {"istio-proxy": NEW, "main": NEW}, **while_held())
    found = objects(await ask(api, "audit", "-o", "json"))
    assert len(found) == len(api.forwards) == 2


async def test_a_held_pod_that_is_deleted_does_not_need_its_proxy(api: ApiServer, ask: Any) -> None:
    put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **while_held(deleting=True))
    explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    freed = await ask(api, "quit", "-n", "training", "pod/job", columns=None)
    assert "its payload has never started: the hook of istio-proxy keeps it" in explained.out
    assert "may still need" not in explained.out
    assert "would-free" in freed.out


HOOK = 'Exec lifecycle hook ([pilot-agent wait]) for Container "istio-proxy" failed'


@pytest.mark.parametrize("uid", ["u-job", "u-another"])
async def test_of_a_hold_that_gave_up_the_reason_has_what_the_kubelet_says(
    api: ApiServer, ask: Any, uid: str
) -> None:
    """istio#45627: an Event, if the caller may read it. Without it the status alone shows it."""
    put_event(api, "job", "FailedPostStartHook", HOOK, "08:16:29", uid=uid)
    put_pod(api, "job", {"istio-proxy": exited(0), "main": LATE})
    explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    assert "has had no network from the start" in explained.out
    assert (f"FailedPostStartHook: {HOOK}" in explained.out) is (uid == "u-job")


# A pod that is Terminating for a week: what `audit` says of it.


REASON = (
    "the pod is being deleted since 2026-11-21 01:00Z; as the kubelet last said, every container"
    " has ended; the node does not finish"
)


async def test_a_pod_that_is_terminating_for_a_week_is_a_holder_like_any_other(
    api: ApiServer, ask: Ask
) -> None:
    """istio.io#16748."""
    api.put("pods", yaml.safe_load((DATA / "cases/09-terminating-for-a-week.yaml").read_text()))
    table = await ask(api, "audit", columns=None)
    [found] = objects(await ask(api, "audit", "-o", "json"))
    holders = await ask(api, "audit", "--holders", columns=None)
    assert f"2026-11-21 01:00Z  {REASON}\n" in table.out
    assert (found["state"], found["code"], found["reason"]) == ("blocked", "IA0125", REASON)
    assert (found["by"], found["requests"]) == (["node n1"], {"gpus": 8})
    assert holders.out == "1 pod is kept by node n1 since 2026-11-21 01:00Z: 8 GPUs\n"


# What each command says when it finds nothing or may not look: where it looked, what helps.


LOOKING = ("audit", "explain", "quit", "quit --yes", "restart-unmeshed", "restart-unmeshed --yes")
NAMESPACES = "/api/v1/namespaces"


@pytest.mark.parametrize("command", LOOKING)
@pytest.mark.parametrize(
    ("where", "path", "answer"),
    [
        ("-A", "/api/v1/pods", "all namespaces: give -n NAMESPACE"),
        ("-n other", f"{NAMESPACES}/other/pods", "namespace other: give another namespace by -n"),
    ],
)
async def test_a_refusal_is_one_line_that_says_what_to_give_and_is_asked_for_once(
    *, api: ApiServer, ask: Ask, command: str, where: str, path: str, answer: str
) -> None:
    api.refuse(path, 403, "Forbidden", "pods is forbidden: " + 60 * "some ")
    shown = await ask(api, *command.split(), *where.split())
    assert (shown.status, shown.out) == (1, "")
    said = [line for line in shown.err.splitlines() if not line.startswith("no installation")]
    assert said == [f"this account may not list pods in {answer}"]
    assert api.requests.count(f"GET {path}") == 1


async def test_who_cannot_know_which_pods_lack_a_sidecar_is_told_another_way(
    api: ApiServer, ask: Ask
) -> None:
    api.refuse(NAMESPACES, 403, "Forbidden", "no")
    put_pod(api, "one", {"main": RUNNING}, namespace="team")
    shown = await ask(api, "restart-unmeshed", "-n", "team")
    way = (
        "where the pod of a Job has no sidecar, delete the Job and apply it again, "
        "as `kubectl replace --force -f` does"
    )
    assert shown.out == ""
    assert shown.err.startswith("namespaces: no complete list yet: this account may not list names")
    assert shown.err.endswith(f"; {way}\n")


@pytest.mark.parametrize("command", LOOKING)
async def test_a_namespace_that_does_not_exist_is_named(
    api: ApiServer, ask: Ask, command: str
) -> None:
    """The API server lists no pods of it, as of one that is empty."""
    shown = await ask(api, *command.split(), "-n", "resaerch")
    assert (shown.status, shown.out) == (1, "")
    assert "namespace resaerch does not exist\n" in shown.err


EVERYWHERE = "; -A looks at all namespaces"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("audit", "no pod hangs or lacks its sidecar in all namespaces (1 looked at)"),
        ("explain -n empty", f"there is no pod in namespace empty (0 looked at){EVERYWHERE}"),
        ("quit", f"no pod hangs in namespace default (0 looked at){EVERYWHERE}"),
    ],
)
async def test_nothing_found_says_where_it_looked(
    api: ApiServer, ask: Ask, argv: str, said: str
) -> None:
    for name in ("default", "empty"):
        api.put("namespaces", {"metadata": {"name": name}})
    put_pod(api, "one", {"main": RUNNING, "istio-proxy": RUNNING}, namespace="team")
    shown = await ask(api, *argv.split(), columns=None, errors=None)
    assert shown.status == 0
    assert said in (shown.out + shown.err).splitlines()
