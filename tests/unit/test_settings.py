"""The settings of serve, and its status: valid values, wrong ones, and what the page names."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, strategies as st
from istio_aux import settings, status
from istio_aux.injector.rules import Injector
from istio_aux.model import selectors
from istio_aux.model.answers import (
    TEXT,
    Holder,
    Liveness,
    ProcessStatus,
    Sidecars,
    UnreadableObject,
)
from istio_aux.model.applications import Application
from istio_aux.model.found import Found
from istio_aux.model.policy import (
    Capability,
    DeadProxy,
    Peers,
    QuitMode,
    QuitPolicy,
    RacePolicy,
    RepairPolicy,
    StartMode,
    StartPolicy,
)
from istio_aux.model.resources import Requests
from istio_aux.model.sidecars import SHIPPED, How, SidecarRule
from istio_aux.model.webhooks import Address
from istio_aux.repair.reports import ApplicationMesh
from istio_aux.settings import OPTIONS, LogLevel, Settings, SettingsError, UnknownKeys, load
from istio_aux.start import review
from istio_aux.status import GAP, KEY, Kept, application, page, send_notices, shown_by_charm
from lab.workload import OPTIONS as CHARM, configured
from msgspec.structs import replace
from sizes import ROOT
from unit.declared import ANNOTATIONS
from unit.process import VirtualLoop, background, logging_to, metrics, until

# The settings of serve: valid values, and the messages about invalid ones.

LEAST = "tls-certificate: /tls/tls.crt\ntls-key: /tls/tls.key\n"
# What the charm makes of long names of its model and application.
LONG_NAME = f"istio-aux-{'m' * 63}.{'a' * 63}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def read(file: Path, text: str) -> Settings:
    file.write_text(text)
    return load(file)


def test_every_key_is_taken(file: Path) -> None:
    settings = read(
        file,
        LEAST + "namespace-selectors: team in (a, b), !off;b\nlog-level: debug\n"
        "webhook-address: '[::1]:9443'\nstatus-address: ':0'\nkubeconfig: /etc/kubeconfig\n"
        "quit: dry-run\nquit-grace: 2.5\n"
        "sidecars: cloud-sql-proxy=ignore, daprd=quit\n"
        "dead-proxy: delete\nlease: kubeflow/istio-aux.v2\n"
        f"start-mode: native\npeers: direct\nwebhook-configuration: {LONG_NAME}\n"
        "race-policy: restart\nroot-namespace: istio-system\n"
        "pod-selector: team in (a,b)\ninject-selector: step\n"
        "applications: /etc/istio-aux/applications\napplication: kubeflow/istio-aux\n"
        "pebble-socket: /charm/container/pebble.socket\nunknown-keys: skip\n",
    )
    assert settings == Settings(
        tls_certificate=Path("/tls/tls.crt"),
        tls_key=Path("/tls/tls.key"),
        webhook_address=Address("::1", 9443),
        status_address=Address("", 0),
        kubeconfig=Path("/etc/kubeconfig"),
        namespace_selectors=selectors.parse_namespaces("!off,team in (a,b); b"),
        pod_selector=selectors.parse("team in (a,b)"),
        inject_selector=selectors.parse("step"),
        start_policy=StartPolicy(mode=StartMode.NATIVE, peers=Peers.DIRECT),
        webhook_configuration=LONG_NAME,
        quit=QuitMode.DRY_RUN,
        quit_policy=QuitPolicy(
            grace=2.5,
            sidecars=(SidecarRule("cloud-sql-proxy", how=How.IGNORE), SHIPPED["daprd"]),
            dead_proxy=DeadProxy.DELETE,
        ),
        lease=("kubeflow", "istio-aux.v2"),
        repair_policy=RepairPolicy(
            race=RacePolicy.RESTART,
            ours=Application("kubeflow", "istio-aux"),
        ),
        root_namespace="istio-system",
        applications=Path("/etc/istio-aux/applications"),
        pebble_socket=Path("/charm/container/pebble.socket"),
        log_level=LogLevel.DEBUG,
        unknown_keys=UnknownKeys.SKIP,
    )


@pytest.mark.parametrize("skipping", [False, True])
def test_a_key_of_another_version_is_left_out_only_where_the_file_says_so(
    skipping: bool, file: Path
) -> None:
    text = f"unknown-keys: {'skip' if skipping else 'refuse'}\n{LEAST}speed: 3\nquit: dry-run\n"
    if not skipping:
        with pytest.raises(SettingsError, match="speed: unknown key: expected one of: "):
            read(file, text)
        return
    settings = read(file, text)
    assert (settings.quit, settings.skipped) == (QuitMode.DRY_RUN, ("speed",))


@pytest.mark.parametrize("address", ["[::1]:9443", "127.0.0.1:8443", ":0"])
def test_an_address_is_written_as_it_is_read(address: str, file: Path) -> None:
    assert str(read(file, f"{LEAST}webhook-address: '{address}'\n").webhook_address) == address


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("namespace-selectors: a in b", 'namespace-selectors: "a in b": expected KEY, !KEY'),
        ("namespace-selectors: 1", "namespace-selectors: 1: expected a label selector as text"),
        ("log-level: loud", 'log-level: "loud": expected debug, info, warning or error'),
        ("webhook-address: a:b", 'webhook-address: "a:b": expected HOST:PORT'),
        ("kubeconfig: ''", 'kubeconfig: "": expected the path of a file'),
        ("quit: maybe", 'quit: "maybe": expected enabled, dry-run or disabled'),
        ("quit: on", "quit: true: expected enabled, dry-run or disabled"),
        ("quit-grace: yes", "quit-grace: true: expected seconds"),
        (f"quit-grace: 1{'0' * 400}", "quit-grace: 1000"),
        ("quit-grace: .nan", "quit-grace: NaN: expected seconds"),
        ("sidecars: a b", 'sidecars: "a b": expected NAME=HOW separated by commas'),
        ("sidecars: [a=ignore]", 'sidecars: ["a=ignore"]: expected NAME=HOW separated by commas'),
        (
            "webhook-configuration: ours/theirs",
            'webhook-configuration: "ours/theirs": expected the name of a MutatingWebhookConfig',
        ),
        (f"webhook-configuration: {'a' * 254}", f'webhook-configuration: "{"a" * 254}": expected'),
        ("lease: a/b/c", 'lease: "a/b/c": expected NAMESPACE/NAME'),
        (f"lease: {'a' * 64}/b", f'lease: "{"a" * 64}/b": expected NAMESPACE/NAME'),
        ("root-namespace: a.b", 'root-namespace: "a.b": expected the name of a namespace'),
        ("pebble-socket: 1", "pebble-socket: 1: expected the path of a file"),
        ("colour: blue", "colour: unknown key: expected one of: tls-certificate, tls-key, web"),
        ("tls-key: /again", "not YAML: tls-key is given twice"),
        ("a: b: c", "not YAML: mapping values are not allowed"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_what_is_allowed(
    line: str, complaint: str, file: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(file, LEAST + line + "\n")
    assert str(caught.value).startswith(f"config.yaml: {complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        *((text, "expected a mapping of settings") for text in ("", "- a\n", "text")),
        (
            "tls-key: a\nlog-level: info\n",
            "config.yaml: tls-certificate: missing: expected the path",
        ),
        ("tls-certificate: a\n", "config.yaml: tls-key: missing: expected the path"),
    ],
)
def test_a_file_that_is_no_mapping_or_lacks_a_key_is_refused(
    text: str, complaint: str, file: Path
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        read(file, text)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"config\.yaml: No such file or directory"):
        load(file)


# An option stands once in the workload and once in config.yaml, and documents repeat both.

SHARED = sorted(CHARM.keys() & OPTIONS)


def rows(document: str) -> list[list[str]]:
    """The rows of all tables of a document, cell by cell."""
    lines = (ROOT / document).read_text().splitlines()
    return [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]


def choices(name: str) -> list[str]:
    """The values that an option allows, if they can be counted."""
    default = settings.default(name)
    return [*type(default)] if isinstance(default, StrEnum) else []


@pytest.mark.parametrize("name", SHARED)
def test_charm_and_workload_have_the_same_default(name: str) -> None:
    default = CHARM[name]["default"]
    parsed = OPTIONS[name].read(default) if isinstance(default, str) else default
    assert parsed == settings.default(name)


@pytest.mark.parametrize("name", SHARED)
def test_the_charm_says_what_each_value_means(name: str) -> None:
    quoted = CHARM[name]["description"].partition("\n\n")[0].split("`")[1::2]
    assert set(choices(name)) <= set(quoted)


@pytest.mark.parametrize(
    "name", [name for name, option in CHARM.items() if option["type"] == "int"]
)
def test_charm_and_workload_allow_the_same_seconds(name: str) -> None:
    assert configured("kubeflow", {name: 0})
    assert OPTIONS[name].read(0) == 0
    refused = "-1: expected seconds.* 0 or more"
    with pytest.raises(ValueError, match=f"{name}: {refused}"):
        configured("kubeflow", {name: -1})
    with pytest.raises(ValueError, match=refused):
        OPTIONS[name].read(-1)


AUTHORS = {key.name: key for key in ANNOTATIONS if key.meaning}


@pytest.mark.parametrize("name", AUTHORS)
def test_the_reference_has_every_annotation_of_authors(name: str) -> None:
    key = AUTHORS[name]
    effect = f"{key.meaning}; overrides `{key.overrides}`" if key.overrides else key.meaning
    row = [f" `{name}`", key.expected, f"{effect} "]
    assert row in rows("docs/reference/annotations.md"), f"wanted: |{' | '.join(row)}|"


@pytest.mark.parametrize("name", [name for name, key in AUTHORS.items() if key.overrides])
def test_the_description_of_an_option_names_the_annotation_that_overrides_it(name: str) -> None:
    description = " ".join(CHARM[AUTHORS[name].overrides]["description"].split())
    wanted = f"The pod's annotation `{name}` overrides this option."
    assert description.endswith(wanted), f"wanted at its end: {wanted}"


def test_the_charm_imports_of_the_workload_what_it_packs() -> None:
    """The model and the options, which import nothing above them (import-linter)."""
    part = yaml.safe_load((ROOT / "charmcraft.yaml").read_text())["parts"]["model"]
    packed = ("__init__.py", "settings.py", "model")
    assert part["stage"] == [f"src/istio_aux/{name}" for name in packed]
    text = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    imported = re.findall(r"^\s*(?:from|import) (istio_aux\S*)", text, re.MULTILINE)
    assert imported
    assert {name for name in imported if not name.startswith("istio_aux.model")} == {"istio_aux"}


# The status: its changes that wake the charm, and the page that names its keys.

T = TypeVar("T")

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 21, 13, tzinfo=UTC)
INJECTOR = Injector(
    configuration="istio", revision="default", state=Liveness.LIVE, why="it injects", since=NOON,
    native=Capability.NATIVE,
)  # fmt: skip
POD = Found(namespace="shop", name="web-0", owner="", reason="it is selected", since=NOON)
STUCK = Found(namespace="shop", name="a", uid="1", since=NOON, attempts=3, reason="404")
LOST = Found(namespace="shop", name="b", uid="2", reason="oom")
APPLICATION = ApplicationMesh(
    namespace="shop", name="web", live=True, live_reason="it injects", revision="default",
    root_namespace="istio-system", meshed=False, meshed_reason="web-0 has none",
)  # fmt: skip
HOLDER = Holder(
    by=("vault",), pods=3, since=NOON, requests=Requests(gpus=24), text="3 pods are kept"
)
BEFORE = ProcessStatus(
    ready=True, missing=[], start_mode=StartMode.AUTO, capability=Capability.NATIVE,
    called_before_us=(), injectors=[INJECTOR], injector_live=True, watched_pods=3,
    selected_namespaces=["shop"], stuck_pods=[STUCK], blocked_pods=[], lost_pods=[],
    holders=[HOLDER],
    race=RacePolicy.REPORT, unmeshed_pods=[POD], unmeshed_total=1, unmeshed_unknown=0,
    applications=[APPLICATION], unreadable_objects=[], unreadable_total=0,
    leader=True,
    lease_holder="me",
    quit=QuitMode.ENABLED,
    stuck_total=1,
)  # fmt: skip


SHOWN = [
    {"injectors": [replace(INJECTOR, state=Liveness.NO_ENDPOINT)]},
    {"injectors": []},
    {"capability": Capability.CLASSIC},
    {"lost_total": 1},
    {"blocked_total": 1},
    {"unstarted_total": 1},
    {"injectors": [replace(INJECTOR, why="it does not")]},
    {"injector_live": None},
    {"capability_why": "a webhook drops restartPolicy"},
    {"called_before_us": ("aaa",)},
    {"selected_namespaces": []},
    {"selected_total": 501},
    {"stuck_total": 0},
    {"holders": [replace(HOLDER, pods=4)]},
    {"holders": [replace(HOLDER, requests=Requests(gpus=8))]},
    {"unmeshed_pods": [replace(POD, name="web-1")]},
    {"unmeshed_pods": [replace(POD, reason="not restarted")]},
    {"unmeshed_total": 501},
    {"unmeshed_unknown": 1},
    {"applications": [replace(APPLICATION, meshed=True)]},
    {"certificate": "5f70bf18"},
    {"ambient_total": 1},
    # While Jobs come and go beside a live injector, nothing waits for the last sidecar.
    {"injectors": [replace(INJECTOR, state=Liveness.ABSENT)], "sidecars": Sidecars(1, 1, {})},
]
UNSEEN: list[dict[str, Any]] = [
    {"ready": False, "missing": ["no list of pods yet"], "watched_pods": 4, "token_expires": NOON},
    {"start_mode": StartMode.NATIVE, "race": RacePolicy.RESTART, "quit": QuitMode.DISABLED},
    {"leader": False, "lease_holder": "another", "version": "9", "revision": "9"},
    {
        "unreadable_objects": [UnreadableObject("/api/v1/pods", "shop", "b", "no name")],
        "unreadable_total": 1,
        "unknown_keys": ("speed",),
    },
    {"stuck_pods": [replace(STUCK, attempts=4)]},
    # Containers that end a little apart, and a proxy and its payload.
    {"blocked_pods": [replace(LOST, lasting=False)]},
    {"lost_pods": [replace(LOST, lasting=False)]},
    {"unstarted_pods": [LOST]},  # The totals and the holders show them.
    {"injectors": [replace(INJECTOR, since=LATER)]},
    {"holders": [replace(HOLDER, since=LATER, text="3 pods are kept since")]},
    {"unmeshed_pods": [replace(POD, since=LATER)]},
    {"sidecars": Sidecars(1, 1, {"shop": 1})},
]


@pytest.mark.parametrize("change", [*SHOWN, *UNSEEN])
def test_a_change_that_the_charm_shows_is_noticed(change: dict[str, Any]) -> None:
    """What changes all the time is not."""
    before, after = shown_by_charm(BEFORE), shown_by_charm(replace(BEFORE, **change))
    assert (after != before) is (change in SHOWN)


def test_of_each_field_it_is_known_whether_the_charm_shows_it() -> None:
    """What is forgotten would wake no charm."""
    changed = {name for change in [*SHOWN, *UNSEEN] for name in change}
    assert changed == {field.name for field in msgspec.structs.fields(ProcessStatus)}


LISTED = [
    Found(namespace="shop", name=name, state="unmeshed", reason="so")
    for name in ("web-0", "web-1", "web-2")
]


def test_a_page_says_how_many_pods_there_are_and_where_the_next_one_begins() -> None:
    """It begins there though the pod is gone."""
    first, last = page(LISTED, limit=2), page(LISTED, limit=2, after="shop/web-1")
    assert (first.total, first.next, last.total, last.next) == (3, "shop/web-1", 3, "")
    assert [pod.name for pod in page(LISTED, after="shop/web-00").pods] == ["web-1", "web-2"]


def test_a_page_cuts_what_a_tenant_wrote() -> None:
    (pod,) = page(
        [Found(namespace="shop", name="a", state="lost", reason="ä" * 9999, owner="ä" * 9999)]
    ).pods

    assert (len(pod.reason), len(pod.owner)) == (TEXT, TEXT)


class Counted(list[T]):
    """A list that says how often all of it is looked at."""

    looks = 0

    def __iter__(self) -> Iterator[T]:
        self.looks += 1
        return super().__iter__()


class Port:
    """A status port whose clients ask for these paths, and what that computes."""

    def __init__(self) -> None:
        self.computed = Counter[str]()
        self.pods = Counted(LISTED)

    def _count(self, what: str, result: T) -> Generator[None, None, T]:
        self.computed[what] += 1
        yield
        return result

    async def get(self, *paths: str) -> list[tuple[int, str]]:
        port = application(
            lambda: (False, ["pods: no complete list yet"]),
            lambda: self._count("status", BEFORE),
            lambda: self._count("metrics", b"istio_aux_ready 1\n"),
            lambda: self._count("pods", (self.pods, True)),
        )
        async with TestClient(TestServer(port)) as client:
            answers = [await client.get(path) for path in paths]
            return [(answer.status, await answer.text()) for answer in answers]


async def test_readiness_looks_at_no_pod() -> None:
    port = Port()
    assert await port.get("/readyz") == [(503, "pods: no complete list yet\n")]
    assert port.computed == {}


@pytest.mark.parametrize(
    ("kept", "computed", "looks"),
    [
        (600.0, {"status": 2, "metrics": 1, "pods": 1}, 1),  # The machine may be slow.
        (0.0, {"status": 8, "metrics": 2, "pods": 6}, 2),
    ],
    ids=["within a second", "later"],
)
async def test_requests_within_a_second_look_at_the_pods_once(
    kept: float, computed: dict[str, int], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pods in some states are chosen once for all their pages, too."""
    monkeypatch.setattr(status, "KEPT", kept)
    monkeypatch.setattr(status, "LONGEST", kept)
    paths = ["/status", "/metrics", "/pods", "/pods?state=stuck", "/pods?limit=1"] * 2
    port = Port()
    assert {code for code, _ in await port.get(*paths)} == {200}
    assert (port.computed, port.pods.looks) == (computed, looks)


