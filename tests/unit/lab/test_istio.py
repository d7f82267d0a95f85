"""The stand-ins for istiod and its agent, compared with Istio 1.28.10 and 1.30.3."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import jsonpatch
import pytest
from lab.istio import decision, proxyconfig, sidecar, webhooks
from lab.kubelet import agent

TEMPLATE = sidecar.Template("istio-system", "docker.io/istio/proxyv2:1.28.10")
HOLD = {proxyconfig.ANNOTATION: f"{proxyconfig.HOLD}: true"}
NATIVE = {sidecar.NATIVE_ANNOTATION: "true"}


def recording(case: str) -> Any:
    return json.loads((webhooks.DATA / f"inject-{case}.json").read_text())


def review(pod: dict[str, Any], namespace: str = "mesh") -> dict[str, Any]:
    return {"request": {"uid": "1", "namespace": namespace, "object": pod}}


def a_pod(*, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    containers = {"containers": [{"name": "main", "image": "x"}]}
    return {"metadata": {"name": "probe", **metadata}, "spec": {**containers, **(spec or {})}}


def patched(pod: dict[str, Any], response: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["response"]["patch"])))


def injected(pod: dict[str, Any], template: sidecar.Template = TEMPLATE) -> Any:
    response, _ = decision.answer(review(pod), template, native=False)
    return patched(pod, response)


def names(containers: Iterable[dict[str, Any]]) -> list[str]:
    return [container["name"] for container in containers]


@pytest.mark.parametrize("case", ["classic", "hold", "native"])
def test_makes_the_same_pod_as_istiod(case: str) -> None:
    record = recording(case)
    # istiod compares with the pod as Go writes it, which is how the API server sends it.
    pod = record["request"]["request"]["object"]
    pod["spec"]["containers"][0]["resources"] = {}

    answer, _ = decision.answer(record["request"], TEMPLATE, native=False)

    assert patched(pod, answer) == patched(pod, record["response"])
    assert answer["response"].keys() == record["response"]["response"].keys()


@pytest.mark.parametrize("case", ["annoff", "kube-system", "badcfg"])
def test_leaves_alone_or_refuses_in_the_same_words_as_istiod(case: str) -> None:
    record = recording(case)

    answer, _ = decision.answer(record["request"], TEMPLATE, native=False)

    assert answer == record["response"]


LAST = ["main", "istio-proxy"]
FIRST = ["istio-proxy", "main"]
FETCH = {"initContainers": [{"name": "fetch"}]}


def config(text: str) -> dict[str, str]:
    return {proxyconfig.ANNOTATION: text}


@pytest.mark.parametrize(
    ("annotations", "template", "init", "containers"),
    [
        ({}, {}, ["fetch", "istio-init"], LAST),
        (HOLD, {}, ["fetch", "istio-init"], FIRST),
        ({**HOLD, **NATIVE}, {}, ["istio-init", "istio-proxy", "fetch"], ["main"]),
        (NATIVE, {"native": "never"}, ["fetch", "istio-init"], LAST),
        (HOLD, {"cni": True}, ["istio-validation", "fetch"], FIRST),
        (config("hold_application_until_proxy_starts: true"), {}, None, FIRST),
        (config(f"{proxyconfig.HOLD}: false"), {}, None, LAST),
        # The annotation refines what the mesh says, and not what the Helm value does.
        ({}, {"mesh": {proxyconfig.HOLD: True}}, None, FIRST),
        (config(f"{proxyconfig.HOLD}: false"), {"mesh": {proxyconfig.HOLD: True}}, None, LAST),
        (config(f"{proxyconfig.HOLD}: false"), {"hold": True}, None, FIRST),
    ],
)
def test_containers_stand_where_istio_puts_them(
    annotations: dict[str, str], template: dict[str, Any], init: list[str] | None,
    containers: list[str],
) -> None:  # fmt: skip
    made = dataclasses.replace(TEMPLATE, **template)

    after = injected(a_pod(spec=FETCH, annotations=annotations), made)

    assert names(after["spec"]["containers"]) == containers
    if init:
        assert names(after["spec"]["initContainers"]) == init


@pytest.mark.parametrize(
    ("command", "port", "exit_code", "quits"),
    [
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 15020, 0, True),
        ("pilot-agent request POST quitquitquit", 15020, 0, True),
        ("pilot-agent request --debug-port=15021 POST quitquitquit", 15020, 0, False),
        ("pilot-agent request --debug-port=15020 GET quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15520 POST quitquitquit", 15020, 255, False),
        ("pilot-agent request --debug-port=15020 GET stats", 15020, 0, False),
        ("sh -c true", 15020, None, False),
        # Without a status server, as observed with port 0: Envoy's admin ends the proxy.
        ("pilot-agent request --debug-port=15020 POST quitquitquit", 0, 255, False),
        ("pilot-agent request POST quitquitquit", 0, 0, True),
    ],
)
def test_pilot_agent_answers_as_istios_does(
    *, command: str, port: int, exit_code: int | None, quits: bool
):
    answer = agent.run(command.split(), port)

    assert (answer.exit_code, answer.quits) == (exit_code, quits)
