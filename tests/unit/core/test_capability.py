"""What a new pod's sidecar would be, when there are several injectors."""

from __future__ import annotations

import pytest
from istio_aux.core.liveness import Injector, State, capability
from istio_aux.core.policy import Capability

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN


@pytest.mark.parametrize(
    ("sentence", "natives", "live", "answer"),
    [
        ("nobody injects", (), (), U),
        ("one that does", (N,), (True,), N),
        ("all of them do", (N, N), (True, True), N),
        ("one of them does not", (N, C), (True, True), C),
        ("one of them does not say", (N, U), (True, True), U),
        ("a no is surer than silence", (U, C), (True, True), C),
        ("what is not live makes no sidecars", (N, C), (True, False), N),
        ("nor native ones", (N,), (False,), U),
    ],
)
def test_a_new_pods_sidecar_is_native_when_every_live_injector_makes_native_ones(
    sentence: str, natives: tuple[Capability, ...], live: tuple[bool, ...], answer: Capability
) -> None:
    found = [
        Injector(state=State.LIVE if up else State.REFUSED, why="", native=native)
        for native, up in zip(natives, live, strict=True)
    ]

    assert capability(found) is answer, sentence
    assert capability(found[::-1]) is answer, sentence
