"""What commands know of a cluster: its installations, what one may read, and files of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from istio_aux.judge.installation import installations
from istio_aux.kube.actions import CONFIGURATIONS
from istio_aux.model.names import LONGEST_SETTINGS, SETTINGS, START_WEBHOOK
from istio_aux.model.sidecars import REMEDY
from istio_aux.model.webhooks import Configuration
from unit.apiserver import ApiServer
from unit.rules.pods import (
    NEW,
    RUNNING,
    State,
    agent,
    ambient,
    cni,
    document,
    exited,
    job,
    raw,
    while_held,
)
from unit.screens import Ask, Run, Shown, install, objects, put_pod
from unit.test_cli_audit import Istio
from unit.test_cli_quit import fail

# What commands say about installations: which there are, and who looks after a pod.

KUBEFLOW = {"lease": "kubeflow/istio-aux"}
OVER = job({"main": exited(0), "istio-proxy": RUNNING})
FREE = "istio-aux quit -n team {} --yes"


def found(*told: Any) -> Any:
    """The installations with these settings, or with such a text."""
    bodies = [
        {
            "metadata": {
                "name": f"istio-aux-{number}",
                "annotations": {SETTINGS: each if isinstance(each, str) else json.dumps(each)},
            },
            "webhooks": [{"name": START_WEBHOOK}],
        }
        for number, each in enumerate(told)
    ]
    return installations(msgspec.convert(bodies, list[Configuration]))


@pytest.mark.parametrize(
    ("selectors", "labels", "change"),
    [
        ("a=b", {}, "kubectl label namespace training a=b"),
        ("a=b", {"a": "c"}, "kubectl label --overwrite namespace training a=b"),
        ("a=", {"a": "c"}, "kubectl label --overwrite namespace training a="),
        ("a", {}, "kubectl label namespace training a=true"),
        ("!a", {"a": ""}, "kubectl label namespace training a-"),
        ("a=b,c=d; e=f", {}, "kubectl label namespace training e=f"),
        ("a=b,c=d; e=f", {"a": "b"}, "kubectl label namespace training e=f"),
        ("a=b,!c; e=f", {}, "kubectl label namespace training e=f"),
        ("kubernetes.io/metadata.name=x", {"kubernetes.io/metadata.name": "training"},
         ""),
        ("a,!a", {}, ""),
        ("", {"kubernetes.io/metadata.name": "kube-system"},
         ""),
    ],
)  # fmt: skip
def test_the_label_is_named_that_has_a_namespace_selected(
    selectors: str, labels: dict[str, str], change: str
) -> None:
    judged = found({"namespace-selectors": selectors}).judge(OVER, labels, None)
    does = "labels the namespace" if change else "changes namespace-selectors"
    assert (judged.action, judged.reason) == ("ignore", "every payload container is finished")
    assert judged.left_out == f"namespace training is not selected: an admin {does}"
    assert judged.change == change


def test_all_reasons_to_leave_a_pod_alone_have_what_changes_them() -> None:
    told = {"namespace-selectors": "a=b", "pod-selector": "c=d", "quit": "disabled"}
    judged = found(told).judge(OVER, {}, None)
    assert judged.left_out == (
        "namespace training is not selected: an admin labels the namespace"
        " and its author labels the pod and an admin sets quit: enabled"
    )
    pod = "kubectl label pod job-x7k2p -n training c=d"
    assert judged.change == f"kubectl label namespace training a=b\n{pod}"


def test_of_several_installations_the_one_that_looks_after_a_pod_judges_it() -> None:
    both = found(
        {"lease": "a/one", "namespace-selectors": "team=a"},
        {"lease": "b/two", "namespace-selectors": "team=b", "quit": "dry-run"},
    )
    judged = both.judge(OVER, {"team": "b"}, None)
    assert (judged.installation.name, judged.action) == ("b/two", "report")
    assert both.names == ["a/one", "b/two (quit: dry-run)"]
    neither = both.judge(OVER, {}, None)
    assert neither.left_out.startswith("a/one, b/two: namespace training is not selected")


def test_of_several_installations_what_to_do_is_done_by_the_command_beside_it() -> None:
    told = ({"namespace-selectors": each} for each in ("a,!a", "team=b", "team=c,!x"))
    assert found(*told).of(OVER, {"x": ""})[1][1:] == (
        "an admin labels the namespace",
        "kubectl label namespace training team=b",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[" * LONGEST_SETTINGS + "]", f'"{"[" * 60}…": expected'),
        ("[]", "not a JSON object of settings: Expected `object`, got `array`"),
        ('{"quit": "maybe"}', 'quit: "maybe": expected enabled, dry-run or disabled'),
        ('{"kubeconfig": "/etc/x"}', "kubeconfig: unknown key"),
        ('{"applications": "web"}', 'applications: line 1: "web": expected model/app'),
        ("[" * 9_000, "not a JSON object of settings"),
    ],
)  # fmt: skip
def test_an_annotation_that_cannot_be_read_is_one_line_and_unknown(
    text: str, complaint: str
) -> None:
    judged = found(text).judge(OVER, {"io.datastrophic/istio-aux": "enabled"}, None)
    assert judged.action == "unknown"
    why = f"configuration istio-aux-0: annotation {SETTINGS}: {complaint}"
    assert judged.left_out.startswith(why)
    assert "\n" not in judged.left_out


def test_an_installation_without_settings_is_unknown_but_beside_one_that_acts() -> None:
    silent, everywhere = "", {"lease": "a/one", "namespace-selectors": ""}
    assert found(silent).judge(OVER, {}, None).action == "unknown"
    assert found(silent, everywhere).judge(OVER, {}, None).action == "quit"


@pytest.fixture
def api() -> ApiServer:
    """With a pod that hangs, in a namespace with a label."""
    api = ApiServer()
    api.put("namespaces", {"metadata": {"name": "team", "labels": {"team": "a"}}})
    put_pod(api, "job", {"main": exited(0), "istio-proxy": RUNNING}, namespace="team")
    return api


@pytest.mark.parametrize(
    ("version", "action"),
    [("v1.35.1", "quit"), ("v1.34.2", "wait"), ("v1.33.0", "wait"), (None, "wait")],
)
@pytest.mark.parametrize("command", ["explain", "audit"])
async def test_restart_rules_of_a_container_count_as_the_kubelet_of_its_node_obeys_them(
    api: ApiServer, command: str, version: str | None, action: str, ask: Ask
) -> None:
    """KEP-5307: kubelets obey them from 1.35 on. The node is read once, also for two pods."""
    install(api, {"namespace-selectors": "team=a"})
    kubelet = {"nodeInfo": {"kubeletVersion": version}}
    api.put("nodes", {"metadata": {"name": "node-1"}, "status": kubelet})
    for name in ("job", "other"):
        put_pod(
            api, name, {"main": exited(1, at="2100-01-01T00:00:00Z"), "istio-proxy": RUNNING},
            namespace="team",
            details={"main": {"restartPolicy": "Never"}}, spec={"nodeName": "node-1"},
            restart="OnFailure",
        )  # fmt: skip
    if version is None:
        api.refuse("/nodes/node-1", 403, "Forbidden", "no")
    shown = await ask(api, command, "-n", "team", "-o", "json")
    read = api.requests.count("GET /api/v1/nodes/node-1")
    actions = [each["action"] for each in objects(shown)]
    restarted = version == "v1.33.0"  # Nothing is wrong with such a pod.
    assert actions == ([] if command == "audit" and restarted else [action] * 2)
    unknown = "restart rules of containers may or may not be obeyed: this account may not get node"
    assert (shown.err, read) == ("" if version else f"{unknown} node-1\n", 1)


async def test_who_may_not_read_webhooks_is_told_that_nobody_may_look_after_the_pod(
    api: ApiServer,
    ask: Ask,
) -> None:
    """As a data scientist, whose rights end at a namespace."""
    install(api, KUBEFLOW)
    api.refuse(CONFIGURATIONS, 403, "Forbidden", "not you")
    api.refuse("/api/v1/namespaces/team", 403, "Forbidden", "not you")
    shown = await ask(api, "explain", "team/job", "-o", "json")
    text = await ask(api, "explain", "team/job")
    [pod] = objects(shown)
    assert (shown.status, pod["action"], pod["free"]) == (0, "unknown", FREE.format(pod["name"]))
    assert pod["left_out"] == "this account may not list mutatingwebhookconfigurations"
    assert (shown.err, text.err) == ("", "")
    lines = [re.sub("\x1b.*?m", "", line) for line in text.out.splitlines()]
    what = "team/job  STUCK  the program finished (exit 0); istio-proxy still runs, since "
    assert lines[0].startswith(what)
    assert lines[1:3] == ["  free it:", f"    {FREE.format('job')}"]
    assert lines[3].startswith("  istio-aux: unknown: not known whether an installation looks ")
    assert "and next time: " in text.out


async def test_who_may_not_read_the_namespace_is_told_that_it_counts_as_selected(
    api: ApiServer, ask: Ask
) -> None:
    install(api, KUBEFLOW)
    api.refuse("/api/v1/namespaces/team", 403, "Forbidden", "not you")
    shown = await ask(api, "explain", "team/job", "-o", "json")
    assert (shown.status, [pod["action"] for pod in objects(shown)]) == (0, ["quit"])
    assert shown.err == (
        "pods are judged as if their namespace were selected: this account may not get namespace"
        " team\n"
    )


async def test_settings_that_cannot_be_read_are_a_line_and_a_failure(
    api: ApiServer, ask: Ask
) -> None:
    install(api, "nonsense")
    shown = await ask(api, "explain", "team/job", "-o", "json")
    audited = await ask(api, "audit", "-o", "json")
    without = await ask(api, "audit", "-o", "json", "--ignore", "IA0305")
    assert (without.status, without.err) == (0, "")
    line = f"IA0305: configuration istio-aux-here: annotation {SETTINGS}: not a JSON object of set"
    for each in (shown, audited):
        assert (each.status, each.err.count("\n")) == (1, 1)
        assert each.err.startswith(line)
        assert [pod["action"] for pod in objects(each)] == ["unknown"]


async def test_a_blocked_pod_is_freed_by_its_job_s_end_and_by_no_label_of_its_namespace(
    api: ApiServer,
    ask: Ask,
) -> None:
    """The label frees the stuck one beside it."""
    install(api, {"namespace-selectors": "team=a"})
    api.put("namespaces", {"metadata": {"name": "team", "labels": {}}})
    both = {"main": exited(0), "istio-proxy": RUNNING}
    for name, states in (("a", both), ("b", {**both, "logger": RUNNING})):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{name}", "uid": name}
        about = {"ownerReferences": [{**owner, "controller": True}]}
        put_pod(api, name, states, namespace="team", about=about)
    told = {each["name"]: each for each in objects(await ask(api, "audit", "-o", "json"))}
    shown = await ask(api, "explain", "-n", "team", "a", "b", "-o", "json")
    text = await ask(api, "explain", "-n", "team", "b", columns=None)
    asked = {each["name"]: each for each in objects(shown)}
    label = "kubectl label namespace team team=a"
    for answers in (told, asked):
        assert (answers["a"]["change"], answers["b"].get("change", "")) == (label, "")
    assert asked["a"]["free"] == FREE.format("a")
    assert asked["b"]["free"] == "kubectl delete job job-b -n team"
    assert REMEDY in asked["b"]["reason"]
    assert f"\n  if its work may be lost, delete it:\n    {asked['b']['free']}\n" in text.out


# `istio-aux check`: what an account that may read a part of the cluster is told.

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


@pytest.mark.parametrize(
    ("more", "other", "counted"),
    [
        ([], {}, (1, 1)),
        (["--namespace-selectors", "istio-injection=enabled"], {}, (0, 0)),
        ([], "", (0, 1)),
    ],
    ids=["not selected", "selected by an option", "not known"],
)
async def test_it_counts_pods_and_names_namespaces_by_the_selectors_that_are_known(
    more: list[str], other: object, counted: tuple[int, int], ask: Ask
) -> None:
    """Also a pod about which no installation would do anything."""
    api, pair = Istio(), {"main": RUNNING, "istio-proxy": RUNNING}
    install(api, {"namespace-selectors": "team=a"})
    install(api, other, "istio-aux-other")
    api.put("namespaces", {"metadata": {"name": "team", "labels": {"team": "a"}}})
    api.run_pod("web", pair)
    api.run_pod("train", pair, restart="Never")
    out = (await ask(api, "check", "-o", "json", "--timeout", "10", *more)).out
    assert (out.count("IA0316"), out.count("there are none")) == counted


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


# `istio-aux audit -f`: what people have of a cluster, as `kubectl get` wrote it.

EARLY, LATE = "2026-11-21T08:00:00Z", "2026-11-21T09:00:00Z"
DONE = exited(0, at=EARLY)
NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "training", "labels": {"team": "a", "istio-injection": "enabled"}},
}
OURS = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {
        "name": "istio-aux-here",
        "annotations": {SETTINGS: '{"lease": "mesh/istio-aux", "namespace-selectors": "team=a"}'},
    },
    "webhooks": [{"name": START_WEBHOOK}],
}
ISTIO = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "istio-sidecar-injector"},
    "webhooks": [
        {
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {"service": {"namespace": "mesh", "name": "istiod"}},
            "namespaceSelector": {"matchLabels": {"istio-injection": "enabled"}},
            "rules": [
                {
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                }
            ],
        }
    ],
}
POLICY = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "istio-sidecar-injector", "namespace": "mesh"},
    "data": {"config": "policy: enabled"},
}
AS_OF = "judged as of 2026-11-21 09:00:00Z, the newest time given\n"


def pod(name: str, states: dict[str, State], **fields: Any) -> dict[str, Any]:
    body = document(states, **fields)
    about = {"name": name, "namespace": "training", "uid": f"u-{name}", "creationTimestamp": EARLY}
    return {**body, "metadata": body["metadata"] | about}


STUCK = pod("stuck", {"main": DONE, "istio-proxy": RUNNING})
BLOCKED = pod("blocked", {"main": DONE, "vault": RUNNING, "istio-proxy": RUNNING})
LOST = pod("lost", {"main": RUNNING, "istio-proxy": exited(255, at=LATE)})
WORKS = pod("works", {"main": RUNNING, "istio-proxy": RUNNING})
PLAIN = pod("plain", {"main": RUNNING})
CLUSTER = [STUCK, BLOCKED, LOST, WORKS, PLAIN, NAMESPACE, OURS, ISTIO]


def given(*items: object) -> str:
    """What `kubectl get -o json` writes of several types."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def audit(run: Run, text: str, *more: str) -> Shown:
    return run("audit", "-f", "-", *more, columns=None, errors=None, stdin=text)


