"""`istio-aux bug-report`: what it keeps, what it leaves out, and what commands answer from it."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import re
import stat
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from istio_aux.cli import archive, bug_report
from istio_aux.cli.trimmed import Names, pod, trimmed
from istio_aux.model.pod import decode
from unit.apiserver import ApiServer, discovery
from unit.rules.pods import RUNNING, document, exited
from unit.screens import Ask, Run, Shown, objects, put_pod
from unit.test_cli_audit import fill

SECRET, DONE = "hunter2", exited(0, at="2026-11-21T09:00:00Z")
HIDDEN = {
    "command": ["sh", SECRET], "args": [f"--token={SECRET}", f"x {SECRET} quitquitquit"],
    "env": [{"name": "PASSWORD", "value": SECRET}], "envFrom": [{"secretRef": {"name": SECRET}}],
    "resources": {"requests": {"nvidia.com/gpu": "8"}, "claims": [{"name": SECRET}]},
}  # fmt: skip
CONFIG = f'{{"statusPort": 15021, "proxyMetadata": {{"KEY": "{SECRET}"}}}}'
ABOUT = {
    "generateName": "mnist-",
    "labels": {"job": "mnist", "owner": "jane"},
    "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": SECRET,
        "proxy.istio.io/config": f"holdApplicationUntilProxyStarts: true\nx: {SECRET}",
        "istio-aux.io/quit-grace": "1s",
    },
}
DETAILS = {"main": HIDDEN, "istio-proxy": {"env": [{"name": "PROXY_CONFIG", "value": CONFIG}]}}
LINE = {
    "time": "09:00",
    "event": "quit",
    "namespace": "training",
    "pod": "mnist-0",
    "reason": "jane",
}
ANSWERS: Mapping[str, object] = {
    "/proxy/status": {"ready": True, "missing": [], "start-mode": "auto", "capability": "native",
        "called_before_us": None, "injectors": [], "injector-live": True, "watched-pods": 7,
        "called-before-us": [], "selected-namespaces": ["training"], "stuck-pods": [],
        "blocked-pods": [], "lost-pods": [], "holders": [], "race": "report", "unmeshed-pods": [],
        "unmeshed-total": 0, "unmeshed-unknown": 0, "applications": [],
        "unreadable-objects": [], "unreadable-total": 0, "leader": True, "lease-holder": "jane",
        "quit": "enabled"},
    "/proxy/metrics": f"istio_aux_quits_total 3\nother{{a=\"{SECRET}\"}} 1\n",
    "/log": f"{SECRET}\n2026 [istio-aux] {json.dumps(LINE)}\n"
            f'{{"message": "Bearer {SECRET} eyJhbGciOiJSUzI1NiJ9.{SECRET}.x"}}\n',
}  # fmt: skip
NAMES = ("training", "mnist", "elsewhere", "jane", "node-1", "zebra", "registry.acme", "steering")


async def unit(request: web.Request) -> web.Response | None:
    """What the API server forwards of a unit; and our Events, whose selector no label can have."""
    for ending, answer in ANSWERS.items():
        if request.path.endswith(ending):
            return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))
    ours = request.query.get("fieldSelector", "").startswith("reportingComponent")
    return web.json_response({"metadata": {}, "items": []}) if ours else None


async def furnish(api: ApiServer) -> None:
    """Pods of each kind, an installation, and a secret in each place that a pod has for one."""
    await fill(api)
    api.always(unit)
    settings = {"lease": "steering/istio-aux", "namespace-selectors": "team=zebra"}
    client = {"caBundle": "Zm9v", "service": {"namespace": "steering", "name": "istio-aux"}}
    annotations = {"istio-aux.io/settings": json.dumps(settings)}
    about = {"name": "istio-aux-steering", "annotations": annotations}
    hook = {"name": "start.istio-aux.io", "clientConfig": client}
    api.put("mutatingwebhookconfigurations", {"metadata": about, "webhooks": [hook]})
    for name, labels in (("training", {"team": "zebra"}), ("other", {}), ("steering", {})):
        own = {"kubernetes.io/metadata.name": name, **labels}
        about = {"name": name, "labels": own, "annotations": {"owner": SECRET}}
        api.put("namespaces", {"metadata": about})
    where = {"name": "istio-aux", "namespace": "steering"}
    api.put("leases", {"metadata": where, "spec": {"holderIdentity": "jane"}})
    kubelet = {"status": {"nodeInfo": {"kubeletVersion": "v1.36.0"}}}
    api.put("nodes", {"metadata": {"name": "node-1"}, **kubelet})
    for kind in ("secrets", "configmaps"):
        about = {"name": SECRET, "namespace": "training"}
        api.put(kind, {"metadata": about, "data": {"token": SECRET}})
    about = {"name": "mnist", "namespace": "training", "uid": "u-job"}
    template = {"template": {"spec": {"containers": [{"args": [SECRET]}]}}}
    api.put("jobs", {"metadata": about, "spec": template})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "mnist", "uid": "u-job"}
    about = {**ABOUT, "ownerReferences": [{**owner, "controller": True}]}
    states = {"main": DONE, "istio-proxy": RUNNING}
    await put_pod(api, "mnist-0", states, about=about, details=DETAILS)
    await put_pod(api, "aux-0", {"istio-aux": RUNNING}, namespace="steering")


def unpacked(archive: Path) -> dict[str, str]:
    """What is in an archive, by the name of the file."""
    with tarfile.open(archive) as tar:
        files = [(each.name.partition("/")[2], tar.extractfile(each)) for each in tar]
        return {name: file.read().decode() for name, file in files if file}


async def reported(ask: Ask, api: ApiServer, file: Path, *more: str) -> Shown:
    await furnish(api)
    made = await ask(api, "bug-report", str(file), *more, columns=None)
    assert (made.status, made.err) == (0, "")
    return made


async def test_no_more_is_kept_than_can_be_read_again_and_what_is_left_out_is_said(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bug_report, "ALL", 1500)
    async with ApiServer() as api:
        await furnish(api)
        made = await ask(api, "bug-report", str(tmp_path / "report.tar.gz"))
        audited = await ask(api, "audit", "-f", str(tmp_path / "report.tar.gz"))
    assert re.search("left out: api/v1/pods: [0-9]+ objects are too much", made.err)
    assert (made.status, audited.status) == (0, 0)


async def test_commands_answer_from_an_archive_as_from_the_cluster(
    ask: Ask, tmp_path: Path
) -> None:
    """Also from the folder that it is unpacked to, and without a cluster."""
    file = tmp_path / "report.tar.gz"
    calls = (
        ["audit"], ["audit", "-n", "other", "-o", "json"], ["audit", "-l", "owner=jane"],
        ["explain", "-n", "training", "job/mnist"], ["explain", "-A", "-o", "json"],
        ["explain", "-n", "training", "mnist-0", "nosuch"], ["check"],
    )  # fmt: skip
    async with ApiServer() as api:
        made = await reported(ask, api, file)
        live = [await ask(api, *call, columns=None) for call in calls]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "api/v1/pods.json" in made.out
    unpack = ["tar", "-xf", file, "-C", tmp_path]
    await asyncio.to_thread(subprocess.run, unpack, check=True)
    for place in (file, tmp_path / "istio-aux-bug-report"):
        played = [await ask(api, *call, "-f", str(place), columns=None) for call in calls]
        for call, there, here in zip(calls, live, played, strict=True):
            assert (here.status, here.err) == (there.status, there.err), call
            assert sorted(here.out.splitlines()) == sorted(there.out.splitlines()), call


async def test_an_anonymous_archive_answers_alike_but_for_names(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    async with ApiServer() as api:
        await reported(ask, api, file, "--anonymous")
        live = await ask(api, "audit", "-o", "json")
        checked = await ask(api, "check", "-o", "json")
    played = await ask(api, "audit", "-o", "json", "-f", str(file))
    parts = ("state", "since", "action", "reason", "requests", "containers", "by")

    def facts(shown: Shown) -> list[str]:
        return sorted(str([each[part] for part in parts]) for each in objects(shown))

    assert facts(played) == facts(live)
    assert results(await ask(api, "check", "-o", "json", "-f", str(file))) == results(checked)
    text = str(unpacked(file))
    assert [name for name in (*NAMES, SECRET) if name in text] == []


def results(shown: Shown) -> list[tuple[str, str]]:
    """What `check` says of each thing."""
    return [(each["check"], each["result"]) for each in objects(shown)]


async def test_an_archive_has_no_secret(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    async with ApiServer() as api:
        await reported(ask, api, file)
        asked = {each for each in api.requests if "secrets" in each}
    files = unpacked(file)
    assert [name for name, text in files.items() if SECRET in text] == []
    assert asked == set()
    assert "istio_aux_quits_total 3" in files["units/aux-0/metrics.txt"]
    assert json.loads(files["units/aux-0/status.json"])["watched-pods"] == 7
    assert json.loads(files["units/aux-0/log.jsonl"].splitlines()[0]) == LINE
    manifest = json.loads(files["manifest.json"])
    assert {*manifest["files"]} == {*files} - {"manifest.json"}


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar, as gzip has it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for member, body in members:
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return out.getvalue()


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(f"report/{name}")
    for key, value in fields.items():
        setattr(made, key, value)
    return made


GOOD = (member("answers.json"), b'{"wall": 1}')
HOSTILE = {
    "no tar": (gzip.compress(b"x" * 999), "invalid header"),
    "cut": (packed(GOOD)[:40], "its end is missing"),
    "cut late": (packed(GOOD)[:-9], "its end is missing"),
    "many": (
        packed(GOOD, (member("api/v1/pods.json"), b"[%b{}]" % (b"{}," * (5 << 20)))),
        "8 million",
    ),
    "a bomb": (gzip.compress(bytes(archive.MOST + 1)), "expected at most 128 MiB in 200 files"),
    "a crowd": (packed(*((member(f"{n}"), b"") for n in range(202))), "expected at most 128 MiB"),
    "a link": (
        packed(GOOD, (member("a", type=tarfile.SYMTYPE, linkname="/etc/passwd"), b"")),
        "no plain",
    ),
    "a device": (packed(GOOD, (member("a", type=tarfile.CHRTYPE), b"")), "is no plain file"),
    "nothing": (packed((member("a"), b"")), "it has no answers.json"),
    "another time": (packed((member("answers.json"), b'{"wall": 1e300}')), "Expected `float`"),
    "too deep": (
        packed(GOOD, (member("api/v1/pods.json"), b'[{"a":' + b"[" * 99_999)),
        "recursion",
    ),
    "no list": (packed(GOOD, (member("api/v1/pods.json"), b"{}")), "Expected `array`"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_archive_that_is_none_is_one_line(run: Run, tmp_path: Path, name: str) -> None:
    """Whatever a stranger sends, in every command that reads one."""
    body, why = HOSTILE[name]
    file = tmp_path / "report.tar.gz"
    file.write_bytes(body)
    for command in ("audit", "check", "explain"):
        shown = run(command, "-f", str(file), errors=None)
        assert (shown.status, shown.out) == (2, "")
        assert re.fullmatch(f"{file}: no archive of bug-report: .*(?:{why}).*\n", shown.err)


def test_a_name_in_an_archive_leads_nowhere(run: Run, tmp_path: Path) -> None:
    """Nothing is written, and what a folder links to is not read."""
    file = tmp_path / "report.tar.gz"
    file.write_bytes(packed(GOOD, (member("../../escaped"), b"x"), (member("/etc/escaped"), b"x")))
    shown = run("audit", "-f", str(file), columns=None, errors=None)
    assert shown.err == f"{file}: 404 NotFound: the archive has no pods\n"
    assert not [*tmp_path.parent.rglob("escaped")]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "answers.json").symlink_to("/etc/hostname")
    shown = run("audit", "-f", str(folder), errors=None)
    assert (shown.status, "Too many levels of symbolic links" in shown.err) == (2, True)


def test_a_folder_of_much_else_is_not_looked_through(run: Run, tmp_path: Path) -> None:
    (tmp_path / "answers.json").write_text('{"wall": 1}')
    for number in range(2 * archive.MEMBERS):
        (tmp_path / str(number)).mkdir()
    shown = run("audit", "-f", str(tmp_path), columns=None, errors=None)
    assert shown.err == (
        f"{tmp_path}: no archive of bug-report: expected at most 128 MiB in 200 files\n"
    )


def test_an_archive_of_many_objects_is_read_in_seconds(run: Run, tmp_path: Path) -> None:
    """A page costs what is on it, and an object by its name does not cost all others."""
    file, many = tmp_path / "report.tar.gz", 40_000
    spaces = [{"metadata": {"name": f"n{n}"}} for n in range(many // 4)]
    pods = [
        {"metadata": {"name": f"p{n}", "namespace": f"n{n % len(spaces)}"}} for n in range(many)
    ]
    files = {"api/v1/namespaces.json": spaces, "api/v1/pods.json": pods}
    parts = [(member(name), json.dumps(body).encode()) for name, body in files.items()]
    file.write_bytes(packed(GOOD, *parts))
    began = time.process_time()
    shown = run("audit", "-f", str(file), columns=None, errors=None)
    assert "no pod" in shown.out
    assert time.process_time() - began < 20


def test_a_name_in_an_archive_commands_no_terminal(run: Run, tmp_path: Path) -> None:
    """No API server has looked at it; text, JSON and YAML escape it, too."""
    file = tmp_path / "report.tar.gz"
    body = document({"main": DONE, "istio-proxy": RUNNING})
    body["metadata"] |= {"name": "a\x1b]0;b\x07\nc", "namespace": "training", "uid": "u"}
    file.write_bytes(packed(GOOD, (member("api/v1/pods.json"), json.dumps([body]).encode())))
    for form in ("name", "text", "wide", "json", "yaml", "jsonpath={.items[*].name}"):
        shown = run("audit", "-f", str(file), "-o", form, columns=None, errors=None)
        assert (shown.status, {"\x1b", "\x07"} & {*shown.out}) == (0, set())
    assert run("audit", "-f", str(file), "-o", "name", columns=None).out == (
        "pod/a\\x1b]0;b\\x07\\nc\n"
    )


@pytest.mark.parametrize("hour", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_date_that_no_clock_has_is_read(run: Run, tmp_path: Path, hour: str) -> None:
    """In UTC it would be a day before the first, or after the last."""
    file = tmp_path / "report.tar.gz"
    body = document({"main": exited(0, at=hour), "istio-proxy": RUNNING})
    body["metadata"] |= {"namespace": "training", "uid": "u"}
    event = {
        "metadata": {"namespace": "training"}, "involvedObject": {"kind": "Job", "uid": "v"},
        "type": "Warning", "reason": "FailedCreate", "lastTimestamp": hour,
    }  # fmt: skip
    parts = {"api/v1/pods.json": [body], "api/v1/events.json": [event]}
    members = [(member(name), json.dumps(body).encode()) for name, body in parts.items()]
    file.write_bytes(packed(GOOD, *members))
    shown = run("audit", "-f", str(file), "--report", str(tmp_path / "page"), columns=None)
    assert "stuck: 1" in shown.out


@pytest.mark.parametrize(
    "body", ['{"metadata": {"namespace": []}}', '{"metadata": 7}', '{"metadata": {"labels": [7]}}']
)
def test_an_object_that_is_none_is_said(run: Run, tmp_path: Path, body: str) -> None:
    file = tmp_path / "report.tar.gz"
    file.write_bytes(packed(GOOD, (member("api/v1/pods.json"), f"[{body}]".encode())))
    shown = run("audit", "-f", str(file), "-l", "a!=b", columns=None, errors=None)
    assert (shown.status, "cannot read pod" in shown.err) == (1, True)


def test_what_decides_stays_and_its_text_does_not() -> None:
    """Katib's collector, a payload that ends its proxy, and the drain of the proxy."""
    body = document(
        {"main": RUNNING, "collector": RUNNING, "istio-proxy": RUNNING},
        details={
            "main": {"args": [f"run {SECRET} && echo completed > /x"], "command": ["kill", SECRET]},
            "collector": {"args": ["-w", "false", "-s", SECRET]},
            "istio-proxy": {"env": [{"name": "PROXY_CONFIG", "value":
                f'{{"statusPort": 1, "terminationDrainDuration": "60s", "x": "{SECRET}"}}'}]},
        },
    )  # fmt: skip
    new = pod(decode(json.dumps(body).encode()), Names(anonymous=False))
    main, collector, proxy = new.containers
    assert main.args == ("echo completed > ", "kill")
    assert collector.args == ("-w", "false")
    assert proxy.env
    assert proxy.env[0].value == '{"statusPort":1,"terminationDrainDuration":"60s"}'
    assert SECRET not in str(new)


