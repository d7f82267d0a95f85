"""What `check` makes of what it reads: when istio-aux works, what does not, and what to do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec
import pytest
from istio_aux.cli import report
from istio_aux.cli.output import Terminal
from istio_aux.injector.capture import Agent
from istio_aux.injector.injection import Expectation
from istio_aux.injector.rules import ControlPlanes, Injector
from istio_aux.judge import preflight
from istio_aux.judge.installation import Installation, Installations
from istio_aux.judge.moving import NetworkPolicy, Survey, To
from istio_aux.judge.preflight import CheckResult, Verdict
from istio_aux.model.annotations import (
    NATIVE_SIDECAR,
    NOT_NATIVE,
    PROXY_CONFIG,
    REDIRECTION,
    STARTED_WITH,
    TEMPLATES,
)
from istio_aux.model.answers import Liveness
from istio_aux.model.election import LeaseRecord
from istio_aux.model.findings import Code
from istio_aux.model.limits import Limits, ResourceQuota
from istio_aux.model.owners import JobCounts
from istio_aux.model.pod import Key, Pod
from istio_aux.model.policy import Capability, QuitPolicy, RepairPolicy, Right, StartPolicy
from istio_aux.model.text import command
from istio_aux.model.webhooks import Configuration
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import decide
from istio_aux.repair import rules as repair
from istio_aux.repair.rules import Candidate
from istio_aux.settings import read_published
from msgspec.structs import replace
from unit.rules.pods import (
    DEFAULT,
    ENABLED,
    HOOKS,
    IN_AMBIENT,
    NO,
    POLICIES,
    RUNNING,
    TO_HOLD,
    YES,
    exited,
    job,
    moment,
    recorded,
)

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
KINDS = ("ValidatingAdmissionPolicy",)
ISTIO = {DEFAULT: recorded(DEFAULT)}
OURS = "istio-aux-kubeflow.istio-aux"


def ours(name: str = OURS) -> dict[str, Configuration]:
    """Our configuration, as the charm makes it."""
    body = {
        "metadata": {"name": name},
        "webhooks": [{"name": "start.istio-aux.io", "failurePolicy": "Ignore"}],
    }
    return {name: msgspec.convert(body, Configuration)}


def mesh(state: Liveness, native: Capability = Capability.NATIVE) -> ControlPlanes:
    injector = Injector(
        state=state, why="so", configuration=DEFAULT, native=native, native_why="because"
    )
    return ControlPlanes(injectors=(injector,), hooks=HOOKS, policies=POLICIES, known=True)


def coded(results: Iterable[CheckResult]) -> list[str]:
    return [f"{found.result} {found.code}".strip() for found in results]


@pytest.mark.parametrize(
    ("kubelets", "kinds", "found"),
    [
        ({"a": "v1.33.1"}, KINDS, ["ok", "ok"]),
        ({"a": "v1.33.1"}, (), ["note IA0302", "ok"]),
        ({"a": "v1.33.1", "b": "v1.28.9"}, KINDS, ["ok", "note IA0303"]),
        ({}, KINDS, ["ok", "unknown IA0301"]),
    ],
)
def test_versions_say_what_the_cluster_lacks(
    kubelets: dict[str, str], kinds: tuple[str, ...], found: list[str]
) -> None:
    results = [*preflight.versions("v1.33.1", kubelets, kinds)]

    assert coded(results) == found
    assert all(each.do for each in results if each.result == "note")


TAGS, LISTED = (
    Counter({"1.28.1": 2, "x" * 99: 1, "": 3}),
    f"1.28.1 (2), {'x' * 40}… (1), no tag (3)",
)


@pytest.mark.parametrize(
    ("server", "istio", "ours", "what", "says"),
    [
        ("v1.36.1", TAGS, Counter[str](), f"v1.36.1; Istio {LISTED}; istio-aux none", "ok"),
        ("v1.36.1", None, Counter[str](), "v1.36.1; istio-aux none", "ok"),
        ("v1.36.1", TAGS, None, f"v1.36.1; Istio {LISTED}", "ok"),
        ("", None, None, "not known", "unknown IA0301"),
    ],
)
def test_versions_of_pods_are_short_counted_and_left_out_if_they_are_not_known(
    server: str, istio: Counter[str] | None, ours: Counter[str] | None, what: str, says: str
) -> None:
    """Whoever makes an image chooses its tag. Another result says why nothing is known."""
    found = preflight.images(server, istio, ours)
    assert (found.what, *coded([found])) == (f"Kubernetes {what}", says)


def test_an_account_without_a_right_is_told_which_and_why_and_how_to_get_it() -> None:
    assert coded([preflight.rights("it", [])]) == ["ok"]
    found = preflight.rights("it", [Right("create", "", "pods/exec", "to quit proxies")])

    assert coded([found]) == ["problem IA0304"]
    assert found.what == "it may not create pods/exec (to quit proxies)"
    assert "juju trust" in found.do


@pytest.mark.parametrize(
    ("name", "configurations", "found"),
    [
        (OURS, ours() | ISTIO, ["ok", "ok"]),
        (None, ISTIO, ["note IA0307"]),
        (OURS, ISTIO, ["problem IA0308", "ok"]),
        ("zz-istio-aux", ours("zz-istio-aux") | ISTIO, ["ok", "note IA0309"]),
    ],
    ids=["named", "not installed", "missing", "after Istio's"],
)
def test_our_webhook_exists_and_is_called_first(
    name: str | None, configurations: dict[str, Configuration], found: list[str]
) -> None:
    results = [*preflight.webhook(name, configurations)]
    assert coded(results) == found
    called = {each.what.endswith(" is called before Istio's") for each in results}
    assert (True in called) is (configurations == ours() | ISTIO)


def test_whose_settings_count_is_said() -> None:
    found = preflight.installations(["a/b", "c/d"], ["configuration x has no settings"])
    assert coded(found) == ["unknown IA0305", "note IA0306"]
    assert coded(preflight.installations(["a/b"], [])) == ["ok"]


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({}, {}, ["team"]),
        ({}, {"namespace-selectors": "a=b"}, []),
        ({}, {"namespace-selectors": ""}, ["team"]),
        ({"namespace-selectors": ""}, {"namespace-selectors": ""}, ["other", "team"]),
        ({"pod-selector": "a=b"}, {}, ["team"]),
        ({"pod-selector": "a=b"}, {"pod-selector": "a=b"}, ["team"]),
        ({"pod-selector": "a=b"}, {"pod-selector": "a=c"}, []),
    ],
)
def test_two_installations_that_look_after_the_same_pods_are_a_problem(
    first: dict[str, str], second: dict[str, str], shared: list[str]
) -> None:
    """Each pod would be changed by both, and its proxy told to exit by both."""
    found = (
        Installation(source=name, settings=read_published(json.dumps(options))[0])
        for name, options in {"here": first, "there": second}.items()
    )
    namespaces = {"team": {"io.datastrophic/istio-aux": "enabled"}, "other": {}}

    results = [*preflight.overlapping(Installations(tuple(found)).shared(namespaces))]

    assert [(*coded([each]), each.what) for each in results] == [
        ("problem IA0326", f"here and there select the same namespaces: {', '.join(shared)}")
        for _ in shared[:1]
    ]


@pytest.mark.parametrize(
    ("native", "wanted", "found"),
    [
        (Capability.NATIVE, False, ["ok", "ok"]),
        (Capability.CLASSIC, False, ["ok", "note IA0406"]),
        (Capability.CLASSIC, True, ["ok", "problem IA0406"]),
    ],
    ids=["native", "classic", "nothing goes native here"],
)
def test_a_live_injector_is_fine_unless_it_makes_no_native_sidecars(
    native: Capability, wanted: bool, found: list[str]
) -> None:
    assert coded(preflight.injectors(mesh(Liveness.LIVE, native), ISTIO, native=wanted)) == found


NOT_LIVE = {
    Liveness.ABSENT: ("problem IA0402", False),
    Liveness.DEACTIVATED: ("problem IA0402", False),
    Liveness.NO_CA_BUNDLE: ("problem IA0403", True),
    Liveness.UNREADABLE: ("problem IA0403", True),
    Liveness.NO_SERVICE: ("problem IA0404", True),
    Liveness.NO_ENDPOINT: ("problem IA0404", True),
    Liveness.REFUSED: ("problem IA0401", False),
    Liveness.NOT_PROBED: ("unknown IA0405", False),
}


@pytest.mark.parametrize("state", [it for it in Liveness if it is not Liveness.LIVE])
def test_any_other_injector_is_named_with_what_to_do(state: Liveness) -> None:
    """Istio's recorded webhooks have failurePolicy Fail, so pods are refused while it is away."""
    [found] = preflight.injectors(mesh(state), ISTIO)
    code, refused = NOT_LIVE[state]
    assert coded([found]) == [code]
    assert found.what.startswith(DEFAULT)
    assert found.do
    assert ("New pods that it selects are refused" in found.what) is refused


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        ({}, ["IA0312: label a namespace so that one matches, or set namespace-selectors"]),
        ({"team": ENABLED}, [": "]),
        ({"team": {}},
         [": ", ("IA0313: label them istio.io/rev or istio-injection, "
                 "if their pods are meant to be in the mesh")]),
        ({"team": {"istio-injection": "disabled"}},
         [": ", ("IA0313: label them istio.io/rev or istio-injection, "
                 "if their pods are meant to be in the mesh")]),
        ({"team": {"istio.io/rev": "gone"}},
         [": ", "IA0314: see which istiod the label names, and its injection policy"]),
    ],
    ids=["none", "injected", "not injected", "is not to be injected", "has a label already"],
)  # fmt: skip
def test_selected_namespaces_are_injected(
    selected: dict[str, dict[str, str]], found: list[str]
) -> None:
    """No label is asked for that is there already, and an empty selection is no problem."""
    results = [*preflight.namespaces("a=b", selected, mesh(Liveness.LIVE))]
    assert [f"{each.code}: {each.do}" for each in results] == found
    assert any(each.run for each in results) is (selected == {"team": {}})
    assert all(each.result == ("note" if each.do else "ok") for each in results)