def states(shown: Shown) -> list[tuple[str, str, str]]:
    return [(it["name"], it["state"], it["action"]) for it in objects(shown)]


FOUND = [
    ("blocked", "blocked", "wait"),
    ("lost", "lost", "report"),
    ("plain", "unmeshed", "report"),
    ("stuck", "stuck", "quit"),
]


async def test_a_file_is_answered_like_its_cluster(ask: Ask, run: Run) -> None:
    """In each format; only ages count until the newest time of the file."""
    api = ApiServer()
    for item in (*CLUSTER, POLICY):
        api.put(f"{item['kind'].lower()}s", item)
    for form in ("json", "yaml", "name"):
        live = await ask(api, "audit", "-o", form)
        assert audit(run, given(*CLUSTER, POLICY), "-o", form).out == live.out
    text = audit(run, given(*CLUSTER, POLICY))
    row = ["training", "pod/stuck", "1", "stuck", "IA0101", "60m", "2026-11-21", "08:00Z"]
    assert row in [line.split()[:8] for line in text.out.splitlines()]
    assert "installation: mesh/istio-aux; pods: 5; stuck: 1, blocked: 1, lost: 1," in text.out


def typed(item: dict[str, Any]) -> str:
    """A list of its type, whose items have no type of their own."""
    plain = {key: it for key, it in item.items() if key not in {"apiVersion", "kind"}}
    kind = f"{item['kind']}List"
    return json.dumps({"apiVersion": item["apiVersion"], "kind": kind, "items": [plain]})


