"""What the workload may do is in the cluster before it does it, where the cluster knows how."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from ops import testing

from charm import IstioAuxCharm

from .apiserver import ApiServer
from .conftest import WELL, Files

Context = testing.Context[IstioAuxCharm]


def selects(policy: dict[str, object]) -> str:
    """The part of a ValidatingAdmissionPolicy that says in which namespaces."""
    spec = policy["spec"]
    assert isinstance(spec, dict)
    (selected,) = [v["expression"] for v in spec["variables"] if v["name"] == "selected"]
    return selected


def test_the_policy_knows_a_new_selector_before_the_workload_does(
    ctx: Context, settled: testing.State, api: ApiServer, files: Files
) -> None:
    written = files()["config.yaml"]
    api.broken = {"patch validatingadmissionpolicies"}
    changed = dataclasses.replace(settled, config={"namespace-selector": "team"})

    refused = ctx.run(ctx.on.config_changed(), changed)

    assert files()["config.yaml"] == written
    assert refused.get_container("istio-aux").plan == settled.get_container("istio-aux").plan

    api.broken = set()
    ctx.run(ctx.on.update_status(), refused)

    assert selects(api.one("ValidatingAdmissionPolicy")).startswith('"team" in variables.labels')
    assert "namespace-selector: team," in files()["config.yaml"]


@pytest.mark.parametrize("mode", ["dry-run", "off"])
def test_a_workload_that_is_not_to_act_has_no_right_to(
    mode: str, ctx: Context, settled: testing.State, api: ApiServer, files: Files
) -> None:
    idle = dataclasses.replace(settled, config={"quit": mode, "dead-proxy": "delete"})

    ctx.run(ctx.on.config_changed(), idle)

    rules = api.one("ClusterRole")["rules"]
    assert not [rule for rule in rules if "pods/exec" in rule["resources"]]
    assert not [rule for rule in rules if "delete" in rule["verbs"]]
    assert yaml.safe_load(files()["config.yaml"])["quit"] == mode


def test_deleting_has_to_be_asked_for(ctx: Context, settled: testing.State, api: ApiServer) -> None:
    asked = dataclasses.replace(settled, config={"dead-proxy": "delete"})

    ctx.run(ctx.on.config_changed(), asked)

    rules = api.one("ClusterRole")["rules"]
    assert [rule["resources"] for rule in rules if "delete" in rule["verbs"]] == [["pods"]]


def test_options_that_are_not_valid_change_no_right(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    objects = dict(api.objects)
    api.calls.clear()

    bad = dataclasses.replace(settled, config={"quit": "off", "log-level": "loud"})
    ctx.run(ctx.on.config_changed(), bad)

    assert api.objects == objects
    assert not [call for call in api.writes if not call.endswith("/token")]


def test_a_cluster_that_knows_no_admission_policy_is_served_without(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    """Kubernetes before 1.30."""
    api.unknown = {"validatingadmissionpolicies", "validatingadmissionpolicybindings"}

    out = ctx.run(ctx.on.config_changed(), fresh)

    assert out.unit_status == testing.ActiveStatus(WELL)
    assert {"ClusterRole", "Role", "MutatingWebhookConfiguration"} <= set(api.kinds())
    said = [log.message for log in ctx.juju_log if "skipped" in log.message]
    assert [line.split(": ")[0] for line in said] == [
        "ValidatingAdmissionPolicy istio-aux-kubeflow-istio-aux",
        "ValidatingAdmissionPolicyBinding istio-aux-kubeflow-istio-aux",
    ]


def creates_pods(api: ApiServer) -> bool:
    rules = api.one("ClusterRole")["rules"]
    return any(rule["resources"] == ["pods"] and "create" in rule["verbs"] for rule in rules)


def test_only_where_dry_runs_can_be_demanded_may_the_workload_create_pods(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    assert creates_pods(api)

    api.unknown = {"validatingadmissionpolicies", "validatingadmissionpolicybindings"}
    ctx.run(ctx.on.update_status(), settled)

    assert not creates_pods(api)


def test_what_narrows_a_right_goes_after_it(
    ctx: Context, settled: testing.State, api: ApiServer
) -> None:
    def narrowed() -> list[str]:
        policies = [o for o in api.objects.values() if o["kind"] == "ValidatingAdmissionPolicy"]
        return sorted(policy["metadata"]["name"] for policy in policies)

    before = narrowed()
    asked = {"race-policy": "restart", "restart-jobs": True}
    asking = ctx.run(ctx.on.config_changed(), dataclasses.replace(settled, config=asked))
    assert narrowed() == [*before, f"{before[0]}-jobs"]
    api.calls.clear()

    ctx.run(ctx.on.config_changed(), dataclasses.replace(asking, config={}))

    assert narrowed() == before
    role, policy = (
        next(i for i, call in enumerate(api.writes) if call.startswith(what))
        for what in (
            "PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/",
            "DELETE /apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/",
        )
    )
    assert role < policy


def test_any_other_kind_that_is_not_found_is_waited_for(
    ctx: Context, fresh: testing.State, api: ApiServer
) -> None:
    api.unknown = {"roles"}

    out = ctx.run(ctx.on.config_changed(), fresh)

    assert isinstance(out.unit_status, testing.WaitingStatus)
    assert out.unit_status.message.startswith("Role istio-aux-workload: ")
