"""`serve` and the commands judge alike: each pod, whatever the options of an installation are.

The commands read a cluster by the settings in the annotation of our webhook configuration. Then the
controllers of `serve` run with these settings until nothing is left to do, and it is compared what
became of each pod.

Of every pod that tests have, it is compared what each way to ask says, now and an hour later. There
the tasks of `serve` are taken by hand, so that all of them go by one clock.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from istio_aux.cli import once
from istio_aux.cli.workloads import ClusterRequest
from istio_aux.injector.capture import read_config
from istio_aux.injector.watcher import survey
from istio_aux.kube.client import Client
from istio_aux.model import kubelet, pod as pods, webhooks
from istio_aux.model.annotations import DATAPLANE, REDIRECTION
from istio_aux.model.documents import Document, read, run_now
from istio_aux.model.found import SERVED, Found
from istio_aux.model.names import LOCAL_SETTINGS
from istio_aux.model.policy import QuitLimits, QuitPolicy
from istio_aux.quit import attempt as tasks, facts, rules
from istio_aux.quit.attempt import Due, PodState
from istio_aux.settings import OPTIONS, read_published
from istio_aux.wiring import Wiring
from lab.nightly import NIGHT, NIGHTLY
from msgspec.structs import replace
from oracle.pods import pod as oracles
from unit.apiserver import Exec, agent_quits, proxy_quits
from unit.process import background, until
from unit.rules.pods import ENABLED, INJECT, REPLICAS, RUNNING, STATEFUL, agent, cni, exited, moment
from unit.screens import Ask, install, objects, put_pod
from unit.test_cli_audit import Istio

SELECTED = {**ENABLED, "io.datastrophic/istio-aux": "enabled"}
PROFILE = {**ENABLED, "app.kubernetes.io/part-of": "kubeflow-profile"}
NAMESPACES = {
    "team": {**SELECTED, "tier": "gold"},
    "plain": ENABLED,
    "profile": PROFILE,
    "disabled": {**PROFILE, "io.datastrophic/istio-aux": "disabled"},
    "ambient": {"io.datastrophic/istio-aux": "enabled", "istio.io/dataplane-mode": "ambient"},
}
DONE, NOW = exited(0), exited(0, at=datetime.now(UTC).isoformat())
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "r", "controller": True}

# Fields of documents by name. All are in the first namespace, and `EVERYWHERE` in each.
PODS: dict[str, dict[str, Any]] = {
    "stuck": {},
    "labelled": {"labels": {"team": "a"}},
    "fresh": {"containers": {"main": NOW, "istio-proxy": RUNNING}},
    "works": {"containers": {"main": RUNNING, "istio-proxy": RUNNING}},
    "beside-vault": {"containers": {"main": DONE, "vault-agent": RUNNING, "istio-proxy": RUNNING}},
    "native": {"containers": {"main": DONE}, "sidecars": {"istio-proxy": RUNNING}},
    "lost": {"containers": {"main": RUNNING, "istio-proxy": exited(1)}, "owner": OWNER},
    "opted-out": {"annotations": {"istio-aux.io/quit": "false"}},
    "own-grace": {"containers": {"main": NOW, "istio-proxy": RUNNING},
                  "annotations": {"istio-aux.io/quit-grace": "3600"}},
    "bad-grace": {"annotations": {"istio-aux.io/quit-grace": "soon"}},
    "web": {"labels": {"app.kubernetes.io/name": "web"}},
    "pending": {"phase": "Pending"},
    "unmeshed": {"containers": {"main": RUNNING}, "restart": "Always"},
    "done-unmeshed": {"containers": {"main": DONE}, "owner": JOB},
    "refuses": {"containers": {"main": RUNNING}, "restart": "Always", "labels": {"step": "x"},
                "annotations": {"sidecar.istio.io/inject": "false"}},
    "ours": {"containers": {"main": RUNNING}, "restart": "Always",
             "labels": {"app.kubernetes.io/name": "istio-aux"}},
}  # fmt: skip

EVERYWHERE = ("stuck", "labelled", "web", "unmeshed", "refuses")

CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespace-selectors": {"namespace-selectors": "tier=gold"},
    "all namespaces": {"namespace-selectors": ""},
    "pod-selector": {"pod-selector": "team in (a,b)"},
    "inject-selector": {"inject-selector": "step"},
    "applications": {"applications": "plain/web\nprofile/**\n", "pod-selector": "team=a"},
    "sidecars": {"sidecars": "vault-agent=ignore"},
    "sidecars first": {"sidecars": "vault-agent=9090/quit"},
    "quit: dry-run": {"quit": "dry-run", "dead-proxy": "delete"},
    "quit: disabled": {"quit": "disabled"},
    "quit-grace": {"quit-grace": 600},
    "dead-proxy": {"dead-proxy": "delete"},
    "race-policy: none": {"race-policy": "none"},
    "race-policy": {"race-policy": "restart"},
    "application": {"application": "team/istio-aux"},
    "start-mode": {"start-mode": "none"},
    "peers": {"peers": "direct"},
    "root-namespace": {"root-namespace": "istio-system"},
    "names": {"lease": "kubeflow/istio-aux", "webhook-configuration": "istio-aux"},
}


def test_the_table_has_every_option_that_an_installation_shows() -> None:
    assert {name for case in CASES.values() for name in case} == {*OPTIONS} - LOCAL_SETTINGS


Judged = dict[str, str]


def pods_of(namespace: str) -> dict[str, dict[str, Any]]:
    return PODS if namespace == "team" else {name: PODS[name] for name in EVERYWHERE}


def fill(api: Istio, told: dict[str, Any]) -> None:
    """Namespaces with their pods, and an installation."""
    install(api, told)
    job = {"name": JOB["name"], "namespace": "team", "uid": JOB["uid"]}
    api.put("jobs", {"metadata": job, "spec": {"backoffLimit": 6}})
    for namespace, labels in NAMESPACES.items():
        api.put("namespaces", {"metadata": {"name": namespace, "labels": labels}})
        for name, given in pods_of(namespace).items():
            fields = {"containers": {"main": DONE, "istio-proxy": RUNNING}, **given}
            owners, states = fields.pop("owner", None), fields.pop("containers")
            about = {"uid": f"{namespace}-{name}", "ownerReferences": [owners] if owners else []}
            put_pod(api, name, states, namespace=namespace, about=about, **fields)


def ending(api: Istio, answer: Exec) -> Exec:
    """A proxy, or another sidecar, that exits when it is told to."""

    async def end(socket: web.WebSocketResponse, namespace: str, name: str) -> None:
        await answer(socket, namespace, name)
        body: Any = api.get("pods", namespace, name)
        for each in body["status"]["containerStatuses"]:
            each["state"] = exited(0)
        api.put("pods", {**body, "status": {**body["status"], "phase": "Succeeded"}})

    return end


async def served(api: Istio, told: dict[str, Any], folder: Path) -> tuple[Judged, set[str]]:
    """What the controllers do about pods, and which pods they find without a sidecar."""
    asking = folder / "asking"
    asking.write_text(told.get("applications", ""))
    limits = QuitLimits(lost_after=0.1, blocked_after=0.1, confirm=0.2, confirm_failed=0.1)
    settings, _ = read_published(json.dumps(told))
    settings = replace(settings, applications=asking, lease=None, quit_limits=limits)
    api.on_exec, api.on_forward = ending(api, proxy_quits), ending(api, agent_quits)
    async with AsyncExitStack() as stack:
        wired = Wiring(settings, api.access())
        wired.listening = True
        await stack.enter_async_context(wired.client)
        for work in wired.work().values():
            await stack.enter_async_context(background(work()))
        await until(lambda: is_settled(wired), "nothing is left to do", within=60)
        found = {(f"{pod.namespace}/{pod.name}", pod.state) for pod in run_now(wired.pods())[0]}
        would = {
            f"{pod.namespace}/{pod.name}"
            for pod in run_now(wired._quit.survey())
            if pod.state == "would quit"
        }
        await wired.hand_over(0)
    judged = {name: state for name, state in found if state != "unmeshed"}
    judged |= dict.fromkeys(would, "would quit")
    judged |= {f"{at}/{name}": "quit" for at, name, *_ in (*api.execs, *api.forwards)}
    for request in api.requests:
        if request.startswith("DELETE"):
            *_, namespace, _pods, name = request.split("/")
            judged[f"{namespace}/{name}"] = "deleted"
        if request.startswith("PATCH") or request.endswith("/eviction"):
            judged[request] = "restarted"
    return judged, {name for name, state in found if state == "unmeshed"}


def is_settled(wired: Wiring) -> bool:
    """Whether all is known, and nothing runs but grace periods."""
    quits = {name for task in asyncio.all_tasks() if (name := task.get_name())[:5] == "quit "}
    busy = {name for name in quits if name.rpartition("/")[2] not in {"fresh", "own-grace"}}
    known = wired.readiness()[0] and wired._injectors.control_planes.known
    return bool(known and wired._repair.finished and not busy)


def as_served(found: dict[str, Any]) -> str:
    """What `serve` calls that which a command says is done; empty: nothing."""
    reason = found["reason"]
    if found["action"] == "quit" or "the pod is deleted" in reason:
        return "quit" if found["action"] == "quit" else "deleted"
    if found["action"] == "report":
        return "would quit" if "is not told to exit" in reason else "lost"
    return ""


@pytest.mark.parametrize("case", CASES)
async def test_serve_does_what_explain_and_audit_say(case: str, ask: Ask, tmp_path: Path) -> None:
    api = Istio()
    fill(api, told := CASES[case])
    if "restart" in told.get("race-policy", ""):
        api.lead()  # Where no injector is live, nothing is restarted.
    names = [f"{namespace}/{name}" for namespace in NAMESPACES for name in pods_of(namespace)]
    explained = objects(await ask(api, "explain", *names, "-o", "json"))
    audited = objects(await ask(api, "audit", "-o", "json"))
    async with api:
        judged, unmeshed = await served(api, told, tmp_path)

    said = {f"{pod['namespace']}/{pod['name']}": as_served(pod) for pod in explained}
    blocked = {
        f"{pod['namespace']}/{pod['name']}": "blocked"
        for pod in audited if pod["state"] == "blocked" and not pod["left_out"]
    }  # fmt: skip
    assert {name: what for name, what in said.items() if what} | blocked == judged
    assert unmeshed == {
        f"{pod['namespace']}/{pod['name']}" for pod in audited if pod["state"] == "unmeshed"
    }
    assert {pod["installation"] for pod in explained} == {told.get("lease", "istio-aux-here")}


TESTS = Path(__file__).parents[1]
FIRST, GENERATED = (NIGHT << 12, 4_000) if NIGHTLY else (0, 2_000)
BEGIN = datetime(2026, 11, 21, 8, 16, 45, tzinfo=UTC)  # Right after most pods changed.
NOTHING: dict[str, Any] = {"reason": "", "left_out": ""}


OWNERS = (
    ("batch/v1", "Job"),
    REPLICAS,
    STATEFUL,
    ("example.com/v1", "Other"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("kubeflow.org/v2", "PyTorchJob"),
)


def generated(number: int) -> pods.Pod:
    """One of the oracle's pods, mostly without a proxy, with what repair reads beside it."""
    random, document = Random(number), oracles(1, number)
    metadata, spec, status = document["metadata"], document["spec"], document["status"]
    if random.random() < 0.95:
        for containers in ("containers", "initContainers"):
            spec[containers] = [it for it in spec[containers] if it["name"] != "istio-proxy"]
    spec["hostNetwork"] = random.random() < 0.05
    status["conditions"][0]["status"] = random.choice(["True", "False"])
    injection = random.choice([{}, {}, {INJECT: "true"}, {INJECT: "false"}, {INJECT: "maybe"}])
    marks = ["sidecar.istio.io/status", "kubernetes.io/config.mirror"]
    mark = {random.choice(marks): ""} if random.random() < 0.05 else {}
    captured = random.choice([{}, {REDIRECTION: "enabled"}, {REDIRECTION: "pending"}])
    status |= {"podIP": random.choice(["", "10.0.0.7"]), "startTime": "2026-11-21T08:16:26Z"}
    network = {"type": "PodReadyToStartContainers", "status": "True"}
    network["lastTransitionTime"] = f"2026-11-21T{random.choice([8, 9]):02}:16:30Z"
    status["conditions"].append(network)
    name = random.choice(["web", "db", "istio-aux"])
    owners = [
        {"apiVersion": api, "kind": kind, "name": "web", "uid": f"{kind}-1", "controller": True}
        for api, kind in random.sample(OWNERS, random.choice([0, 1, 1, 1, 1, 2]))
    ]
    document["metadata"] = {
        **metadata, "name": f"web-{number}",
        "namespace": random.choice(["shop", "kubeflow", "team"]),
        "resourceVersion": "41", "creationTimestamp": "2026-11-21T08:16:26Z",
        "ownerReferences": owners, "annotations": {**injection, **mark, **captured},
        "labels": {
            "app.kubernetes.io/name": name,
            **random.choice([{}, {}, {}, {INJECT: "true"}, {DATAPLANE: "ambient"}]),
        },
    }  # fmt: skip
    return pods.convert(document)