def test_an_ambient_namespace_is_noted_unless_it_is_injected() -> None:
    """Its namespace has `istio.io/rev`."""
    selected = {"both": ENABLED | IN_AMBIENT, "alone": IN_AMBIENT}
    _, noted = preflight.namespaces("a=b", selected, mesh(Liveness.LIVE))
    assert coded([noted]) == ["note IA0315"]
    assert noted.what.startswith("labelled for an ambient mesh: ")
    assert noted.what.endswith(": alone")


def test_a_node_where_no_pod_can_be_captured_is_a_problem() -> None:
    ready = Agent(key=Key("istio-system", "a", "a"), node="a", ready_since=1.0)
    other = replace(ready, node="b")
    agents = {"istio-cni": [ready, replace(other, ready_since=None)], "ztunnel": [ready, other]}
    assert coded(preflight.node_agents(agents, ["a"], "harm")) == ["ok"]
    (bad,) = preflight.node_agents(agents, ["a", "b"], "harm")
    assert coded([bad]) == ["problem IA0407"]
    assert bad.what.startswith("istio-cni is not ready on 1 nodes: b")


def record(holder: str | None, ago: int) -> LeaseRecord:
    renewed = (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return LeaseRecord(holder_identity=holder, renew_time=renewed, lease_duration_seconds=15)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (record("me", 2), "ok"),
        (record("me", 600), "problem IA0311"),
        (record("", 2), "problem IA0311"),
        (record(None, 2), "problem IA0311"),
        (None, "problem IA0311"),
        (LeaseRecord(holder_identity="me", renew_time="soon"), "unknown IA0301"),
    ],
    ids=["renewed", "not renewed", "released", "of nobody", "not there", "unclear"],
)
def test_a_lease_that_nobody_renews_is_a_problem(found: LeaseRecord | None, says: str) -> None:
    assert coded([preflight.lease("a/b", found, NOW)]) == [says]


