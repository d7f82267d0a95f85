"""Permissions: what the charm needs, and what it grants the workload before the workload acts."""

from __future__ import annotations

import httpx2
import pytest
from ops import testing

from .apiserver import ApiServer, refusal
from .conftest import Unit, active
from .test_security import granted

BEFORE_1_30 = {"validatingadmissionpolicies", "validatingadmissionpolicybindings"}


@pytest.mark.parametrize("leader", [True, False])
def test_missing_trust_blocks_and_names_the_permission(leader: bool, new_unit: Unit) -> None:
    """Before `juju trust`, the account may see its own model alone."""
    first = "list namespaces" if leader else "create tokenreviews"
    new_unit.run(new_unit.on.start())
    new_unit.api.denied = {first}

    status = new_unit.run(new_unit.on.config_changed(), leader=leader)

    assert isinstance(status, testing.BlockedStatus)
    instruction = "Trust not granted: run `juju trust istio-aux --scope=cluster`"
    assert status.message.startswith(f"{instruction} (")
    verb, resource = first.split()
    assert f'cannot {verb} resource "{resource}"' in status.message
    # juju#12883: config-changed of `juju trust` may come before the rights.
    assert new_unit.wakes

    new_unit.api.denied = set()
    assert new_unit.run() == active()
    assert not new_unit.wakes


FORBIDDEN = 'serviceaccounts "istio-aux-workload" is forbidden: '


@pytest.mark.parametrize(
    ("why", "status"),
    [
        (
            f'{FORBIDDEN}User "u" cannot patch resource "serviceaccounts" in API group ""',
            testing.BlockedStatus,
        ),
        (
            'clusterroles "a" is forbidden: user "u" is attempting to grant RBAC permissions not',
            testing.BlockedStatus,
        ),
        ('admission webhook "policy.example" denied the request', testing.WaitingStatus),
    ],
)
def test_only_a_right_that_the_charm_lacks_is_missing_trust(
    why: str, status: type, new_unit: Unit
) -> None:
    """What else the API server forbids is said as it says it; no `juju trust` changes that."""
    new_unit.api.failures = [refusal(403, why)]

    said = new_unit.configure()

    assert isinstance(said, status)
    assert why in said.message
    assert ("juju trust" in said.message) is (status is testing.BlockedStatus)


@pytest.mark.parametrize("code", [401, 403])
def test_the_page_of_a_proxy_is_no_missing_trust(code: int, new_unit: Unit) -> None:
    new_unit.api.failures = [httpx2.Response(code, text="<html>Sign in</html>")]

    said = new_unit.configure()

    assert isinstance(said, testing.WaitingStatus)
    assert f"not an answer of the Kubernetes API server: Client error '{code} " in said.message


def selects(api: ApiServer) -> str:
    """The part of the ValidatingAdmissionPolicy that chooses namespaces."""
    variables = api.one("ValidatingAdmissionPolicy", "-istio-aux")["spec"]["variables"]
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


def test_a_cluster_without_validating_policies_works(new_unit: Unit) -> None:
    """Kubernetes before 1.30. Nothing there could restrict the workload to dry runs of pods."""
    new_unit.api.unknown = BEFORE_1_30

    assert new_unit.configure() == active()

    assert {"ClusterRole", "Role", "MutatingWebhookConfiguration"} <= set(new_unit.api.kinds())
    assert ("ClusterRole", "pods", "create") not in granted([*new_unit.api.objects.values()])
    said = [log.message for log in new_unit.ctx.juju_log if "skipped" in log.message]
    assert [line.split(": ")[0] for line in said] == [
        "ValidatingAdmissionPolicy istio-aux-kubeflow-istio-aux",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow-istio-aux",
        "ValidatingAdmissionPolicy istio-aux-kubeflow-istio-aux-records",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow-istio-aux-records",
    ]
