"""Charm, rock, bundle, module and their descriptions name the same things."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import certificates
import manifests
import workload
from config import CHOICES, load
from relations import cos, istio, sidecar, tls

from .conftest import ROOT


def document(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


METADATA = document("metadata.yaml")
OPTIONS = document("config.yaml")["options"]
ACTIONS = document("actions.yaml")
CHARMCRAFT = document("charmcraft.yaml")
ROCK = document("workload/rockcraft.yaml")
OVERLAY = document("bundle/istio-aux.yaml")
TERRAFORM = {path.name: path.read_text() for path in (ROOT / "terraform").glob("*.tf")}


def test_charmcraft_yaml_holds_nothing_that_charmcraft_would_drop() -> None:
    # charmcraft copies metadata.yaml as it is and silently drops these when they stand here.
    assert set(CHARMCRAFT) == {"type", "base", "platforms", "parts"}
    assert not set(CHARMCRAFT) & set(METADATA)


def test_the_container_runs_an_image_that_is_a_resource() -> None:
    container = METADATA["containers"][workload.CONTAINER]

    assert METADATA["resources"][container["resource"]]["type"] == "oci-image"
    assert (container["uid"], container["gid"]) == (584792, 584792)


def test_every_endpoint_says_whether_it_is_needed_and_how_often() -> None:
    # By endpoint: how many relations make sense, None for any number.
    requires = {
        **dict.fromkeys((istio.PILOT, istio.METADATA, istio.SERVICE_MESH, tls.ENDPOINT), 1),
        cos.LOGGING: None,
        cos.TRACING: 1,
        cos.WORKLOAD_TRACING: 1,
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


def test_every_action_says_what_it_does_and_takes_nothing_unknown() -> None:
    # The default of additionalProperties flips with Juju 4.
    assert {name for name, action in ACTIONS.items() if action["description"]} == set(ACTIONS)
    assert {action["additionalProperties"] for action in ACTIONS.values()} == {False}


def test_defaults_are_valid_and_every_option_is_read() -> None:
    options = load({name: option["default"] for name, option in OPTIONS.items()}, "m")

    read = {*vars(options), *(name.replace("-", "_") for name in options.seconds)} - {"seconds"}
    assert {name.replace("-", "_") for name in OPTIONS} == read


@pytest.mark.parametrize("name", CHOICES)
def test_every_value_that_is_allowed_is_described(name: str) -> None:
    assert all(f"`{value}`" in OPTIONS[name]["description"] for value in CHOICES[name])


def test_the_overlay_deploys_this_charm_with_its_options_and_endpoint() -> None:
    (application,) = OVERLAY["applications"].items()
    name, deployed = application

    assert name == deployed["charm"] == METADATA["name"]
    assert deployed["trust"] is True
    assert set(deployed["options"]) <= set(OPTIONS)
    load({n: o["default"] for n, o in OPTIONS.items()} | deployed["options"], "m")
    assert OVERLAY["relations"] == [["istio-pilot:istio-pilot", f"{name}:{istio.PILOT}"]]


def test_the_module_has_the_files_inputs_and_outputs_of_charmed_kubeflow() -> None:
    inputs = set(re.findall(r'^variable "(\w+)"', TERRAFORM["variables.tf"], re.MULTILINE))
    outputs = set(re.findall(r'^output "(\w+)"', TERRAFORM["outputs.tf"], re.MULTILINE))

    assert set(TERRAFORM) == {"main.tf", "outputs.tf", "variables.tf", "versions.tf"}
    assert inputs == {
        "app_name", "base", "channel", "config", "model_name", "resources", "revision", "units",
    }  # fmt: skip
    assert outputs == {"app_name", "provides", "requires"}
    assert set(re.findall(r"var\.(\w+)", TERRAFORM["main.tf"])) == inputs
    readme = (ROOT / "terraform" / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in inputs | outputs)


def test_the_module_deploys_this_charm_and_names_its_endpoints() -> None:
    assert re.search(rf'\bname\s+= "{METADATA["name"]}"', TERRAFORM["main.tf"])
    assert re.search(r"\btrust = true\b", TERRAFORM["main.tf"])
    named = dict(re.findall(r'^    (\w+) += "([\w-]+)"', TERRAFORM["outputs.tf"], re.MULTILINE))
    endpoints = [*METADATA["provides"], *METADATA["requires"]]
    assert named == {name.replace("-", "_"): name for name in endpoints}
    readme = (ROOT / "terraform" / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in named)


@pytest.mark.parametrize("name", TERRAFORM)
def test_braces_of_the_module_are_balanced(name: str) -> None:
    assert TERRAFORM[name].count("{") == TERRAFORM[name].count("}")
    assert TERRAFORM[name].count('"') % 2 == 0


def test_the_rock_runs_what_the_charm_runs_as_the_same_user() -> None:
    known = {
        "name", "title", "summary", "description", "version", "license", "base", "build-base",
        "platforms", "run-user", "services", "parts", "environment", "checks", "entrypoint-service",
    }  # fmt: skip
    assert set(ROCK) <= known
    assert ROCK["name"] == METADATA["name"]
    assert set(ROCK["platforms"]) == set(CHARMCRAFT["platforms"])
    # 584792 is `_daemon_`, which owns the folder that the charm pushes to.
    assert ROCK["run-user"] == "_daemon_"
    owned = {p["path"]: p["owner"] for p in ROCK["parts"]["settings-folder"]["permissions"]}
    uid = METADATA["containers"][workload.CONTAINER]["uid"]
    assert owned == {"etc/istio-aux": uid, "etc/istio-aux/tls": uid}
    command = ROCK["services"][workload.SERVICE]["command"]
    assert command == f"istio-aux serve --config {workload.CONFIG}"


def test_rock_and_workload_have_one_version() -> None:
    project = (ROOT / "workload" / "pyproject.toml").read_text()

    assert f'\nversion = "{ROCK["version"]}"' in project


def test_the_resource_names_the_image_of_this_version() -> None:
    source = METADATA["resources"]["istio-aux-image"]["upstream-source"]

    assert source.endswith(f"/{ROCK['name']}:{ROCK['version']}")


def test_the_charm_says_where_its_documents_and_sources_are() -> None:
    # A charm with metadata.yaml has no `links`: charmcraft would drop them.
    links = {key: METADATA[key] for key in ("website", "docs", "source", "issues")}

    assert all(link.startswith("https://") for link in links.values())
    assert links["issues"] == f"{links['source']}/issues"
    assert links["source"].endswith(f"/{METADATA['name']}-operator")


WORKFLOWS = {path.name: path for path in (ROOT / ".github/workflows").glob("*.yaml")}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_actions_of_one_commit_with_rights_of_its_own(name: str) -> None:
    text = WORKFLOWS[name].read_text()
    jobs = yaml.safe_load(text)

    assert jobs["permissions"] == {}
    assert all("permissions" in job for job in jobs["jobs"].values())
    actions = [use for use in re.findall(r"uses: (.+)", text) if not use.startswith("./")]
    assert [use for use in actions if not re.search(r"@[0-9a-f]{40} # v?\d", use)] == []


def test_the_webhook_is_called_at_the_port_that_is_opened_and_served() -> None:
    webhook = manifests.render_webhook(manifests.Values("a", "m"))[0].to_dict()["webhooks"][0]

    assert webhook["clientConfig"]["service"]["port"] == manifests.WEBHOOK_PORT == 8443
    # The workload's own default (settings.webhook-address) is what it listens on.
    assert "webhook-address" not in workload.settings(
        load({name: option["default"] for name, option in OPTIONS.items()}, "m"),
        workload.Names("model/app", "istio-aux-model-app", "model/app"),
    )
