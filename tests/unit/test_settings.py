"""The settings of serve: valid values, and the messages about invalid ones."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

import pytest
import yaml
from istio_aux import settings
from istio_aux.model import selectors
from istio_aux.model.applications import Application
from istio_aux.model.policy import (
    DeadProxy,
    Peers,
    QuitMode,
    QuitPolicy,
    RacePolicy,
    RepairPolicy,
    StartMode,
    StartPolicy,
)
from istio_aux.model.sidecars import SHIPPED, How, SidecarRule
from istio_aux.model.webhooks import Address
from istio_aux.settings import (
    OPTIONS,
    LogLevel,
    Settings,
    SettingsError,
    UnknownKeys,
    load,
)
from lab.workload import OPTIONS as CHARM
from lab.workload import configured
from unit.declared import ANNOTATIONS

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

ROOT = Path(__file__).parents[2]
SHARED = sorted(CHARM.keys() & OPTIONS)
NUMBERS = [name for name, option in CHARM.items() if option["type"] == "int"]


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


@pytest.mark.parametrize("name", NUMBERS)
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
