"""Other sidecars than Istio's, which become native at admission (`native_sidecars.convert`)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from istio_aux.model.annotations import NATIVE_SIDECAR
from istio_aux.model.policy import Capability, Outcome, Peers, Policy, Start
from istio_aux.quit import rules as quitting
from istio_aux.start import review
from istio_aux.start.native_sidecars import NATIVE_SIDECARS
from lab.sidecar_cases import CASES, JOB, NOT_NATIVE, OPTION, RULED, Case, container, outcome
from unit.rules.pods import RUNNING, exited, job
from unit.rules.starting import annotations_of, patched, planned
from unit.rules.table import decide

HOW = Start(capability=Capability.NATIVE, native_sidecars=OPTION)
INJECTED = {"sidecar.istio.io/status": "{}"}
ASKED = {NATIVE_SIDECAR: "true"}


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


@pytest.mark.parametrize(
    ("injected", "expected"),
    [
        ({"initContainers": [container("istio-proxy", restartPolicy="Always")]}, "vault-agent*"),
        ({"containers": [container("istio-proxy"), *JOB]}, None),
    ],
    ids=["native", "classic"],
)
def test_a_sidecar_that_another_webhook_added_becomes_native_beside_a_native_proxy(
    injected: dict[str, Any], expected: str | None
) -> None:
    found = Case(name="", annotations=INJECTED, spec=injected)

    _, init = outcome(patched(found.pod, HOW)["spec"])
    assert init == ([expected] if expected else [])


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
    ("annotations", "counted"), [(ASKED, Outcome.SIDECARS), ({}, Outcome.NATIVE)]
)
def test_what_was_done_is_counted(annotations: dict[str, str], counted: Outcome) -> None:
    pod = Case(name="", annotations=annotations).pod
    asked = {
        "apiVersion": review.API_VERSION, "kind": review.KIND,
        "request": {"uid": "u", "kind": {"kind": "Pod"}, "object": pod},
    }  # fmt: skip

    assert review.answer(json.dumps(asked).encode(), HOW).outcome is counted


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

    found = [type(decide(pod, policy, None)) for pod in (before, after)]
    assert found == [quitting.Wait, quitting.Quit]
