"""The Terraform module, as OpenTofu and TFLint read it.

They prove its language, types and conditions. The provider is a stand-in with the arguments of
Juju's own (`lab/juju_provider`), so they do not prove what Juju would make of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from lab import tools
from lab.juju_provider import ANSWER, MODULE, ROOT, opentofu


def test_opentofu_finds_the_module_valid_and_would_format_nothing(tmp_path: Path) -> None:
    tofu = opentofu(tmp_path, MODULE)
    tofu.run("init", "-no-color")
    assert json.loads(tofu.run("validate", "-json"))["diagnostics"] == []
    assert tofu.run("fmt", "-list", "-recursive") == ""


def test_tflint_finds_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "tflint.hcl"
    settings.write_text('plugin "terraform" {\n enabled = true\n preset = "all"\n}\n')
    command = [tools.path("tflint"), f"--chdir={ROOT / MODULE}", f"--config={settings}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def example() -> str:
    """The example of the module's README, with names of the reader's own made literal."""
    text = (ROOT / "terraform/README.md").read_text()
    own = {
        "juju_model.kubeflow.name": '"kubeflow"',
        "module.istio_pilot.app_name": '"istio-pilot"',
        "module.istio_pilot.provides.istio_pilot": '"istio-pilot"',
    }
    (found,) = re.findall(r"```hcl\n(.*?)```", text, re.DOTALL)
    for name, literal in own.items():
        found = found.replace(name, literal)
    return found


def ends(integration: dict[str, Any]) -> set[tuple[str, ...]]:
    """What an integration relates: application and endpoint, or the URL of an offer."""
    found = integration["values"]["application"]
    return {tuple(filter(None, (e["name"], e["endpoint"], e["offer_url"]))) for e in found}


def test_the_readmes_application_is_planned_as_it_says(tmp_path: Path) -> None:
    tofu = opentofu(tmp_path)
    needed = (ROOT / MODULE / "versions.tf").read_text()
    (tmp_path / "main.tf").write_text(f"{needed}\n{example()}")

    planned = tofu.plan()

    (application,) = [each for each in planned if each["type"] == "juju_application"]
    made = application["values"]
    assert (made["name"], made["model"], made["trust"]) == ("istio-aux", "kubeflow", True)
    assert (made["units"], made["charm"][0]["channel"]) == (2, "latest/edge")
    assert not made["config"]
    related = [ends(each) for each in planned if each["type"] == "juju_integration"]
    assert sorted(map(sorted, related)) == [
        [("admin/cos.loki-logging",), ("istio-aux", "logging")],
        [("istio-aux", "istio-pilot"), ("istio-pilot", "istio-pilot")],
    ]
