"""The habits of kubectl: `-o`, --no-headers, --sort-by, and several clusters in one run."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from istio_aux.cli.commands import main
from istio_aux.cli.jsonpath import Template
from istio_aux.kube.actions import CONFIGURATIONS
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, exited
from unit.screens import Ask, Run, install, objects, put_pod

LIST = {
    "items": [
        {"name": "a", "since": 1, "requests": {"gpus": 2}, "by": ["x", "y"], "state": "lost"},
        {"name": "b\x1b[31m", "since": 3, "state": "stuck", "labels": {"k8s.io/app": "c"}},
    ]
}


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("{.items[*].name}", "a b\\x1b[31m"),
        ('{range .items[*]}{.state}{"\\t"}{@.since}{"\\n"}{end}', "lost\t1\nstuck\t3\n"),
        ("{.items[0].requests}", '{"gpus":2}'),
        ("{.items[-1:].since} of {.items[0].by[0:1]}", "3 of x"),
        ('{.items[?(@.state=="stuck")].since}', "3"),
        ("{.items[?(@.since>=2)].state}", "stuck"),
        ("{.items[?(@.requests.gpus)].name}", "a"),
        ("{.items[?(@.requests>3)].name}{.items[?(@.by<null)].name}", ""),
        ("{$.items[*]['labels'].k8s\\.io/app}", "c"),
        ("{.items[7].name}{.nothing}{.items.name}", ""),
        ("{range .items[*]}{range .by[*]}{@},{end}{end}", "x,y,"),
        ("{.items[*].since}", "1 3"),
        ("no braces", "no braces"),
    ],
)
def test_a_template_gives_what_kubectl_would(template: str, shown: str) -> None:
    """client-go util/jsonpath; control characters of tenants are escaped."""
    assert Template.parse(template).render(LIST) == shown


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{.items[*}", "'.items[*': expected .KEY, [*], [NUMBER] or [?(@.KEY==VALUE)] at '[*'"),
        ("{..name}", "'..name': expected .KEY, [*], [NUMBER] or [?(@.KEY==VALUE)] at '..name'"),
        ("{range .items[*]}{.name}", "{range} without {end}"),
        ("{.name}{end}", "{end} without {range}"),
        ("a {.name", "'{.name': no } for this {"),
        ("a }", "'a }': no { for a }"),
        ("{range @}" * 999 + "{end}" * 999, "expected at most 32 {range} in one another"),
    ],
)
def test_a_bad_template_says_what_is_wrong(
    template: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["audit", "-o", f"jsonpath={template}"])
    assert capsys.readouterr().err.endswith(f"argument -o/--output: {why}\n")


async def fill(api: ApiServer, *names: str) -> None:
    """Pods that hang, the first one since yesterday, and so on; and one that works."""
    for day, name in enumerate(names):
        ended = exited(0, at=f"2026-11-{20 - day}T08:00:00Z")
        owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
        about = {"ownerReferences": [{**owner, "apiVersion": "batch/v1"}]}
        await put_pod(api, name, {"main": ended, "istio-proxy": RUNNING}, about=about)
    await put_pod(api, "works", {"main": RUNNING, "istio-proxy": RUNNING})


async def test_audit_has_the_formats_of_kubectl(ask: Ask) -> None:
    async with ApiServer() as api:
        await fill(api, "a", "b")

        async def said(*argv: str, **screens: int | None) -> list[str]:
            return (await ask(api, "audit", *argv, **screens)).out.splitlines()

        assert await said("-o", "name") == ["pod/a", "pod/b"]
        assert await said("-o", "jsonpath={.items[*].name}") == ["a b"]
        found = yaml.safe_load("\n".join(await said("-o", "yaml")))
        assert found["items"] == objects(await ask(api, "audit", "-o", "json"))
        by_since = '{range .items[*]}{.name}{"\\n"}{end}'
        assert await said("-o", f"jsonpath={by_since}", "--sort-by", "since") == ["b", "a"]
        assert await said("-o", "name", "--sort-by={.since}") == ["pod/b", "pod/a"]
        assert [line.split()[:4] for line in await said("--no-headers", columns=None)] == [
            ["training", "job/train", "2", "stuck"]
        ]
        wide = await said("-o", "wide", "--no-headers", columns=40)
        assert [line.split()[:4] for line in wide] == [
            ["training", "pod/a", "1", "stuck"], ["training", "pod/b", "1", "stuck"],
        ]  # fmt: skip
        explained = await ask(api, "explain", "-A", "-o", "jsonpath={.items[*].action}")
        assert explained.out == "ignore ignore ignore"


def contexts(folder: Path, **apis: ApiServer) -> str:
    """A kubeconfig with a context for each."""
    parts = [json.loads(api.kubeconfig(folder).read_text()) for api in apis.values()]
    config = parts[0] | {"clusters": [], "contexts": []}
    for name, part in zip(apis, parts, strict=True):
        config["clusters"].append({**part["clusters"][0], "name": name})
        config["contexts"].append({"name": name, "context": {"cluster": name, "user": "u"}})
    (folder / "fleet").write_text(json.dumps(config))
    return str(folder / "fleet")


async def test_several_contexts_give_one_table_and_one_that_does_not_answer_is_named(
    run: Run, tmp_path: Path
) -> None:
    async with ApiServer() as east, ApiServer() as west, ApiServer() as gone:
        await fill(east, "a")
        await fill(west, "b", "c")
        fleet = contexts(tmp_path, east=east, west=west, gone=gone)
        await gone.stop()
        asked = ["--kubeconfig", fleet, "--context", "east", "--context", "west"]

        shown = await asyncio.to_thread(run, "audit", *asked, columns=None, errors=None)
        rows = [line.split()[:5] for line in shown.out.splitlines()]
        assert rows[:4] == [
            ["CLUSTER", "NAMESPACE", "NAME", "PODS", "STATE"],
            ["east", "training", "job/train", "1", "stuck"],
            ["west", "training", "job/train", "2", "stuck"],
            [],
        ]
        assert "west: pods: 3; stuck: 2," in shown.out
        free = f"istio-aux quit -n training --yes --kubeconfig {fleet} --context "
        commands = [line.strip() for line in shown.out.splitlines() if "istio-aux quit" in line]
        assert commands == [f"{free}east", f"{free}west"]

        asked += ["--context", "gone"]
        shown = await asyncio.to_thread(run, "audit", *asked, "-o", "json", errors=None)
        assert shown.status == 1
        assert shown.err.count("\n") == shown.err.count("gone: API server https://") == 1
        assert [(each["cluster"], each["name"]) for each in objects(shown)] == [
            ("east", "a"), ("west", "b"), ("west", "c"),
        ]  # fmt: skip
        for each in objects(shown):
            free = ["quit", "-n", "training", each["name"], "--yes", "--kubeconfig", fleet]
            assert shlex.split(each["free"]) == ["istio-aux", *free, "--context", each["cluster"]]

        explained = await asyncio.to_thread(run, "explain", "-A", *asked, columns=None)
        assert "west: training/c  " in explained.out


async def test_check_of_several_contexts_has_commands_for_each(run: Run, tmp_path: Path) -> None:
    async with ApiServer() as east, ApiServer() as west:
        for api in (east, west):
            api.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
        asked = ["--kubeconfig", contexts(tmp_path, east=east, west=west)]
        asked += ["--context", "east", "--context", "west"]
        shown = await asyncio.to_thread(run, "check", *asked, columns=None, errors=None)
    audit = f"istio-aux audit -n default --kubeconfig {asked[1]} --context "
    commands = [line.strip() for line in shown.out.splitlines() if "istio-aux audit" in line]
    assert commands == [f"{audit}east", f"{audit}west"]


async def test_a_command_that_speaks_of_one_cluster_refuses_a_second(run: Run) -> None:
    argv = ["audit", "--report", "page.html", "--context", "a", "--context", "b"]
    with pytest.raises(SystemExit) as raised:
        await asyncio.to_thread(run, *argv)
    assert raised.value.code == 2


@pytest.mark.parametrize("command", ["check", "version"])
def test_what_has_no_names_is_not_shown_as_nothing(run: Run, command: str) -> None:
    with pytest.raises(SystemExit) as raised:
        run(command, "-o", "name")
    assert raised.value.code == 2


async def test_version_is_one_line_and_says_what_is_not_known(ask: Ask, run: Run) -> None:
    async with ApiServer() as api:
        await install(api, {"lease": "mesh-jobs/istio-aux"})
        proxy = {"istio-proxy": {"image": "a.b:5000/istio/proxyv2:1.28.1@sha256:0"}}
        await put_pod(api, "a", {"main": RUNNING, "istio-proxy": RUNNING}, details=proxy)
        istiod = {"discovery": {"image": "istio/pilot:1.28.10"}}
        await put_pod(api, "istiod", {"discovery": RUNNING}, details=istiod)
        ours = {"istio-aux": {"image": "localhost/istio-aux:0.1.0"}}
        await put_pod(api, "o", {"istio-aux": RUNNING}, namespace="mesh-jobs", details=ours)
        shown = await ask(api, "version", columns=None)
        hanging = await asyncio.to_thread(run, "version", "--kubeconfig", "/missing", columns=None)
        api.faults.append(stuck)
        late = await ask(api, "version", "--timeout", "0.2", columns=None)
    assert shown.status == 0
    program, kubernetes, *rest = shown.out.strip().split("; ")
    assert program.startswith("istio-aux 0.1.0, revision ")
    assert kubernetes == "Kubernetes: not known"
    assert rest == [
        "installation: mesh-jobs/istio-aux 0.1.0 (1)", "Istio: 1.28.10 (1)", "proxies: 1.28.1 (1)",
    ]  # fmt: skip
    unknown = "installation: not known; Istio: not known; proxies: not known"
    for each, status in ((hanging, 2), (late, 1)):
        assert (each.status, each.out.count("\n")) == (status, 1)
        assert each.out.startswith("istio-aux 0.1.0, revision ")
        assert unknown in each.out
    assert late.err == "not all versions are known: no answer within 0.2 s\n"


async def stuck(_request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError
