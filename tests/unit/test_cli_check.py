"""`istio-aux check`: what an account that may read a part of the cluster is told."""

from __future__ import annotations

import pytest
from unit.apiserver import ApiServer
from unit.injecting import ENABLED
from unit.rules.pods import RUNNING
from unit.rules.unmeshed import agent, cni, raw
from unit.screens import Ask, install, objects
from unit.test_cli_unmeshed import Istio


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("/namespaces", "not known: the namespaces in which it is tried are not known"),
        ("/mutatingwebhookconfigurations",
         "not known: this account may not list mutatingwebhookconfigurations"),
    ],
)  # fmt: skip
async def test_an_account_that_may_not_list_all_is_told_what_is_not_known_of_istio(
    refused: str, why: str, ask: Ask
) -> None:
    async with ApiServer() as api:
        api.refuse(refused, 403, "Forbidden", "forbidden")
        shown = await ask(api, "check", "-o", "json", "--timeout", "10")
    told = [each for each in objects(shown) if each["check"] in {"injector", "injectors"}]
    assert [(each["result"], each["what"]) for each in told] == [("unknown", why)]
    assert "grant the account the right" in told[0]["do"]


async def test_it_counts_the_pods_that_audit_names(ask: Ask) -> None:
    """Also one that `inject-selector` chooses, and whose annotation says no to Istio alone."""
    settings = {"namespace-selectors": "istio-injection=enabled", "inject-selector": "app=web"}
    async with Istio() as api:
        api.configure(bundle=None)
        api.put_policy("policy: enabled")
        api.put("namespaces", {"metadata": {"name": "shop", "labels": ENABLED}})
        await install(api, settings)
        no = {"sidecar.istio.io/inject": "false"}
        await api.run_pod("chosen", labels={"app": "web"}, annotations=no)
        await api.run_pod("left", labels={"app": "other"}, annotations=no)
        named = await ask(api, "audit", "-o", "json")
        shown = await ask(api, "check", "-o", "json", "--timeout", "10")
    assert [(each["name"], each["code"]) for each in objects(named)] == [("chosen", "IA0105")]
    lacks, others = [each["what"] for each in objects(shown) if each["check"] == "pods"]
    assert "are outside their mesh, which race-policy decides about" in lacks
    assert "shop/chosen" in lacks
    assert others == "1 of 2 need no change"


async def test_it_says_on_which_nodes_istios_agents_are_away_and_whom_that_concerns(
    ask: Ask,
) -> None:
    """Of an ambient mesh, and of sidecars whose network istio-cni sets up."""
    ambient = {"istio.io/dataplane-mode": "ambient"}
    async with Istio() as api:
        api.configure(bundle=None)
        api.put_policy("policy: enabled")
        api.kubelets = ["v1.36.3", "v1.36.3"]
        for name, labels in (("shop", ENABLED), ("taken", ambient), ("excluded", ambient)):
            api.put("namespaces", {"metadata": {"name": name, "labels": labels}})
        await install(api, {"namespace-selectors": "istio.io/dataplane-mode=ambient"})
        for pod in (agent(ready=False), agent("ztunnel")):
            api.put("pods", pod)
        api.put("configmaps", cni(EXCLUDE_NAMESPACES="kube-system,excluded"))
        both = {"main": RUNNING, "istio-proxy": RUNNING}
        waits = raw(both, name="waits", spec={"nodeName": "node-1"})
        waits["spec"]["initContainers"] = [{"name": "istio-validation"}]
        api.put("pods", waits)
        shown = await ask(api, "check", "-o", "json", "--timeout", "10")
        moving = await ask(api, "check", "--to", "ambient", "-o", "json", "--timeout", "10")
    found = {(each["check"], each["what"]) for each in objects(shown)}
    lacks = "istio-cni is not ready on 1 nodes: node-1; new pods with a sidecar may fail"
    taken = (
        "istio-cni is not ready on 2 nodes: node-0, node-1; new pods of an ambient mesh do not"
        " start there, or start outside it"
    )
    assert found >= {
        ("nodes", taken),
        ("nodes", f"{lacks} there in istio-validation"),
        ("namespaces", "labelled for an ambient mesh, and excluded from it: excluded"),
        ("network",
         "not known: no pod can be tried: an ambient mesh has each selected namespace"),
    }  # fmt: skip
    assert {each["code"] for each in objects(shown) if each["check"] == "nodes"} == {"IA0407"}
    told = [(each["check"], each["what"]) for each in objects(moving)]
    assert ("nodes", taken) in told
    assert [what for check, what in told if check == "namespace shop"] == [
        "1 pods have a sidecar: waits"
    ]
