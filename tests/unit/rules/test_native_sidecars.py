"""Other sidecars than Istio's, which become native at admission (`native_sidecars.convert`)."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.annotations import NATIVE_SIDECAR
from istio_aux.model.policy import Capability, Peers, StartPolicy
from lab.sidecar_cases import CASES, JOB, NOT_NATIVE, OPTION, RULED, Case, container, outcome
from msgspec.structs import replace
from unit.rules.starting import annotations_of, patched, planned

HOW = StartPolicy(capability=Capability.NATIVE, sidecars=sidecars.parse(OPTION))
INJECTED = {"sidecar.istio.io/status": "{}"}
ASKED = {NATIVE_SIDECAR: "true"}


@pytest.mark.parametrize("case", [*CASES, *NOT_NATIVE, *RULED], ids=lambda case: case.name)
def test_containers_become_what_the_table_says(case: Case) -> None:
    plan, once = planned(case.pod, case.setting), patched(case.pod, case.setting)

    assert outcome(once["spec"]) == case.expected
    assert case.warns in " ".join(plan.warnings)
    assert bool(plan.warnings) is bool(case.warns)
    assert planned(once, case.setting).ops == (), "a second review changes nothing"


def test_a_container_keeps_its_fields() -> None:
    """Also where init containers are null, as Go clients send it."""
    both = [container("main"), container("vault-agent", unknown=[1])]
    found = Case(name="", containers=both, spec={"initContainers": None})

    (sidecar,) = patched(found.pod, HOW)["spec"]["initContainers"]

    assert sidecar == container("vault-agent", unknown=[1], restartPolicy="Always")


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
    how = replace(HOW, peers=Peers.DIRECT)

    made = annotations_of(patched(found.pod, how))

    assert made["traffic.sidecar.istio.io/includeInboundPorts"] == "8200"