def pods_in(value: Any) -> Iterator[dict[str, Any]]:
    """The pods of a module's tables, or of a document, as JSON."""
    match value:
        case pods.Pod():
            yield msgspec.json.decode(msgspec.json.encode(value))
        case {"metadata": _, "spec": {"containers": _}, "status": {"phase": _}}:
            yield value
        case object(pytestmark=[*marks]):  # A test with a table.
            yield from pods_in([mark.args for mark in marks])
        case dict() | list() | tuple():
            for each in cast("Any", value.values() if isinstance(value, dict) else value):
                yield from pods_in(each)


def every_pod() -> Iterator[dict[str, Any]]:
    """The pods of the rules' tables, of the recordings and of the generators, in all namespaces."""
    files = [*TESTS.glob("data/**/*.json*"), *TESTS.glob("data/**/*.yaml")]
    every = [
        *(
            vars(import_module(f"unit.rules.{it.stem}"))
            for it in TESTS.glob("unit/rules/test_*.py")
        ),
        *(
            json.loads(it.body)
            for file in files
            for it in read(file.read_bytes())
            if isinstance(it, Document)
        ),
        *(generated(n) if n % 2 else oracles(1, n) for n in range(FIRST, FIRST + GENERATED)),
    ]
    for number, pod in enumerate(pods_in(every)):
        yield {
            **pod, "spec": {**pod["spec"], "nodeName": "node-1"}, "metadata": {
                "creationTimestamp": "2026-11-21T08:16:20Z", **pod["metadata"],
                "name": f"pod-{number}", "uid": f"u-{number}",
                "namespace": [*NAMESPACES][number % len(NAMESPACES)],
            },
        }  # fmt: skip


