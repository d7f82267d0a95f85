"""Other sidecars than Istio's, which become native at admission (`native_sidecars.convert`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from istio_aux.core import quit as quitting
from istio_aux.core import review
from istio_aux.core.native_sidecars import NATIVE_SIDECARS
from istio_aux.core.policy import Capability, Peers, Policy, Start, StartMode
from istio_aux.core.review import Outcome
from lab.sidecar_cases import CASES, JOB, NOT_NATIVE, OPTION, RULED, Case, container, outcome
from unit.core.pods import RUNNING, exited, job
from unit.core.starting import annotations_of, patched, planned

HOW = Start(capability=Capability.NATIVE, native_sidecars=OPTION)
PROXY = container("istio-proxy")
INJECTED = {"sidecar.istio.io/status": "{}"}


@pytest.mark.parametrize("case", [*CASES, *NOT_NATIVE, *RULED], ids=lambda case: case.name)
def test_containers_become_what_the_table_says(case: Case) -> None:
    plan = planned(case.pod, case.setting)

    assert outcome(patched(case.pod, case.setting)["spec"]) == case.expected
    assert case.warns in " ".join(plan.warnings)
    assert bool(plan.warnings) is bool(case.warns)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_second_review_changes_nothing(case: Case) -> None:
    once = patched(case.pod, case.setting)

    assert planned(once, case.setting).ops == ()


def test_a_container_keeps_its_fields() -> None:
    found = Case(name="", containers=[container("main"), container("vault-agent", unknown=[1])])

    (sidecar,) = patched(found.pod, HOW)["spec"]["initContainers"]

    assert sidecar == container("vault-agent", unknown=[1], restartPolicy="Always")


def test_init_containers_may_be_null() -> None:
    """As Go clients send it."""
    found = Case(name="", spec={"initContainers": None})
    assert outcome(patched(found.pod, HOW)["spec"]) == (["main"], ["vault-agent*"])


def test_a_sidecar_that_another_webhook_added_after_istios_becomes_native() -> None:
    """The classic proxy is moved first in the same patch."""
    found = Case(name="", annotations=INJECTED, containers=[*JOB[::-1], PROXY])

    made = patched(found.pod, HOW)

    assert outcome(made["spec"]) == (["main"], ["vault-agent*"])
    assert [each["name"] for each in made["spec"]["containers"]] == ["istio-proxy", "main"]
    assert "postStart" in made["spec"]["containers"][0]["lifecycle"]


def test_a_pod_of_named_containers_and_the_proxy_has_no_payload() -> None:
    found = Case(name="", annotations=INJECTED, containers=[JOB[1], PROXY])

    plan = planned(found.pod, HOW)

    assert "the pod would have no payload" in plan.warnings[0]
    assert outcome(patched(found.pod, HOW)["spec"]) == (["vault-agent"], [])


def test_its_ports_count_as_before() -> None:
    ports = [{"containerPort": 8200}]
    found = Case(name="", containers=[JOB[0], container("vault-agent", ports=ports)])
    how = Start(capability=Capability.NATIVE, native_sidecars=OPTION, peers=Peers.DIRECT)

    made = annotations_of(patched(found.pod, how))

    assert made["traffic.sidecar.istio.io/includeInboundPorts"] == "8200"


@pytest.mark.parametrize(
    ("spec", "refused"),
    [({"hostNetwork": True}, {}), ({}, {"sidecar.istio.io/inject": "false"})],
)
def test_a_pod_without_istios_sidecar_is_left_alone(
    spec: dict[str, Any], refused: dict[str, str]
) -> None:
    assert planned(Case(name="", spec=spec, annotations=refused).pod, HOW).ops == ()


def test_the_reason_says_what_was_made_native() -> None:
    assert planned(Case(name="").pod, HOW).reason.endswith("; made native: vault-agent")


@pytest.mark.parametrize(
    ("mode", "counted"), [(StartMode.OFF, Outcome.SIDECARS), (StartMode.AUTO, Outcome.NATIVE)]
)
def test_what_was_done_is_counted(mode: StartMode, counted: Outcome) -> None:
    asked = {
        "apiVersion": review.API_VERSION, "kind": review.KIND,
        "request": {"uid": "u", "kind": {"kind": "Pod"}, "object": Case(name="").pod},
    }  # fmt: skip
    how = Start(mode=mode, capability=Capability.NATIVE, native_sidecars=OPTION)

    assert review.answer(json.dumps(asked).encode(), how).outcome is counted


def test_the_sidecar_is_no_payload_any_more() -> None:
    """With the container that it was, the same pod never ends."""
    policy, own = Policy(), {NATIVE_SIDECARS: "vault-agent"}
    states = {"main": exited(0), "vault-agent": RUNNING, "istio-proxy": RUNNING}
    before = job(states, annotations=own)
    after = job(
        {"main": exited(0), "istio-proxy": RUNNING},
        sidecars={"vault-agent": RUNNING},
        annotations=own,
    )

    found = [type(quitting.decide(pod, policy, None)) for pod in (before, after)]
    assert found == [quitting.Wait, quitting.Quit]
