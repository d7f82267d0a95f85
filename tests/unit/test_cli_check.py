"""`istio-aux check`: what an account that may read a part of the cluster is told."""

from __future__ import annotations

from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, agent, cni, raw
from unit.screens import Ask, install, objects
from unit.test_cli_failed import fail
from unit.test_cli_unmeshed import Istio

CLOSED = (
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/apis/discovery.k8s.io",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
)


async def test_what_an_account_may_not_see_is_one_line_for_its_admin(ask: Ask) -> None:
    api = ApiServer()
    for each in CLOSED:
        api.refuse(f"{each}", 403, "Forbidden", "forbidden")
    shown = await ask(api, "check", "-o", "json")
    text = await ask(api, "check")
    version, told = [each for each in objects(shown) if each["result"] == "unknown"]
    assert version["what"] == "Kubernetes not known"
    assert (told["check"], told["code"]) == ("rights", "IA0304")
    assert told["what"] == (
        "not known: this account may not list mutatingwebhookconfigurations, list nodes, list"
        " namespaces, so it cannot see: installation, kubernetes, namespaces, injectors"
    )
    assert told["do"].startswith("ask an admin to run istio-aux check; ")
    assert (shown.status, text.out.splitlines()[-1]) == (
        1,
        "not known if istio-aux works here; unknown: 2",
    )


async def test_it_counts_the_pods_that_audit_names(ask: Ask) -> None:
    """Also one that `inject-selector` chooses, and whose annotation says no to Istio alone."""
    api = Istio()
    settings = {"namespace-selectors": "istio-injection=enabled", "inject-selector": "app=web"}
    install(api, settings)
    no = {"sidecar.istio.io/inject": "false"}
    api.run_pod("chosen", labels={"app": "web"}, annotations=no)
    api.run_pod("left", labels={"app": "other"}, annotations=no)
    fail(api, "lately", 1, namespace="shop")
    fail(api, "long-ago", 100, namespace="shop")
    named = await ask(api, "audit", "-o", "json")
    shown = await ask(api, "check", "-o", "json", "--timeout", "10")
    assert [(each["name"], each["code"]) for each in objects(named)] == [
        ("chosen", "IA0105"),
        ("lately", "IA0121"),
    ]
    lacks, others, failed = [each["what"] for each in objects(shown) if each["check"] == "pods"]
    assert "are outside their mesh, which race-policy decides about" in lacks
    assert "shop/chosen" in lacks
    assert failed == "1 pods: the payload succeeded, and its proxy failed the pod: shop/lately"
    assert others == "1 of 2 need no change"


async def test_it_says_on_which_nodes_istios_agents_are_away_and_whom_that_concerns(
    ask: Ask,
) -> None:
    """Of an ambient mesh, and of sidecars whose network istio-cni sets up."""
    ambient = {"istio.io/dataplane-mode": "ambient"}
    api = Istio()
    api.kubelets = ["v1.36.3", "v1.36.3"]
    for name in ("taken", "excluded"):
        api.put("namespaces", {"metadata": {"name": name, "labels": ambient}})
    install(api, {"namespace-selectors": "istio.io/dataplane-mode=ambient"})
    api.put("pods", agent(ready=False))
    api.put("pods", agent("ztunnel"))
    api.put("configmaps", cni(EXCLUDE_NAMESPACES="kube-system,excluded"))
    waits = {"nodeName": "node-1", "initContainers": [{"name": "istio-validation"}]}
    api.put("pods", raw({"main": RUNNING, "istio-proxy": RUNNING}, name="waits", spec=waits))
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
