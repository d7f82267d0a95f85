"""`istio-aux audit`: what it finds among pods, what it cannot know, and its page and table."""

from __future__ import annotations

import asyncio
import io
import re
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from istio_aux.cli import main, report
from istio_aux.cli.output import Output, Terminal, age
from istio_aux.cli.page import page
from istio_aux.cli.report import Audit
from istio_aux.judge.installation import Installations
from istio_aux.kube.actions import CONFIGURATIONS
from istio_aux.model.findings import Code
from istio_aux.model.found import Found
from istio_aux.model.resources import Requests
from msgspec.structs import replace
from sizes import ROOT
from unit.apiserver import ApiServer, kubeconfig
from unit.controllers import Cluster as Replacing
from unit.istiod import Cluster
from unit.process import until
from unit.rules.pods import (
    ENABLED,
    RUNNING,
    State,
    agent,
    ambient,
    cni,
    document,
    exited,
    raw,
)
from unit.screens import Ask, Run, Shown, objects, put_pod

# `istio-aux audit`: what it finds among pods.

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def put(api: ApiServer, name: str, namespace: str = "training", **states: State) -> None:
    containers = {key.replace("_", "-"): state for key, state in states.items()}
    details = {"main": {"resources": {"requests": {"nvidia.com/gpu": "8"}}}}
    put_pod(api, name, containers, namespace=namespace, details=details)


@pytest.fixture
def api() -> ApiServer:
    """One pod of each kind."""
    api = ApiServer()
    put(api, "working", main=RUNNING, istio_proxy=RUNNING)
    early, late = exited(0, at="2026-11-21T08:00:00Z"), exited(0, at="2026-11-21T09:00:00Z")
    put(api, "stuck", main=late, small=early, istio_proxy=RUNNING)
    put(api, "blocked", main=early, vault=RUNNING, istio_proxy=RUNNING)
    put(api, "lost", main=RUNNING, small=late, istio_proxy=early)
    put(api, "plain", main=exited(0))
    api.put("pods", document({"main": exited(0)}, phase="Succeeded"))
    put(api, "elsewhere", "other", main=exited(0), istio_proxy=RUNNING)
    return api


async def test_one_namespace_is_read_alone_and_nothing_is_changed(api: ApiServer, ask: Ask) -> None:
    shown = await ask(api, "audit", "-n", "other", "-o", "name")
    assert shown.out == "pod/elsewhere\n"
    assert [request for request in api.requests if "pods" in request] == [
        "GET /api/v1/namespaces/other/pods"
    ]
    assert {request.split()[0] for request in api.requests} <= {"GET"}


CODES = {"stuck": "IA0101", "blocked": "IA0102", "lost": "IA0103", "unmeshed": "IA0105"}


def finding(state: str, **fields: Any) -> Found:
    return msgspec.convert(
        {"namespace": "training", "name": "job", "uid": "u-1", "state": state, "code": CODES[state],
         "since": NOON - timedelta(minutes=5), "action": "quit", "by": (), "containers": {},
         "reason": "every payload is finished", **fields},
        Found,
    )  # fmt: skip


def table(audit: Audit) -> str:
    return report.audit_text(audit.findings, Terminal(), audit=audit, now=NOON)


TABLE = """\
NAMESPACE  NAME       PODS  STATE  CODE    AGE      SINCE              REASON
training   tfjob/a    2     stuck  IA0101  3h       2026-11-21 11:55Z  every payload is finished
training   pod/job-2  1     lost   IA0103  unknown  unknown            every payload is finished

2 pods are kept by istio-proxy since 2026-11-21 11:55Z; the requests of 2 cannot be read

IA0101  the proxy runs on after its payload: https://github.example/istio-aux/istio-aux/blob/main/docs/findings/pods.md#ia0101
IA0103  the proxy ended before its payload: https://github.example/istio-aux/istio-aux/blob/main/docs/findings/pods.md#ia0103

pods: 812; stuck: 2, blocked: 0, lost: 1, \
unstarted: 0, unmeshed: 0, failed: 0"""


