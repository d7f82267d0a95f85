"""What is read of a webhook configuration."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.core.webhooks import Configuration, ControlPlane, Rule, Webhook
from unit.core.mesh import DEFAULT, ORIGINAL, REVISED, decode, recorded

PODS: dict[str, Any] = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "scope": "*",
}


@pytest.mark.parametrize(
    ("name", "revision", "service", "active"),
    [
        (DEFAULT, "default", "istiod", True),
        (ORIGINAL, "default", "istiod", False),
        (REVISED, "1-30-3", "istiod-1-30-3", True),
    ],
)
def test_a_recorded_configuration_is_read(
    name: str, revision: str, service: str, active: bool
) -> None:
    found = recorded(name)

    assert (found.metadata.name, found.revision) == (name, revision)
    assert found.webhooks
    for webhook in found.webhooks:
        assert (webhook.is_istios, webhook.injects, webhook.creates_pods) == (True, active, True)
        called = webhook.client_config.service
        assert called
        assert (called.namespace, called.name) == ("istio-system", service)
        assert (called.path, called.port) == ("/inject", 443)
        assert (webhook.client_config.ca_bundle or "").startswith("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS")
        assert found.control_plane(webhook) == ControlPlane("istio-system", revision)


@pytest.mark.parametrize("labels", [None, {}, {"istio.io/rev": ""}])
def test_a_configuration_that_names_no_revision_is_the_defaults(
    labels: dict[str, str] | None,
) -> None:
    assert decode({"metadata": {"name": "a", "labels": labels}}).revision == "default"


def test_a_control_plane_behind_a_url_has_no_namespace() -> None:
    body = {"clientConfig": {"url": "https://istiod.example.com/inject"}}
    webhook = msgspec.convert(body, Webhook)

    assert Configuration().control_plane(webhook) == ControlPlane("", "default")


@pytest.mark.parametrize(
    ("sentence", "fields", "covers"),
    [
        ("Istio's own", {}, True),
        ("among other operations", {"operations": ["UPDATE", "CREATE"]}, True),
        ("every operation", {"operations": ["*"]}, True),
        ("another operation", {"operations": ["UPDATE"]}, False),
        ("every group", {"apiGroups": ["*"]}, True),
        ("another group", {"apiGroups": ["apps"]}, False),
        ("every version", {"apiVersions": ["*"]}, True),
        ("another version", {"apiVersions": ["v2"]}, False),
        ("every resource", {"resources": ["*"]}, True),
        ("every resource and its parts", {"resources": ["*/*"]}, True),
        ("pods and their parts", {"resources": ["pods/*"]}, True),
        ("only parts of pods", {"resources": ["pods/status", "*/scale"]}, False),
        ("another resource", {"resources": ["services"]}, False),
        ("objects of namespaces", {"scope": "Namespaced"}, True),
        ("no scope", {"scope": None}, True),
        ("objects of the cluster", {"scope": "Cluster"}, False),
        ("nulls", dict.fromkeys(PODS), False),
    ],
)
def test_a_rule_covers_the_creation_of_a_pod(
    sentence: str, fields: dict[str, Any], covers: bool
) -> None:
    """As the API server reads it."""
    assert msgspec.convert(PODS | fields, Rule).creates_pods is covers, sentence


def test_one_rule_of_several_is_enough() -> None:
    body = {"rules": [PODS | {"resources": ["services"]}, PODS]}

    assert msgspec.convert(body, Webhook).creates_pods
    assert not msgspec.convert({"rules": body["rules"][:1]}, Webhook).creates_pods
