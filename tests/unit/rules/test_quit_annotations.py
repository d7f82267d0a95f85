"""What authors of pods say in annotations, and admins in options, about the end of a proxy."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest
from istio_aux.model import sidecars
from istio_aux.model.annotations import (
    NATIVE_SIDECAR,
    QUIT,
    QUIT_AFTER,
    QUIT_GRACE,
    SIDECARS,
    START,
    STATUS_PORT,
)
from istio_aux.model.known_sidecars import KNOWN, Known
from istio_aux.model.pod import Container, Pod
from istio_aux.model.pod_settings import status_port
from istio_aux.model.policy import Capability, QuitPolicy, StartMode, StartPolicy
from istio_aux.model.sidecars import parse
from istio_aux.quit.attempt import Send
from istio_aux.quit.facts import PodFacts
from istio_aux.quit.pairs import GCSFUSE_FIX
from istio_aux.quit.rules import FINISHED, Quit, Wait, Way
from istio_aux.start.plan import plan
from lab.sidecar_cases import Case, container, outcome
from unit.rules.pods import (
    ENDED,
    RUNNING,
    State,
    blockers,
    decide,
    decided,
    done,
    exited,
    job,
    moment,
    patched,
    planned,
    row,
    waiting,
)

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


@pytest.mark.parametrize(
    ("key", "value", "option", "why"),
    [
        *(
            ("quit_after", value, "", "not named by annotation istio-aux.io/quit-after")
            for value in ("main", "main,wait", " main , wait ,", "main,,main")
        ),
        # Names of no container are ignored there.
        *(
            ("sidecars", value, "", "annotation istio-aux.io/sidecars")
            for value in ("dind=ignore", "nobody=native , dind=ignore")
        ),
        ("sidecars", "", "dind=ignore", "option sidecars"),
    ],
)
def test_a_container_that_nobody_waits_for_holds_nothing_up(
    key: str, value: str, option: str, why: str
) -> None:
    """kubernetes#25908."""
    given: dict[str, Any] = {key: value}
    pod, policy = annotated(**given), QuitPolicy(sidecars=parse(option))
    decided(Quit, pod, policy)
    verdicts = PodFacts(pod, policy).containers
    assert (verdicts["dind"].role, verdicts["dind"].why) == ("ignored", f"running; ignored: {why}")
    assert (verdicts["main"].role, verdicts["istio-proxy"].role) == ("payload", "sidecar")


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_an_annotation_that_names_nothing_says_nothing(value: str) -> None:
    """A template may leave it empty; then every container counts."""
    empty = value.strip(" ,")
    pod = annotated(quit_after=value, sidecars=value, grace=empty, quit=empty)
    assert decided(Wait, pod).reason == "not finished: dind (running)"


@pytest.mark.parametrize("name", ["mian", "istio-proxy", "Main", "setup", "vault-agent"])
def test_a_name_that_is_no_payload_container_keeps_the_proxy(name: str) -> None:
    pod = job(
        {"main": exited(0), "istio-proxy": RUNNING, "log": exited(0)},
        sidecars={"vault-agent": RUNNING},
        annotations={QUIT_AFTER: f"main,{name}"},
        spec={"initContainers": [{"name": "setup"}]},
    )
    decision = decided(Wait, pod)
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
    decision = decided(Wait, annotated(DONE, **{key: value}))
    assert "separated by commas, at most 100" in decision.reason
    assert len(decision.reason) < 300


@pytest.mark.parametrize("how", ["quit", "9000/stop", "Ignore", "off"])
@pytest.mark.parametrize("name", ["vault-agent", "dind"])
def test_an_author_names_no_port(name: str, how: str) -> None:
    decision = decided(Wait, annotated(DONE, sidecars=f"main=ignore,{name}={how}"))
    assert "expected NAME=native or NAME=ignore separated by commas" in decision.reason
    assert blockers(decision) == (f"annotation {SIDECARS}",)


DONE: dict[str, State] = {"early": exited(0, at="2026-11-21T08:16:20Z"), "main": exited(0)}


