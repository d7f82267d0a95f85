"""The stand-ins for istiod and its agent, compared with Istio 1.28.10 and 1.30.3."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from lab.kubelet import pods
from unit.injecting import TEMPLATE
from unit.istio import decision, sidecar


def recording(case: str) -> Any:
    return json.loads((sidecar.DATA / f"inject-{case}.json").read_text())


def patched(pod: dict[str, Any], response: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["response"]["patch"])))


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
    answer = pods.execute(command.split(), port)

    assert (answer.exit_code, answer.quits) == (exit_code, quits)
