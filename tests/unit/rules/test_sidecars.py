"""Rules for sidecars that are told to exit before the proxy."""

from __future__ import annotations

from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.policy import Policy, QuitVia, Rung
from istio_aux.quit import rules as quitting
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import Ignore, Quit, Wait
from unit.rules import table
from unit.rules.pods import RUNNING, State, exited, job, waiting
from unit.rules.table import blockers, row

POLICY = Policy(sidecars=sidecars.parse(["vault-agent", "my-proxy=9000/stop"]))
DONE = {"main": exited(0), "istio-proxy": RUNNING}
VAULT = {**DONE, "vault-agent": RUNNING}
BOTH = {**VAULT, "my-proxy": RUNNING}
GONE: dict[str, State] = {"main": exited(0), "vault-agent": RUNNING}
NATIVE: dict[str, Any] = {"sidecars": {"istio-proxy": RUNNING}}


def decide(containers: dict[str, State], policy: Policy = POLICY, **fields: Any) -> quitting.Action:
    return table.decide(job(containers, **fields), policy)


def facts(containers: dict[str, State], **fields: Any) -> PodFacts:
    return PodFacts(job(containers, **fields), POLICY)


def test_a_sidecar_with_a_rule_goes_before_the_proxy() -> None:
    decision = decide(VAULT)

    assert isinstance(decision, Quit)
    assert (decision.target, decision.status_port, decision.rungs) == (
        "vault-agent", 8200, (Rung.PORT_FORWARD,),
    )  # fmt: skip
    assert decision.rule == sidecars.SHIPPED["vault-agent"]
    assert facts(VAULT).containers["vault-agent"].role == "sidecar"
    assert decision.reason.endswith("finished; vault-agent goes before istio-proxy")


@pytest.mark.parametrize(
    ("containers", "fields", "target"),
    [
        row("one after another", BOTH, {}, "vault-agent"),
        row("the next", {**BOTH, "vault-agent": exited(143)}, {}, "my-proxy"),
        row("the proxy is the last", {**BOTH, "my-proxy": exited(0), "vault-agent": exited(1)}, {},
            "istio-proxy"),
        row("the payload runs", {**BOTH, "main": RUNNING}, {}, Wait),
        row("a native proxy ends by itself", GONE, NATIVE, "vault-agent"),
        row("all is done", {**GONE, "vault-agent": exited(0)}, NATIVE, Ignore),
        row("the proxy is gone", {**GONE, "istio-proxy": exited(0)}, {}, "vault-agent"),
        row("not of the mesh", GONE, {}, Ignore),
    ],
)  # fmt: skip
def test_sidecars_go_one_after_another_and_the_proxy_last(
    containers: dict[str, State], fields: dict[str, Any], target: str | type[quitting.Action]
) -> None:
    decision = decide(containers, **fields)
    assert (decision.target if isinstance(decision, Quit) else type(decision)) == target


def test_without_its_rule_a_sidecar_keeps_the_proxy() -> None:
    decision = decide(VAULT, Policy())
    assert isinstance(decision, Wait)
    assert blockers(decision) == ("vault-agent",)


@pytest.mark.parametrize(
    ("state", "fields", "because"),
    [
        (waiting("CrashLoopBackOff"), {"restart": "OnFailure"}, "vault-agent does not run"),
        (
            RUNNING,
            {"details": {"vault-agent": {"restartPolicy": "Always"}}},
            "vault-agent is started again after it exits with 0",
        ),
    ],
    ids=["crash loop", "restarts always"],
)
def test_a_sidecar_that_cannot_be_ended_keeps_the_proxy_and_is_named(
    state: State, fields: dict[str, Any], because: str
) -> None:
    decision = decide({**DONE, "vault-agent": state}, **fields)

    assert isinstance(decision, Wait)
    assert because in decision.reason
    assert blockers(decision) == ("vault-agent",)


def test_a_container_that_the_author_calls_the_payload_is_none() -> None:
    after = {"istio-aux.io/quit-after": "vault-agent"}
    assert isinstance(decide(VAULT, annotations=after), Wait)
    assert facts(VAULT, annotations=after).containers["vault-agent"].role == "payload"


def test_without_the_right_to_forward_a_port_the_option_is_named() -> None:
    policy = Policy(sidecars=POLICY.sidecars, via=QuitVia.EXEC)
    decision = decide(VAULT, policy)

    assert isinstance(decision, Wait)
    assert blockers(decision) == ("option quit-via",)
    assert "quit-via is exec, which cannot tell vault-agent" in decision.reason


def test_a_sidecar_without_a_port_is_told_by_its_command() -> None:
    policy = Policy(sidecars=sidecars.read("helper=/bin/kill -TERM 1"))
    containers = {**DONE, "helper": RUNNING}
    decision = decide(containers, policy)
    refused = decide(containers, Policy(sidecars=policy.sidecars, via=QuitVia.PORT_FORWARD))

    assert isinstance(decision, Quit)
    assert decision.rungs == (Rung.EXEC,)
    assert decision.rule == sidecars.SidecarRule("helper", command=("/bin/kill", "-TERM", "1"))
    assert blockers(refused) == ("option quit-via",)


@pytest.mark.parametrize("value", ["", [], " "])
def test_by_default_there_are_no_rules(value: object) -> None:
    assert sidecars.read(value) == ()


def test_a_rule_is_a_shipped_one_by_its_name_or_a_port_and_a_path() -> None:
    shipped, own = sidecars.read("vault-agent, my-proxy=9000/stop?now")
    assert shipped.port == 8200
    assert own == sidecars.SidecarRule("my-proxy", 9000, "/stop?now")


@pytest.mark.parametrize(
    "value",
    [
        "unknown", "istio-proxy=15020/quitquitquit", "a=0/x", "a=65536/x", "a=80", "A=80/x",
        "a=80/x y", "a=kill  1", "a= kill", "a=-x", "a=./x", "a=kill\n1", "a=",
        f"a=x{' y' * 10}", "istio-proxy=kill 1", "a=80/x\r\nHost: y", "a,a=80/x",
        f"{'a' * 64}=80/x", f"a=80/{'x' * 201}",
        "vault-agent,vault-agent", "vault-agent,", [1], {"a": 1}, None, 5,
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_value_and_what_is_allowed(value: object) -> None:
    with pytest.raises(ValueError, match="expected names of cloud-sql-proxy, vault-agent"):
        sidecars.read(value)