def test_a_grace_period_keeps_the_proxy_until_it_ends() -> None:
    pod, policy = annotated(DONE), QuitPolicy(grace=5)
    decision = decided(Wait, pod, policy, now=moment(ENDED, 4.9))
    assert blockers(decision) == ()
    assert decision.reason == (
        "every payload container is finished; the grace period ends at 08:16:34"
    )
    decided(Quit, pod, policy, now=moment(ENDED, 5))


GRACES = {"30": 30, "2.5": 2.5, ".5": 0.5, "5.": 5, "7s": 7, "2m": 120, " 3 ": 3, "1440m": 86400}
GRACES |= {"0": 0, "0s": 0, "0.0m": 0}


@pytest.mark.parametrize(("value", "seconds"), GRACES.items())
def test_the_author_chooses_the_grace_period(value: str, seconds: float) -> None:
    pod, policy = annotated(DONE, grace=value), QuitPolicy(grace=10)
    if seconds:
        decision = decided(Wait, pod, policy, now=moment(ENDED, seconds - 0.1))
        assert decision.until == moment(ENDED, seconds)
    decided(Quit, pod, policy, now=moment(ENDED, seconds))


@pytest.mark.parametrize(
    "value",
    ["soon", "-1", "1h", "1e3", "1,5", "1 s", "s", ".", "inf", "nan", "86401", "1441m", "9" * 400,
     "0x10", "\u0663", "5ss"],
)  # fmt: skip
def test_a_grace_period_that_is_not_understood_keeps_the_proxy(value: str) -> None:
    decision = decided(Wait, annotated(DONE, grace=value))
    shown = value if len(value) < 60 else f"{value[:60]}…"
    long = "" if len(value) <= 32 else f"; it has {len(value)} characters, not at most 32"
    assert decision.reason == (
        f'annotation istio-aux.io/quit-grace: "{shown}": '
        f"expected seconds, at most a day, like 30, 2.5s or 1m{long}"
    )
    assert blockers(decision) == ("annotation istio-aux.io/quit-grace",)
    assert decision.until is None


@pytest.mark.parametrize(
    ("key", "value"),
    [("quit", "flase"), ("quit_after", "nobody"), ("sidecars", "dind=7/x"), ("grace", "soon")],
)
def test_a_bad_value_about_the_end_is_told_at_the_start_and_keeps_the_proxy(
    key: str, value: str
) -> None:
    pod = annotated(DONE, **{key: value})
    [told] = [text for text in plan(pod, StartPolicy()).warnings if value in text]
    assert told.startswith("IA0204: annotation istio-aux.io/")
    assert told.endswith("the proxy is left alone")
    assert [each.kind for each in decided(Wait, pod).blocked_by] == ["annotation"]


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
    pod, policy = annotated({"main": exited(0, at=at)}), QuitPolicy(grace=5)
    assert decided(Wait, pod, policy, now=moment(ENDED, now)).until == moment(ENDED, 5)


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
    for port in ports:
        decision = decided(Quit, done(annotations={STATUS_PORT: f"{port}"}))
        assert (decision.ways, decision.reason) == (ways, FINISHED)


@pytest.mark.parametrize(
    ("way", "port", "options"),
    [
        (Way.EXEC, 15000, ["--debug-port=15000"]),
        (Way.EXEC, 15021, ["--debug-port=15021"]),
        (Way.ENVOY, 15520, []),
    ],
)
def test_the_command_names_the_agents_port_and_not_envoys(
    way: Way, port: int, options: list[str]
) -> None:
    """It is a program, not a shell. Without a port its client talks to Envoy's admin.

    istio.io#5073, istio#11659.
    """
    command = ("pilot-agent", "request", *options, "POST", "quitquitquit")
    assert Send(way, port).command == command


# Sidecars that are told to exit before the proxy.


def test_a_sidecar_with_a_rule_goes_before_the_proxy() -> None:
    pod = job({"main": exited(0), "istio-proxy": RUNNING, "vault-agent": RUNNING})
    policy = QuitPolicy(sidecars=parse("vault-agent=quit,my-proxy=9000/stop"))
    decision = decided(Quit, pod, policy)

    assert (decision.target, decision.port, decision.ways) == (
        "vault-agent", 8200, (Way.PORT_FORWARD,),
    )  # fmt: skip
    assert decision.rule == sidecars.SHIPPED["vault-agent"]


