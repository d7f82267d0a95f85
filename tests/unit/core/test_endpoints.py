"""What is read of an EndpointSlice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from istio_aux.core.endpoints import EndpointSlice

READY: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": True}}
GONE: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": False}}
PORT: dict[str, Any] = {"name": "https-webhook", "port": 15017, "protocol": "TCP"}


@pytest.mark.parametrize(
    ("sentence", "endpoints", "ready"),
    [
        ("a ready one", [READY], True),
        ("one of several", [GONE, READY], True),
        ("none", [], False),
        ("null", None, False),
        ("only one that is not ready", [GONE], False),
        ("readiness that is not told counts as ready", [{"addresses": ["10.1.0.7"]}], True),
        ("as does null", [{"addresses": ["10.1.0.7"], "conditions": {"ready": None}}], True),
        ("no address", [{"addresses": [], "conditions": {"ready": True}}], False),
        ("addresses that are null", [{"addresses": None}], False),
    ],
)
def test_an_endpoint_counts_when_it_may_be_connected_to(
    sentence: str, endpoints: list[dict[str, Any]] | None, ready: bool
) -> None:
    found = msgspec.convert({"endpoints": endpoints, "ports": [PORT]}, EndpointSlice)

    assert found.ready is ready, sentence


@pytest.mark.parametrize(
    ("ports", "ready"), [([PORT], True), ([{}], True), ([], False), (None, False)]
)
def test_a_slice_without_ports_has_no_endpoint(ports: list[Any] | None, ready: bool) -> None:
    """A port may have no name, and no number: then it is every port (discovery/v1 types.go)."""
    found = msgspec.convert({"endpoints": [READY], "ports": ports}, EndpointSlice)

    assert found.ready is ready


@pytest.mark.parametrize(
    ("labels", "service"),
    [
        ({"kubernetes.io/service-name": "istiod"}, "istio-system/istiod"),
        ({"kubernetes.io/service-name": ""}, "None"),
        ({}, "None"),
        (None, "None"),
    ],
)
def test_a_slice_says_whose_endpoints_it_lists(labels: dict[str, str] | None, service: str) -> None:
    metadata = {"name": "x", "namespace": "istio-system", "labels": labels}
    found = msgspec.convert({"metadata": metadata}, EndpointSlice)

    assert str(found.service) == service


TWO: dict[str, Any] = {"addresses": ["2001:db8::7", "2001:db8::8"]}
HTTP: dict[str, Any] = {"name": "http", "port": 8080}


@pytest.mark.parametrize(
    ("ports", "addresses"),
    [
        ([PORT], ["10.1.0.7:15017", "[2001:db8::7]:15017"]),
        ([HTTP, PORT], ["10.1.0.7:15017", "[2001:db8::7]:15017"]),
        ([HTTP], ["10.1.0.7:8080", "[2001:db8::7]:8080"]),
        ([{"port": 8080}], ["10.1.0.7:8080", "[2001:db8::7]:8080"]),
        ([HTTP, {"name": "grpc", "port": 8081}], []),
        ([{}], []),
        (None, []),
    ],
)
def test_ready_endpoints_take_connections_at_the_port_of_a_name_or_the_only_one(
    ports: list[Any] | None, addresses: list[str]
) -> None:
    body = {"endpoints": [READY, GONE, TWO], "ports": ports}
    found = msgspec.convert(body, EndpointSlice)

    assert [str(address) for address in found.addresses("https-webhook")] == addresses