def test_what_is_unknown_does_not_work() -> None:
    ok, *others = (CheckResult("a", each, "b") for each in Verdict if each is not Verdict.NOTE)
    assert preflight.works([ok, CheckResult("a", Verdict.NOTE, "b")])
    assert [preflight.works([ok, other]) for other in others] == [False, False]


def test_a_result_is_one_line_of_bounded_length_whatever_others_wrote() -> None:
    long = preflight.bounded(CheckResult("a", Verdict.NOTE, "b\nc" * 9999, "ä" * 9999))

    assert "\n" not in long.what
    assert (len(long.what), len(long.do)) == (preflight.LONGEST, preflight.LONGEST)


def test_namespaces_that_are_injected_and_not_selected_are_named_with_the_command() -> None:
    change = command("kubectl label namespace {} a=b", "team")
    (note,) = preflight.unselected({"team": ("an admin labels it", change, 3)})
    assert (*coded([note]), note.do, note.run) == ("note IA0316", "an admin labels it", change)
    pods = "Job-like pods there, whose proxies do not end: 3"
    assert note.what == f"team is injected and not selected; {pods}"
    *_, last = preflight.unselected({f"team-{number}": ("", change, 1) for number in range(9)})
    assert last.what == "and 4 more such namespaces"


@pytest.mark.parametrize(
    ("pod", "expectation", "alone"),
    [
        (job({"main": RUNNING, "istio-proxy": RUNNING}), NO, True),
        (job({"main": RUNNING}), YES, True),
        (job({"main": RUNNING}), NO, False),
        (job({"main": RUNNING}, sidecars={"istio-proxy": RUNNING}), YES, False),
        (job({"main": RUNNING, "istio-proxy": RUNNING}, restart="Always"), YES, False),
    ],
    ids=["classic", "to be injected", "not injected", "native", "a service"],
)
def test_pods_that_hang_alone_are_job_like_with_a_classic_sidecar(
    pod: Pod, expectation: Expectation, alone: bool
) -> None:
    assert preflight.hangs_alone(pod, expectation) is alone


