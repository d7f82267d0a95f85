"""Pods that a container keeps although another one is finished: they say by whom."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.quit import rules as quitting
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.table import blockers, decide


def blocked(containers: dict[str, State], **fields: Any) -> tuple[str, ...]:
    """By which containers a pod with a running proxy is blocked."""
    decision = decide(job({**containers, "istio-proxy": RUNNING}, **fields))
    assert isinstance(decision, quitting.Wait), decision
    return blockers(decision)


@pytest.mark.parametrize("name", ["cloud-sql-proxy", "vault-agent", "linkerd-proxy", "dind"])
def test_a_sidecar_that_runs_on_is_named(name: str) -> None:
    """T13: the pod is not silently left alone; it says who keeps it."""
    assert blocked({"main": exited(0), name: RUNNING}) == (name,)


def test_every_container_that_blocks_is_named() -> None:
    """Also one whose image cannot be had, and one that will be started again (T13)."""
    assert blocked(
        {"main": exited(0), "a": RUNNING, "b": waiting("ImagePullBackOff"), "c": exited(1)},
        restart="OnFailure",
        phase="Pending",
    ) == ("a", "b", "c")


def test_while_no_payload_is_finished_nothing_is_blocked() -> None:
    """A pod that simply runs has nobody to blame."""
    assert blocked({"main": RUNNING, "dind": RUNNING}) == ()
    assert blocked({"main": exited(1), "dind": RUNNING}, restart="OnFailure") == ()


def test_an_ignored_container_neither_blocks_nor_counts_as_finished() -> None:
    """Its end says nothing about the payload."""
    ignoring = {"istio-aux.io/ignore-containers": "dind"}
    assert blocked({"main": RUNNING, "dind": exited(0)}, annotations=ignoring) == ()


def test_a_native_sidecar_blocks_nothing() -> None:
    """The kubelet ends it once the payload is over."""
    assert blocked({"main": exited(0), "a": RUNNING}, sidecars={"vault-agent": RUNNING}) == ("a",)


def test_no_container_blocks_a_pod_of_a_node_that_does_not_report() -> None:
    """What its containers do is not known."""
    assert blocked({"main": exited(0), "dind": RUNNING}, phase="Unknown") == ()


def test_no_container_blocks_a_pod_whose_containers_are_all_restarted() -> None:
    """They run because the kubelet wants so."""
    restarting = [{"type": "AllContainersRestarting", "status": "True"}]
    assert blocked({"main": exited(0), "dind": RUNNING}, conditions=restarting) == ()


def test_a_proxy_that_waits_for_its_start_is_not_blocked() -> None:
    """Every payload container is finished; only the proxy is to come back."""
    pod = job({"main": exited(0), "istio-proxy": waiting("CrashLoopBackOff")}, restart="OnFailure")
    decision = decide(pod)
    assert isinstance(decision, quitting.Wait)
    assert blockers(decision) == ()


def held(containers: dict[str, State], **fields: Any) -> tuple[str, ...]:
    """What holds a pod whose proxy keeps it from nothing."""
    decision = decide(job(containers, **fields))
    assert isinstance(decision, quitting.Ignore), decision
    assert all(f"{name} (" in decision.reason for name in blockers(decision))
    return blockers(decision)


GONE = {"main": exited(0), "istio-proxy": exited(0)}
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}
IGNORING = {"annotations": {"istio-aux.io/ignore-containers": "vault-agent"}}


def test_a_container_that_the_proxy_ignores_holds_the_pod_once_the_proxy_is_gone() -> None:
    """`ignore-containers` frees the proxy, not the pod."""
    assert held({**GONE, "vault-agent": RUNNING}, **IGNORING) == ("vault-agent",)
    assert held({**GONE, "vault-agent": exited(0)}, **IGNORING) == ()


def test_a_container_that_nobody_ends_holds_a_pod_with_a_native_proxy() -> None:
    """Katib's collector waits for every process, also the proxy's (katib#2614)."""
    collector = "metrics-logger-and-collector"
    assert held({"main": exited(0), collector: RUNNING}, **NATIVE) == (collector,)
    assert held({"main": exited(0), "vault-agent": RUNNING}, **NATIVE, **IGNORING) == (
        "vault-agent",
    )


def test_nobody_holds_a_pod_whose_work_goes_on() -> None:
    assert held({"main": RUNNING, "vault-agent": RUNNING}, **NATIVE) == ()
    assert held({"main": exited(1), "b": RUNNING}, restart="OnFailure", **NATIVE) == ()
    assert held({"main": RUNNING, "vault-agent": exited(0)}, **NATIVE, **IGNORING) == ()


def test_nobody_holds_a_pod_that_ends_or_is_not_meant_to() -> None:
    both = {"main": exited(0), "vault-agent": RUNNING}
    assert held(both, deleting=True, **NATIVE) == ()
    assert held(both, restart="Always", **NATIVE) == ()
    assert held(both, phase="Failed", **NATIVE) == ()
    assert held(both, phase="Unknown", **NATIVE) == ()


def test_a_pod_without_a_proxy_is_none_of_our_business() -> None:
    assert held({"main": exited(0), "vault-agent": RUNNING}) == ()


def test_an_author_who_wants_the_proxy_to_stay_is_no_holder() -> None:
    annotations = {"istio-aux.io/quit": "false"}
    containers = {"main": exited(0), "istio-proxy": RUNNING, "vault-agent": RUNNING}
    assert held(containers, annotations=annotations) == ()
