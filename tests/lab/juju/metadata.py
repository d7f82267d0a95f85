"""What the stand-in reads of a packed charm's metadata, options and actions."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .root import User


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A charm's metadata.yaml, config.yaml and actions.yaml, as far as they matter here."""

    name: str
    charm_user: str
    containers: Mapping[str, User]
    peers: tuple[str, ...]
    # Without peers: interface of each endpoint.
    endpoints: Mapping[str, str]
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
            options=config.get("options") or {},
            actions=actions or {},
        )

    def config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have a value: the given ones over the defaults.

        Raises:
            ValueError: the charm lacks an option.
        """
        defaults = {name: option.get("default") for name, option in self.options.items()}
        if unknown := given.keys() - defaults:
            raise ValueError(f"{unknown}: expected options of {sorted(self.options)}")
        merged = {**defaults, **given}
        return {name: value for name, value in merged.items() if value is not None}

    def parameters(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return an action's parameters with defaults filled in.

        Raises:
            KeyError: the charm lacks the action.
            ValueError: it lacks a parameter.
        """
        properties: dict[str, Any] = self.actions[action].get("params") or {}
        if unknown := given.keys() - properties:
            raise ValueError(f"{action}: unknown parameters {unknown}")
        defaults = {name: of["default"] for name, of in properties.items() if "default" in of}
        return {**defaults, **given}
