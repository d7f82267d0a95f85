"""The settings of serve: valid values, and the messages about invalid ones."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from istio_aux.model import selectors
from istio_aux.model.policy import (
    Application,
    DeadProxy,
    Peers,
    Policy,
    QuitMode,
    QuitVia,
    RacePolicy,
    RepairPolicy,
    StartMode,
)
from istio_aux.model.sidecars import SHIPPED
from istio_aux.model.webhooks import Address
from istio_aux.settings import LogLevel, Settings, SettingsError, load

LEAST = "tls-certificate: /tls/tls.crt\ntls-key: /tls/tls.key\n"
# What the charm makes of long names of its model and application.
LONG_NAME = f"istio-aux-{'m' * 63}-{'a' * 63}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def read(file: Path, text: str) -> Settings:
    file.write_text(text)
    return load(file)


def test_two_paths_are_enough(file: Path) -> None:
    assert read(file, LEAST) == Settings(
        tls_certificate=Path("/tls/tls.crt"), tls_key=Path("/tls/tls.key")
    )


def test_every_key_is_taken(file: Path) -> None:
    settings = read(
        file,
        LEAST + "namespace-selector: team in (a, b), !off\nlog-level: debug\n"
        "webhook-address: '[::1]:9443'\nstatus-address: ':0'\nkubeconfig: /etc/kubeconfig\n"
        "quit: dry-run\nquit-via: exec\nquit-grace: 2.5\n"
        "ignore-containers: [cloud-sql-proxy, vault-agent]\nquit-sidecars: [daprd]\n"
        "dead-proxy: delete\nlease: kubeflow/istio-aux.v2\n"
        f"start-mode: native\npeers: direct\nnative-sidecars: vault-agent\n"
        f"webhook-configuration: {LONG_NAME}\n"
        "race-policy: restart\nrestart-jobs: true\nroot-namespace: istio-system\n"
        "pod-selector: team in (a,b)\ninject-selector: step\n"
        "applications: /etc/istio-aux/applications\napplication: kubeflow/istio-aux\n"
        "pebble-socket: /charm/container/pebble.socket\n",
    )
    assert settings == Settings(
        tls_certificate=Path("/tls/tls.crt"),
        tls_key=Path("/tls/tls.key"),
        webhook_address=Address("::1", 9443),
        status_address=Address("", 0),
        kubeconfig=Path("/etc/kubeconfig"),
        namespace_selector=selectors.parse("!off,team in (a,b)"),
        pod_selector=selectors.parse("team in (a,b)"),
        inject_selector=selectors.parse("step"),
        start_mode=StartMode.NATIVE,
        peers=Peers.DIRECT,
        native_sidecars=frozenset({"vault-agent"}),
        webhook_configuration=LONG_NAME,
        quit=QuitMode.DRY_RUN,
        quit_policy=Policy(
            ignore_containers=frozenset({"cloud-sql-proxy", "vault-agent"}),
            grace=2.5,
            via=QuitVia.EXEC,
            sidecars=(SHIPPED["daprd"],),
            dead_proxy=DeadProxy.DELETE,
        ),
        lease=("kubeflow", "istio-aux.v2"),
        repair_policy=RepairPolicy(
            race=RacePolicy.RESTART,
            restart_jobs=True,
            ours=Application("kubeflow", "istio-aux"),
        ),
        root_namespace="istio-system",
        applications=Path("/etc/istio-aux/applications"),
        pebble_socket=Path("/charm/container/pebble.socket"),
        log_level=LogLevel.DEBUG,
    )


@pytest.mark.parametrize("address", ["[::1]:9443", "127.0.0.1:8443", ":0"])
def test_an_address_is_written_as_it_is_read(address: str, file: Path) -> None:
    assert str(read(file, f"{LEAST}webhook-address: '{address}'\n").webhook_address) == address


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("quit: on", "quit", QuitMode.ON),
        ('quit: "on"', "quit", QuitMode.ON),
        ("quit: true", "quit", QuitMode.ON),
        ("quit: off", "quit", QuitMode.OFF),
        ("quit: 'off'", "quit", QuitMode.OFF),
        ("quit: dry-run", "quit", QuitMode.DRY_RUN),
        *((f"start-mode: {mode}", "start_mode", mode) for mode in StartMode),
        ("start-mode: 'off'", "start_mode", StartMode.OFF),
        *((f"peers: {peers}", "peers", peers) for peers in Peers),
        *((f"race-policy: {policy}", "repair_policy.race", policy) for policy in RacePolicy),
        ("race-policy: 'off'", "repair_policy.race", RacePolicy.OFF),
        ('namespace-selector: ""', "namespace_selector", selectors.Selector()),
    ],
)
def test_every_mode_is_taken_although_yaml_has_on_and_off_for_booleans(
    line: str, field: str, value: object, file: Path
) -> None:
    assert attrgetter(field)(read(file, f"{LEAST}{line}\n")) == value


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("namespace-selector: a in b", 'namespace-selector: "a in b": expected KEY, !KEY'),
        ("namespace-selector: [a]", 'namespace-selector: ["a"]: expected a label selector'),
        ("log-level: loud", 'log-level: "loud": expected one of: debug, info, warning, error'),
        ("webhook-address: 8443", "webhook-address: 8443: expected HOST:PORT"),
        ("webhook-address: a:b", 'webhook-address: "a:b": expected HOST:PORT'),
        ("status-address: a:65536", 'status-address: "a:65536": expected HOST:PORT'),
        ("kubeconfig: ''", 'kubeconfig: "": expected the path of a file'),
        ("quit: maybe", 'quit: "maybe": expected one of: on, dry-run, off'),
        ("quit: 1", "quit: 1: expected one of: on, dry-run, off"),
        ("quit: ~", "quit: null: expected one of: on, dry-run, off"),
        ("quit: [on]", "quit: [true]: expected one of: on, dry-run, off"),
        ("quit-via: ssh", 'quit-via: "ssh": expected one of: auto, exec, port-forward'),
        ("quit-grace: -1", "quit-grace: -1: expected seconds, as a number of 0 or more"),
        ("quit-grace: soon", 'quit-grace: "soon": expected seconds'),
        ("quit-grace: yes", "quit-grace: true: expected seconds"),
        ("quit-grace: .inf", "quit-grace: Infinity: expected seconds"),
        (f"quit-grace: 1{'0' * 400}", "quit-grace: 1000"),
        ("quit-grace: .nan", "quit-grace: NaN: expected seconds"),
        ("ignore-containers: a b", 'ignore-containers: "a b": expected a list of container names'),
        ("ignore-containers: [1]", "ignore-containers: [1]: expected a list of container names"),
        ("ignore-containers: [A]", 'ignore-containers: ["A"]: expected a list of container names'),
        ("ignore-containers: ['']", 'ignore-containers: [""]: expected a list of container names'),
        (f"ignore-containers: [{'a' * 64}]", f'ignore-containers: ["{"a" * 64}"]: expected a list'),
        ("ignore-containers: ['a,b']", 'ignore-containers: ["a,b"]: expected a list of container'),
        ("ignore-containers: ~", "ignore-containers: null: expected a list of container names"),
        ("native-sidecars: a b", 'native-sidecars: "a b": expected a list of container names'),
        (
            "native-sidecars: [vault-agent, istio-proxy]",
            'native-sidecars: ["vault-agent", "istio-proxy"]: expected other containers than',
        ),
        ("start-mode: later", 'start-mode: "later": expected one of: auto, native, hold, off'),
        (
            "webhook-configuration: ours/theirs",
            'webhook-configuration: "ours/theirs": expected the name of a MutatingWebhookConfig',
        ),
        ("webhook-configuration: ''", 'webhook-configuration: "": expected the name of'),
        (f"webhook-configuration: {'a' * 254}", f'webhook-configuration: "{"a" * 254}": expected'),
        ("dead-proxy: bury", 'dead-proxy: "bury": expected one of: report, delete'),
        ("lease: istio-aux", 'lease: "istio-aux": expected NAMESPACE/NAME'),
        ("lease: a/b/c", 'lease: "a/b/c": expected NAMESPACE/NAME'),
        ("lease: a.b/c", 'lease: "a.b/c": expected NAMESPACE/NAME'),
        (f"lease: {'a' * 64}/b", f'lease: "{"a" * 64}/b": expected NAMESPACE/NAME'),
        (f"lease: a/{'b' * 254}", f'lease: "a/{"b" * 254}": expected NAMESPACE/NAME'),
        ("race-policy: fix", 'race-policy: "fix": expected one of: report, restart, off'),
        ("restart-jobs: always", 'restart-jobs: "always": expected true or false'),
        ("restart-jobs: 'true'", 'restart-jobs: "true": expected true or false'),
        ("restart-jobs: 1", "restart-jobs: 1: expected true or false"),
        ("root-namespace: a.b", 'root-namespace: "a.b": expected the name of a namespace'),
        ("root-namespace: ''", 'root-namespace: "": expected the name of a namespace'),
        ("applications: ''", 'applications: "": expected the path of a file'),
        ("application: istio-aux", 'application: "istio-aux": expected NAMESPACE/NAME'),
        ("pebble-socket: 1", "pebble-socket: 1: expected the path of a file"),
        (
            "colour: blue",
            "colour: unknown key: expected one of: tls-certificate, tls-key, webhook-",
        ),
        ("1: blue", "1: unknown key: expected one of: tls-certificate"),
        ("tls-key: /again", "not YAML: tls-key is given twice"),
        ("a: b: c", "not YAML: mapping values are not allowed here"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_with_what_is_allowed(
    line: str, complaint: str, file: Path
) -> None:
    with pytest.raises(SettingsError) as caught:
        read(file, LEAST + line + "\n")
    assert str(caught.value).startswith(f"config.yaml: {complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["tls-certificate", "tls-key"])
def test_a_key_that_is_missing_is_named(key: str, file: Path) -> None:
    rest = "".join(f"{line}\n" for line in LEAST.splitlines() if not line.startswith(key))
    with pytest.raises(SettingsError, match=f"config.yaml: {key}: missing: expected the path"):
        read(file, rest + "log-level: info\n")


@pytest.mark.parametrize("text", ["", "- a\n", "text"])
def test_a_file_that_is_no_mapping_is_refused(text: str, file: Path) -> None:
    with pytest.raises(SettingsError, match="expected a mapping of settings"):
        read(file, text)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"config\.yaml: No such file or directory"):
        load(file)
