"""The workload accepts the command, the settings and the credentials that the charm gives it.

Charm, rock, bundle, module and their descriptions name the same things.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections import defaultdict
from typing import Any

import hcl2
import pytest
import yaml
from istio_aux import settings
from istio_aux.cli import commands
from istio_aux.kube import access
from istio_aux.model import applications
from istio_aux.model.answers import PAGE
from istio_aux.model.applications import Application
from istio_aux.model.names import LOCAL_SETTINGS, LONGEST_SETTINGS, SETTINGS, WEBHOOK_PORT
from istio_aux.model.policy import QuitMode
from lab.juju_provider import MODULE
from lab.workload import OPTIONS, configured
from ops import pebble, testing
from scenario import mocking

import certificates
import manifests
import workload
from container import CONTAINER, trouble
from relations import cos, istio, sidecar

from .conftest import ROCK, ROOT, TEXTS, Unit, active, fail

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


def document(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


METADATA, ACTIONS = TEXTS["meta"], TEXTS["actions"]
CHARMCRAFT = document("charmcraft.yaml")
RECORDED = ROOT / "tests/data/inclusion"
# An overlay, the bundle that it is for, and endpoints of charms there that no relation of it has.
OVERLAYS = {
    "istio-aux": ("bundle-1.11-stable", ()),
    "istio-aux-ambient": ("bundle-latest-edge", ("istio-k8s:istio-metadata",)),
}


def test_charmcraft_yaml_holds_nothing_that_charmcraft_would_drop() -> None:
    # charmcraft copies metadata.yaml as it is and silently drops these when they stand here.
    assert set(CHARMCRAFT) == {"type", "base", "platforms", "parts"}
    assert not set(CHARMCRAFT) & set(METADATA)


def test_the_container_runs_an_image_that_is_a_resource() -> None:
    container = METADATA["containers"][CONTAINER]

    assert METADATA["resources"][container["resource"]]["type"] == "oci-image"
    assert (container["uid"], container["gid"]) == (584792, 584792)


def test_every_endpoint_says_whether_it_is_needed_and_how_often() -> None:
    # By endpoint: how many relations make sense, None for any number.
    requires = {
        **dict.fromkeys(
            (istio.PILOT, istio.METADATA, istio.SERVICE_MESH, certificates.ENDPOINT), 1
        ),
        cos.LOGGING: None,
        cos.TRACING: 1,
        cos.CA: 1,
    }
    provides = {sidecar.ENDPOINT: None, cos.METRICS: None, cos.DASHBOARD: None}
    for role, limits in (("requires", requires), ("provides", provides)):
        endpoints = METADATA[role]
        assert {name: endpoint.get("limit") for name, endpoint in endpoints.items()} == limits
        for endpoint in endpoints.values():
            assert endpoint["optional"] is True
            assert endpoint["description"]
    assert set(METADATA["peers"]) == {certificates.PEERS}


def test_every_endpoint_is_tried_on_a_real_juju() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests/integration").glob("*.py"))
    assert {*re.findall(r"\{APP\}:([a-z-]+)", tests)} == {
        *METADATA["requires"],
        *METADATA["provides"],
    }


def test_every_action_says_what_it_does_and_takes_nothing_unknown() -> None:
    # The default of additionalProperties flips with Juju 4.
    assert {name for name, action in ACTIONS.items() if action["description"]} == set(ACTIONS)
    assert {action["additionalProperties"] for action in ACTIONS.values()} == {False}
    # Juju refuses what the schema does not allow, so the charm need not.
    limits = [
        each["params"]["limit"] for each in ACTIONS.values() if "limit" in each.get("params", "")
    ]
    assert {(limit["minimum"], limit["maximum"]) for limit in limits} == {(1, PAGE)}


def test_defaults_are_valid_and_every_option_is_read() -> None:
    assert {name.replace("-", "_") for name in OPTIONS} == {*vars(configured("m"))} - {"model"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_deploys_this_charm_and_relates_it_to_what_the_bundle_has(overlay: str) -> None:
    bundle, more = OVERLAYS[overlay]
    recorded = json.loads((RECORDED / f"{bundle}.json").read_text())
    added = document(f"bundle/{overlay}.yaml")
    ((name, deployed),) = added["applications"].items()

    assert name == deployed["charm"] == METADATA["name"]
    assert name not in recorded["applications"]
    assert deployed["trust"] is True
    options = deployed.get("options", {})
    assert set(options) <= set(OPTIONS)
    configured("m", options)
    for theirs, ours in added["relations"]:
        assert theirs.partition(":")[0] in recorded["applications"]
        assert theirs in {*recorded["endpoints"], *more}
        assert ours.removeprefix(f"{name}:") in METADATA["requires"]


def module() -> dict[str, list[dict[str, Any]]]:
    """All blocks of the Terraform module, by kind."""
    plain = hcl2.SerializationOptions(
        strip_string_quotes=True, explicit_blocks=False, with_comments=False
    )
    blocks = defaultdict[str, list[dict[str, Any]]](list)
    for path in sorted((ROOT / MODULE).glob("*.tf")):
        for kind, found in hcl2.loads(path.read_text(), serialization_options=plain).items():
            blocks[kind] += found
    return blocks


def names(blocks: list[dict[str, Any]]) -> set[str]:
    return {name for block in blocks for name in block}


def test_the_module_takes_the_provider_of_charmed_kubeflows_solutions() -> None:
    (wanted,) = module()["terraform"][0]["required_providers"]
    assert wanted["juju"]["version"] == ">= 0.14.0, < 1.0.0"


def test_the_readme_of_the_module_has_every_variable_and_output() -> None:
    blocks, readme = module(), (ROOT / MODULE / "README.md").read_text()

    named = names(blocks["variable"]) | names(blocks["output"])
    assert [name for name in named if f"`{name}`" not in readme] == []


def test_the_module_is_one_of_charmed_kubeflow() -> None:
    """It takes what Charmed Kubeflow's solutions give each of their modules."""
    blocks = module()
    assert names(blocks["variable"]) == {
        "app_name", "base", "channel", "config", "model_name", "resources", "revision", "units",
    }  # fmt: skip
    assert names(blocks["output"]) == {"app_name", "provides", "requires"}
    (application,) = [found["juju_application"] for found in blocks["resource"]]
    assert application["istio_aux"]["charm"][0]["name"] == METADATA["name"]
    assert application["istio_aux"]["trust"] is True
    values = {name: each["value"] for block in blocks["output"] for name, each in block.items()}
    for role in ("provides", "requires"):
        assert values[role] == {name.replace("-", "_"): name for name in METADATA[role]}


def test_the_rock_runs_what_the_charm_runs_as_the_same_user() -> None:
    assert ROCK["name"] == METADATA["name"]
    assert set(ROCK["platforms"]) >= set(CHARMCRAFT["platforms"])
    # 584792 is `_daemon_`, which owns the folder that the charm pushes to.
    assert ROCK["run-user"] == "_daemon_"
    owned = {p["path"]: p["owner"] for p in ROCK["parts"]["settings-folder"]["permissions"]}
    uid = METADATA["containers"][CONTAINER]["uid"]
    assert owned == {"etc/istio-aux": uid, "etc/istio-aux/tls": uid}
    command = ROCK["services"][workload.SERVICE]["command"]
    assert command == f"istio-aux serve --config {workload.CONFIG}"


def test_the_webhook_is_called_at_the_port_that_is_opened_and_served() -> None:
    webhook = manifests.render_webhook(manifests.Values("a", "m"))[0].to_dict()["webhooks"][0]

    assert webhook["clientConfig"]["service"]["port"] == WEBHOOK_PORT == 8443
    # The workload's own default (settings.webhook-address) is what it listens on.
    assert "webhook-address" not in workload.settings(configured("m").settings)