def of_plain(found: dict[str, Any]) -> dict[str, Any]:
    """One of Istio's CNI, in a namespace that is not selected."""
    found["metadata"] |= {"namespace": "plain"}
    return found


def act(wired: Wiring, state: PodState, due: Due, pod: pods.Pod) -> None:
    """What is done about a pod whose agent refuses, and is ready unless its pod is deleted."""
    scope, recorder, now = wired._scope, wired._quit._recorder, wired._quit._clock()
    state.task = task = tasks.Task(state, due)
    action = task.awake(scope, now)
    if isinstance(action, tasks.Look):
        action = task.looked(facts.PodFacts(pod, scope.policy), scope, now)
    if isinstance(action, tasks.Ask):
        action = task.asked(due == "held", scope)
    if isinstance(action, tasks.End) and action.outcome:
        recorder.ended(state, task, action)
    for _ in range(tasks.STUCK_AFTER if isinstance(action, tasks.Send) else 0):
        task.failed("refused", scope)
        recorder.failed(state, task, counts=True)


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the other has the same finding, and its reason is that of the one, or has more."""
    reason = one["reason"].removeprefix(rules.FINISHED)
    whole, *cut = other["reason"].split("...")  # What `serve` keeps of a reason has a bound.
    return (
        one.get("state") == other.get("state")
        and one.get("code") == other.get("code")
        and (reason in whole or (bool(cut) and reason.startswith(whole)))
    )


def agreeing(
    finding: dict[str, Any],
    explained: dict[str, Any],
    verdict: dict[str, Any],
    shown: dict[str, Any],
    notes: dict[str, str],
    *,
    lasts: bool,
    told: bool,
) -> dict[str, bool]:
    """Who says the same of a pod as `audit`; ``lasts``: what may pass has not passed."""
    state, hangs = finding.get("state"), finding.get("action") != "report"
    listed = state in SERVED and not finding["left_out"] and (hangs or state != "stuck")
    return {
        # Lists have the pods that failed in the last hour.
        "explain": alike(finding, explained)
        or (lasts and not state and explained["state"] == "failed"),
        "quit": "the grace period" in verdict["reason"]
        or (verdict["outcome"] == "would-free") == (state == "stuck" and not finding["by"]),
        "its reason": state not in {"blocked", "lost", "unstarted"}
        or finding["reason"].startswith(verdict["reason"]),
        # What may pass is not listed at first: `serve` has not seen it for long.
        "/pods": alike(finding if listed else NOTHING, shown)
        or (state in {"blocked", "unstarted"} and not (lasts or shown["reason"])),
        "codes of Events": notes.keys() <= {*explained.get("codes", ()), "ProxyQuitDryRun"},
        "Event": not (listed and told)
        or (state == "stuck" and finding["code"] in notes)
        or shown["reason"] in notes.get(finding["code"], ""),
    }


def by_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["namespace"], each["name"]): each for each in found}


async def disagreements(
    case: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[object, ...]]:
    """Who says something else than `audit`, of which pod, and after how many seconds."""
    settings, asked = read_published(json.dumps(CASES[case]))
    quiet = not {"restart", "delete"} & {*map(str, CASES[case].values())}
    notes = defaultdict[tuple[str, str], dict[str, str]](dict)
    bad = list[tuple[object, ...]]()

    def emit(about: Any, _: str, *, reason: str, note: str, code: str = "", **_more: Any) -> None:
        notes[about.namespace, about.name][code or reason] = note

    api = Istio()
    fill(api, CASES[case])
    api.put(
        "nodes",
        {
            "metadata": {"name": "node-1"},
            "status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}},
        },
    )
    api.put("configmaps", of_plain(cni()))
    for body in (of_plain(agent()), *every_pod()):
        api.put("pods", body)
    known = {pod.metadata.key: pod for pod in (pods.convert(it.object) for it in api.list("pods"))}
    async with api:
        # By a Lease that it does not hold: nothing begins by itself.
        wired = Wiring(
            replace(settings, lease=settings.lease or ("team", "lease")),
            api.access(),
            clock=lambda: now,
        )
        monkeypatch.setattr(wired._events, "emit", emit)
        for name, labels in NAMESPACES.items():
            wired._mesh_watch.namespaces.apply(
                webhooks.Namespace(metadata=pods.Metadata(name=name, labels=labels))
            )
        async with wired.client:
            wired._control_planes_changed((await survey(wired.client))[0])
    wired._ask(asked)
    wired._repair.store.cni.configure({"plain": read_config(cni()["data"])})
    wired._repair.lead(True)
    wired._quit._recorder.leading, wired._quit._kubelets["node-1"] = True, kubelet.OBEYS
    monkeypatch.setattr("istio_aux.kube.clock.time", SimpleNamespace(time=lambda: now.wall))
    for after in (0, 3630):  # A network that is made in that hour is `SETTLED` then.
        for seconds in (0.8 * after, after):  # So what begins in that hour lasts for a while.
            now = moment(BEGIN, seconds)
            wired._scope.leading = False
            for pod in known.values():
                if pod.status.phase not in {"Succeeded", "Failed"}:
                    wired._quit.apply(pod)
                    wired._repair.store.apply(pod)
            await wired._repair.store.catch_up()
            wired._scope.leading = True
            for key, state in wired._quit.known.items():
                if due := state.due(wired._scope):
                    act(wired, state, due, known[key])
        served = by_name([msgspec.to_builtins(each) for each in run_now(wired.pods())[0]])
        explained, audited, quits, checked = [
            objects(await ask(api, *words, "-o", "json"))
            for words in (["explain", "-A"], ["audit"], ["quit", "-A", "pods"], ["check"])
        ]
        found, verdicts = by_name(audited), by_name(quits)
        bad += (
            (after, key, door)
            for key, pod in by_name(explained).items()
            if key[1] not in {"fresh", "own-grace"}  # Their payloads end while this runs.
            for door, agrees in agreeing(
                found.get(key, NOTHING), pod, verdicts[key], served.get(key, NOTHING),
                notes[key], lasts=bool(after), told=bool(after) and quiet,
            ).items()
            if not agrees
        )  # fmt: skip
        counted = {
            int(count)
            for count, _, of in (it["what"].partition(" ") for it in checked)
            if of.startswith(("are outside their mesh", "are finished, and"))
        }
        codes = Counter(it["code"] for it in audited if not it["left_out"])
        unmeshed = sum(codes[code] for code in ("IA0105", "IA0106", "IA0126"))
        wrong = counted ^ {codes["IA0101"], unmeshed} - {0}
        bad += ((after, number, "check") for number in wrong)
    return bad


@pytest.mark.parametrize("case", CASES if NIGHTLY else ["defaults"])
async def test_all_say_the_same_of_a_pod_now_and_an_hour_later(
    case: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await disagreements(case, ask, monkeypatch) == []


def altered(change: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A function that changes what another one returns."""
    return lambda given: lambda *args, **more: change(given(*args, **more))