def test_what_took_long_is_kept_for_longer_and_is_done_once_for_all_who_ask() -> None:
    done = list[float]()

    async def play() -> None:
        clock = asyncio.get_running_loop().time

        def work() -> Generator[None, None, int]:
            loop.pass_by(0.25)
            yield
            done.append(clock())
            return len(done)

        kept = Kept(work)
        assert await asyncio.gather(kept(), kept()) == [1, 1]
        await asyncio.sleep(4.5)
        assert await kept() == 1
        await asyncio.sleep(0.6)
        assert await kept() == 2

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = cast("VirtualLoop", runner.get_loop())
        runner.run(play())


@given(st.data())
def test_no_page_misses_a_pod_that_stays(data: st.DataObject) -> None:
    """Others come and go between two pages."""
    names = st.sets(st.text("ab-", min_size=1, max_size=3))
    stays, found, after = data.draw(names), list[str](), ""

    while True:
        present = sorted({*stays, *data.draw(names)})
        pods = [
            Found(namespace="shop", name=name, state="unmeshed", reason="so") for name in present
        ]
        shown = page(pods, after=after, limit=2)
        found += [pod.name for pod in shown.pods]
        if not (after := shown.next):
            break

    assert stays <= {*found}
    assert len(found) == len({*found})


PAGE = (ROOT / "docs/reference/ports-and-metrics.md").read_text()