def held(gpus: int, **fields: Any) -> Found:
    requests = {"millicpu": 4000, "memory": 32 << 30, "gpus": gpus}
    return finding(fields.pop("state", "stuck"), **{"requests": requests, **fields})


RESTART = "istio-aux restart-unmeshed -n training --yes"


def test_a_page_says_what_hangs_what_it_holds_whose_it_is_and_what_to_do() -> None:
    """What holds most comes first; the figures are those of all pods that are kept."""
    found = [
        held(2, owner="Job/small", action="ignore", left_out="not selected"),
        held(8, owner="TFJob/large", since=NOON - timedelta(hours=3)),
        held(8, owner="TFJob/large", since=NOON - timedelta(days=1)),
        held(1, state="blocked", by=("vault",), fix="sidecars: vault=ignore", owner="Job/kept"),
        finding("lost", name="lost"),
        finding("unmeshed", owner="StatefulSet/web", fix="restart it", restart=RESTART),
    ]
    shown = page(Audit(found, 40), NOON)
    text = " ".join(re.sub("<style>.*</style>|<[^>]*>", " ", shown, flags=re.DOTALL).split())
    assert (
        "On 21 November 2026 at 12:00 UTC, 4 of 40 unfinished pods hang beside a sidecar:" in text
    )
    assert (
        "4 pods kept 19 GPUs held 216 GPU hours so far 16 CPUs held 128Gi memory held 24h" in text
    )
    assert re.findall(r"(\S+) training, (\d) pod", text) == [
        ("tfjob/large", "2"), ("job/small", "1"), ("job/kept", "1"), ("pod/lost", "1"),
        ("statefulset/web", "1"),
    ]  # fmt: skip
    for what in (
        "16 GPUs, 8 CPUs, 64Gi of memory",
        "blocked IA0102 finished or deleted, but something keeps it",
        "Nothing: istio-aux is about to end its proxy.",
        "istio-aux quit -n training job/small --yes",
        "sidecars: vault=ignore",
        RESTART,
        "Not looked after: not selected",
    ):
        assert what in text


def test_a_page_has_no_figures_of_what_nothing_holds() -> None:
    nothing, one = page(Audit([], 7), NOON), page(Audit([held(0)], 7), NOON)
    assert "no pod was kept by a sidecar, among 7 unfinished pods" in nothing
    assert "1 of 7 unfinished pods hangs beside a sidecar: it cannot start, finish or go." in one
    assert "What it requested in 1 namespace is not free for other work." in one
    assert re.findall(r"<li><b>\S+</b> ([^<]+)", nothing) == []
    assert re.findall(r"<li><b>\S+</b> ([^<]+)", one) == [
        "pod kept", "CPUs held", "memory held", "longest"
    ]  # fmt: skip


def test_a_page_says_neither_that_a_stuck_pod_uses_what_it_has_nor_what_is_not_known() -> None:
    found = [finding("stuck", requests=Requests()), finding("unmeshed")]
    unknown = Installations(gap="this account may not list mutatingwebhookconfigurations")
    shown = page(Audit(found, 2, installations=unknown), NOON)
    assert (shown.count("<td>nothing</td>"), shown.count("<td>in use</td>")) == (1, 1)
    assert "istio-aux is not installed" not in shown
    assert "istio-aux is not installed" in page(Audit(found, 2), NOON)


@pytest.mark.parametrize("where", ["namespace", "name", "reason", "left_out", "fix", "by"])
def test_nothing_that_a_tenant_writes_is_markup_in_a_page(where: str) -> None:
    """Nor does the page load anything, and a crowd of owners does not make it long."""
    hostile = "<script>alert(1)</script>\"'\u202e{style}" + "&" * 9000
    value = (hostile,) if where == "by" else hostile
    found = [
        held(1, **{"owner": "", where: value}),
        *(finding("lost", owner=f"Job/{n}") for n in range(600)),
    ]
    shown = page(Audit(found, 601), NOON)
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert not re.search(r"(?i)(src|href)=|url\(|@import|https?:", shown)
    assert "default-src 'none'" in shown
    assert "And 101 more rows." in shown
    assert len(shown) < 400_000