async def test_an_anonymous_archive_names_no_types_of_others(ask: Ask, tmp_path: Path) -> None:
    """Neither those that a company serves nor, beside the name of a namespace, a longer one."""
    file, more = tmp_path / "report.tar.gz", [("acme.com/v1", "invoices", "Invoice", "")]

    async def serve(request: web.Request) -> web.Response | None:
        types = discovery(("batch/v1", "jobs", "Job", ""), *more)
        return web.json_response(types) if request.path == "/apis" else None

    async with ApiServer() as api:
        api.always(serve)
        await reported(ask, api, file, "--anonymous")
    answers = unpacked(file)["answers.json"]
    assert ("acme" in answers, "jobs" in answers) == (False, True)


def test_a_name_in_another_name_is_replaced() -> None:
    """In that of a webhook configuration, where one namespace may begin as another does."""
    names = Names(anonymous=True)
    names.spaces |= {"prod", "prod-acme", "pro"}
    assert "acme" not in names.configuration("istio-sidecar-injector-prod-acme")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('Pod "a": env[0]: Invalid value: "hunter2"', 'Pod "a": env[0]: Invalid value'),
        ('webhook "x" denied the request: hunter2', 'webhook "x" denied the request'),
        ('pods "a" is forbidden: exceeded quota: q', 'pods "a" is forbidden: exceeded quota: q'),
        ("authorization: Bearer hunter2", "authorization: (left out)"),
        ('{"a":"Bearer hunter2"}', '{"a":"(left out)"}'),
        ("policy 'p' denied request: X=hunter2", "policy 'p' denied request"),
        ('volumeMounts[0].name: Not found: "hunter2"', "volumeMounts[0].name: Not found"),
        ('Get "https://u:hunter2@h/x": EOF', 'Get "https://(left out)@h/x": EOF'),
        ("at /x?token=hunter2", "at /x?(left out)"),
    ],
)
def test_a_message_has_nothing_that_it_quotes(text: str, kept: str) -> None:
    assert Names(anonymous=False).text(text) == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('calling webhook "v.acme.com": EOF', 'webhook "n'),
        ('failed calling webhook "namespace.sidecar-injector.istio.io": EOF', "sidecar-injector"),
        ('"x" is forbidden: error looking up service account acme/x: acme', "service account"),
        ('pods "acme" is forbidden: exceeded quota: acme', "is forbidden: exceeded quota"),
        ('pods "x" is forbidden: no acme', "…"),
    ],
)
def test_an_anonymous_message_names_nothing(text: str, kept: str) -> None:
    found = Names(anonymous=True).text(text)
    assert (kept in found, "acme" in found) == (True, False)


