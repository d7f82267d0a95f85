"""Which pods are none of our business, and which have lost their proxy: the rest of the table."""

from __future__ import annotations

from istio_aux.core import quit as quitting
from istio_aux.core.wishes import IGNORE_CONTAINERS, QUIT
from unit.core.pods import RUNNING, exited, job, waiting
from unit.core.table import Row, decide, table


@table(
    Row(
        "a pod that is meant to run for ever",
        job({"main": exited(0), "istio-proxy": RUNNING}, restart="Always"),
        "restartPolicy Always",
    ),
    Row(
        "a pod without a restartPolicy has the default, Always",
        job({"main": exited(0), "istio-proxy": RUNNING}, restart=None),
        "restartPolicy Always",
    ),
    Row(
        "a native sidecar, with one payload container",
        job({"main": exited(0)}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row(
        "a native sidecar, with several payload containers",
        job({"main": exited(0), "wait": RUNNING}, sidecars={"istio-proxy": RUNNING}),
        "native sidecar",
    ),
    Row("a pod without a proxy", job({"main": exited(0)}), "no container istio-proxy"),
    Row("a gateway", job({"istio-proxy": RUNNING}), "no payload container"),
    Row(
        "a pod whose every payload container is to be ignored",
        job(
            {"main": exited(0), "istio-proxy": RUNNING},
            annotations={IGNORE_CONTAINERS: "main"},
        ),
        "no payload container",
    ),
    Row(
        "a pod that is being deleted",
        job({"main": exited(0), "istio-proxy": RUNNING}, deleting=True),
        "being deleted",
    ),
    Row(
        "a pod that succeeded",
        job({"main": exited(0), "istio-proxy": exited(0)}, phase="Succeeded"),
        "phase Succeeded",
    ),
    Row(
        "a pod that ran into its deadline, with a proxy not yet reported as gone",
        job({"main": exited(137), "istio-proxy": RUNNING}, phase="Failed"),
        "phase Failed",
    ),
    Row(
        "a pod whose author opted out",
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={QUIT: "false"}),
        'istio-aux.io/quit: "false"',
    ),
    Row(
        "a pod whose author misspelt the opt-out",
        job({"main": exited(0), "istio-proxy": RUNNING}, annotations={QUIT: "False"}),
        'istio-aux.io/quit: "False" (neither "true" nor "false")',
    ),
    Row(
        "a pod whose proxy just quit, before the phase follows",
        job({"main": exited(3), "istio-proxy": exited(0)}),
        "and istio-proxy too",
    ),
)
def test_ignore(row: Row) -> None:
    """Some pods are none of our business, and stay so (T5, T10, T11, T22)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Ignore), decision
    assert row.because in decision.reason


@table(
    Row(
        "the hold timed out, and the payload runs without a network",
        job({"istio-proxy": exited(0), "main": RUNNING}),
        "istio-proxy exited 0, not restarted (restartPolicy Never), but not finished: main",
    ),
    Row(
        "the proxy was killed for its memory before the payload could start",
        job({"istio-proxy": exited(137, "OOMKilled"), "main": waiting("ContainerCreating")}),
        "istio-proxy exited 137 (OOMKilled)",
    ),
    Row(
        "the proxy exited well under OnFailure, so that it stays away",
        job({"istio-proxy": exited(0), "main": RUNNING}, restart="OnFailure"),
        "istio-proxy exited 0",
    ),
)
def test_report(row: Row) -> None:
    """A proxy that is gone for good although a payload may still run is reported (T30)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Report), decision
    assert row.because in decision.reason