def test_every_key_of_the_status_is_in_the_readme() -> None:
    keys = [field.encode_name for field in msgspec.structs.fields(ProcessStatus)]
    assert [name for name in keys if f"`{name}`" not in PAGE] == []


def test_every_metric_is_in_the_readme() -> None:
    lines = metrics().splitlines()
    found = {line.split()[2] for line in lines if line.startswith("# TYPE istio_aux_")}
    found = {name for name in found if not name.endswith("_created")}
    assert "istio_aux_quits_total" in found
    assert [name for name in sorted(found) if f"`{name}" not in PAGE] == []


# Log lines and metrics.


@pytest.fixture
def log() -> Iterator[io.BytesIO]:
    """Where logging goes; afterwards it goes again where it went before."""
    with logging_to(io.BytesIO()) as stream:
        yield stream


def lines(log: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_log_line_is_one_object_with_what_the_call_gave(log: io.BytesIO) -> None:
    extra = {"event": "decision", "namespace": "training", "reason": "it is\nover"}
    logging.getLogger("any").info("training/%s", "job", extra=extra)
    (line,) = lines(log)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "event": "decision", "message": "training/job",
        "namespace": "training", "reason": "it is\nover",
    }  # fmt: skip


def test_a_line_of_somebody_else_has_its_logger_as_event(log: io.BytesIO) -> None:
    """And a value that JSON does not know is shown as text; below the level nothing is logged."""
    logging.getLogger("any").debug("quiet")
    logging.getLogger("aiohttp.server").error("oops", extra={"what": ValueError("odd")})
    (line,) = lines(log)
    assert (line["event"], line["what"]) == ("aiohttp.server", "odd")


