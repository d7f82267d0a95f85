"""What is read of webhook configurations and EndpointSlices, and which webhooks precede ours."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from istio_aux.model.webhooks import (
    ClientConfig,
    Configuration,
    EndpointSlice,
    Rule,
    sorted_before,
)
from unit.rules.mesh import decode
from unit.rules.table import row

PODS: dict[str, Any] = {
    "operations": ["CREATE"],
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "scope": "*",
}


@pytest.mark.parametrize("labels", [None, {}, {"istio.io/rev": ""}])
def test_a_configuration_that_names_no_revision_is_the_defaults(
    labels: dict[str, str] | None,
) -> None:
    assert decode({"metadata": {"name": "a", "labels": labels}}).revision == "default"


@pytest.mark.parametrize(
    ("fields", "covers"),
    [
        row("Istio's own", {}, True),
        row("every operation", {"operations": ["*"]}, True),
        row("another operation", {"operations": ["UPDATE"]}, False),
        row("another group", {"apiGroups": ["apps"]}, False),
        row("another version", {"apiVersions": ["v2"]}, False),
        row("every resource and its parts", {"resources": ["*/*"]}, True),
        row("pods and their parts", {"resources": ["pods/*"]}, True),
        row("only parts of pods", {"resources": ["pods/status", "*/scale"]}, False),
        row("no scope", {"scope": None}, True),
        row("objects of the cluster", {"scope": "Cluster"}, False),
        row("nulls", dict.fromkeys(PODS), False),
    ],
)
def test_a_rule_covers_the_creation_of_a_pod(fields: dict[str, Any], covers: bool) -> None:
    assert msgspec.convert(PODS | fields, Rule).creates_pods is covers


READY: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": True}}
GONE: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": False}}
PORT: dict[str, Any] = {"name": "https-webhook", "port": 15017, "protocol": "TCP"}


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        row("a ready one", {}, True),
        row("one of several", {"endpoints": [GONE, READY]}, True),
        row("only one that is not ready", {"endpoints": [GONE]}, False),
        row("none", {"endpoints": []}, False),
        row("readiness that is not told", {"endpoints": [{"addresses": ["10.1.0.7"]}]}, True),
        row("no address", {"endpoints": [READY | {"addresses": []}]}, False),
        row("a port without name and number", {"ports": [{}]}, True),
        row("no ports", {"ports": []}, False),
    ],
)
def test_an_endpoint_counts_when_it_may_be_connected_to(
    fields: dict[str, Any], ready: bool
) -> None:
    """A port without a number is every port (discovery/v1 types.go)."""
    found = msgspec.convert({"endpoints": [READY], "ports": [PORT], **fields}, EndpointSlice)

    assert found.ready is ready


def test_a_slice_says_whose_endpoints_it_lists() -> None:
    def service(**labels: str) -> str:
        metadata = {"name": "x", "namespace": "istio-system", "labels": labels or None}
        return str(msgspec.convert({"metadata": metadata}, EndpointSlice).service)

    key = "kubernetes.io/service-name"
    assert service(**{key: "istiod"}) == "istio-system/istiod"
    assert {service(**{key: ""}), service(other="istiod"), service()} == {"None"}


OURS = "istio-aux-kubeflow-istio-aux"
INJECTOR = "namespace.sidecar-injector.istio.io"
NEVER = {"matchLabels": {"istio.io/deactivated": "never-match"}}


def configuration(name: str, webhooks: list[dict[str, Any]] | None) -> Configuration:
    """As the API server sends it: null is an empty list."""
    return msgspec.convert({"metadata": {"name": name}, "webhooks": webhooks}, Configuration)


def istio(name: str) -> Configuration:
    return configuration(name, [{"name": INJECTOR}])


def test_names_are_compared_as_the_api_server_sorts_them() -> None:
    """istio#43074: a dash comes before a dot, both before digits, and those before letters."""
    before = ("asm-sidecar-injector", "istio", "istio-aux", "istio-aux-kubeflow-istio-au")
    after = (OURS, f"{OURS}2", "istio-revision-tag-default", "istio-sidecar-injector", "vendor")
    assert sorted_before(OURS, [istio(name) for name in (*before, *after)]) == before

    found = [istio(name) for name in ("ours.b", "ours1", "ours-b", "oursa")]
    assert sorted_before("ours.c", found) == ("ours-b", "ours.b")
    assert sorted_before("oursb", found) == ("ours-b", "ours.b", "ours1", "oursa")


@pytest.mark.parametrize(
    ("webhooks", "counts"),
    [
        row("a name without a prefix", [{"name": "sidecar-injector.istio.io"}], True),
        row(
            "a deactivated webhook beside an active one",
            [{"name": INJECTOR, "objectSelector": NEVER}, {"name": INJECTOR}],
            True,
        ),
        row(
            "deactivated as istioctl does",
            [{"name": INJECTOR, "namespaceSelector": NEVER, "objectSelector": NEVER}],
            False,
        ),
        row("no pod matches", [{"name": INJECTOR, "objectSelector": NEVER}], False),
        row("Istio's, but it makes no sidecars", [{"name": "validation.istio.io"}], False),
        row("no webhook", [], False),
    ],
)
def test_only_webhooks_that_make_sidecars_count(
    webhooks: list[dict[str, Any]] | None, counts: bool
) -> None:
    """istio#43074."""
    found = configuration("aaa", webhooks)

    assert sorted_before(OURS, [found]) == (("aaa",) if counts else ())


def bundle(*parts: bytes) -> ClientConfig:
    return ClientConfig(ca_bundle=base64.b64encode(b"\n".join(parts)).decode())


def pem(body: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----" % body


def test_a_certificate_of_a_bundle_is_found_and_everything_else_is_passed_over() -> None:
    assert bundle(b"# istiod", b"garbage", pem(b"Zmlyc3Q=")).has_certificate


@pytest.mark.parametrize(
    "text", [None, "", "Z2FyYmFnZQ==", "no base64!", "\u00fcmlaut", "LS0tLS1CRUdJTg=="]
)
def test_a_bundle_that_cannot_be_read_holds_nothing(text: str | None) -> None:
    assert not ClientConfig(ca_bundle=text).has_certificate