async def test_a_page_that_cannot_be_written_is_said_and_a_failure(
    api: ApiServer, ask: Ask
) -> None:
    shown = await ask(api, "audit", "--report", "/none/page.html")
    assert "stuck: 2" in shown.out
    assert (shown.status, shown.err) == (1, "/none/page.html: No such file or directory\n")


def test_a_table_has_a_line_for_each_owner_and_a_summary() -> None:
    """What is not known does not count as healthy."""
    found = [
        finding("stuck", owner="TFJob/a", created=NOON - timedelta(hours=3)),
        finding("stuck", owner="TFJob/a", created=NOON, since=NOON),
        finding("lost", name="job-2", since=None),
    ]
    assert table(Audit(found, 812)) == TABLE
    empty = table(Audit([], 7, among="in all namespaces (7 looked at)"))
    assert empty == (
        "no pod hangs or lacks its sidecar in all namespaces (7 looked at)\n\n"
        "pods: 7; stuck: 0, blocked: 0, lost: 0, unstarted: 0, unmeshed: 0, failed: 0"
    )
    assert table(Audit([finding("unmeshed")], 7, 3)).endswith("unmeshed: 1, failed: 0 (unknown: 3)")
    left = table(Audit([], 7, ignored=[Code.RUNS_ON, Code.KEPT, Code.KEPT]))
    assert left.endswith("failed: 0; ignored: 3 (IA0101, IA0102)")


def test_the_jobs_that_a_cronjob_piles_up_are_one_row_by_its_name() -> None:
    """The names are those that its controller makes, of minutes; a date is another name."""
    minutes = int(NOON.timestamp()) // 60
    made = {"created": NOON}
    found = [
        *(finding("stuck", owner=f"Job/sync-{minutes - n}", **made) for n in (0, 60, 500_000)),
        finding("stuck", owner=f"Job/sync-{minutes}", created=None),
        *(finding("stuck", owner=f"Job/sync-{n}", **made) for n in (20261121, minutes + 60, "a")),
        finding("stuck", owner=f"TFJob/sync-{minutes}", **made),
        finding("stuck", owner=f"Job/sync-{minutes - 600_000}", **made),
    ]
    rows = [line.split()[1:3] for line in table(Audit(found, 9)).splitlines()[1:8]]
    assert rows == [
        ["cronjob/sync", "3"], [f"job/sync-{minutes}", "1"], ["job/sync-20261121", "1"],
        [f"job/sync-{minutes + 60}", "1"], ["job/sync-a", "1"], [f"tfjob/sync-{minutes}", "1"],
        [f"job/sync-{minutes - 600_000}", "1"],
    ]  # fmt: skip
    assert "istio-aux quit -n training cronjob/sync --yes" in page(
        Audit([replace(found[0], action="ignore")], 1), NOON
    )


def output(audit: Audit, kind: str, *, holders: bool = False) -> bytes:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as stream:
        if holders:
            Output(kind).show(audit.holders(), report.holders_text, audit=audit)
        else:
            Output(kind).show(audit.findings, report.audit_text, audit=audit, now=NOON)
    return stream.buffer.getvalue()


def test_json_is_one_object_a_line() -> None:
    """Its names are a contract."""
    shown = output(Audit([finding("stuck"), finding("blocked", by=("a",))], 2), "json")
    first, second = map(msgspec.json.decode, shown.splitlines())
    assert first == {
        "namespace": "training", "name": "job", "uid": "u-1", "state": "stuck", "code": "IA0101",
        "owner": "", "created": None, "node": "",
        "since": "2026-11-21T11:55:00Z", "action": "quit", "by": [], "containers": {},
        "reason": "every payload is finished", "configuration": "", "requests": None,
        "fix": "", "left_out": "", "free": "", "restart": "", "change": "", "policy": "",
        "attempts": None, "lasting": True,
    }  # fmt: skip
    assert second["by"] == ["a"]


