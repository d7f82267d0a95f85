"""The relation library: what one end writes, the other reads; nothing pretends to work."""

from __future__ import annotations

import re

import pytest
from charms.istio_aux.v0 import sidecar
from charms.istio_aux.v0.sidecar import Mesh, SidecarProvider, SidecarRequest, SidecarRequirer


def test_charmhub_finds_what_identifies_the_library() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}", sidecar.LIBID)
    assert (sidecar.LIBAPI, sidecar.LIBPATCH) == (0, 1)
    assert sidecar.PYDEPS == []


def test_a_request_is_read_as_it_was_written() -> None:
    request = SidecarRequest("tensorboard", "kubeflow")

    assert SidecarRequest.from_databag(request.to_databag()) == request


@pytest.mark.parametrize("databag", [{}, {"application": "a"}, {"application": "", "model": "m"}])
def test_a_request_that_is_not_written_yet_is_none(databag: dict[str, str]) -> None:
    assert SidecarRequest.from_databag(databag) is None


@pytest.mark.parametrize(
    "mesh",
    [
        Mesh(live=True, reason="istiod default", root_namespace="kubeflow", revision="default"),
        Mesh(live=False, reason="no injector found"),
    ],
)
def test_the_state_of_the_mesh_is_read_as_it_was_written(mesh: Mesh) -> None:
    assert Mesh.from_databag(mesh.to_databag()) == mesh


@pytest.mark.parametrize("databag", [{}, {"live": ""}, {"live": "True"}, {"live": "maybe"}])
def test_unknown_is_never_live(databag: dict[str, str]) -> None:
    assert Mesh.from_databag(databag) is None


def test_keys_of_a_later_version_are_ignored() -> None:
    assert Mesh.from_databag({"live": "true", "new": "key"}) == Mesh(live=True)


@pytest.mark.parametrize("end", [SidecarRequirer, SidecarProvider])
def test_an_end_that_is_not_there_yet_says_so(end: type) -> None:
    with pytest.raises(NotImplementedError, match="holds the databags only"):
        end()
