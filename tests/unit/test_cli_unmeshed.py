"""`istio-aux audit`: pods that should have a sidecar and have none, and what cannot be known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.cli import main
from istio_aux.kube.actions import CONFIGURATIONS
from unit.injecting import ENABLED, Cluster
from unit.repairing import Cluster as Replacing
from unit.rules.pods import RUNNING, exited, raw
from unit.screens import Ask, Shown, objects, put_pod

POLICY = "/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector"
NAMESPACES = "/api/v1/namespaces"
CREATED = "2026-11-21T08:00:00Z"


class Istio(Cluster):
    """With Istio's configuration, its policy, and a namespace that is injected."""

    def __init__(self) -> None:
        super().__init__()
        self.configure(bundle=None)
        self.put_policy("policy: enabled")
        self.put("namespaces", {"metadata": {"name": "shop", "labels": ENABLED}})

    def run_pod(
        self, name: str, containers: Any = None, *, namespace: str = "shop", **fields: Any
    ) -> None:
        """A pod that is meant to go on, unless it says otherwise."""
        about, containers = {"creationTimestamp": CREATED}, containers or {"main": RUNNING}
        fields = {"restart": "Always", **fields}
        put_pod(self, name, containers, namespace=namespace, about=about, **fields)


@pytest.fixture
def api() -> Istio:
    """With pods with and without sidecars, also in another namespace."""
    api = Istio()
    api.put("namespaces", {"metadata": {"name": "other"}})
    api.run_pod("asks", labels={"sidecar.istio.io/inject": "true"})
    api.run_pod("plain")
    api.run_pod("opted-out", labels={"sidecar.istio.io/inject": "false"})
    api.run_pod("over", phase="Succeeded")
    api.run_pod("pending", phase="Pending")
    api.run_pod("elsewhere", namespace="other")
    api.run_pod("meshed", {"main": RUNNING, "istio-proxy": RUNNING})
    api.run_pod("stuck", {"main": exited(0), "istio-proxy": RUNNING}, restart="Never")
    return api


def states(shown: Shown) -> dict[str, str]:
    """The state of each pod that an answer has."""
    return {each["name"]: each["state"] for each in objects(shown) if "state" in each}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [("applications", 'applications: line 1: "shop": expected model/app'), ("", "Is a directory")],
)
def test_a_file_of_applications_that_cannot_be_used_is_named(
    name: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"applications: {tmp_path}/{name}\n")
    (tmp_path / "applications").write_text("shop\n")
    with pytest.raises(SystemExit):
        main(["audit", "--config", str(config)])
    assert complaint in capsys.readouterr().err


async def test_a_pod_is_blocked_by_a_container_whose_image_cannot_be_pulled(ask: Ask) -> None:
    """In whatever phase: without a first start of that container, the pod is Pending."""
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    containers = {"main": exited(0), "helper": waiting, "istio-proxy": RUNNING}
    api = Istio()
    for phase in ("Pending", "Running"):
        api.run_pod("pulling", containers, restart="Never", phase=phase)
        assert states(await ask(api, "audit", "-o", "json")) == {"pulling": "blocked"}


@pytest.mark.parametrize(
    ("forbidden", "where", "found", "unknown", "gap"),
    [
        (POLICY, "-A", {"asks": "unmeshed", "stuck": "stuck"}, 2,
         "no policy in ConfigMap istio-system/istio-sidecar-injector\n"),
        (NAMESPACES, "-A", {"stuck": "stuck"}, 4, "this account may not list namespaces\n"),
        (CONFIGURATIONS, "-A", {"stuck": "stuck"}, 4,
         "webhooks are not known; this account may not list mutatingwebhookconfigurations\n"),
        (NAMESPACES, "-nshop", {**dict.fromkeys(("asks", "plain", "pending"), "unmeshed"),
                                "stuck": "stuck"}, 0, ""),
    ],
    ids=["no policy", "no namespaces", "no webhooks", "one namespace"],
)  # fmt: skip
async def test_what_may_not_be_read_leaves_some_pods_unknown(
    *,
    api: Istio,
    ask: Ask,
    forbidden: str,
    where: str,
    found: dict[str, str],
    unknown: int,
    gap: str,
) -> None:
    """Pods that ask for a sidecar need no policy; who reads one namespace is answered about it."""
    api.refuse(f"GET {forbidden}", 403, "Forbidden", f"not {forbidden}")
    shown = await ask(api, "audit", where, "-o", "json")
    assert (states(shown), shown.status) == (found, 1 if unknown else 0)
    assert (f"pods that may lack their sidecar: {unknown}: " in shown.err) is bool(unknown)
    assert shown.err.endswith(gap)


