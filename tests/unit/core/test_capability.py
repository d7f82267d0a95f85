"""What pods get that ask for a native sidecar, when there are several injectors."""

from __future__ import annotations

import pytest
from istio_aux.core.liveness import Injector, Probe, State, capability
from istio_aux.core.native import NativeCheck
from istio_aux.core.policy import Capability
from istio_aux.core.webhooks import ClientConfig
from unit.core.test_liveness import ACTIVE, WORKS, but, one, target

N, C, U = Capability.NATIVE, Capability.CLASSIC, Capability.UNKNOWN
PENDING = (U, "")
"""It has not been found out yet, which is why there is no reason."""


@pytest.mark.parametrize(
    ("sentence", "natives", "live", "answer"),
    [
        ("nobody injects", (), (), PENDING),
        ("one that does", ((N, "so"),), (True,), (N, "0: so")),
        ("all of them do", ((N, "so"), (N, "so")), (True, True), (N, "0: so")),
        ("one of them does not", ((N, "so"), (C, "no")), (True, True), (C, "1: no")),
        ("one of them cannot say", ((N, "so"), (U, "403")), (True, True), (U, "1: 403")),
        ("one of them does not say yet", ((N, "so"), PENDING), (True, True), PENDING),
        ("who may say yet is waited for", ((U, "403"), PENDING), (True, True), PENDING),
        ("a no is surer than silence", (PENDING, (C, "no")), (True, True), (C, "1: no")),
        ("what is not live makes no sidecars", ((N, "so"), (C, "no")), (True, False), (N, "0: so")),
        ("nor native ones", ((N, "so"),), (False,), PENDING),
    ],
)
def test_a_new_pods_sidecar_is_native_when_every_live_injector_makes_native_ones(
    sentence: str,
    natives: tuple[tuple[Capability, str], ...],
    live: tuple[bool, ...],
    answer: tuple[Capability, str],
) -> None:
    found = [
        Injector(
            state=State.LIVE if up else State.REFUSED,
            why="",
            configuration=str(number),
            native=native,
            native_why=why,
        )
        for number, ((native, why), up) in enumerate(zip(natives, live, strict=True))
    ]

    assert (capability(found).capability, capability(found).why) == answer, sentence
    assert capability(found[::-1]).capability is answer[0], sentence


@pytest.mark.parametrize(
    ("probed", "checks", "native", "why"),
    [
        (Capability.NATIVE, {}, Capability.UNKNOWN, ""),
        (Capability.UNKNOWN, {}, Capability.UNKNOWN, ""),
        (Capability.NATIVE, {target(ACTIVE): WORKS}, Capability.NATIVE, WORKS.why),
        (Capability.UNKNOWN, {target(ACTIVE): WORKS}, Capability.NATIVE, WORKS.why),
        (Capability.CLASSIC, {}, Capability.CLASSIC, "Istio makes no native sidecars, not even"),
    ],
)
def test_that_istio_makes_native_sidecars_is_not_enough(
    probed: Capability,
    checks: dict[ClientConfig, NativeCheck],
    native: Capability,
    why: str,
) -> None:
    """What comes after it in the chain of webhooks may be in the way; that it makes none is."""
    probes = {target(ACTIVE): Probe(injected=True, native=probed)}

    found = one(ACTIVE, but(probes=probes, checks=checks))

    assert (found.live, found.native) == (True, native)
    assert why in found.native_why
    assert bool(found.native_why) is bool(why)