def test_an_error_with_its_traceback_is_still_one_line(log: io.BytesIO) -> None:
    try:
        int("odd")
    except ValueError:
        logging.getLogger("any").exception("oops")
    (line,) = lines(log)
    assert line["traceback"].splitlines()[-1].startswith("ValueError: invalid literal")


SERIES = [
    'quits_total{outcome="exited",way="exec"}',
    'quits_total{outcome="gone",way="none"}',
    'quit_attempts_total{way="port-forward"}',
    'dead_proxies_total{action="delete-failed"}',
    'injectors{state="no-endpoint"}',
    'injector_probes_total{outcome="refused"}',
    'sidecar_restarts_total{outcome="evicted"}',
    'watch_restarts_total{reason="expired"}',
    'admission_connections_closed_total{reason="idle"}',
    *(f'admission_reviews_total{{outcome="{each}"}}' for each in (*review.Outcome, "busy")),
]


def test_a_metric_is_there_before_anything_happened() -> None:
    """An alert on its rise would miss the first time otherwise."""
    shown = metrics()
    assert [name for name in SERIES if f"\nistio_aux_{name} 0.0\n" not in shown] == []
    families = set(re.findall(r"(?m)^# TYPE istio_aux_(\w+)", shown))
    assert len(families) > 20
    found = set(re.findall(r"(?m)^istio_aux_(\w+?)(?:_count)?(?:\{.*\})? 0\.0$", shown))
    unknown = {"pods_with_sidecar"}  # Which is NaN, not 0.
    assert {name for name in families if not name.endswith("_created")} <= found | unknown
    assert "\nprocess_resident_memory_bytes " in shown


