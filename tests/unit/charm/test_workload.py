"""The workload accepts the command, the settings and the credentials that the charm gives it."""

from __future__ import annotations

import base64
import shlex
from typing import Any

import pytest
import yaml
from istio_aux import settings
from istio_aux.cli import commands
from istio_aux.kube import access
from istio_aux.model import applications
from istio_aux.model.applications import Application
from istio_aux.model.names import LOCAL_SETTINGS, LONGEST_SETTINGS, SETTINGS
from istio_aux.model.policy import QuitMode
from lab.workload import OPTIONS, configured
from ops import pebble, testing
from scenario import mocking

import workload
from container import trouble

from .conftest import ROCK, Unit, active, fail

CONFIG = configured("kubeflow")
NAMES = {"lease": "kubeflow/istio-aux", "root-namespace": "istio-system"}


def test_the_layer_runs_the_workload_and_restarts_it_when_it_hangs() -> None:
    layer = pebble.Layer(workload.layer(CONFIG.settings | NAMES))
    service = layer.services[workload.SERVICE]
    program, *arguments = shlex.split(service.command)

    parsed = commands.parser().parse_args(arguments)

    assert (program, str(parsed.config)) == ("istio-aux", workload.CONFIG)
    assert service.on_check_failure == {"live": "restart"}
    assert layer.checks["live"].http == {"url": "http://localhost:8080/livez"}


def test_the_pod_is_ready_when_its_workload_is_and_the_rock_brings_that_check() -> None:
    """Pebble takes a check that changes for new, and a new one for up."""
    ready = ROCK["checks"]["ready"]

    assert ready == workload.SINCE_READY | {"period": "1s", "timeout": "900ms", "threshold": 1}
    assert ready["level"] == "ready"
    assert ready["http"] == {"url": "http://localhost:8080/readyz"}


def test_the_workload_reads_the_settings(unit: Unit) -> None:
    understood = settings.load(unit.etc / "config.yaml")

    assert understood.webhook_configuration == "istio-aux-kubeflow.istio-aux"
    assert understood.lease == ("kubeflow", "istio-aux")
    assert str(understood.tls_certificate) == workload.TLS_CERTIFICATE
    assert str(understood.tls_key) == workload.TLS_KEY
    assert str(understood.kubeconfig) == workload.KUBECONFIG
    assert str(understood.applications) == workload.APPLICATIONS
    assert understood.repair_policy.ours == Application("kubeflow", "istio-aux")
    # Juju mounts it there.
    assert str(understood.pebble_socket) == "/charm/container/pebble.socket"


def test_every_option_reaches_the_settings(unit: Unit) -> None:
    given: dict[str, Any] = {
        "namespace-selectors": "team in (a,b); b",
        "pod-selector": "job in (a,b),!hands-off",
        "inject-selector": "step",
        "quit": "dry-run",
        "sidecars": "vault-agent=quit, my-proxy=9000/stop,otel=native",
        "dead-proxy": "delete",
        "start-mode": "native",
        "peers": "direct",
        "race-policy": "restart",
        "log-level": "debug",
    }
    numbers = {name: o["default"] + 1 for name, o in OPTIONS.items() if o["type"] == "int"}
    assert {*given, *numbers} == OPTIONS.keys() & settings.OPTIONS
    unit.configure(**given, **numbers)

    assert unit.settings.items() >= {**given, **numbers}.items()
    assert settings.load(unit.etc / "config.yaml").quit is QuitMode.DRY_RUN


def published(unit: Unit) -> str:
    """The settings in the annotation of the webhook configuration."""
    return unit.api.one("MutatingWebhookConfiguration")["metadata"]["annotations"][SETTINGS]


def test_the_webhook_configuration_says_the_settings_in_force_but_what_is_local(unit: Unit) -> None:
    unit.configure(quit_grace=7, inject_applications="web, shop/db", inject_namespaces="team-a")

    said, asked = settings.read_published(published(unit))

    local = {settings.OPTIONS[name].field or name.replace("-", "_") for name in LOCAL_SETTINGS}
    in_force = settings.load(unit.etc / "config.yaml")
    shared = {
        name: getattr(in_force, name)
        for name in {*said.__struct_fields__} - local - {"applications"}
    }
    assert {name: getattr(said, name) for name in shared} == shared
    assert said.quit_policy.grace == 7
    assert asked == applications.parse(unit.files["applications"])[0]
    assert "/etc/istio-aux" not in published(unit)