ITEMS = [*CLUSTER, POLICY]


@pytest.mark.parametrize(
    "text",
    [
        "---\n".join(map(yaml.safe_dump, ITEMS)),
        "\n".join(map(json.dumps, ITEMS)),
        "\n".join(json.dumps(item, indent=1) for item in ITEMS),
        "\n".join(map(typed, ITEMS)),
    ],
    ids=["documents", "lines", "in a row", "typed lists"],
)
def test_a_file_has_any_form_that_kubectl_writes(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster"
    file.write_text(text)
    shown = run("audit", "-f", str(file), "-o", "json", columns=None, errors=None)
    assert (shown.status, states(shown), shown.err) == (0, FOUND, AS_OF)


def test_without_namespaces_it_is_not_known_who_is_selected_and_injected(run: Run) -> None:
    text = given(STUCK, PLAIN, OURS, ISTIO, POLICY)
    shown = audit(run, text, "-o", "json")
    [stuck] = objects(shown)
    assert (shown.status, stuck["state"], stuck["action"]) == (1, "stuck", "unknown")
    assert stuck["left_out"] == "namespace training was not given"
    assert stuck["free"] == "istio-aux quit -n training stuck --yes"
    assert "not known whether namespaces are selected, as they were not given: training\n" in (
        shown.err
    )
    assert "lack their sidecar: 1: the labels of namespace training are not known\n" in shown.err
    assert "not known whether an installation looks after 1 of these pods" in audit(run, text).out


def test_without_istios_policy_it_is_not_known_which_pods_it_injects(run: Run) -> None:
    """A pod that asks for its sidecar is injected by any policy."""
    asks = pod("asks", {"main": RUNNING}, labels={"sidecar.istio.io/inject": "true"})
    shown = audit(run, given(*CLUSTER, asks), "-o", "json")
    missing = [("asks", "unmeshed", "report"), *(it for it in FOUND if it[0] != "plain")]
    assert (shown.status, states(shown)) == (1, missing)
    assert "istiod's injection policy is not known" in shown.err
    assert "no policy in ConfigMap mesh/istio-sidecar-injector" in shown.err


def test_a_pod_that_is_not_known_is_not_said_to_be_well(run: Run) -> None:
    shown = audit(run, given(PLAIN))
    where = "in all namespaces (1 looked at), 1 cannot be judged"
    assert shown.out.startswith(f"no pod hangs or lacks its sidecar {where}\n")
    assert shown.out.endswith("(unknown: 1)\n")
    assert shown.status == 1


def starting(at: str) -> dict[str, Any]:
    """A pod whose init container has failed since it was started."""
    fails = {"name": "fetch", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return pod(
        "starting", {"main": None, "istio-proxy": None}, phase="Pending",
        spec={"initContainers": [{"name": "fetch"}]},
        status={"startTime": at, "initContainerStatuses": [fails | {"restartCount": 9}]},
    )  # fmt: skip


YOUNG = "what keeps a pod had not lasted long at the newest time"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (pod("grace", {"main": exited(0, at=LATE), "istio-proxy": RUNNING},
             annotations={"istio-aux.io/quit-grace": "3600"}), YOUNG),
        (starting(LATE), YOUNG),
        (pod("held", {"istio-proxy": NEW, "main": NEW}, **while_held()),
         "a payload is held, and only its proxy knows whether it is ready"),
        ({key: it for key, it in WORKS.items() if key != "status"}, "a pod has no status"),
    ],
    ids=["grace", "starting", "held", "a manifest"],
)  # fmt: skip
def test_what_only_time_or_a_proxy_decides_is_not_known(run: Run, body: Any, why: str) -> None:
    """A file of one pod may be much older than the newest time in it."""
    late = pod("late", {"main": RUNNING, "istio-proxy": RUNNING}, annotations={"at": LATE})
    items = (body, late, NAMESPACE, OURS, ISTIO, POLICY)
    shown = audit(run, given(*items), "-o", "json")
    assert (shown.status, shown.out) == (1, "")
    assert f"IA0301: pods that may hang: 1: {why}\n" in shown.err
    assert audit(run, given(*items), "--ignore", "IA0301").status == 0


