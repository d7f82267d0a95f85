"""`istio-aux audit`: pods that should have a sidecar and have none, and what cannot be known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.cli import main
from istio_aux.cli.report import Audit
from istio_aux.kube.actions import CONFIGURATIONS
from unit.injecting import ENABLED, Cluster
from unit.repairing import Cluster as Replacing
from unit.rules.pods import RUNNING, exited
from unit.rules.unmeshed import raw
from unit.screens import Ask, audited, objects, put_pod
from unit.test_cli_files import PROGRAM

POLICY = "/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector"
NAMESPACES = "/api/v1/namespaces"
CREATED = "2026-11-21T08:00:00Z"
ASKS = {"sidecar.istio.io/inject": "true"}


class Istio(Cluster):
    """With Istio's configuration and its policy."""

    async def fill(self) -> None:
        """A namespace that is injected, another one, and pods with and without sidecars."""
        self.configure(bundle=None)
        self.put_policy("policy: enabled")
        self.put("namespaces", {"metadata": {"name": "shop", "labels": ENABLED}})
        self.put("namespaces", {"metadata": {"name": "other"}})
        await self.run_pod("asks", labels=ASKS)
        await self.run_pod("plain")
        await self.run_pod("opted-out", labels={"sidecar.istio.io/inject": "false"})
        await self.run_pod("over", phase="Succeeded")
        await self.run_pod("pending", phase="Pending")
        await self.run_pod("elsewhere", namespace="other")
        await self.run_pod("meshed", {"main": RUNNING, "istio-proxy": RUNNING})
        await self.run_pod("stuck", {"main": exited(0), "istio-proxy": RUNNING}, restart="Never")

    async def run_pod(
        self, name: str, containers: Any = None, *, namespace: str = "shop", **fields: Any
    ) -> None:
        """A pod that is meant to go on, unless it says otherwise."""
        about, containers = {"creationTimestamp": CREATED}, containers or {"main": RUNNING}
        fields = {"restart": "Always", **fields}
        await put_pod(self, name, containers, namespace=namespace, about=about, **fields)


LACKING = {"asks": "unmeshed", "plain": "unmeshed", "pending": "unmeshed"}


