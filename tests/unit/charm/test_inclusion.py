"""Charm, rock, bundle, module and their descriptions name the same things."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

import hcl2
import pytest
import yaml
from istio_aux.model.answers import PAGE
from istio_aux.model.names import WEBHOOK_PORT
from lab.juju_provider import MODULE
from lab.workload import OPTIONS, configured

import certificates
import manifests
import workload
from container import CONTAINER
from relations import cos, istio, sidecar

from .conftest import ROOT


def document(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


METADATA = document("metadata.yaml")
ACTIONS = document("actions.yaml")
CHARMCRAFT = document("charmcraft.yaml")
ROCK = document("workload/rockcraft.yaml")
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
