"""The stand-in's webhook configurations, compared with those that istioctl left in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from istio_aux.core.injection import InjectionPolicy, read_policy
from istio_aux.core.webhooks import ControlPlane
from lab.istio import webhooks

DATA = Path(__file__).parents[2] / "data" / "istio"


@pytest.mark.parametrize("name", ["istio-revision-tag-default", "istio-sidecar-injector"])
def test_installs_the_configurations_that_istioctl_leaves(name: str) -> None:
    recorded = yaml.safe_load((DATA / f"mwc-istioctl-install-{name}.yaml").read_text())
    for key in ("creationTimestamp", "generation", "resourceVersion", "uid"):
        del recorded["metadata"][key]
    for webhook in recorded["webhooks"]:
        del webhook["clientConfig"]["caBundle"]

    [ours] = [c for c in webhooks.configurations("istio-system") if c["metadata"]["name"] == name]

    assert ours == recorded


def test_another_namespace_becomes_part_of_the_names() -> None:
    found = webhooks.configurations("kubeflow")

    assert [configuration["metadata"]["name"] for configuration in found] == [
        "istio-revision-tag-default-kubeflow",
        "istio-sidecar-injector-kubeflow",
    ]


@pytest.mark.parametrize("name", [None, "asm-sidecar-injector"])
def test_another_revision_has_the_webhooks_of_a_recorded_one_under_any_name(
    name: str | None,
) -> None:
    recorded = yaml.safe_load((DATA / "mwc-revision-1-30-3.yaml").read_text())
    for webhook in recorded["webhooks"]:
        del webhook["clientConfig"]["caBundle"]

    [ours] = webhooks.configurations("istio-system", "1-30-3", name)

    assert ours["webhooks"] == recorded["webhooks"]
    assert ours["metadata"]["name"] == (name or recorded["metadata"]["name"])
    assert ours["metadata"]["labels"]["istio.io/rev"] == "1-30-3"


@pytest.mark.parametrize(
    ("revision", "name"),
    [("default", "istio-sidecar-injector"), ("canary", "istio-sidecar-injector-canary")],
)
def test_its_injection_policy_can_be_read_where_istiod_has_it(revision: str, name: str) -> None:
    found = webhooks.config_map("istio-system", revision)

    assert found["metadata"]["name"] == name == ControlPlane("", revision).config_map
    assert read_policy(found["data"]["config"]) == InjectionPolicy(policy="enabled")