# Pebble gets a notice of each change, even if it was away meanwhile.


class Pebble:
    """Pebble's API for notices on a unix socket, which counts them.

    Attributes:
        socket: where it listens after `start`.
        occurrences: how often each key was sent.
        refuses: answer every request with 403.
    """

    def __init__(self, folder: str) -> None:
        self.occurrences = Counter[str]()
        self.refuses = False
        self.socket = Path(folder) / "pebble.socket"
        application = web.Application()
        application.router.add_post("/v1/notices", self._post)
        self.runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.05)

    async def start(self) -> None:
        """Listen."""
        await self.runner.setup()
        await web.UnixSite(self.runner, str(self.socket)).start()

    async def _post(self, request: web.Request) -> web.Response:
        notice = await request.json()
        assert (notice["action"], notice["type"]) == ("add", "custom")
        self.occurrences[notice["key"]] += not self.refuses
        return web.Response(status=403 if self.refuses else 200)


class Watched:
    """The status that the charm would show now, and how often it was read."""

    def __init__(self) -> None:
        self.now = "nothing"
        self.looks = 0

    async def status(self) -> ProcessStatus:
        self.looks += 1
        return replace(BEFORE, selected_namespaces=[self.now])

    async def look_again(self) -> None:
        """Return after two more reads: the first one may have begun before."""
        seen = self.looks
        await until(lambda: self.looks >= seen + 2, "it looks again", within=30)