AGENTS = (agent(), cni(), {**NAMESPACE, "metadata": {"name": "istio-system"}})


@pytest.mark.parametrize(
    ("newest", "agents", "status", "found"),
    [
        ("2026-11-21T08:16:35Z", AGENTS, 1, []),
        (LATE, AGENTS, 0, [("out", "unmeshed", "report")]),
        (LATE, (), 1, []),
    ],
    ids=["soon", "later", "without its agents"],
)
def test_whether_an_ambient_mesh_takes_a_pod_is_not_known_until_it_had_time(
    *, run: Run, newest: str, agents: Any, status: int, found: object
) -> None:
    """The pod has its address since 08:16:30."""
    outside = ambient("", name="out", uid="out", namespace="training")
    late = pod("late", {"main": RUNNING, "istio-proxy": RUNNING}, annotations={"at": newest})
    labels = {"team": "a", "istio.io/dataplane-mode": "ambient"}
    space = {**NAMESPACE, "metadata": {"name": "training", "labels": labels}}
    shown = audit(run, given(outside, late, space, OURS, ISTIO, POLICY, *agents), "-o", "json")
    assert (shown.status, states(shown)) == (status, found)
    assert ("istio-cni's pods were not given" in shown.err) is not bool(agents)


def test_a_file_is_judged_as_of_its_newest_time(run: Run) -> None:
    """What began long before has lasted, and what failed more than an hour before is no news."""
    validation = {"name": "istio-validation", "state": exited(126, at="2026-11-21T08:10:00Z")}
    failed = pod("failed", {"main": None, "istio-proxy": None}, phase="Failed",
                 status={"initContainerStatuses": [validation]})  # fmt: skip
    for newest, found in ((LATE, ["failed", "starting"]), ("2026-11-21T09:15:00Z", ["starting"])):
        other = pod("other", {"main": RUNNING, "istio-proxy": RUNNING}, annotations={"at": newest})
        items = (failed, starting(EARLY), other, NAMESPACE, OURS, ISTIO, POLICY)
        assert [it["name"] for it in objects(audit(run, given(*items), "-o", "json"))] == found