def test_holders_are_shown_alone_and_in_json() -> None:
    """Their names are a contract."""
    held = finding("blocked", by=("vault",), requests={"gpus": 8}, fix="set x: false")
    audit = Audit([held, finding("lost")], 2)
    text = "1 pod is kept by vault since 2026-11-21 11:55Z: 8 GPUs; set x: false"
    assert output(audit, "text", holders=True).decode() == f"{text}\n"
    assert msgspec.json.decode(output(audit, "json", holders=True)) == {
        "by": ["vault"], "pods": 1, "since": "2026-11-21T11:55:00Z", "requests": {"gpus": 8},
        "fix": "set x: false", "text": text,
    }  # fmt: skip


def test_the_first_answer_in_the_readme_is_what_audit_prints() -> None:
    since = datetime(2026, 11, 18, 9, 30, tzinfo=UTC)
    size = {"millicpu": 8_000, "memory": 64 * 1024**3}
    gpus = (4, 4, 4, 4, 4, 2, 2)
    found = [finding("stuck", since=since, requests={**size, "gpus": each}) for each in gpus]
    shown = output(Audit(found, 31), "table", holders=True).decode()
    assert f"$ istio-aux audit --holders\n{shown}```" in (ROOT / "README.md").read_text()


def test_of_many_holders_the_first_are_shown() -> None:
    """Tenants name their containers."""
    found = [finding("blocked", by=(f"c{number}",), requests={}) for number in range(99)]
    lines = table(Audit(found, 99)).splitlines()
    assert sum("is kept by" in line for line in lines) == 20
    assert "and 79 more holders" in lines


def test_restarts_name_the_installation_whose_settings_count() -> None:
    """As the summary of `audit` does; without an installation they are the defaults."""
    nothing = "no pod lacks its sidecar in all namespaces"
    for name, where in (("a/b", "installation: a/b; "), ("", "")):
        facts = {"dry_run": False, "installation": name, "among": "in all namespaces"}
        shown = report.restarts_text([], Terminal(), **facts)
        assert shown == f"{nothing}\n\n{where}restarted: 0, kept: 0"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172799, "47h"),
        (172800, "2d"), (700000000, "8101d"),
    ],
)  # fmt: skip
def test_ages_are_written_in_the_largest_unit_that_says_enough(seconds: int, shown: str) -> None:
    assert age(NOON - timedelta(seconds=seconds), NOON) == shown


# As users run it, and `explain` of a cluster's pods.


async def test_audit_says_which_pods_no_installation_looks_after_and_how_to_free_them(
    api: ApiServer, ask: Ask
) -> None:
    shown = await ask(api, "audit", columns=None)
    _, held, left_out, _, _ = shown.out.split("\n\n")
    assert held.startswith("2 pods are kept by istio-proxy since ")
    assert left_out.startswith(
        "no installation looks after 4 of these pods (24 GPUs): istio-aux is"
    )
    assert left_out.splitlines()[-2:] == ["free the stuck pods:", "  istio-aux quit -A --yes"]


async def test_a_pod_without_a_node_says_why_who_holds_the_gpus_and_holds_none(
    api: ApiServer, ask: Ask
) -> None:
    why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
    body = api.get("pods", "training", "working") or {}
    api.put("pods", {**body, "status": {"phase": "Pending", "conditions": [said]}})
    [shown] = objects(await ask(api, "explain", "training/working", "-o", "json"))
    [kept] = objects(await ask(api, "quit", "training/working", "-o", "json"))
    assert shown["reason"] == f"Unschedulable: {why}; 16 GPUs are held by 2 finished pods"
    assert (kept["reason"], kept["requests"]) == (f"Unschedulable: {why}", {})


def test_a_server_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    server = "https://127.0.0.1:1"
    shown = run("audit", "--kubeconfig", str(kubeconfig(tmp_path, cluster={"server": server})))
    why = "Cannot connect to host 127.0.0.1:1 [connection refused]"
    assert shown == (1, "", f"API server {server}: {why}\n")


