"""Where the control plane is, as Istio's charms tell it: their databags were recorded.

`tests/data/relations/README.md` says how.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relations.istio import ControlPlane, parse_metadata, parse_pilot

from .conftest import ROOT

RECORDED = ROOT / "tests/data/relations"
VERSIONS = {"_supported_versions": "- v1\n"}


def recorded(name: str) -> dict[str, str]:
    return json.loads((RECORDED / name).read_text())


def test_istio_pilot_tells_the_namespace_of_istiod() -> None:
    told = parse_pilot(recorded("istio-pilot.json"))

    assert told == ControlPlane("kubeflow", "istio-pilot: root namespace kubeflow")


def test_istio_k8s_tells_its_root_namespace() -> None:
    told = parse_metadata(recorded("istio-metadata.json"))

    assert told == ControlPlane("istio-system", "istio-metadata: root namespace istio-system")


def test_istio_pilot_tells_no_service_before_it_knows_our_versions() -> None:
    told = parse_pilot(recorded("istio-pilot-before-our-versions.json"))

    assert told == ControlPlane(None, "istio-pilot: the service is not set yet")


def test_another_format_under_the_same_interface_name_is_not_taken_for_istio_pilot() -> None:
    told = parse_pilot(recorded("k8s-service-info.json"))

    assert told == ControlPlane(
        None,
        'istio-pilot: keys "name, port": expected _supported_versions and data,'
        " as istio-pilot writes",
    )


@pytest.mark.parametrize(
    ("parse", "reason"),
    [
        (parse_pilot, "istio-pilot: the databag is empty"),
        (parse_metadata, "istio-metadata: the root namespace is not set yet"),
    ],
)
def test_a_charm_that_wrote_nothing_has_told_nothing_yet(
    parse: Callable[[Mapping[str, str]], ControlPlane], reason: str
) -> None:
    assert parse({}) == ControlPlane(None, reason)


@pytest.mark.parametrize(
    "service", ["istiod.mesh", "istiod.mesh.svc", "istiod-1-29.mesh.svc.cluster.local"]
)
def test_the_namespace_is_the_second_part_of_the_services_name(service: str) -> None:
    assert parse_pilot(VERSIONS | {"data": f"service-name: {service}"}).root_namespace == "mesh"


@pytest.mark.parametrize("versions", ["[v1]", "- v2\n- v1\n", "- 1\n"])
def test_one_version_in_common_is_enough(versions: str) -> None:
    databag = {"_supported_versions": versions, "data": "service-name: istiod.mesh.svc"}

    assert parse_pilot(databag).root_namespace == "mesh"


@pytest.mark.parametrize(
    ("databag", "why"),
    [
        ({"_supported_versions": "- v2\n"}, '_supported_versions "- v2\\n": expected v1'),
        ({"_supported_versions": "v1"}, '_supported_versions "v1": expected v1'),
        ({"_supported_versions": ""}, '_supported_versions "": expected v1'),
        (VERSIONS | {"data": "{"}, 'data "{": expected a service-name'),
        (VERSIONS | {"data": "!!bool a"}, 'data "!!bool a": expected a service-name'),
        (VERSIONS | {"data": "- a"}, 'data "- a": expected a service-name'),
        (VERSIONS | {"data": "a: b"}, 'data "a: b": expected a service-name'),
        (VERSIONS | {"data": "service-name: [a]"}, 'data "service-name: [a]": expected a service-'),
        (VERSIONS | {"data": "&a [*a]"}, 'data "&a [*a]": expected a service-name'),
        (VERSIONS | {"data": "[" * 1000}, f'data "{"[" * 60}"…: expected a service-name'),
        (
            VERSIONS | {"data": "service-name: istiod"},
            'service-name "istiod": expected <service>.<namespace>.svc',
        ),
        (
            VERSIONS | {"data": "service-name: istiod.example.com"},
            'service-name "istiod.example.com": expected <service>.<namespace>.svc',
        ),
        (
            VERSIONS | {"data": "service-name: istiod.Mesh.svc"},
            '"Mesh": expected the name of a namespace',
        ),
    ],
)
def test_what_istio_pilot_would_not_write_is_named(databag: dict[str, str], why: str) -> None:
    told = parse_pilot(databag)

    assert told.root_namespace is None
    assert told.reason.startswith(f"istio-pilot: {why}")


def test_a_root_namespace_that_cannot_be_one_is_named() -> None:
    assert parse_metadata({"root_namespace": "a\nb"}) == ControlPlane(
        None, 'istio-metadata: "a\\nb": expected the name of a namespace'
    )


ANYTHING = st.text(alphabet="-:[]{}&*!|>'\"%@`\n\t #,?.a1\0é")


@settings(max_examples=60, deadline=None)
@given(ANYTHING, ANYTHING)
def test_nothing_that_a_charm_can_write_raises(one: str, other: str) -> None:
    for databag in ({"_supported_versions": one}, VERSIONS | {"data": other}):
        assert parse_pilot(databag).reason
    assert parse_metadata({"root_namespace": one}).reason