def test_pods_are_chosen_as_of_a_cluster(run: Run) -> None:
    """By namespace and labels; a finished pod is left alone."""
    about = {"namespace": "other", "uid": "o", "labels": {"app": "b"}}
    other = {**STUCK, "metadata": STUCK["metadata"] | about}
    space = {**NAMESPACE, "metadata": {"name": "other"}}
    ended = pod("ended", {"main": DONE, "istio-proxy": DONE}, phase="Succeeded")
    text = given(*CLUSTER, POLICY, other, space, ended)
    for chosen in ("-nother", "-lapp=b"):
        assert audit(run, text, "-o", "name", chosen).out == "pod/stuck\n"
    assert len(audit(run, text, "--holders").out.splitlines()) == 2
    assert "; pods: 6; stuck: 2," in audit(run, text).out


def test_a_page_and_the_settings_of_a_file_are_as_of_a_cluster(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("namespace-selectors: team=b\nlease: shop/ours\n")
    more = ("--config", str(config), "--report", str(tmp_path / "page.html"), "-o", "json")
    [stuck] = objects(audit(run, given(STUCK, NAMESPACE, LOST), *more, "-l", "!x"))[1:]
    assert stuck["left_out"].startswith("namespace training is not selected")
    assert "On 21 November 2026 at 09:00 UTC, 1 of 2" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("items", "status", "found", "says"),
    [
        ((*CLUSTER, POLICY, {**STUCK, "spec": 7}), 1, FOUND,
         ["IA0107: pods that may lack their sidecar: 1: cannot read pod at 1: item 10: Expected"]),
        ((STUCK, PLAIN, NAMESPACE, OURS, {**ISTIO, "webhooks": 7}), 1, FOUND[3:],
         ["IA0305: cannot read configuration at 1: item 5: Expected",
          "IA0107: pods that may lack their sidecar: 1: Istio's webhooks are not known"]),
        ((STUCK, OURS, {**NAMESPACE, "metadata": 7}), 2, [("stuck", "stuck", "unknown")],
         ["stdin:1: item 3: Expected"]),
    ],
    ids=["a pod", "a configuration", "a namespace"],
)  # fmt: skip
def test_what_cannot_be_read_is_said_and_does_not_count_as_well(
    *, run: Run, items: Any, status: int, found: object, says: list[str]
) -> None:
    shown = audit(run, given(*items), "-o", "json")
    assert (shown.status, states(shown)) == (status, found)
    assert [each for each in says if each not in shown.err] == []