def test_an_entry_says_what_is_done_about_the_containers_of_its_name() -> None:
    assert parse("vault-agent=quit, my-proxy=9000/stop?now,otel=native,daprd=ignore,") == (
        sidecars.SHIPPED["vault-agent"],
        sidecars.SidecarRule("my-proxy", 9000, "/stop?now"),
        sidecars.SidecarRule("otel", how=sidecars.How.NATIVE),
        sidecars.SidecarRule("daprd", how=sidecars.How.IGNORE),
    )
    assert [parse(text) for text in ("", " ", ",", " , ")] == [()] * 4


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
            parse(text)
        assert len(str(refused.value)) < 200


# Sidecars that need no option: how each is recognized, and what becomes of it (`KNOWN`).


NATIVE = StartPolicy(capability=Capability.NATIVE)
ROWS = pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.names.split()[0])
SQL = next(row for row in KNOWN if row.names.startswith("cloud-sql-proxy"))
GCSFUSE = next(row for row in KNOWN if row.ends_last)


def first(row: Known) -> str:
    return row.names.split()[0]


def image(row: Known, place: int = 0) -> str:
    return f"registry.example:5000/{row.images.split()[place]}:1.2"


def beside(row: Known, *, of: str = "", **more: Any) -> list[dict[str, Any]]:
    """A payload, and the program in a container of its name, or with another image."""
    return [container("main"), container(first(row)) | {"image": of or image(row), **more}]


def started(row: Known, how: StartPolicy = NATIVE, **case: Any) -> list[str]:
    """The init containers of a new pod with that program."""
    case.setdefault("containers", beside(row))
    return outcome(patched(Case(name="", **case).pod, how)["spec"])[1]


def ended(row: Known, **fields: Any) -> Pod:
    """A classic pod whose payload is done, and whose sidecar runs."""
    states: Mapping[str, State] = {"main": exited(0), first(row): RUNNING, "istio-proxy": RUNNING}
    fields.setdefault("details", {first(row): {"image": image(row)}})
    return job(fields.pop("containers", states), **fields)


@ROWS
def test_a_program_is_known_by_name_and_image(row: Known) -> None:
    names, images = row.names.split(), [image(row, at) for at in range(len(row.images.split()))]
    assert names
    for found in [
        *images,
        f"{images[0]}@sha256:{'0' * 64}",
        row.images.split()[0],
        f"mirror/{images[0]}",
    ]:
        assert [sidecars.known(Container(name=name, image=found)) for name in names] == [row] * len(
            names
        )
    for found in (
        f"{images[0]}/main",
        images[0].replace("/", "/my-"),
        "busybox",
        "",
        "@",
        ":",
        "/",
    ):
        assert sidecars.known(Container(name=names[0], image=found)) is None, found
    assert sidecars.known(Container(name="main", image=images[0])) is None


@ROWS
def test_it_becomes_native_where_it_can(row: Known) -> None:
    assert started(row) == ([f"{first(row)}*"] if row.native else [])
    assert started(row, containers=beside(row, of="busybox")) == []
    again = patched(Case(name="", containers=beside(row)).pod, NATIVE)
    assert planned(again, NATIVE).ops == ()


@ROWS
def test_a_classic_one_is_told_to_exit_or_keeps_the_proxy(row: Known) -> None:
    """One that only a signal ends is not ignored: it would lose its network before it ends."""
    decided(Wait, ended(row, details={first(row): {"image": "busybox"}}))
    if row.port:
        found = decided(Quit, ended(row))
        assert found.rule == sidecars.SidecarRule(first(row), row.port, row.path, row.switch)
    elif row.ends_last:
        assert decided(Quit, ended(row)).target == "istio-proxy"
    else:
        assert blockers(decided(Wait, ended(row))) == (first(row),)


