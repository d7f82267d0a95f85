"""The Terraform modules, as OpenTofu and TFLint read them.

They prove the modules' language, types and conditions. The provider is a stand-in with the
arguments of Juju's own (`lab/juju_provider`), so they do not prove what Juju would make of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lab import tools
from lab.juju_provider import ANSWER, MODULES, ROOT, opentofu

EACH = [(module, version) for module, versions in MODULES.items() for version in versions]
UUID = "5a0b2c6e-3f0a-4a6e-9c39-0d7f3f0a1b2c"


@pytest.mark.parametrize(("module", "version"), EACH)
def test_opentofu_finds_a_module_valid(tmp_path: Path, module: str, version: str) -> None:
    tofu = opentofu(tmp_path, version, module)
    tofu.run("init", "-no-color")
    assert json.loads(tofu.run("validate", "-json"))["diagnostics"] == []


def test_opentofu_would_format_nothing(tmp_path: Path) -> None:
    assert opentofu(tmp_path, "v0.23.3", "terraform").run("fmt", "-list", "-recursive") == ""


@pytest.mark.parametrize("module", MODULES)
def test_tflint_finds_nothing(tmp_path: Path, module: str) -> None:
    settings = tmp_path / "tflint.hcl"
    settings.write_text('plugin "terraform" {\n enabled = true\n preset = "all"\n}\n')
    command = [tools.path("tflint"), f"--chdir={ROOT / module}", f"--config={settings}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def examples() -> list[str]:
    """The examples of the modules' README, with names of the reader's own made literal."""
    text = (ROOT / "terraform/README.md").read_text()
    own = {
        "juju_model.kubeflow.name": '"kubeflow"',
        "juju_model.kubeflow.uuid": f'"{UUID}"',
        "module.istio_pilot.app_name": '"istio-pilot"',
        "module.istio_pilot.provides.istio_pilot": '"istio-pilot"',
    }
    found = re.findall(r"```hcl\n(.*?)```", text, re.DOTALL)
    for name, literal in own.items():
        found = [each.replace(name, literal) for each in found]
    return found


def main_of(folder: Path, example: str, module: str) -> None:
    needed = (ROOT / module / "versions.tf").read_text()
    (folder / "main.tf").write_text(f"{needed}\n{example}")


def ends(integration: dict[str, Any]) -> set[tuple[str, ...]]:
    """What an integration relates: application and endpoint, or the URL of an offer."""
    found = integration["values"]["application"]
    return {tuple(filter(None, (e["name"], e["endpoint"], e["offer_url"]))) for e in found}


def later(example: str) -> str:
    """The example as the README says that it is for a provider from 1.0 on."""
    named = example.replace('"./terraform"', '"./terraform/provider-1"')
    return re.sub(r'\bmodel(_name)?( +)= "kubeflow"', f'model_uuid = "{UUID}"', named)


@pytest.mark.parametrize(
    ("module", "version"), [each for each in EACH if each[0] != "terraform/product"]
)
def test_the_readmes_application_is_planned_as_it_says(
    tmp_path: Path, module: str, version: str
) -> None:
    tofu = opentofu(tmp_path, version)
    by_name = module == "terraform"
    main_of(tmp_path, examples()[0] if by_name else later(examples()[0]), module)

    planned = {each["type"]: each for each in tofu.plan()}

    assert planned.keys() == {"juju_application", "juju_integration"}
    made = planned["juju_application"]["values"]
    model = made["model"] if by_name else made["model_uuid"]
    assert (made["name"], model, made["trust"]) == (
        "istio-aux",
        "kubeflow" if by_name else UUID,
        True,
    )
    assert (made["units"], made["charm"][0]["channel"]) == (2, "latest/edge")
    assert not made["config"]
    assert ends(planned["juju_integration"]) == {
        ("istio-pilot", "istio-pilot"),
        ("istio-aux", "istio-pilot"),
    }


@pytest.mark.parametrize("version", MODULES["terraform/product"])
def test_the_readmes_product_is_planned_with_the_relations_that_are_set(
    tmp_path: Path, version: str
) -> None:
    tofu = opentofu(tmp_path, version)
    main_of(tmp_path, examples()[1], "terraform/product")

    planned = tofu.plan()

    (application,) = [each for each in planned if each["type"] == "juju_application"]
    assert application["values"]["units"] == 2
    assert application["values"]["config"] == {"quit": "dry-run"}
    related = [ends(each) for each in planned if each["type"] == "juju_integration"]
    assert sorted(map(sorted, related)) == [
        [("admin/cos.grafana-dashboards",), ("istio-aux", "grafana-dashboard")],
        [("admin/cos.loki-logging",), ("istio-aux", "logging")],
        [("admin/cos.prometheus-scrape",), ("istio-aux", "metrics-endpoint")],
        [("istio-aux", "istio-pilot"), ("istio-pilot", "istio-pilot")],
    ]