def test_without_any_time_pods_are_judged_as_of_now(run: Run) -> None:
    ended: State = {"terminated": {"exitCode": 0}}
    body = pod("stuck", {"main": ended, "istio-proxy": {"running": {}}})
    del body["metadata"]["creationTimestamp"]
    shown = audit(run, given(body, NAMESPACE, OURS), "-o", "json")
    assert (shown.status, shown.err) == (0, "")
    assert states(shown) == [("stuck", "stuck", "quit")]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (given(), "stdin: no pods\n"),
        (given(NAMESPACE), "no pods were given\n"),
        (given({"apiVersion": "v1", "kind": "Service"}), "no pods were given\n"),
        ("{", "stdin:1: "),
        ("kind: [", "stdin:"),
        (given({"metadata": {}}), "stdin:1: item 1: it has no kind\n"),
    ],
    ids=["nothing", "no pod", "other kinds", "no JSON", "no YAML", "no kind"],
)
def test_a_file_without_pods_is_said_and_a_failure(run: Run, text: str, says: str) -> None:
    shown = audit(run, text)
    assert (shown.status, shown.out) == (2, "")
    assert says in shown.err


def test_other_kinds_are_counted(run: Run) -> None:
    others = [{"apiVersion": "v1", "kind": "Service"}] * 2
    others += [{"apiVersion": "apps/v1", "kind": "Deployment"}]
    shown = audit(run, given(*CLUSTER, POLICY, *others))
    left = "left out: 1 Deployment, 2 Service: audit does not read these kinds\n"
    assert (shown.status, shown.err) == (0, left + AS_OF)


def test_a_name_in_a_file_commands_no_terminal(run: Run) -> None:
    """No API server has looked at it, and the line that refuses it has it."""
    named = {**STUCK, "metadata": {**STUCK["metadata"], "name": "a\x1b]0;b\x07\nc"}}
    shown = audit(run, given(named, NAMESPACE, OURS))
    assert "]0;b" in shown.err
    assert not {"\x1b", "\x07"} & {*shown.out, *shown.err}


@pytest.mark.parametrize("hour", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_date_that_no_clock_has_is_read(run: Run, tmp_path: Path, hour: str) -> None:
    """In UTC it would be a day before the first, or after the last."""
    body = pod("stuck", {"main": exited(0, at=hour), "istio-proxy": RUNNING})
    assert "stuck: 1" in audit(run, given(body), "--report", str(tmp_path / "page")).out