async def test_explain_reads_pods_of_the_cluster_by_name(
    api: ApiServer, ask: Ask, tmp_path: Path
) -> None:
    """With a namespace before the slash, in -n, or in the kubeconfig; after those in files."""
    file, everywhere = tmp_path / "pod.json", tmp_path / "config.yaml"
    file.write_text('{"kind": "Pod", "metadata": {"name": "on-paper"}}')
    everywhere.write_text("namespace-selectors: ''\n")
    put(api, "one", "default", main=exited(0), istio_proxy=RUNNING)
    api.refuse("/pods/one", 429, "TooManyRequests", "slow down", times=3, after=0)
    from_default = await ask(api, "explain", "-o", "name", "none", "one", "training/working")
    options = ("-f", str(file), "-n", "training", "--config", str(everywhere))
    from_option = await ask(api, "explain", "-o", "json", *options, "working", "default/one")
    assert (from_default.status, from_default.out) == (1, "pod/one\npod/working\n")
    assert 'default/none: 404 NotFound: pods "none" not found; did you mean "one"?\n' in (
        from_default.err
    )
    actions = [(each["name"], each["action"]) for each in objects(from_option)]
    assert actions == [("on-paper", "ignore"), ("working", "wait"), ("one", "quit")]


async def test_an_interrupt_is_quiet(api: ApiServer, tmp_path: Path) -> None:
    """Ctrl-C while the server takes its time: no traceback, and the status of shells, 130."""
    async with api:
        api.hang("")
        # A shell that runs the tests in the background ignores the signal, also for children.
        program = (
            "import signal, sys; from istio_aux.cli import main;"
            " signal.signal(signal.SIGINT, signal.default_int_handler); sys.exit(main())"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program,
            "audit", "--kubeconfig", str(api.kubeconfig(tmp_path)), stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        await until(lambda: api.requests, "the program to ask", within=30)
        process.send_signal(signal.SIGINT)
        assert await process.communicate() == (b"", b"")
        assert process.returncode == 130


async def test_pods_outside_an_ambient_mesh_are_found_and_explained(
    api: ApiServer, ask: Ask
) -> None:
    """istio#61182: by the annotation and the agents' settings, and no pod is asked."""
    profile = {
        "istio.io/dataplane-mode": "ambient",
        "app.kubernetes.io/part-of": "kubeflow-profile",
    }
    api.put("namespaces", {"metadata": {"name": "shop", "labels": profile}})
    api.put("pods", agent())
    api.put("configmaps", cni())
    for name, said in {"out": "", "well": "enabled", "half": "pending"}.items():
        api.put("pods", ambient(said, name=name, uid=name))
    api.put("pods", ambient("enabled", name="booted", uid="booted", renewed=True))
    found = await ask(api, "audit", "-n", "shop", "-o", "json")
    explained = await ask(api, "explain", "-n", "shop", "out", "well", "half", columns=None)
    api.put("configmaps", cni(AMBIENT_RECONCILE_POD_RULES_ON_STARTUP="false"))
    api.put("pods", agent(ready=False))
    away = await ask(api, "audit", "-n", "shop")
    assert {(line["name"], line["state"], line["code"]) for line in objects(found)} == {
        ("out", "unmeshed", "IA0106"),
        ("half", "unmeshed", "IA0126"),
    }
    out, well, half = (line for line in explained.out.splitlines() if line.startswith("shop/"))
    assert "UNMESHED  outside the mesh: it has no annotation ambient.istio.io/redirection" in out
    assert "the pod has no container istio-proxy" in well
    assert "look at ztunnel on its node" in half
    assert "pods that may lack their sidecar: 2: " in away.err
    assert "; istio-cni is not ready on node node-1" in away.err
    assert (found.status, away.status, api.forwards) == (0, 1, [])


# `istio-aux audit`: pods that should have a sidecar and have none, and what cannot be known.

POLICY = "/api/v1/namespaces/istio-system/configmaps/istio-sidecar-injector"
NAMESPACES = "/api/v1/namespaces"


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
        about, containers = (
            {"creationTimestamp": "2026-11-21T08:00:00Z"},
            containers or {"main": RUNNING},
        )
        fields = {"restart": "Always", **fields}
        put_pod(self, name, containers, namespace=namespace, about=about, **fields)


@pytest.fixture
def istio() -> Istio:
    """With pods with and without sidecars, also in another namespace."""
    api = Istio()
    api.put("namespaces", {"metadata": {"name": "other"}})
    stuck = {"main": exited(0), "istio-proxy": RUNNING}
    pods: dict[str, dict[str, Any]] = {
        "asks": {"labels": {"sidecar.istio.io/inject": "true"}},
        "plain": {},
        "opted-out": {"labels": {"sidecar.istio.io/inject": "false"}},
        "over": {"phase": "Succeeded"},
        "pending": {"phase": "Pending"},
        "elsewhere": {"namespace": "other"},
        "meshed": {"containers": {"main": RUNNING, "istio-proxy": RUNNING}},
        "stuck": {"containers": stuck, "restart": "Never"},
    }
    for name, fields in pods.items():
        api.run_pod(name, **fields)
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
    istio: Istio,
    ask: Ask,
    forbidden: str,
    where: str,
    found: dict[str, str],
    unknown: int,
    gap: str,
) -> None:
    """Pods that ask for a sidecar need no policy; who reads one namespace is answered about it."""
    istio.refuse(f"GET {forbidden}", 403, "Forbidden", f"not {forbidden}")
    shown = await ask(istio, "audit", where, "-o", "json")
    assert (states(shown), shown.status) == (found, 1 if unknown else 0)
    assert (f"pods that may lack their sidecar: {unknown}: " in shown.err) is bool(unknown)
    assert shown.err.endswith(gap)


