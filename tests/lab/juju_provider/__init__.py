"""The Terraform module, and OpenTofu with a stand-in for Juju's provider to read it."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab import tools
from tools import errors

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "tests/data/inclusion/terraform-provider-juju.json"
MODULE: Final = "terraform"
VERSION: Final = "v0.23.3"
"""The newest one of Juju's provider that the module is for."""
ANSWER = 300  # Seconds; an answer takes 3 on 2 busy cores.


@dataclass(frozen=True)
class OpenTofu:
    """OpenTofu in a folder, with the stand-in for the provider and no registry."""

    folder: Path
    environment: dict[str, str]

    def run(self, *argv: str) -> str:
        """Run a command, and return what it prints. Raises ChildProcessError with that."""
        program = [tools.path("tofu"), f"-chdir={self.folder}", *argv]
        return errors.run(program, env=self.environment, timeout=ANSWER)

    def plan(self) -> list[dict[str, Any]]:
        """The resources that would be made, with their arguments as `values`."""
        self.run("init", "-no-color")
        self.run("plan", "-no-color", "-input=false", "-out=plan")
        planned = json.loads(self.run("show", "-json", "plan"))["planned_values"]["root_module"]
        return list(_resources(planned))


def _resources(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from module.get("resources", ())
    for inner in module.get("child_modules", ()):
        yield from _resources(inner)


def opentofu(folder: Path, within: str = "") -> OpenTofu:
    """A copy of the module in a folder, and OpenTofu for ``within`` it."""
    shutil.copytree(ROOT / MODULE, folder / MODULE)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    place = f"registry.opentofu.org/juju/juju/{VERSION[1:]}/linux_{machine}"
    program = folder / "mirror" / place / f"terraform-provider-juju_{VERSION}"
    program.parent.mkdir(parents=True)
    shutil.copy(tools.path("terraform-provider-juju"), program)
    mirror = f'filesystem_mirror {{\n path = "{folder}/mirror"\n }}'
    settings = folder / "tofurc"
    settings.write_text(f"provider_installation {{\n {mirror}\n}}\n")
    more = {"TF_CLI_CONFIG_FILE": str(settings), "TF_SCHEMAS": str(SCHEMAS), "HOME": str(folder)}
    return OpenTofu(folder / within, {**os.environ, **more})
