"""How a pod started, beside what admission asked for (T31)."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.core.start import effective_start
from unit.core.pods import RUNNING, job

HOLD, NATIVE = ({"istio-aux.io/started-with": way} for way in ("hold", "native"))
HELD = {"istio-proxy": {"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}}
DRAINED = {"istio-proxy": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}}
NO_EFFECT = "hold has no effect: istio-proxy has a lifecycle of its own, without postStart"
MAIN, PROXY = {"main": RUNNING}, {"istio-proxy": RUNNING}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (job(PROXY | MAIN, details=HELD, annotations=HOLD), "hold"),
        (job(MAIN, sidecars=PROXY, annotations=NATIVE), "native"),
        (
            job(PROXY | MAIN, details=DRAINED, annotations=HOLD),
            f"asked for hold, but {NO_EFFECT}",
        ),
        (
            job(MAIN | PROXY, details=HELD, annotations=HOLD),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(PROXY | MAIN, annotations=HOLD),
            "asked for hold, but istio-proxy does not hold the payload back",
        ),
        (
            job(MAIN, sidecars=PROXY, annotations=HOLD),
            "asked for hold, but the sidecar is a native one",
        ),
        (job(MAIN, annotations=HOLD), "asked for hold, but no container is called istio-proxy"),
        (
            job(PROXY | MAIN, details=HELD, annotations=NATIVE),
            "asked for native, but the sidecar is a classic one",
        ),
        (job(MAIN, annotations=NATIVE), "asked for native, but no container is called istio-proxy"),
    ],
)
def test_it_says_what_admission_asked_for_and_whether_it_took_effect(
    pod: Any, expected: str
) -> None:
    """T31: hold has no effect beside hooks of the mesh and in native mode."""
    assert effective_start(pod) == expected


@pytest.mark.parametrize("annotations", [{}, {"istio-aux.io/started-with": "luck"}])
def test_a_pod_that_admission_did_not_change_has_no_start(
    annotations: dict[str, str],
) -> None:
    assert effective_start(job(PROXY | MAIN, details=HELD, annotations=annotations)) is None
