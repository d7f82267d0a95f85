"""What the charm grants the workload, and when: before the workload acts."""

from __future__ import annotations

from .apiserver import ApiServer
from .conftest import Unit
from .test_reconcile import BEFORE_1_30
from .test_security import granted


def selects(api: ApiServer) -> str:
    """The part of the ValidatingAdmissionPolicy that chooses namespaces."""
    variables = api.one("ValidatingAdmissionPolicy", ".istio-aux")["spec"]["variables"]
    (selected,) = [v["expression"] for v in variables if v["name"] == "selected"]
    return selected


def test_the_policy_knows_a_new_selector_before_the_workload_does(unit: Unit) -> None:
    written, running = unit.files["config.yaml"], unit.container.plan.services["istio-aux"]
    unit.api.broken = {"patch validatingadmissionpolicies"}

    unit.configure(namespace_selectors="team")

    assert unit.files["config.yaml"] == written
    assert unit.container.plan.services["istio-aux"] == running

    unit.api.broken = set()
    unit.run()

    assert selects(unit.api).startswith('("team" in variables.labels')
    assert "namespace-selectors: team\n" in unit.files["config.yaml"]


def test_without_validating_policies_the_workload_may_dry_run_no_pods(new_unit: Unit) -> None:
    """Kubernetes before 1.30. Nothing there could restrict the workload to dry runs of pods."""
    new_unit.api.unknown = BEFORE_1_30

    new_unit.configure()

    assert ("ClusterRole", "pods", "create") not in granted([*new_unit.api.objects.values()])
    said = [log.message for log in new_unit.ctx.juju_log if "skipped" in log.message]
    assert [line.split(": ")[0] for line in said] == [
        "ValidatingAdmissionPolicy istio-aux-kubeflow.istio-aux",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow.istio-aux",
        "ValidatingAdmissionPolicy istio-aux-kubeflow.istio-aux.records",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow.istio-aux.records",
    ]