POST = {"main": {"command": ["sh", "-c", "train; curl -XPOST localhost:15020/quitquitquit"]}}
FETCH = {"initContainers": [{"name": "fetch", "resources": {"limits": {"memory": "2Gi"}}}]}
NO_SIDECAR = {"annotations": {"sidecar.istio.io/inject": "false"}}
OFTEN = {"details": POST, "restart": "OnFailure"}
SHORT = {"spec": {"terminationGracePeriodSeconds": 0}}
STRICT, COUNTS = JobCounts(restarts=True), JobCounts(exits=True)
SMALL = Limits()
SMALL.apply(
    msgspec.convert(
        {
            "metadata": {"namespace": "training", "name": "small", "uid": "1"},
            "status": {"hard": {"limits.memory": "2Gi"}},
        },
        ResourceQuota,
    )
)


@pytest.mark.parametrize(
    ("to", "pod", "more", "found"),
    [
        (To.NATIVE, {}, {}, []),
        (To.NATIVE, {"details": POST}, {}, []),
        (To.NATIVE, OFTEN, {}, ["note IA0504 1 end the proxy, which is started again"]),
        (To.NATIVE, OFTEN, {"job": STRICT}, ["problem IA0504 1 fail: they end the proxy, and"]),
        (To.NATIVE, OFTEN, {"job": STRICT, "kept": True}, ["note IA0504 1 stay classic: the payl"]),
        (To.NATIVE, {}, {"job": COUNTS}, ["problem IA0118 1 will fail by exit codes of proxies"]),
        (To.NATIVE, NO_SIDECAR, {}, ["note IA0502 1 refuse a sidecar by sidecar.istio.io"]),
        (To.NATIVE, {"annotations": {NATIVE_SIDECAR: "false"}}, {}, ["note IA0505 1 stay classic"]),
        (
            To.NATIVE, {"spec": FETCH}, {"kept": True},
            ["problem IA0510 1 will be refused: beside a native", "IA0503 1 have"],
        ),
        (To.AMBIENT, {}, {}, []),
        (To.AMBIENT, {"details": POST}, {}, ["note IA0504 1 end a proxy that will not be"]),
        (To.AMBIENT, {"spec": FETCH}, {}, ["note IA0503 1 have init containers of their own"]),
        (To.AMBIENT, {"labels": {"sidecar.istio.io/inject": "true"}}, {},
         ["note IA0507 1 ask for a sidecar"]),
        (
            To.AMBIENT, NO_SIDECAR, {},
            ["IA0502 1 refuse", "note IA0514 1 have annotations without effect (sidecar."],
        ),
        (To.NATIVE, SHORT, {"job": JobCounts()}, []),
        (To.NATIVE, SHORT, {"job": COUNTS}, ["problem IA0512 1 may fail: its grace", "IA0118"]),
        (To.NATIVE, {"annotations": {TEMPLATES: "a"}}, {}, ["note IA0511 1 have templates"]),
        (To.NATIVE, {"spec": {"initContainers": [{"name": "a"}] * 201}}, {},
         ["note IA0513 1 are too much to judge", "IA0503"]),
        (To.NATIVE, {"spec": {"resources": {"requests": {"cpu": "50m"}}}}, {},
         ["problem IA0114 1 will be refused: resources for the whole pod have no room"]),
        (To.AMBIENT, {"annotations": {STARTED_WITH: "hold"}}, {}, []),
    ],
)  # fmt: skip
def test_what_breaks_or_stays_behind_is_named_by_namespace(
    to: To, pod: dict[str, Any], more: Any, found: list[str]
) -> None:
    """eventing#6804, website#57244, cloud-sql-proxy#1803, buildkite/agent-stack-k8s#862."""
    survey = Survey(to, mesh(Liveness.LIVE), {"training": ENABLED}, SMALL)

    survey.template(job({"main": None}, phase=None, **pod), "Job/a", **{"kept": False} | more)

    results = [*survey.results()]
    lines = [f"{each.result} {each.code} {each.what}" for each in results]
    if not found:
        assert lines == ["ok  nothing breaks, and nothing stays behind"]
        return
    assert len(lines) == len(found)
    assert all(part in line for part, line in zip(found, lines, strict=True)), lines
    assert {each.check for each in results} == {"namespace training"}
    assert all(each.do for each in results)