@asynccontextmanager
async def telling(
    shown: Watched, *, gap: float = 0.01, away: bool = False
) -> AsyncGenerator[Pebble]:
    """A Pebble that is told of changes; it listens unless it is ``away``."""
    # A socket's path has less than 108 bytes; pytest's own folders may need more.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        pebble = Pebble(folder)
        if not away:
            await pebble.start()
        async with background(send_notices(pebble.socket, shown.status, poll=0.01, gap=gap)):
            yield pebble
        await pebble.runner.cleanup()


async def told(pebble: Pebble, times: int) -> None:
    await until(lambda: pebble.occurrences.get(KEY) == times, f"told {times} times", within=30)


async def test_a_notice_is_sent_at_the_start_and_after_each_change() -> None:
    shown = Watched()
    async with telling(shown) as pebble:
        await told(pebble, 1)
        await shown.look_again()
        shown.now = "something"
        await told(pebble, 2)
        await shown.look_again()
        assert +pebble.occurrences == {KEY: 2}


async def test_a_change_while_pebble_was_away_is_noticed_when_it_is_back() -> None:
    shown = Watched()
    async with telling(shown, away=True) as pebble:
        await shown.look_again()
        shown.now = "something"
        await shown.look_again()
        await pebble.start()
        await told(pebble, 1)
        await shown.look_again()
        assert pebble.occurrences == {KEY: 1}, "it tells once, not of each change"


async def test_a_refused_notice_is_logged_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown = Watched()
    async with telling(shown) as pebble:
        pebble.refuses = True
        await until(lambda: caplog.records, "it complains", within=30)
        await shown.look_again()
        pebble.refuses = False
        await told(pebble, 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{pebble.socket}: notice not added: 403 ")


async def test_there_are_at_most_six_notices_in_a_minute_whatever_changes() -> None:
    """The next one comes after the gap, and says what is so then."""
    shown = Watched()
    async with telling(shown, gap=600) as pebble:
        await told(pebble, 1)
        shown.now = "something"
        await shown.look_again()
        assert pebble.occurrences == {KEY: 1}
    assert GAP >= 60 / 6
