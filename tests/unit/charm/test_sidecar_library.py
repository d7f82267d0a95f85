"""The relation library's databags: what one end writes, the other reads."""

from __future__ import annotations

import re

import pytest
from charms.istio_aux.v0 import sidecar
from charms.istio_aux.v0.sidecar import Mesh, SidecarRequest
from hypothesis import example, given
from hypothesis import strategies as st


def test_charmhub_finds_what_identifies_the_library() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", sidecar.LIBID)
    assert (sidecar.LIBAPI, sidecar.LIBPATCH) == (0, 3)
    assert sidecar.PYDEPS == []


def test_a_request_is_read_as_it_was_written() -> None:
    request = SidecarRequest("tensorboard", "kubeflow")

    assert SidecarRequest.from_databag(request.to_databag()) == request


@pytest.mark.parametrize(
    "databag",
    [
        {},
        {"application": "a"},
        {"application": "", "model": "m"},
        {"application": "a", "model": "*"},
        {"application": "A", "model": "m"},
        {"application": "a\n", "model": "m"},
    ],
)
def test_a_request_that_is_not_written_or_garbled_is_none(databag: dict[str, str]) -> None:
    assert SidecarRequest.from_databag(databag) is None


NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES)
@example("a" * 63, "0")
def test_every_application_in_every_model_can_ask(application: str, model: str) -> None:
    request = SidecarRequest(application, model)

    assert SidecarRequest.from_databag(request.to_databag()) == request


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(live=True, reason="istiod default", root_namespace="kubeflow", revision="default"),
        Mesh(live=False, reason="no injector found"),
        Mesh(live=True, meshed=True),
        Mesh(live=True, meshed=False, meshed_reason="a-0 has no sidecar"),
        Mesh(live=False, meshed=None, meshed_reason="pods cannot be listed"),
    ],
)
def test_the_state_of_the_mesh_is_read_as_it_was_written(mesh: Mesh) -> None:
    assert Mesh.from_databag(mesh.to_databag()) == mesh


@pytest.mark.parametrize("databag", [{}, {"live": ""}, {"live": "True"}, {"live": "maybe"}])
def test_unknown_is_never_live(databag: dict[str, str]) -> None:
    assert Mesh.from_databag(databag) is None


@pytest.mark.parametrize("databag", [{}, {"meshed": "unknown"}, {"meshed": "1"}])
def test_pods_of_which_nothing_is_known_are_neither_meshed_nor_unmeshed(
    databag: dict[str, str],
) -> None:
    mesh = Mesh.from_databag({"live": "true"} | databag)

    assert mesh is not None
    assert mesh.meshed is None


def test_what_the_first_version_of_the_library_wrote_is_still_read() -> None:
    written = {"live": "true", "reason": "istiod default", "revision": "default"}

    assert Mesh.from_databag(written) == Mesh(True, "istiod default", revision="default")


def test_keys_of_a_later_version_are_ignored() -> None:
    assert Mesh.from_databag({"live": "true", "new": "key"}) == Mesh(live=True)
