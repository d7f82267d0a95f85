"""The ways to tell a proxy to exit, on the port of its agent, and sidecars before the proxy."""

from __future__ import annotations

import re
from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.annotations import STATUS_PORT, status_port
from istio_aux.model.policy import QuitPolicy
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import FINISHED, Quit, Way, ways_to
from istio_aux.quit.task import Send
from unit.rules.pods import RUNNING, exited, job
from unit.rules.table import decide, done, row


def configured(value: str | None) -> dict[str, Any]:
    """A proxy with a ProxyConfig in its environment."""
    return {"env": [{"name": "OTHER", "value": "x"}, {"name": "PROXY_CONFIG", "value": value}]}


NOTHING: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("annotation", "proxy", "port"),
    [
        row("nothing is configured", None, NOTHING, 15020),
        row("the ProxyConfig", None, configured('{"statusPort":15521}\n'), 15521),
        row("the annotation wins", "15520", configured('{"statusPort":15521}'), 15520),
        row("the annotation turns the status server off", "0", NOTHING, 0),
        row("the ProxyConfig turns the status server off", None, configured('{"statusPort":0}'), 0),
        row("the last port there is", "65535", NOTHING, 65535),
        row("an annotation just over the last port", "65536", NOTHING, 15020),
        row("an annotation that is no number", "high", NOTHING, 15020),
        row("an annotation in other digits", "\u0661\u0665\u0665\u0662\u0660", NOTHING, 15020),
        row("a bad annotation leaves it to ProxyConfig", "x", configured('{"statusPort":1}'), 1),
        row("a ProxyConfig whose port is none", None, configured('{"statusPort":65536}'), 15020),
        row("a ProxyConfig that is broken", None, configured('{"statusPort":'), 15020),
        row("a very long ProxyConfig", None,
            configured('{"statusPort":15521,"x":"' + "x" * 70_000 + '"}'), 15020),
    ],
)  # fmt: skip
def test_the_status_port_is_the_one_of_this_pod(
    annotation: str | None, proxy: dict[str, Any], port: int
) -> None:
    pod = done(
        annotations={} if annotation is None else {"status.sidecar.istio.io/port": annotation},
        details={"istio-proxy": proxy},
    )
    assert status_port(pod) == port


@pytest.mark.parametrize(
    ("ports", "ways"),
    [
        ([15000, 15004, 15020, 15021], (Way.EXEC, Way.PORT_FORWARD, Way.ENVOY)),
        ([1, 15019, 15022, 15520, 65535], (Way.PORT_FORWARD, Way.ENVOY)),
        ([0], (Way.ENVOY,)),
    ],
)
def test_the_port_decides_which_ways_there_are(ports: list[int], ways: tuple[Way, ...]) -> None:
    """pilot-agent's client refuses any port that is not on its list; 0 means no server."""
    assert {ways_to(port) for port in ports} == {ways}
    for port in ports:
        decision = decide(done(annotations={STATUS_PORT: f"{port}"}), QuitPolicy())
        assert isinstance(decision, Quit)
        assert (decision.ways, decision.reason) == (ways, FINISHED)


def test_the_command_names_the_agents_port_and_not_envoys() -> None:
    """It is a program, not a shell. Without a port its client talks to Envoy's admin.

    istio.io#5073, istio#11659.
    """
    program, post = ("pilot-agent", "request"), ("POST", "quitquitquit")
    for port in (15000, 15021):
        assert Send(Way.EXEC, port).command == (*program, f"--debug-port={port}", *post)
    assert Send(Way.ENVOY, 15520).command == (*program, *post)


# Sidecars that are told to exit before the proxy.

POLICY = QuitPolicy(sidecars=sidecars.parse("vault-agent=quit,my-proxy=9000/stop"))
VAULT = {"main": exited(0), "istio-proxy": RUNNING, "vault-agent": RUNNING}


def test_a_sidecar_with_a_rule_goes_before_the_proxy() -> None:
    decision = decide(job(VAULT), POLICY)

    assert isinstance(decision, Quit)
    assert (decision.target, decision.status_port, decision.ways) == (
        "vault-agent", 8200, (Way.PORT_FORWARD,),
    )  # fmt: skip
    assert decision.rule == sidecars.SHIPPED["vault-agent"]
    assert PodFacts(job(VAULT), POLICY).containers["vault-agent"].role == "sidecar"
    assert decision.reason.endswith("finished; vault-agent goes before istio-proxy")


def test_an_entry_says_what_is_done_about_the_containers_of_its_name() -> None:
    shipped, own, native, ignored = sidecars.parse(
        "vault-agent=quit, my-proxy=9000/stop?now,otel=native,daprd=ignore,"
    )
    assert shipped == sidecars.SHIPPED["vault-agent"]
    assert own == sidecars.SidecarRule("my-proxy", 9000, "/stop?now")
    assert native == sidecars.SidecarRule("otel", how=sidecars.How.NATIVE)
    assert ignored == sidecars.SidecarRule("daprd", how=sidecars.How.IGNORE)
    assert [sidecars.parse(text) for text in ("", " ", ",", " , ")] == [()] * 4


HOW = "native, ignore, quit or PORT/PATH after ="


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (
            ["vault-agent", "a 80/x", "a=", "A=80/x", "A=native", f"{'a' * 64}=80/x", "a b=quit"],
            "NAME=HOW separated by commas",
        ),
        (
            ["istio-proxy=15020/quitquitquit", "istio-proxy=native", "istio-proxy=/kill 1",
             "a=ignore,a=80/x", "vault-agent=quit,vault-agent=quit"],
            "each container once, and not istio-proxy",
        ),
        (["unknown=quit"], f"{HOW}; quit is for cloud-sql-proxy, alloydb-"),
        (
            ["a=0/x", "a=65536/x", "a=80", "a=native x", "a=80/x y", "a= /kill", "a=-x", "a=./x",
             "a=80/x\r\nHost: y", f"a=80/{'x' * 201}", "vault-agent=Ignore",
             "vault-agent=natives", "vault-agent=Quit", "a=stop", "a=kill 1"],
            HOW,
        ),
        (
            ["a=/bin/kill -TERM 1", f"{'a' * 63}=/{'x' * 999}", "a=/"],
            f"{HOW}; commands are gone: use native for a sidecar that only a signal ends",
        ),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_part_that_is_wrong_in_a_short_line(
    texts: list[str], wanted: str
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=f": expected {re.escape(wanted)}") as refused:
            sidecars.parse(text)
        assert len(str(refused.value)) < 200
