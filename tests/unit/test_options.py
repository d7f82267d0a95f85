"""An option stands once in the workload and once in config.yaml, and the documents repeat both."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from istio_aux import settings
from istio_aux.settings import OPTIONS
from unit.declared import ANNOTATIONS

import config

ROOT = Path(__file__).parents[2]
CHARM: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "config.yaml").read_text())["options"]
SHARED = sorted(CHARM.keys() & OPTIONS)
NUMBERS = [name for name, option in CHARM.items() if option["type"] == "int"]


def rows(document: str) -> list[list[str]]:
    """The rows of all tables of a document, cell by cell."""
    lines = (ROOT / document).read_text().splitlines()
    return [line.strip("|").split(" | ") for line in lines if line.startswith("| `")]


def shown(name: str) -> str:
    """A default as workload/README.md has it."""
    match settings.default(name):
        case None:
            return ""
        case bool() as flag:
            return f"`{flag}`".lower()
        case float() as number:
            return f"`{number:g}`"
        case frozenset() | () as names:
            return f"`{sorted(names)}`"
        case default:
            return f"`{default}`" if str(default) else ""


def choices(name: str) -> list[str]:
    """The values that an option allows, if they can be counted."""
    default = settings.default(name)
    return [*type(default)] if isinstance(default, StrEnum) else []


def test_most_options_of_the_charm_are_the_workloads() -> None:
    assert {"start-mode", "quit", "quit-grace", "race-policy"} <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_charm_and_workload_have_the_same_default(name: str) -> None:
    default = CHARM[name]["default"]
    parsed = OPTIONS[name].read(default) if isinstance(default, str) else default
    assert parsed == settings.default(name)


@pytest.mark.parametrize("name", SHARED)
def test_charm_and_workload_allow_the_same_values(name: str) -> None:
    """And the charm's description says what each of them means."""
    quoted = CHARM[name]["description"].partition("\n\n")[0].split("`")[1::2]
    assert set(config.CHOICES.get(name, ())) == set(choices(name))
    assert set(choices(name)) <= set(quoted)


@pytest.mark.parametrize("name", NUMBERS)
def test_charm_and_workload_allow_the_same_seconds(name: str) -> None:
    options = {each: option["default"] for each, option in CHARM.items()}

    assert config.load({**options, name: 0}, "kubeflow").seconds[name] == 0
    assert OPTIONS[name].read(0) == 0
    refused = "-1: expected seconds.* 0 or more"
    with pytest.raises(ValueError, match=f"{name}: {refused}"):
        config.load({**options, name: -1}, "kubeflow")
    with pytest.raises(ValueError, match=refused):
        OPTIONS[name].read(-1)


@pytest.mark.parametrize("name", CHARM)
def test_the_readme_has_the_first_paragraph_of_an_option(name: str) -> None:
    default = CHARM[name]["default"]
    value = str(default).lower() if isinstance(default, bool) else str(default)
    summary = " ".join(CHARM[name]["description"].partition("\n\n")[0].split()).rstrip(".")
    cell = f"`{value}`" if value else ""
    row = [f" `{name}`", cell, f"{summary} "]
    assert row in rows("README.md"), f"wanted: |{' | '.join(row)}|"


@pytest.mark.parametrize("name", OPTIONS)
def test_the_readme_of_the_workload_has_every_option(name: str) -> None:
    row = [f" `{name}`", shown(name), f"{OPTIONS[name].meaning} "]
    assert row in rows("workload/README.md"), f"wanted: |{' | '.join(row)}|"


AUTHORS = {key.name: key for key in ANNOTATIONS if key.meaning}


@pytest.mark.parametrize("name", AUTHORS)
def test_the_readme_of_the_workload_has_every_annotation_of_authors(name: str) -> None:
    key = AUTHORS[name]
    effect = f"{key.meaning}; overrides `{key.overrides}`" if key.overrides else key.meaning
    row = [f" `{name}`", key.expected, f"{effect} "]
    assert row in rows("workload/README.md"), f"wanted: |{' | '.join(row)}|"


@pytest.mark.parametrize("name", [name for name, key in AUTHORS.items() if key.overrides])
def test_the_description_of_an_option_names_the_annotation_that_overrides_it(name: str) -> None:
    description = " ".join(CHARM[AUTHORS[name].overrides]["description"].split())
    wanted = f"The pod's annotation `{name}` overrides this option."
    assert description.endswith(wanted), f"wanted at its end: {wanted}"


def test_the_charm_imports_of_the_workload_what_it_packs() -> None:
    """The model, which imports nothing above it (import-linter)."""
    part = yaml.safe_load((ROOT / "charmcraft.yaml").read_text())["parts"]["model"]
    assert part["stage"] == ["src/istio_aux/__init__.py", "src/istio_aux/model"]
    text = "\n".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))
    imported = re.findall(r"^\s*(?:from|import) (istio_aux\S*)", text, re.MULTILINE)
    assert imported
    assert [name for name in imported if not name.startswith("istio_aux.model")] == []
