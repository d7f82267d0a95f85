"""The habits of kubectl: `-o`, and --kubeconfig and --context in commands to paste."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from istio_aux.kube.actions import CONFIGURATIONS
from unit.apiserver import ApiServer
from unit.rules.pods import RUNNING, exited
from unit.screens import Ask, Run, install, objects, put_pod


async def fill(api: ApiServer, *names: str) -> None:
    """Pods that hang, the first one since yesterday, and so on; and one that works."""
    for day, name in enumerate(names):
        ended = exited(0, at=f"2026-11-{20 - day}T08:00:00Z")
        owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
        about = {"ownerReferences": [{**owner, "apiVersion": "batch/v1"}]}
        await put_pod(api, name, {"main": ended, "istio-proxy": RUNNING}, about=about)
    await put_pod(api, "works", {"main": RUNNING, "istio-proxy": RUNNING})


async def test_audit_and_explain_have_the_formats_of_kubectl(ask: Ask) -> None:
    async with ApiServer() as api:
        await fill(api, "a", "b")

        async def said(*argv: str, **screens: int | None) -> list[str]:
            return (await ask(api, *argv, **screens)).out.splitlines()

        assert await said("audit", "-o", "name") == ["pod/a", "pod/b"]
        found = yaml.safe_load("\n".join(await said("audit", "-o", "yaml")))
        assert found["items"] == objects(await ask(api, "audit", "-o", "json"))
        _, *wide = await said("audit", "-o", "wide", columns=None)
        assert [line.split()[1:4] for line in wide[:2]] == [
            ["pod/a", "1", "stuck"],
            ["pod/b", "1", "stuck"],
        ]
        assert await said("explain", "-A", "-o", "name") == ["pod/a", "pod/b", "pod/works"]
        explained = yaml.safe_load("\n".join(await said("explain", "-A", "-o", "yaml")))
        assert [each["name"] for each in explained["items"]] == ["a", "b", "works"]


@pytest.mark.parametrize("given", ["jsonpath={.items}", "table"])
def test_another_format_is_refused(run: Run, given: str) -> None:
    with pytest.raises(SystemExit) as raised:
        run("audit", "-o", given)
    assert raised.value.code == 2


@pytest.fixture
def reached(tmp_path: Path) -> Callable[[ApiServer], list[str]]:
    """The flags that lead to an API server by a context with a space in its name."""

    def reached(api: ApiServer) -> list[str]:
        config = json.loads(api.kubeconfig(tmp_path).read_text())
        cluster = {**config["clusters"][0], "name": "far"}
        context = {"name": "the east", "context": {"cluster": "far", "user": "u"}}
        (tmp_path / "east").write_text(
            json.dumps({**config, "clusters": [cluster], "contexts": [context]})
        )
        return ["--kubeconfig", str(tmp_path / "east"), "--context", "the east"]

    return reached


async def test_a_command_to_paste_is_for_the_cluster_that_was_asked(
    run: Run, reached: Callable[[ApiServer], list[str]]
) -> None:
    async with ApiServer() as api:
        await fill(api, "a")
        flags = reached(api)
        text = await asyncio.to_thread(run, "audit", *flags, columns=None)
        [found] = objects(await asyncio.to_thread(run, "audit", *flags, "-o", "json"))
        api.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
        checked = await asyncio.to_thread(run, "check", *flags, columns=None, errors=None)
    [command] = [line for line in text.out.splitlines() if "istio-aux quit" in line]
    assert shlex.split(command) == ["istio-aux", "quit", "-n", "training", "--yes", *flags]
    free = ["istio-aux", "quit", "-n", "training", "a", "--yes"]
    assert shlex.split(found["free"]) == [*free, *flags]
    commands = [line for line in checked.out.splitlines() if "istio-aux audit" in line]
    assert [shlex.split(line) for line in commands] == [
        ["istio-aux", "audit", "-n", "default", *flags]
    ]


def test_what_has_no_names_is_not_shown_as_nothing(run: Run) -> None:
    with pytest.raises(SystemExit) as raised:
        run("check", "-o", "name")
    assert raised.value.code == 2


async def test_check_begins_with_the_versions_of_cluster_istio_and_installation(ask: Ask) -> None:
    """By the tags of the images of their pods; another pod with such a container does not count."""
    async with ApiServer() as api:
        await install(api, {"lease": "mesh-jobs/istio-aux"})
        api.put("mutatingwebhookconfigurations", ISTIO)
        istiod = {"discovery": {"image": "a.b:5000/istio/pilot:1.28.10@sha256:0"}}
        await put_pod(api, "istiod", {"discovery": RUNNING}, namespace="mesh", details=istiod)
        await put_pod(api, "other", {"discovery": RUNNING}, details=istiod)
        ours = {"istio-aux": {"image": "localhost/istio-aux:0.1.0"}}
        for name in ("a", "b"):
            await put_pod(api, name, {"istio-aux": RUNNING}, namespace="mesh-jobs", details=ours)
        shown = await ask(api, "check", "-o", "json")
        text = await ask(api, "check", columns=None)
        api.refuse("/api/v1/namespaces/mesh/pods", 403, "Forbidden", "no")
        refused = await ask(api, "check", "-o", "json")
        api.refuse(CONFIGURATIONS, 403, "Forbidden", "no")
        blind = await ask(api, "check", "-o", "json")
    known = "Kubernetes not known; Istio 1.28.10 (1); istio-aux 0.1.0 (2)"
    assert (objects(shown)[0]["check"], objects(shown)[0]["what"]) == ("versions", known)
    assert [line.split()[0] for line in text.out.splitlines()[1:3]] == ["the", "versions"]
    why = "not known: this account may not list pods of Istio and istio-aux"
    assert objects(refused)[0]["what"] == why
    unknown = objects(blind)[0]
    assert unknown["what"] == "Kubernetes not known; Istio not known; istio-aux not known"
    assert (unknown["result"], unknown["code"]) == ("unknown", "IA0301")


ISTIO = {
    "metadata": {"name": "istio-sidecar-injector"},
    "webhooks": [
        {
            "name": "namespace.sidecar-injector.istio.io",
            "clientConfig": {"service": {"namespace": "mesh", "name": "istiod"}},
        }
    ],
}