@pytest.mark.parametrize(
    ("ingress", "closed"),
    [
        ([{"ports": [{"port": 9090}, {"port": "metrics"}]}], True),
        ([{"ports": [{"port": 9090}]}, {"from": []}], False),
        ([{"ports": [{"port": 9090}, {"port": 15000, "endPort": 15010}]}], False),
        ([{"ports": [{"protocol": "TCP"}]}], False),
        ([{"ports": [{"protocol": "UDP"}, {"protocol": "UDP", "port": 15008}]}], True),
        ([], False),
        (None, False),
    ],
)
def test_a_network_policy_is_named_that_keeps_the_ambient_mesh_away(
    ingress: Any, closed: bool
) -> None:
    survey = Survey(To.AMBIENT, mesh(Liveness.LIVE), {"training": ENABLED}, Limits())
    about = {"name": "web", "namespace": "training"}

    survey.policy(msgspec.convert({"metadata": about, "spec": {"ingress": ingress}}, NetworkPolicy))

    [found] = survey.results()
    assert coded([found]) == ["problem IA0508" if closed else "ok"]
    assert found.what.endswith("NetworkPolicy/web") is closed


def test_pods_that_have_a_sidecar_are_counted_and_those_of_a_template_are_not_judged() -> None:
    """Of a pod whose controller is not known its own manifest is all that shows its next one."""
    pair = {"main": RUNNING, "istio-proxy": RUNNING}
    survey = Survey(To.NATIVE, mesh(Liveness.LIVE), {"training": ENABLED}, Limits())

    trainer = ("trainer.kubeflow.org/v1alpha1", "TrainJob")  # Its pods are a template of others.
    for owner in (None, ("batch/v1", "Job"), ("ray.io/v1", "RayJob"), trainer):
        survey.see(job(pair, owner=owner, **OFTEN), kept=True)

    have, classic = survey.results()
    assert coded([have]) == ["note IA0501"]
    assert have.what == "1 pods have a classic sidecar: job-x7k2p"
    assert classic.what.endswith("their Job may count that: Pod/job-x7k2p, RayJob/, TrainJob/")


def test_a_long_way_is_shown_from_its_problems_and_its_beginning() -> None:
    many = {f"team-{number:03}": ENABLED for number in range(120)}
    survey = Survey(
        To.AMBIENT, mesh(Liveness.LIVE), many | {"both": {**IN_AMBIENT, **ENABLED}}, Limits()
    )
    proxy = job({"main": RUNNING, "istio-proxy": RUNNING})
    for name in many:
        survey.see(replace(proxy, metadata=replace(proxy.metadata, namespace=name)), kept=False)
    about, ports = {"namespace": "team-119"}, [{"ports": [{"port": 1}]}]
    closed = {"metadata": about, "spec": {"ingress": ports}}
    survey.policy(msgspec.convert(closed, NetworkPolicy))

    *worst, both = islice(results := survey.results(), 3)
    *_, last = results

    assert {each.check for each in worst} == {"namespace team-119"}
    assert (both.check, last.what) == ("namespace both", "and 21 more")
    assert coded([both]) == ["note IA0509"]
    assert both.what == "1 labels win over the one for ambient: istio-injection"