GOOGLES = "gcr.io/cloud-sql-connectors/cloud-sql-proxy:2.14.1"
INJECTED: dict[str, Any] = {
    "image": "hashicorp/vault:1.20", "command": ["/bin/sh", "-ec"],
    "args": [("echo ${VAULT_CONFIG?} | base64 -d > /home/vault/config.json"
              " && vault agent -config=/home/vault/config.json")],
}  # fmt: skip
LINKERDS = {"image": "cr.l5d.io/linkerd/proxy:edge"}


def variable(name: str, value: object) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}]}


def vault(text: str) -> dict[str, Any]:
    return variable("VAULT_CONFIG", b64encode(text.encode()).decode())


@pytest.mark.parametrize(
    ("name", "details", "lacks"),
    [
        ("cloud-sql-proxy", {"image": GOOGLES}, "its flag --quitquitquit"),
        ("alloydb-auth-proxy",
         {"image": "mirror.example:5000/gcr/alloydb-connectors/alloydb-auth-proxy@sha256:0"},
         "its flag --quitquitquit"),
        ("cloud-sql-proxy",
         {"image": GOOGLES, "command": ["/cloud-sql-proxy", "--port=$(PORT)", "a:b:c"],
          "args": ["--quitquitquit=false"], **variable("CSQL_PROXY_QUITQUITQUIT", "0")},
         "its flag --quitquitquit"),
        ("vault-agent", INJECTED | vault('{"auto_auth":{}}'),
         "annotation vault.hashicorp.com/agent-enable-quit"),
        ("linkerd-proxy", LINKERDS | variable("LINKERD2_PROXY_SHUTDOWN_ENDPOINT_ENABLED", "false"),
         "Linkerd's proxy.enableShutdownEndpoint"),
    ],
)  # fmt: skip
def test_one_that_shows_that_its_switch_is_off_blocks_with_what_turns_it_on(
    name: str, details: dict[str, Any], lacks: str
) -> None:
    """It would be told to exit again and again, and `quit` would promise to free the pod."""
    row = next(row for row in KNOWN if first(row) == name)
    found = decided(Wait, ended(row, details={name: details}))
    why = f"{name} cannot be told to exit: it needs {lacks}, which is off: turn it on for new pods"
    assert (found.reason, found.fix) == (why, why)
    assert (blockers(found), found.code) == ((name,), "IA0102")
    told = QuitPolicy(sidecars=parse(f"{name}=7/x"))
    decided(Quit, ended(row, details={name: details}), told)
    over = {"main": exited(0), name: exited(0), "istio-proxy": RUNNING}
    decided(Quit, ended(row, details={name: details}, containers=over))


