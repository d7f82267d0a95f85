"""What the value that the watcher publishes says of one injector."""

from __future__ import annotations

import pytest
from istio_aux.core.liveness import Injector, State
from istio_aux.core.mesh import Mesh
from istio_aux.core.policy import Capability

LIVE = Injector(state=State.LIVE, why="it injects", configuration="new", native=Capability.NATIVE)
UNKNOWN = Injector(state=State.NOT_PROBED, why="no connection", configuration="far")
REFUSED = Injector(state=State.REFUSED, why="it is no istiod", configuration="old")


@pytest.mark.parametrize(
    ("configuration", "known", "live"),
    [
        ("new", True, True),
        ("new", False, True),
        ("old", True, False),
        ("old", False, None),
        ("far", True, None),
        ("gone", True, False),
        ("gone", False, None),
    ],
)
def test_an_injector_is_live_not_live_or_not_known(
    configuration: str, known: bool, live: bool | None
) -> None:
    mesh = Mesh(injectors=(LIVE, REFUSED, UNKNOWN), known=known)

    assert mesh.live(configuration) is live


@pytest.mark.parametrize(
    ("injectors", "known", "live"),
    [
        ((REFUSED, UNKNOWN, LIVE), False, True),
        ((REFUSED, UNKNOWN), True, None),
        ((REFUSED,), True, False),
        ((REFUSED,), False, None),
        ((), False, None),
    ],
)
def test_one_live_injector_is_enough_for_a_mesh(
    injectors: tuple[Injector, ...], known: bool, live: bool | None
) -> None:
    assert Mesh(injectors=injectors, known=known).any_live is live


def test_what_sidecars_are_is_what_live_injectors_make() -> None:
    assert Mesh(injectors=(LIVE, REFUSED)).capability is Capability.NATIVE
    assert Mesh(injectors=(REFUSED,)).capability is Capability.UNKNOWN


def test_nothing_is_known_at_first() -> None:
    mesh = Mesh()

    assert not mesh.known
    assert mesh.live("") is None
