"""`istio-aux audit -f`: what people have of a cluster, as `kubectl get` wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from istio_aux.model.names import SETTINGS, START_WEBHOOK
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, State, agent, ambient, cni, document, exited
from unit.rules.test_hold import NEW
from unit.screens import Ask, Run, Shown, objects
from unit.test_quit_held import fields

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
        (pod("held", {"istio-proxy": NEW, "main": NEW}, **fields()),
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
        shown = audit(run, given(*items), "-o", "json")
        assert [it["name"] for it in objects(shown)] == found


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
    shown = audit(run, given(body), "--report", str(tmp_path / "page"))
    assert "stuck: 1" in shown.out