@pytest.mark.parametrize(
    ("name", "details"),
    [
        *(("cloud-sql-proxy", {"image": GOOGLES, **more}) for more in (
            {"args": ["--quitquitquit"]},
            {"args": ["a:b:c", "--quitquitquit=T"]},
            {"args": ["--quitquitquit", "false"]},
            {"args": ["--config-file", "/etc/config.toml"]},
            {"args": ["$(FLAGS)"]},
            {"command": ["/bin/sh", "-c", "exec /cloud-sql-proxy $FLAGS"]},
            variable("CSQL_PROXY_QUITQUITQUIT", "true"),
            variable("CSQL_PROXY_QUITQUITQUIT", "$(SWITCH)"),
            variable("CSQL_PROXY_QUITQUITQUIT", None),
            {"envFrom": [{"configMapRef": {"name": "proxy"}}]},
            {"args": ["x" * 200_000]},
        )),
        ("cloud-sql-proxy", {"image": "registry.example/cloud-sql-proxy:2.14.1"}),
        ("vault-agent", INJECTED | vault('{"listener":[{"agent_api":{"enable_quit":true}}]}')),
        ("vault-agent", INJECTED | variable("VAULT_CONFIG", None)),
        ("vault-agent", INJECTED | variable("VAULT_CONFIG", "no base64")),
        ("vault-agent", {**INJECTED, "args": ["vault agent -config=/vault/config.hcl"]}),
        ("vault-agent", {"image": "hashicorp/vault:1.20"}),
        ("linkerd-proxy", LINKERDS),
        ("consul-dataplane", {"image": "hashicorp/consul-dataplane:1.5"}),
    ],
)  # fmt: skip
def test_one_whose_switch_may_be_on_is_told_to_exit(name: str, details: dict[str, Any]) -> None:
    """What is in an image, a file or another object is not seen; older Linkerds had no switch."""
    row = next(row for row in KNOWN if first(row) == name)
    assert decided(Quit, ended(row, details={name: details})).target == name


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"spec": {"restartPolicy": "Always"}}, "the pod is not meant to end"),
        ({"annotations": {"workflows.argoproj.io/node-name": "a"}}, "Argo ends it"),
        ({"annotations": {QUIT_AFTER: "main"}}, "the author says what decides"),
        ({"annotations": {QUIT: "false"}}, "the author wants none of it"),
        ({"annotations": {QUIT: "flase"}}, "the author may want none of it"),
        ({"annotations": {START: "none"}}, "the author wants no order"),
        ({"annotations": {START: "hold"}}, "the proxy is classic"),
        ({"annotations": {SIDECARS: "none"}}, "the author turns it off"),
        ({"annotations": {SIDECARS: "cloud-sql-proxy=ignore"}}, "the author says otherwise"),
        ({"option": "none"}, "the admin turns it off"),
        ({"option": "cloud-sql-proxy=quit"}, "the admin says otherwise"),
        ({"containers": beside(SQL, command=[
            "/bin/sh", "-c", "cloud-sql-proxy & until test -e /done; do sleep 1; done"])},
         "a script may end by itself"),
        ({"containers": beside(SQL, lifecycle={
            "postStart": {"exec": {"command": ["until-the-payload-listens"]}}})},
         "its hook may wait for the payload"),
        ({"containers": beside(SQL, restartPolicy="Never")}, "its author means something else"),
        ({"containers": beside(SQL)[1:]}, "it is the payload"),
        ({"containers": [*beside(SQL)[1:], container("main", args=["curl :9091/quitquitquit"])]},
         "the payload ends it: it would start again"),
        ({"containers": [*beside(SQL)[1:], container("main", args=["train; pkill cloud"])],
          "spec": {"shareProcessNamespace": True}}, "the payload kills it"),
        ({"capability": Capability.CLASSIC}, "native ones do not work here"),
        ({"capability": Capability.UNKNOWN}, "it is not known whether they do"),
        ({"counted": True}, "its Job would count what it exits with"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_it_stays_where_anything_speaks_against_it(case: dict[str, Any], why: str) -> None:
    case.setdefault("containers", beside(SQL))
    found = Case(name=why, **{"option": "", **case})

    plan = planned(found.pod, found.setting)

    assert started(SQL, found.setting, **case) == []
    warned = [text for text in plan.warnings if "cloud-sql-proxy" in text]
    assert bool(warned) is found.counted, "what nobody asked for warns only where it matters"


def test_it_stays_where_the_annotations_leave_no_room_for_a_start_order() -> None:
    """A native sidecar that starts before a classic proxy has no network."""
    annotations = {"note": "x" * ((256 << 10) - 64)}

    plan = planned(Case(name="", containers=beside(SQL), annotations=annotations).pod, NATIVE)
    assert plan.ops == ()
    assert plan.warnings[0].startswith("left alone: the annotations would have")


BESIDE_NATIVE: dict[str, Any] = {
    "annotations": {"sidecar.istio.io/status": "{}"},
    "spec": {"initContainers": [container("istio-proxy", restartPolicy="Always")]},
}
SCRIPTED = next(row for row in KNOWN if row.is_script)


@pytest.mark.parametrize(
    ("known", "how", "case", "init"),
    [
        row("a bad grace period of the proxy", SQL, NATIVE, {"annotations": {QUIT_GRACE: "soon"}},
            ["cloud-sql-proxy*"]),
        row("beside a native proxy", SQL, NATIVE, BESIDE_NATIVE, ["cloud-sql-proxy*"]),
        row("beside a classic proxy", SQL, NATIVE,
            {"annotations": {"sidecar.istio.io/status": "{}"},
             "containers": [container("istio-proxy"), *beside(SQL)]}, []),
        row("beside a native proxy in mode none", SQL,
            StartPolicy(capability=Capability.NATIVE, mode=StartMode.NONE), BESIDE_NATIVE, []),
        row("the shell of an injector is no script", SCRIPTED, NATIVE,
            {"annotations": {NATIVE_SIDECAR: "true"}, "containers": beside(
                SCRIPTED, command=["/bin/sh", "-ec"], args=["vault agent -config=/home/config"])},
            ["vault-agent*"]),
    ],
)  # fmt: skip
def test_what_else_is_said_of_its_pod_decides_whether_it_becomes_native(
    known: Known, how: StartPolicy, case: dict[str, Any], init: list[str]
) -> None:
    assert started(known, how, **case) == init


@pytest.mark.parametrize(
    ("name", "option", "own", "role"),
    [
        ("dind", "dind=ignore", "", "ignored"),
        ("dind", "dind=ignore", "other=native", "ignored"),
        ("dind", "dind=ignore", "dind=native", "payload"),
        ("dind", "dind=9000/stop", "dind=ignore", "ignored"),
        ("dind", "dind=9000/stop", "other=ignore", "sidecar"),
        ("dind", "dind=native", "dind=ignore", "ignored"),
        # One that is to be native and is not keeps the proxy, unless the option tells it to exit.
        ("dind", "dind=9000/stop", "dind=native", "sidecar"),
        # What its program is known for counts last.
        ("cloud-sql-proxy", "", "", "sidecar"),
        ("cloud-sql-proxy", "none", "", "payload"),
        ("cloud-sql-proxy", "", "none", "payload"),
        ("cloud-sql-proxy", "none,cloud-sql-proxy=quit", "", "sidecar"),
        ("cloud-sql-proxy", "other=native", "other=ignore", "sidecar"),
        ("cloud-sql-proxy", "cloud-sql-proxy=ignore", "", "ignored"),
        ("cloud-sql-proxy", "cloud-sql-proxy=native", "", "sidecar"),
        ("cloud-sql-proxy", "", "cloud-sql-proxy=native", "sidecar"),
        ("cloud-sql-proxy", "", "cloud-sql-proxy=ignore", "ignored"),
        ("cloud-sql-proxy", "cloud-sql-proxy=9000/stop", "", "sidecar"),
    ],
)
def test_for_each_name_the_annotation_counts_before_the_option_and_that_before_what_is_known(
    name: str, option: str, own: str, role: str
) -> None:
    states = {"main": exited(0), name: RUNNING, "istio-proxy": RUNNING}
    details = {"cloud-sql-proxy": {"image": image(SQL)}}
    pod = job(states, details=details, annotations={SIDECARS: own})
    assert PodFacts(pod, QuitPolicy(sidecars=parse(option))).containers[name].role == role


def test_the_classic_mounter_of_gcs_fuse_is_freed_or_named_with_what_frees_it() -> None:
    """gcs-fuse-csi-driver pkg/csi_driver/utils.go putExitFile: it waits for istio-proxy."""
    mounter, off = first(GCSFUSE), QuitPolicy(sidecars=parse("none"))
    other: dict[str, Any] = {"details": {mounter: {"image": "registry/mounter"}}}
    for found in (decided(Wait, ended(GCSFUSE), off), decided(Wait, ended(GCSFUSE, **other))):
        assert (blockers(found), found.fix, found.code) == ((mounter,), GCSFUSE_FIX, "IA0112")
    decided(Quit, ended(GCSFUSE), QuitPolicy(sidecars=parse(f"{mounter}=ignore")))
    proxy: dict[str, Any] = {"istio-proxy": RUNNING}
    states: dict[str, Any] = {"main": exited(0), mounter: RUNNING}
    pods: list[dict[str, Any]] = [
        {"containers": {**states, **proxy, "main": RUNNING}},
        {"containers": {**states, **proxy, "logger": RUNNING}},
        {"containers": {**states, **proxy, mounter: waiting("ImagePullBackOff")}},
        {"containers": {**states, "istio-proxy": exited(0)}},
        {"containers": states, "sidecars": proxy},
        {"containers": {mounter: RUNNING, **proxy}},
    ]
    for pod in pods:
        assert decide(ended(GCSFUSE, **other, **pod)).fix == "", pod