async def test_what_is_not_known_is_ignored_with_its_code(api: Istio, ask: Ask) -> None:
    api.refuse(f"GET {CONFIGURATIONS}", 403, "Forbidden", f"not {CONFIGURATIONS}")
    shown = await ask(api, "audit", "--ignore", "IA0107,IA0101")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.endswith("lost: 0, unstarted: 0, unmeshed: 0, failed: 0; "
                              "ignored: 2 (IA0101, IA0107)\n")  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"labels": {f"a{number}": "" for number in range(1_001)}}, "names and labels"),
        ({"annotations": {"sidecar.istio.io/status": '{"containers":["istio-proxy"]}'}},
         "annotation sidecar.istio.io/status without a container istio-proxy"),
        ({"spec": {"containers": [{"name": "istio-proxy"}]}},
         "container istio-proxy without annotation sidecar.istio.io/status"),
    ],
    ids=["labels", "forged", "own"],
)  # fmt: skip
async def test_a_pod_that_hides_from_the_audit_is_counted_and_explained(
    api: Istio, ask: Ask, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    """Labels, an annotation and the name of a container are its author's to choose."""
    page = tmp_path / "page.html"
    before = await ask(api, "audit", "-o", "json")
    api.run_pod("hides", **fields)
    api.run_pod("outside", namespace="other", **fields)
    after = await ask(api, "audit", "-o", "json", "--report", str(page))
    hides, outside = objects(await ask(api, "explain", "shop/hides", "other/outside", "-o", "json"))
    assert (before.err, after.out, after.status) == ("", before.out, 1)
    said = hides["reason"].partition("; not known whether the pod is in its mesh: ")[2]
    assert why in said
    assert f"pods that may lack their sidecar: 1: {said}" in after.err
    assert why in page.read_text()
    assert "not known" not in outside["reason"]


AGAIN = "istio-aux restart-unmeshed -n shop --yes"


async def test_explain_agrees_with_audit_and_both_say_how_a_pod_gets_its_sidecar(
    api: Istio, ask: Ask
) -> None:
    """The pods of Jobs are not evicted, so no command helps with them."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "night", "uid": "j", "controller": True}
    web = {**job, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9"}
    for owner in (job, web):
        about = {"ownerReferences": [owner], "labels": {"pod-template-hash": "7d9"}}
        put_pod(api, owner["name"], {"main": RUNNING}, namespace="shop", about=about)
    audited = await ask(api, "audit", "-o", "json")
    explained = await ask(api, "explain", "-A", "-o", "json")
    text = await ask(api, "audit", columns=None)
    planned = objects(await ask(api, *AGAIN.split()[1:-1], "-o", "json"))
    api.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
    [unknown] = objects(await ask(api, "explain", "shop/night", "-o", "json"))
    assert states(explained) == states(audited)
    found, said = ({it["name"]: it for it in objects(shown)} for shown in (audited, explained))
    restarts = {name: each["restart"] for name, each in said.items() if "restart" in each}
    assert restarts == {"web-7d9": found["web-7d9"]["restart"]} == {"web-7d9": AGAIN}
    assert said["night"]["reason"].endswith(f"; {found['night']['fix']}")
    assert {each["owner"] for each in planned} >= {"Job/night", "Deployment/web"}
    assert "\nshop       deployment/web  1 " in text.out
    assert f"1 of these pods is outside the mesh: restart it:\n  {AGAIN}\n" in text.out
    assert unknown["reason"].endswith(
        "; if it should, delete the Job and apply it again, as `kubectl replace --force -f` does"
    )


class Evicting(Istio, Replacing):
    """Its controllers make a pod with a sidecar in the place of one that is evicted."""


async def test_audit_and_restart_unmeshed_look_at_their_targets_alone(ask: Ask) -> None:
    api = Evicting()
    api.lead()
    for name in ("plain", "other"):
        api.put("pods", raw(name=name, namespace="meshed", uid=name))
    audited = await ask(api, "audit", "meshed/plain", "-o", "name")
    typo = await ask(api, "audit", "-n", "meshed", "pod/plane")
    restarted = await ask(api, "restart-unmeshed", "meshed/plain", "--yes", "-o", "name")
    assert audited.out == "pod/plain\n"
    assert typo.err.endswith('not found; did you mean "plain"?\n')
    assert (restarted.status, restarted.out, api.evictions) == (0, "pod/plain\n", ["plain"])


@pytest.mark.parametrize(("late", "evicted"), [(0.0, ["plain"]), (1.0, [])])
async def test_the_time_of_restart_unmeshed_begins_before_its_right_is_granted(
    late: float, evicted: list[str], ask: Ask
) -> None:
    """A role takes effect a moment after it is bound. Nothing is done after that time."""
    clock, asked = asyncio.get_running_loop().time, list[float]()

    async def fault(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/selfsubjectaccessreviews"):
            return None
        asked.append(clock())
        granted = asked[-1] >= asked[0] + late
        return web.json_response({"status": {"allowed": granted}}, status=201)

    api = Evicting()
    api.always(fault)
    api.lead()
    api.put("pods", raw(name="plain", namespace="meshed"))
    shown = await ask(api, "restart-unmeshed", "--yes", "--timeout", str(late or 60))
    assert (shown.status, api.evictions) == (0 if evicted else 1, evicted)
