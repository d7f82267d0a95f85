"""Commands about pods that failed because of their mesh, are held, or do not go, and about none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from istio_aux.cli import cluster
from istio_aux.model.names import EVENT_CONTROLLER
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, State, document, exited
from unit.rules.test_hold import NEW
from unit.screens import Ask, Run, objects, put_pod
from unit.test_quit_held import fields

JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "backup", "uid": "j", "controller": True}


def ago(minutes: float) -> str:
    return (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()


def fail(api: ApiServer, name: str, minutes: float, **fields: Any) -> None:
    """A pod of a Job whose payload succeeded, and whose proxy did not."""
    states = {"main": exited(0, at=ago(minutes + 1)), "istio-proxy": exited(137, at=ago(minutes))}
    about = {"ownerReferences": [JOB]}
    put_pod(api, name, states, phase="Failed", about=about, **fields)


@pytest.fixture
def api() -> ApiServer:
    """It listens while it is asked."""
    return ApiServer()


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
    put_event(api, "backup-x7k2p", "HeldNotNative", held, "05:50:00")
    put_event(api, "backup-x7k2p", "BackOff", "an old one", "05:50:00")
    put_event(api, "backup-0-abcde", "BackOff", "restarting container\nfetch", "05:51:00")
    put_event(api, "backup-all-abcde", "BackOff", "of another Job", "05:52:00")
    put_event(api, "backup-x7k2p", "Pulled", "not of interest", "05:52:00")
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


SIDECAR = {"name": "istio-proxy", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        ({"initContainers": [SIDECAR]}, None),
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
    put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **fields())
    explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    found = objects(await ask(api, "audit", "-o", "json"))
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
        put_pod(api, f"job-{number}", {"istio-proxy": NEW, "main": NEW}, **fields())
    found = objects(await ask(api, "audit", "-o", "json"))
    assert len(found) == len(api.forwards) == 2


async def test_a_held_pod_that_is_deleted_does_not_need_its_proxy(api: ApiServer, ask: Any) -> None:
    put_pod(api, "job", {"istio-proxy": NEW, "main": NEW}, **fields(deleting=True))
    explained = await ask(api, "explain", "-n", "training", "pod/job", columns=None)
    freed = await ask(api, "quit", "-n", "training", "pod/job", columns=None)
    assert "its payload has never started: the hook of istio-proxy keeps it" in explained.out
    assert "may still need" not in explained.out
    assert "would-free" in freed.out


LATE: State = {"running": {"startedAt": "2026-11-21T08:16:30Z"}}
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


CASE = Path(__file__).parents[1] / "data/cases/09-terminating-for-a-week.yaml"
REASON = (
    "the pod is being deleted since 2026-11-21 01:00Z; as the kubelet last said, every container"
    " has ended; the node does not finish"
)


async def test_a_pod_that_is_terminating_for_a_week_is_a_holder_like_any_other(
    api: ApiServer, ask: Ask
) -> None:
    """istio.io#16748."""
    api.put("pods", yaml.safe_load(CASE.read_text()))
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
