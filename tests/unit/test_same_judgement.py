"""`serve` and the commands judge alike: each pod, whatever the options of an installation are.

The commands read a cluster by the settings in the annotation of our webhook configuration. Then the
controllers of `serve` run with these settings until nothing is left to do, and it is compared what
became of each pod.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.model.documents import whole
from istio_aux.model.names import LOCAL_SETTINGS
from istio_aux.model.policy import QuitLimits
from istio_aux.settings import OPTIONS, read_published
from istio_aux.wiring import Wiring
from msgspec.structs import replace
from unit.apiserver import Exec, agent_quits, proxy_quits
from unit.asynchronous import background, until
from unit.injecting import ENABLED
from unit.rules.pods import RUNNING, exited
from unit.screens import Ask, install, objects, put_pod
from unit.test_cli_unmeshed import Istio

SELECTED = {**ENABLED, "io.datastrophic/istio-aux": "enabled"}
PROFILE = {**ENABLED, "app.kubernetes.io/part-of": "kubeflow-profile"}
NAMESPACES = {
    "team": {**SELECTED, "tier": "gold"},
    "plain": ENABLED,
    "profile": PROFILE,
    "disabled": {**PROFILE, "io.datastrophic/istio-aux": "disabled"},
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


async def fill(api: Istio, told: dict[str, Any]) -> None:
    """Namespaces with their pods, and an installation."""
    api.configure(bundle=None)
    api.put_policy("policy: enabled")
    await install(api, told)
    job = {"name": JOB["name"], "namespace": "team", "uid": JOB["uid"]}
    api.put("jobs", {"metadata": job, "spec": {"backoffLimit": 6}})
    for namespace, labels in NAMESPACES.items():
        metadata: dict[str, Any] = {"name": namespace, "labels": labels}
        api.put("namespaces", {"metadata": metadata})
        for name, given in pods_of(namespace).items():
            fields = {"containers": {"main": DONE, "istio-proxy": RUNNING}, **given}
            owners, states = fields.pop("owner", None), fields.pop("containers")
            about = {"uid": f"{namespace}-{name}", "ownerReferences": [owners] if owners else []}
            await put_pod(api, name, states, namespace=namespace, about=about, **fields)


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
        found = {(f"{pod.namespace}/{pod.name}", pod.state) for pod in whole(wired.pods())[0]}
        troubled = whole(wired._quit.survey())
        would = {f"{p.namespace}/{p.name}" for state, p in troubled if state == "would quit"}
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
    async with Istio() as api:
        await fill(api, told := CASES[case])
        if "restart" in told.get("race-policy", ""):
            api.lead()  # Where no injector is live, nothing is restarted.
        names = [f"{namespace}/{name}" for namespace in NAMESPACES for name in pods_of(namespace)]
        explained = objects(await ask(api, "explain", *names, "-o", "json"))
        audited = objects(await ask(api, "audit", "-o", "json"))
        judged, unmeshed = await served(api, told, tmp_path)

    said = {f"{pod['namespace']}/{pod['name']}": as_served(pod) for pod in explained}
    blocked = {
        f"{pod['namespace']}/{pod['name']}": "blocked"
        for pod in audited if pod["state"] == "blocked" and not pod["left_out"]
    }  # fmt: skip
    assert {name: what for name, what in said.items() if what} | blocked == judged
    lacking = {f"{pod['namespace']}/{pod['name']}" for pod in audited if pod["state"] == "unmeshed"}
    assert lacking == unmeshed
    assert {pod["installation"] for pod in explained} == {told.get("lease", "istio-aux-here")}
