"""What authors of pods say in annotations, and admins in options, about the end of a proxy."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.annotations import (
    QUIT,
    QUIT_AFTER,
    QUIT_GRACE,
    SIDECARS,
    STATUS_PORT,
    status_port,
)
from istio_aux.model.pod import Pod
from istio_aux.model.policy import QuitPolicy
from istio_aux.model.sidecars import parse
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.rules import FINISHED, Action, Quit, Wait, Way, ways_to
from istio_aux.quit.task import Send
from unit.rules.pods import RUNNING, State, exited, job, moment
from unit.rules.table import blockers, decide, done, row

FINISHED_AT = datetime(2026, 11, 21, 8, 16, 29, tzinfo=UTC)
THREE: dict[str, State] = {"main": exited(0), "wait": exited(0), "dind": RUNNING}


def annotated(containers: dict[str, State] | None = None, **annotations: str) -> Pod:
    """A pod with a running proxy; ``quit_after`` stands for `istio-aux.io/quit-after`."""
    keys = {
        "quit": QUIT, "quit_after": QUIT_AFTER, "sidecars": SIDECARS, "grace": QUIT_GRACE,
    }  # fmt: skip
    return job(
        {**(THREE if containers is None else containers), "istio-proxy": RUNNING},
        annotations={keys[name]: value for name, value in annotations.items()},
    )


def waiting_for(pod: Pod, policy: QuitPolicy | None = None) -> Wait:
    decision = decide(pod, policy or QuitPolicy(), None)
    assert isinstance(decision, Wait), decision
    return decision


@pytest.mark.parametrize("value", ["main", "main,wait", " main , wait ,", "main,,main"])
def test_only_the_containers_that_are_named_are_waited_for(value: str) -> None:
    pod = annotated(quit_after=value)
    decision, verdicts = decide(pod), PodFacts(pod, QuitPolicy()).containers
    assert isinstance(decision, Quit), decision
    dind = verdicts["dind"]
    assert (dind.role, dind.why) == (
        "ignored",
        "running; ignored: not named by annotation istio-aux.io/quit-after",
    )
    assert verdicts["main"].role == "payload"


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_annotation_that_names_nothing_says_nothing(value: str) -> None:
    """A template may leave it empty; then every container counts."""
    empty = value.strip(" ,")
    pod = annotated(quit_after=value, sidecars=value, grace=empty, quit=empty)
    assert waiting_for(pod).reason == "not finished: dind (running)"


@pytest.mark.parametrize("name", ["mian", "istio-proxy", "Main", "setup", "vault-agent"])
def test_a_name_that_is_no_payload_container_keeps_the_proxy(name: str) -> None:
    pod = job(
        {"main": exited(0), "istio-proxy": RUNNING, "log": exited(0)},
        sidecars={"vault-agent": RUNNING},
        annotations={QUIT_AFTER: f"main,{name}"},
        spec={"initContainers": [{"name": "setup"}]},
    )
    decision = waiting_for(pod)
    assert decision.reason == (
        f'annotation istio-aux.io/quit-after: "{name}": expected containers of the pod: log, main'
    )
    assert blockers(decision) == ("annotation istio-aux.io/quit-after",)
    assert decision.code == "IA0204"


@pytest.mark.parametrize(("key", "how"), [("quit_after", ""), ("sidecars", "=ignore")])
@pytest.mark.parametrize(
    "names", [["dind"] * 101, ["dind"] * 50_000, [f"c{number}" for number in range(101)]]
)
def test_more_names_than_are_read_keep_the_proxy(key: str, how: str, names: list[str]) -> None:
    """Nothing of the list counts: not even the names that are read."""
    value = ",".join(f"{name}{how}" for name in names)
    decision = waiting_for(annotated(DONE, **{key: value}))
    assert "separated by commas, at most 100" in decision.reason
    assert len(decision.reason) < 300


@pytest.mark.parametrize("value", ["dind=ignore", "nobody=native , dind=ignore"])
def test_a_container_that_the_author_ignores_holds_nothing_up(value: str) -> None:
    """Names of no container are ignored there (kubernetes#25908)."""
    pod = annotated(sidecars=value)
    decision, verdicts = decide(pod), PodFacts(pod, QuitPolicy()).containers
    assert isinstance(decision, Quit), decision
    assert verdicts["dind"].why == "running; ignored: annotation istio-aux.io/sidecars"
    assert verdicts["istio-proxy"].role == "sidecar"


@pytest.mark.parametrize(
    ("option", "own", "role"),
    [
        ("dind=ignore", "", "ignored"),
        ("dind=ignore", "other=native", "ignored"),
        ("dind=ignore", "dind=native", "payload"),
        ("dind=9000/stop", "dind=ignore", "ignored"),
        ("dind=9000/stop", "other=ignore", "sidecar"),
        ("dind=native", "dind=ignore", "ignored"),
        ("dind=9000/stop", "dind=native", "sidecar"),
    ],
)
def test_for_each_name_the_annotation_counts_before_the_option(
    option: str, own: str, role: str
) -> None:
    """One that is to be native and is not keeps the proxy, unless the option tells it to exit."""
    found = PodFacts(annotated(sidecars=own), QuitPolicy(sidecars=parse(option)))
    assert found.containers["dind"].role == role


@pytest.mark.parametrize("how", ["quit", "9000/stop", "Ignore", "off"])
@pytest.mark.parametrize("name", ["vault-agent", "dind"])
def test_an_author_names_no_port(name: str, how: str) -> None:
    decision = waiting_for(annotated(DONE, sidecars=f"main=ignore,{name}={how}"))
    assert "expected NAME=native or NAME=ignore separated by commas" in decision.reason
    assert blockers(decision) == (f"annotation {SIDECARS}",)


def graced(pod: Pod, policy: QuitPolicy, after: float) -> Action:
    """The decision so many seconds after the last payload container ended."""
    return decide(pod, policy, moment(FINISHED_AT, after))


DONE: dict[str, State] = {"early": exited(0, at="2026-11-21T08:16:20Z"), "main": exited(0)}


def test_a_grace_period_keeps_the_proxy_until_it_ends() -> None:
    pod, policy = annotated(DONE), QuitPolicy(grace=5)
    decision = graced(pod, policy, 4.9)
    assert isinstance(decision, Wait), decision
    assert decision.until == moment(FINISHED_AT, 5)
    assert blockers(decision) == ()
    assert decision.reason == (
        "every payload container is finished; the grace period ends at 08:16:34"
    )
    assert isinstance(graced(pod, policy, 5), Quit)


GRACES = {"30": 30, "2.5": 2.5, ".5": 0.5, "5.": 5, "7s": 7, "2m": 120, " 3 ": 3, "1440m": 86400}
GRACES |= {"0": 0, "0s": 0, "0.0m": 0}


@pytest.mark.parametrize(("value", "seconds"), GRACES.items())
def test_the_author_chooses_the_grace_period(value: str, seconds: float) -> None:
    pod, policy = annotated(DONE, grace=value), QuitPolicy(grace=10)
    if seconds:
        decision = graced(pod, policy, seconds - 0.1)
        assert isinstance(decision, Wait), decision
        assert decision.until == moment(FINISHED_AT, seconds)
    assert isinstance(graced(pod, policy, seconds), Quit)


@pytest.mark.parametrize(
    "value",
    ["soon", "-1", "1h", "1e3", "1,5", "1 s", "s", ".", "inf", "nan", "86401", "1441m", "9" * 400,
     "0x10", "\u0663", "5ss"],
)  # fmt: skip
def test_a_grace_period_that_is_not_understood_keeps_the_proxy(value: str) -> None:
    decision = waiting_for(annotated(DONE, grace=value))
    shown = value if len(value) < 60 else f"{value[:60]}…"
    long = "" if len(value) <= 32 else f"; it has {len(value)} characters, not at most 32"
    assert decision.reason == (
        f'annotation istio-aux.io/quit-grace: "{shown}": '
        f"expected seconds, at most a day, like 30, 2.5s or 1m{long}"
    )
    assert blockers(decision) == ("annotation istio-aux.io/quit-grace",)
    assert decision.until is None


@pytest.mark.parametrize(
    ("at", "now"),
    [
        ("2026-11-21T08:16:29", 1),
        ("2026-11-21T09:16:29+01:00", 1),
        ("2026-11-21T08:26:29Z", 0),
        ("9999-12-31T23:59:59Z", 0),
    ],
    ids=["without a zone", "of another zone", "ahead", "far ahead"],
)
def test_every_time_of_an_end_is_understood(at: str, now: float) -> None:
    """One without a zone, from a person's file, counts as UTC; one that is to come, as now."""
    decision = graced(annotated({"main": exited(0, at=at)}), QuitPolicy(grace=5), now)
    assert isinstance(decision, Wait), decision
    assert decision.until == moment(FINISHED_AT, 5)


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
             "vault-agent=natives", "vault-agent=Quit", "a=stop", "a=kill 1",
             "a=/bin/kill -TERM 1", f"{'a' * 63}=/{'x' * 999}", "a=/"],
            HOW,
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
