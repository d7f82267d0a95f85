"""What is planned for the pods of the table."""

from __future__ import annotations

import copy

import msgspec
import pytest
from istio_aux.core import patch, pod, start
from istio_aux.core.policy import Start
from lab.start_cases import CASES, Case, outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pod_becomes_what_the_table_says(case: Case) -> None:
    """T32 and T35, and all the rest that both forms of admission have in common."""
    made = copy.deepcopy(case.pod)

    how = Start(mode=case.mode, capability=case.capability)
    plan = start.plan(pod.decode(msgspec.json.encode(made)), how)
    patch.apply(plan.ops, made)

    annotations = made["metadata"].get("annotations", {})
    assert outcome(annotations, made["spec"]["containers"]) == case.expected
    assert case.warns in " ".join(plan.warnings)
    assert bool(plan.warnings) is bool(case.warns)