def uncoded(found: Found | None) -> Found | None:
    return found and replace(found, code="IA0101")


# Faults of one way to ask alone: what is replaced, by what, and who then disagrees with `audit`.
FAULTS: dict[str, tuple[str, Callable[[Any], Any], set[str]]] = {
    "explain knows no pod that failed": (
        "cli.report.judge",
        altered(lambda found: [it for it in found if it.state != "failed"]),
        {"explain"},
    ),
    "audit lists no lost pod": (
        "cli.cluster.judge",
        altered(lambda found: [it for it in found if it.state != "lost"]),
        {"explain", "/pods"},
    ),
    "quit asks again without a clock": (
        "cli.once.decide_once",
        lambda decide: lambda facts, _now: decide(facts, None),
        {"quit", "its reason"},
    ),
    "/pods has one code": ("quit.attempt.PodState.trouble", altered(uncoded), {"/pods"}),
    "Events have one code": (
        "quit.recorder.QuitRecorder._event_once",
        lambda send: (
            lambda self, state, kind, reason, note, _code=None: send(
                self, state, kind, reason, note, "IA0101"
            )
        ),
        {"Event", "codes of Events"},
    ),
    "check counts no pod that is finished": (
        "judge.preflight.change",
        altered(lambda what: what if what and "finished" not in what else None),
        {"check"},
    ),
}


@pytest.mark.nightly("the same property without a fault")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_of_one_way_to_ask_is_noticed(
    fault: str, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, change, who = FAULTS[fault]
    target = f"istio_aux.{place}"
    monkeypatch.setattr(target, change(resolve_name(target)))
    assert {doors for *_, doors in await disagreements("defaults", ask, monkeypatch)} & who


@pytest.mark.parametrize("targets", [(), ("tfjob/mnist",)], ids=["all", "named"])
async def test_a_dry_run_of_quit_promises_what_the_deed_does(targets: tuple[str, ...]) -> None:
    async with Istio() as api, Client(api.access()) as client:
        promised, done = (
            once._FreeRun(client, ClusterRequest(targets=targets, dry_run=dry), QuitPolicy())
            for dry in (True, False)
        )
        for body in every_pod():
            for run in (promised, done):
                run.consider(pods.convert(body), kubelet.OBEYS)
    would = {key for key, it in promised.verdicts.items() if it.outcome.startswith("would")}
    assert would == done._hung
    assert would