def test_an_anonymous_service_has_no_name() -> None:
    """Its path has the names of cluster and network in a mesh of several."""
    service = {"name": "acme", "namespace": "acme", "path": "/inject/cluster/acme/net/acme"}
    labels = {"kubernetes.io/service-name": "acme"}
    names, found = Names(anonymous=True), {"service": service, "labels": labels}
    new = trimmed(found, names)
    assert "acme" not in str(new)
    assert new["service"]["name"] == new["labels"]["kubernetes.io/service-name"]


def test_a_selector_that_is_none_costs_nothing() -> None:
    """Istio's policy is a text that no API server has looked at."""
    policy = {"matchExpressions": [{"operator": "Exists"}]}
    assert trimmed(policy, Names(anonymous=True))["matchExpressions"][0]["operator"] == "Exists"


def test_an_anonymous_name_is_another_one_in_each_report() -> None:
    """The same one within a report, and none for what each cluster has."""
    one, other = Names(anonymous=True), Names(anonymous=True)
    assert one("alice") == one("alice") != other("alice")
    assert one("kube-system") == "kube-system"
    labels = {"labels": {"istio-injection": "enabled", "team": "alice"}}
    assert trimmed(labels, one) == {"labels": {"istio-injection": "enabled"}}


async def test_a_file_that_exists_is_not_overwritten(ask: Ask, tmp_path: Path) -> None:
    file = tmp_path / "report.tar.gz"
    file.write_text("mine")
    async with ApiServer() as api:
        shown = await ask(api, "bug-report", str(file))
    assert (shown.status, file.read_text()) == (1, "mine")
    assert f"{file}: File exists" in shown.err


async def test_what_may_not_be_read_is_said(ask: Ask, run: Run, tmp_path: Path) -> None:
    """By the report, and by the commands that read it, as beside a cluster."""
    file = tmp_path / "report.tar.gz"
    async with ApiServer() as api:
        await furnish(api)
        api.refuse("GET /api/v1/pods", 403, "Forbidden", "jane may not")
        made = await ask(api, "bug-report", str(file), columns=None)
    assert "left out: api/v1/pods: 403 Forbidden: jane may not" in made.err
    assert "left out: units: none was found: no log, metrics and status of istio-aux" in made.err
    shown = await ask(api, "audit", "-f", str(file), columns=None)
    assert (shown.status, "this account may not list pods in all namespaces" in shown.err) == (
        1,
        True,
    )