async def test_what_is_not_known_is_ignored_with_its_code(istio: Istio, ask: Ask) -> None:
    istio.refuse(f"GET {CONFIGURATIONS}", 403, "Forbidden", f"not {CONFIGURATIONS}")
    shown = await ask(istio, "audit", "--ignore", "IA0107,IA0101")
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
    istio: Istio, ask: Ask, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    """Labels, an annotation and the name of a container are its author's to choose."""
    page = tmp_path / "page.html"
    before = await ask(istio, "audit", "-o", "json")
    istio.run_pod("hides", **fields)
    istio.run_pod("outside", namespace="other", **fields)
    after = await ask(istio, "audit", "-o", "json", "--report", str(page))
    hides, outside = objects(
        await ask(istio, "explain", "shop/hides", "other/outside", "-o", "json")
    )
    assert (before.err, after.out, after.status) == ("", before.out, 1)
    said = hides["reason"].partition("; not known whether the pod is in its mesh: ")[2]
    assert why in said
    assert f"pods that may lack their sidecar: 1: {said}" in after.err
    assert why in page.read_text()
    assert "not known" not in outside["reason"]


AGAIN = "istio-aux restart-unmeshed -n shop --yes"


async def test_explain_agrees_with_audit_and_both_say_how_a_pod_gets_its_sidecar(
    istio: Istio, ask: Ask
) -> None:
    """The pods of Jobs are not evicted, so no command helps with them."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "night", "uid": "j", "controller": True}
    web = {**job, "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d9"}
    for owner in (job, web):
        about = {"ownerReferences": [owner], "labels": {"pod-template-hash": "7d9"}}
        put_pod(istio, owner["name"], {"main": RUNNING}, namespace="shop", about=about)
    audited = await ask(istio, "audit", "-o", "json")
    explained = await ask(istio, "explain", "-A", "-o", "json")
    text = await ask(istio, "audit", columns=None)
    planned = objects(await ask(istio, *AGAIN.split()[1:-1], "-o", "json"))
    istio.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
    [unknown] = objects(await ask(istio, "explain", "shop/night", "-o", "json"))
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
