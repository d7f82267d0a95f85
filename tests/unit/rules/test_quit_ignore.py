"""Which pods are none of our business: the part of the decision table with nothing to do."""

from __future__ import annotations

from istio_aux.model.annotations import IGNORE_CONTAINERS, QUIT
from istio_aux.quit import rules as quitting
from unit.rules.pods import RUNNING, exited, job
from unit.rules.table import Row, decide, table


@table(
    Row(
        "a pod that is meant to run forever",
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
        'istio-aux.io/quit: "False": expected true or false',
    ),
    Row(
        "a pod whose proxy just quit, before the phase follows",
        job({"main": exited(3), "istio-proxy": exited(0)}),
        "and istio-proxy too",
    ),
    Row(
        "a pod whose proxy was killed after its payload, and is not restarted",
        job({"main": exited(0), "istio-proxy": exited(137)}),
        "and istio-proxy too",
    ),
    Row(
        "a pod that is being deleted although its payload still runs",
        job({"main": RUNNING, "istio-proxy": exited(0)}, deleting=True),
        "being deleted",
    ),
    Row(
        "a gateway that lost its proxy",
        job({"istio-proxy": exited(0)}),
        "no payload container",
    ),
    Row(
        "a pod with a gateway's proxy and a native sidecar",
        job({"istio-proxy": RUNNING}, sidecars={"vault-agent": RUNNING}),
        "no payload container",
    ),
    Row(
        "a native sidecar that exited, which the kubelet starts again",
        job({"main": RUNNING}, sidecars={"istio-proxy": exited(1)}),
        "native sidecar",
    ),
    Row(
        "a pod whose author opted out, with a payload that still runs",
        job({"main": RUNNING, "istio-proxy": RUNNING}, annotations={QUIT: "false"}),
        'istio-aux.io/quit: "false"',
    ),
    Row(
        "an opt-out of several lines and great length",
        job({"main": RUNNING, "istio-proxy": RUNNING}, annotations={QUIT: "no\n" + "o" * 200}),
        f'istio-aux.io/quit: "no\\n{"o" * 57}…"',
    ),
    Row(
        "a container that is called like the proxy but only sets things up",
        job({"main": exited(0)}, spec={"initContainers": [{"name": "istio-proxy"}]}),
        "no container istio-proxy",
    ),
    Row("an empty document", job({}, restart="Never", phase=None), "no container istio-proxy"),
)
def test_ignore(row: Row) -> None:
    """Some pods are none of our business, and stay so (T5, T10, T11, T22)."""
    decision = decide(row.pod)
    assert isinstance(decision, quitting.Ignore), decision
    assert row.because in decision.reason
