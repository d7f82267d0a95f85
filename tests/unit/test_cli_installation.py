"""What commands say about installations: which there are, and who looks after a pod."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from istio_aux.judge.installation import installations
from istio_aux.kube.actions import CONFIGURATIONS
from istio_aux.model.names import LONGEST_SETTINGS, SETTINGS, START_WEBHOOK
from istio_aux.model.sidecars import REMEDY
from istio_aux.model.webhooks import Configuration
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, exited, job
from unit.screens import Ask, install, objects, put_pod

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
    asked = {each["name"]: each for each in objects(shown)}
    label = "kubectl label namespace team team=a"
    for answers in (told, asked):
        assert (answers["a"]["change"], answers["b"].get("change", "")) == (label, "")
    assert asked["a"]["free"] == FREE.format("a")
    assert asked["b"]["free"] == "kubectl delete job job-b -n team"
    assert REMEDY in asked["b"]["reason"]
