"""Whether a pod says truly how it was started (T31)."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.core.start import told
from unit.core.pods import RUNNING, job

HOLD, NATIVE = ({"istio-aux.io/started-with": way} for way in ("hold", "native"))
HELD = {"istio-proxy": {"lifecycle": {"postStart": {"exec": {"command": ["pilot-agent", "wait"]}}}}}
DRAINED = {"istio-proxy": {"lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}}}}
NO_EFFECT = "hold has no effect: istio-proxy has a lifecycle of its own, without postStart"
MAIN, PROXY = {"main": RUNNING}, {"istio-proxy": RUNNING}


@pytest.mark.parametrize(
    ("pod", "told_of_it"),
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
def test_what_was_asked_for_is_told_with_what_became_of_it(pod: Any, told_of_it: str) -> None:
    """T31: hold has no effect beside hooks of the mesh and in native mode."""
    assert told(pod) == told_of_it


@pytest.mark.parametrize("annotations", [{}, {"istio-aux.io/started-with": "luck"}])
def test_nothing_is_told_of_a_pod_that_admission_did_not_change(
    annotations: dict[str, str],
) -> None:
    assert told(job(PROXY | MAIN, details=HELD, annotations=annotations)) is None
