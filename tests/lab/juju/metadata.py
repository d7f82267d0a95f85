"""What the stand-in reads of a packed charm's metadata, options and actions."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .root import User

_TYPES = {"string": str, "int": int, "float": (int, float), "boolean": bool, "secret": str}


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A charm's metadata.yaml, config.yaml and actions.yaml, as far as they matter here."""

    name: str
    charm_user: str
    containers: Mapping[str, User]
    peers: tuple[str, ...]
    # Without peers: interface of each endpoint.
    endpoints: Mapping[str, str]
    resources: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    actions: Mapping[str, Any]

    @classmethod
    def read(cls, charm: Path) -> Metadata:
        """Read the packed charm."""
        with zipfile.ZipFile(charm) as archive:
            present = set(archive.namelist())
            metadata, config, actions = (
                yaml.safe_load(archive.read(name)) if name in present else {}
                for name in ("metadata.yaml", "config.yaml", "actions.yaml")
            )
        containers: dict[str, Any] = metadata.get("containers") or {}
        return cls(
            name=metadata["name"],
            charm_user=metadata.get("charm-user", "root"),
            containers={
                name: User((of or {}).get("uid", 0), (of or {}).get("gid", 0), "_daemon_")
                for name, of in containers.items()
            },
            peers=tuple(metadata.get("peers") or ()),
            endpoints={
                name: endpoint["interface"]
                for role in ("requires", "provides")
                for name, endpoint in (metadata.get(role) or {}).items()
            },
            resources=tuple(metadata.get("resources") or ()),
            options=config.get("options") or {},
            actions=actions or {},
        )

    def config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have a value: the given ones over the defaults.

        Raises:
            ValueError: for an option that the charm lacks or a value of another type.
        """
        defaults = {name: option.get("default") for name, option in self.options.items()}
        for name, value in given.items():
            if name not in self.options:
                raise ValueError(f"{name}: unknown option, expected one of {sorted(self.options)}")
            kind = self.options[name]["type"]
            if not isinstance(value, _TYPES[kind]) or (kind != "boolean" and value is True):
                raise ValueError(f"{name}: {value!r}: expected a value of type {kind}")
        merged = {**defaults, **given}
        return {name: value for name, value in merged.items() if value is not None}

    def parameters(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return an action's parameters with defaults filled in.

        Raises:
            ValueError: the charm lacks the action or a parameter, or a required one is missing.
        """
        if action not in self.actions:
            raise ValueError(f"{action}: unknown action, expected one of {sorted(self.actions)}")
        schema: dict[str, Any] = self.actions[action]
        properties: dict[str, Any] = schema.get("params") or {}
        if unknown := set(given) - set(properties):
            raise ValueError(f"{action}: unknown parameters {sorted(unknown)}")
        if missing := set(schema.get("required", ())) - set(given):
            raise ValueError(f"{action}: missing parameters {sorted(missing)}")
        defaults = {name: of["default"] for name, of in properties.items() if "default" in of}
        return {**defaults, **given}