TEXT = """\
CHECK       RESULT   CODE    WHAT
Istio
  injector  ok               istio is live
istio-aux
  network   problem  IA0310  no answer
                             to do: open port 8443 (https://github.example/istio-aux/istio-aux/blob/main/docs/findings/installation.md#ia0310)

istio-aux may not work here; problem: 1
"""


def test_a_text_says_what_to_do_and_whether_istio_aux_works() -> None:
    live = CheckResult("injector", Verdict.OK, "istio is live")
    bad = CheckResult("network", Verdict.PROBLEM, "no answer", "open port 8443", Code.UNREACHED)
    far = preflight.bounded(bad)

    assert report.check_text([live, far], Terminal()) == TEXT.strip()
    end = "\n\nnothing keeps istio-aux from working here"
    assert report.check_text([live], Terminal()).endswith(end)


@pytest.mark.parametrize(
    ("pod", "expectation", "capability", "says"),
    [
        (job({"main": exited(0), "istio-proxy": RUNNING}), YES, Capability.NATIVE, "told to exit"),
        (job({"main": RUNNING}), YES, Capability.NATIVE, "are outside their mesh"),
        (job({"main": RUNNING, "istio-proxy": RUNNING}), YES, Capability.NATIVE, "native sidecar"),
        (job({"main": RUNNING, "istio-proxy": RUNNING}), YES, Capability.CLASSIC, "would be held"),
        (job({"main": RUNNING}, sidecars={"istio-proxy": RUNNING},
             annotations={"sidecar.istio.io/nativeSidecar": "true"}),
         YES, Capability.NATIVE, None),
        (job({"main": RUNNING, "istio-proxy": RUNNING}, **OFTEN),
         YES, Capability.NATIVE, "created again, not native: the payload ends the proxy itself"),
        (job({"main": RUNNING, "istio-proxy": RUNNING}, **OFTEN,
             annotations={NATIVE_SIDECAR: "false", NOT_NATIVE: "x: y", PROXY_CONFIG: TO_HOLD}),
         YES, Capability.NATIVE, "not native: the payload ends the proxy itself"),
        (job({"main": RUNNING, "istio-proxy": RUNNING}, **OFTEN), YES, Capability.UNASKED, None),
        (job({"main": RUNNING}), NO, Capability.NATIVE, None),
        (job({"main": RUNNING}, annotations={REDIRECTION: "enabled"}),
         Expectation(expected=True, reason="a label", ambient=True), Capability.NATIVE, None),
    ],
    ids=["finished", "unmeshed", "native", "held", "native already", "held for its payload",
         "held for a reason", "native unasked", "outside of the mesh", "ambient"],
)  # fmt: skip
@pytest.mark.parametrize("status", [True, False], ids=["injected", "no status"])
def test_each_pod_that_is_there_is_told_what_would_change(
    pod: Pod, expectation: Expectation, capability: Capability, says: str | None, *, status: bool
) -> None:
    """Istio's injector leaves a status on the pods that it injects."""
    how = StartPolicy(capability=capability)
    if status and pod.has_proxy:
        notes = {**(pod.metadata.annotations or {}), "sidecar.istio.io/status": "{}"}
        pod = replace(pod, metadata=replace(pod.metadata, annotations=notes))

    decision = decide(PodFacts(pod, QuitPolicy()), moment(NOW))
    meshed = repair.decide(Candidate.of(pod), repair.Around(expectation), RepairPolicy())
    found = preflight.change(pod, decision, meshed, expectation, how)

    assert found is None if says is None else says in (found or "")


def test_pods_are_counted_by_what_would_change_and_some_are_named() -> None:
    names = [f"team/web-{number}" for number in range(7)]

    changed, rest = preflight.pod_changes(9, {"would be held": names})

    assert changed.what.startswith("7 would be held: team/web-0, ")
    assert changed.what.endswith(" and 2 more")
    assert rest.what == "2 of 9 need no change"
    assert [found.what for found in preflight.pod_changes(0, {})] == ["there are none"]


def test_where_istio_makes_no_native_sidecars_no_pod_is_said_to_go_native() -> None:
    survey = Survey(
        To.NATIVE, mesh(Liveness.LIVE, Capability.CLASSIC), {"training": ENABLED}, Limits()
    )
    survey.see(job({"main": RUNNING, "istio-proxy": RUNNING}, owner=("batch/v1", "Job")), kept=True)
    assert [each.do for each in survey.results()] == [
        "nothing: they stay so until Istio makes native ones"
    ]