def states(found: Audit) -> dict[str, str]:
    return {item.name: item.state for item in found.findings}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("shop\n", 'line 1: "shop": expected model/app'), (None, "Is a directory")],
)
def test_a_file_of_applications_that_cannot_be_used_is_named(
    text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, config = tmp_path / "applications", tmp_path / "config.yaml"
    config.write_text(f"applications: {file}\n")
    if text:
        file.write_text(text)
    else:
        file.mkdir()
    with pytest.raises(SystemExit):
        main(["audit", "--config", str(config)])
    assert f"{file}: {complaint}" in capsys.readouterr().err


async def test_a_pod_is_blocked_by_a_container_whose_image_cannot_be_pulled() -> None:
    """In whatever phase: without a first start of that container, the pod is Pending."""
    waiting = {"waiting": {"reason": "ImagePullBackOff"}}
    containers = {"main": exited(0), "helper": waiting, "istio-proxy": RUNNING}
    async with Istio() as api:
        for phase in ("Pending", "Running"):
            await api.run_pod("pulling", containers, restart="Never", phase=phase)
            assert states(await audited(api)) == {"pulling": "blocked"}


@pytest.mark.parametrize(
    ("forbidden", "namespace", "found", "unknown", "gap"),
    [
        (POLICY, None, {"asks": "unmeshed", "stuck": "stuck"}, 2,
         "no policy in ConfigMap istio-system/istio-sidecar-injector"),
        (NAMESPACES, None, {"stuck": "stuck"}, 4,
         "this account may not list namespaces"),
        (NAMESPACES, "shop", {**LACKING, "stuck": "stuck"}, 0, ""),
    ],
    ids=["no policy", "no namespaces", "one namespace"],
)  # fmt: skip
async def test_what_may_not_be_read_leaves_some_pods_unknown(
    *,
    forbidden: str,
    namespace: str | None,
    found: dict[str, str],
    unknown: int,
    gap: str,
) -> None:
    """Pods that ask for a sidecar need no policy; who reads one namespace is answered about it."""
    async with Istio() as api:
        api.refuse(f"GET {forbidden}", 403, "Forbidden", f"not {forbidden}")
        await api.fill()
        audit = await audited(api, namespace=namespace)
    assert (states(audit), audit.unknown) == (found, unknown)
    line = "pods that may lack their sidecar: "
    said = "".join(audit.notes)
    assert (line in said) is bool(gap)
    assert gap in said


async def test_what_is_not_known_is_a_line_and_the_rest_is_shown(ask: Ask) -> None:
    async with Istio() as api:
        api.refuse(f"GET {CONFIGURATIONS}", 403, "Forbidden", f"not {CONFIGURATIONS}")
        await api.fill()
        shown = await ask(api, "audit", "-o", "json")
        without = await ask(api, "audit", "--ignore", "IA0107,IA0101")
    assert (without.status, "may lack" in without.err) == (0, False)
    assert without.out.endswith("lost: 0, unstarted: 0, unmeshed: 0, failed: 0; "
                                "ignored: 2 (IA0101, IA0107)\n")  # fmt: skip
    assert (shown.status, [item["name"] for item in objects(shown)]) == (1, ["stuck"])
    assert shown.err == (
        "IA0107: pods that may lack their sidecar: 4: Istio's webhooks are not known;"
        " this account may not list mutatingwebhookconfigurations\n"
    )


async def test_a_pod_that_hides_from_the_audit_is_counted_and_explained(
    ask: Ask, tmp_path: Path
) -> None:
    """Labels, an annotation and the name of a container are its author's to choose."""
    hidden: dict[str, tuple[dict[str, Any], str]] = {
        "labels": ({"labels": {f"a{number}": "" for number in range(1_001)}}, "names and labels"),
        "forged": ({"annotations": {"sidecar.istio.io/status": '{"containers":["istio-proxy"]}'}},
                   "annotation sidecar.istio.io/status without a container istio-proxy"),
        "own": ({"spec": {"containers": [{"name": "istio-proxy"}]}},
                "container istio-proxy without annotation sidecar.istio.io/status"),
    }  # fmt: skip
    page = tmp_path / "page.html"
    async with Istio() as api:
        await api.fill()
        before = await audited(api)
        for name, (fields, _) in hidden.items():
            await api.run_pod(name, **fields)
            await api.run_pod(f"other-{name}", namespace="other", **fields)
        after = await audited(api)
        shown = await ask(api, "audit", "-o", "json", "--report", str(page))
        answers = objects(await ask(api, "explain", "-A", "-o", "json"))
    assert (before.unknown, after.unknown, states(after)) == (0, 3, states(before))
    assert shown.status == 1
    explained = {each["name"]: each["reason"] for each in answers}
    for name, (_, why) in hidden.items():
        assert why in shown.err
        assert why in page.read_text()
        said = explained[name].partition("; not known whether the pod is in its mesh: ")[2]
        assert why in said
        assert said in shown.err
        assert "not known" not in explained[f"other-{name}"]


AGAIN = "istio-aux restart-unmeshed -n shop --yes"


async def test_explain_agrees_with_audit_and_both_say_how_a_pod_gets_its_sidecar(ask: Ask) -> None:
    """The pods of Jobs are not evicted, so no command helps with them."""
    labels = {"pod-template-hash": "7d9"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "night", "uid": "j", "controller": True}
    web = {**job, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9"}
    async with Istio() as api:
        await api.fill()
        for owner in (job, web):
            about = {"ownerReferences": [owner], "labels": labels}
            await put_pod(api, owner["name"], {"main": RUNNING}, namespace="shop", about=about)
        found = {each["name"]: each for each in objects(await ask(api, "audit", "-o", "json"))}
        explained = objects(await ask(api, "explain", "-A", "-o", "json"))
        text = await ask(api, "audit", columns=None)
        shown = objects(await ask(api, *AGAIN.split()[1:-1], "-o", "json"))
        api.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
        [unknown] = objects(await ask(api, "explain", "shop/night", "-o", "json"))
    states = {each["name"]: each["state"] for each in explained if "state" in each}
    assert states == {name: each["state"] for name, each in found.items()}
    restarts = {each["name"]: each["restart"] for each in explained if "restart" in each}
    assert restarts == {"web-7d9": found["web-7d9"]["restart"]} == {"web-7d9": AGAIN}
    assert {each["owner"] for each in shown} >= {"Job/night", "Deployment/web"}
    assert "\nshop       deployment/web  1 " in text.out
    [why] = (each["reason"] for each in explained if each["name"] == "night")
    assert why.endswith(f"; {found['night']['fix']}")
    assert f"1 of these pods is outside the mesh: restart it:\n  {AGAIN}\n" in text.out
    assert unknown["reason"].endswith(
        "; if it should, delete the Job and apply it again, as `kubectl replace --force -f` does"
    )


class Evicting(Istio, Replacing):
    """Its controllers make a pod with a sidecar in the place of one that is evicted."""


async def test_audit_and_restart_unmeshed_look_at_their_targets_alone(ask: Ask) -> None:
    async with Evicting() as api:
        api.lead()
        api.put_policy("policy: enabled")
        for name in ("plain", "other"):
            api.put("pods", raw(name=name, namespace="meshed", uid=name))
        audited = await ask(api, "audit", "meshed/plain", "-o", "json")
        typo = await ask(api, "audit", "-n", "meshed", "pod/plane")
        restarted = await ask(api, "restart-unmeshed", "meshed/plain", "--yes", "-o", "name")
    assert [each["name"] for each in objects(audited)] == ["plain"]
    assert typo.err.endswith('not found; did you mean "plain"?\n')
    assert (restarted.status, restarted.out, api.evictions) == (0, "pod/plain\n", ["plain"])


@pytest.mark.parametrize(("late", "evicted"), [(0.0, ["plain"]), (1.0, [])])
async def test_the_time_of_restart_unmeshed_begins_before_its_right_is_granted(
    late: float, evicted: list[str], tmp_path: Path
) -> None:
    """A role takes effect a moment after it is bound. Nothing is done after that time."""
    clock, asked = asyncio.get_running_loop().time, list[float]()

    async def fault(request: web.Request) -> web.Response | None:
        if not request.path.endswith("/selfsubjectaccessreviews"):
            return None
        asked.append(clock())
        granted = asked[-1] >= asked[0] + late
        return web.json_response({"status": {"allowed": granted}}, status=201)

    async with Evicting() as api:
        api.always(fault)
        api.lead()
        api.put_policy("policy: enabled")
        api.put("pods", raw(name="plain", namespace="meshed"))
        argv = ("restart-unmeshed", "--yes", "--timeout", str(late or 60), "--kubeconfig")
        program = await asyncio.create_subprocess_exec(*PROGRAM, *argv, api.kubeconfig(tmp_path))
        assert await program.wait() == (0 if evicted else 1)
    assert api.evictions == evicted