def test_settings_that_are_too_long_to_be_said_are_left_out(unit: Unit) -> None:
    """The API server would refuse the webhook configuration."""
    many = ",".join(f"{'a' * 50}-{number}" for number in range(LONGEST_SETTINGS // 50))
    unit.configure(inject_applications=many)

    assert published(unit) == ""


def test_the_workload_reads_the_kubeconfig(unit: Unit) -> None:
    document = yaml.safe_load(unit.files["kubeconfig"])
    (user,) = document["users"]
    assert user["user"] == {"tokenFile": workload.TOKEN}
    user["user"]["tokenFile"] = str(unit.etc / "token")
    (unit.etc / "kubeconfig").write_text(yaml.safe_dump(document))

    understood = access.load(unit.etc / "kubeconfig")

    assert understood.server == "https://10.152.183.1:443"
    authority = document["clusters"][0]["cluster"]["certificate-authority-data"]
    assert base64.b64decode(authority).startswith(b"-----BEGIN CERTIFICATE-----")
    token = unit.files["token"]
    assert [name for name, text in unit.files.items() if token in text] == ["token"]


@pytest.mark.parametrize(
    ("ready", "checked"),
    [
        pytest.param(True, ("3s", "2s", 2), id="ready stays so while it is busy for a moment"),
        # A stall of half a second is no failure.
        pytest.param(False, ("1s", "900ms", 1), id="never ready is out of the Service at once"),
    ],
)
def test_a_workload_that_was(ready: bool, checked: tuple[str, str, int], new_unit: Unit) -> None:
    new_unit.process.running = ready

    new_unit.configure()

    check = new_unit.container.plan.checks["ready"]
    assert (check.period, check.timeout, check.threshold) == checked


REFUSALS = [
    ("push", pebble.PathError("generic-file-error", "no space"), "generic-file-error - no space"),
    ("pull", pebble.PathError("generic-file-error", "stale"), "generic-file-error - stale"),
    ("add_layer", pebble.APIError({}, 400, "Bad Request", "plan: bad layer"), "plan: bad layer"),
    ("replan_services", pebble.TimeoutError("timed out: change 3"), "timed out: change 3"),
    ("get_checks", pebble.ConnectionError("no socket"), "no socket"),
]


@pytest.mark.parametrize(
    ("operation", "error", "said"), REFUSALS, ids=[operation for operation, *_ in REFUSALS]
)
def test_what_pebble_refuses_is_a_status_and_is_tried_again(
    operation: str, error: Exception, said: str, new_unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail(patch, operation, error, mocking._MockPebbleClient)
        status = new_unit.configure()

    assert status == testing.WaitingStatus(f"container istio-aux: {said}")
    assert new_unit.run() == active()


# As Pebble 1.26 says it of a program that writes two lines and ends.
ENDS_AT_ONCE = """cannot perform the following tasks:
- Start service "istio-aux" (service start attempt: exited quickly with code 2, will restart)
----- Logs from task 0 -----
2026-11-28T06:38:33Z INFO Most recent service output:
    {"event": "start"}
    config.yaml: peers: "one": expected mesh or direct
2026-11-28T06:38:33Z ERROR service start attempt: exited quickly with code 2, will restart
-----
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'cannot perform the following tasks:\n- Start service "istio-aux" (exited with code 2)',
            'container istio-aux: Start service "istio-aux" (exited with code 2)',
        ),
        (
            ENDS_AT_ONCE,
            'workload does not start: config.yaml: peers: "one": expected mesh or direct',
        ),
    ],
)
def test_a_service_that_does_not_start_says_which_one_and_why(text: str, said: str) -> None:
    change = pebble.Change.from_dict(
        {"id": "1", "kind": "start", "summary": "", "status": "Error", "tasks": [], "ready": True,
         "err": text, "spawn-time": "2026-11-21T08:16:30Z"}
    )  # fmt: skip

    assert str(trouble(pebble.ChangeError(text, change))) == said


def test_an_option_that_juju_does_not_give_is_named_and_the_last_good_ones_run(
    unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Juju may have the options of another revision for a while."""
    given = mocking._MockModelBackend.config_get

    def without(self: Any) -> dict[str, Any]:
        return {name: value for name, value in given(self).items() if name != "quit-grace"}

    monkeypatch.setattr(mocking._MockModelBackend, "config_get", without)

    assert unit.run() == testing.BlockedStatus(
        "Juju gives no quit-grace; the last good configuration runs"
    )


def test_the_policy_knows_a_new_selector_before_the_workload_does(unit: Unit) -> None:
    written, running = unit.files["config.yaml"], unit.container.plan.services["istio-aux"]
    unit.api.broken = {"patch validatingadmissionpolicies"}

    unit.configure(namespace_selectors="team")

    assert unit.files["config.yaml"] == written
    assert unit.container.plan.services["istio-aux"] == running

    unit.api.broken = set()
    unit.run()

    variables = unit.api.one("ValidatingAdmissionPolicy", ".istio-aux")["spec"]["variables"]
    (selected,) = [v["expression"] for v in variables if v["name"] == "selected"]
    assert selected.startswith('("team" in variables.labels')
    assert "namespace-selectors: team\n" in unit.files["config.yaml"]
