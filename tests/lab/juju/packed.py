"""A packed charm: its metadata, options and actions, and its files, unpacked once."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tools import cache

from .root import User


@dataclasses.dataclass(frozen=True)
class Metadata:
    """A charm's metadata.yaml, config.yaml and actions.yaml, as far as they matter here."""

    name: str
    charm_user: str
    containers: Mapping[str, User]
    peers: tuple[str, ...]
    options: Mapping[str, Mapping[str, Any]]
    actions: Mapping[str, Any]

    @classmethod
    def read(cls, charm: Path) -> Metadata:
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
            options=config.get("options") or {},
            actions=actions or {},
        )

    def config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that have a value: the given ones over the defaults."""
        defaults = {name: option.get("default") for name, option in self.options.items()}
        merged = {**defaults, **given}
        return {name: value for name, value in merged.items() if value is not None}

    def parameters(self, action: str, given: Mapping[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = self.actions[action].get("params") or {}
        defaults = {name: of["default"] for name, of in properties.items() if "default" in of}
        return {**defaults, **given}


def hand_out(charm: Path, folder: Path, *, python: Path, user: User) -> None:
    """Make `folder` the charm's content, owned by the user; its bytecode is there already."""
    source = _unpacked(charm, python, user)
    # What a unit writes are new files: nothing in a charm changes its own code in place.
    shutil.copytree(source, folder, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    for path, _, _ in os.walk(folder):
        os.chown(path, user.uid, user.gid)


def _unpacked(charm: Path, python: Path, user: User) -> Path:
    key = hashlib.sha256(charm.read_bytes() + f"{python} {user.uid}".encode()).hexdigest()[:16]

    def unpack(folder: Path) -> None:
        _extract(charm, folder)
        _compile(folder, python)
        for path in folder.rglob("*"):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)

    return cache.once("unpacked", key, unpack, saying="unpacking the charm")


def _link(source: str, target: str) -> str:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)
    return target


def _extract(charm: Path, folder: Path) -> None:
    with zipfile.ZipFile(charm) as archive:
        for entry in archive.infolist():
            path = archive.extract(entry, folder)
            # zipfile drops the permissions that an archive made on Unix keeps here.
            if mode := entry.external_attr >> 16 & 0o777:
                Path(path).chmod(mode)


def _compile(folder: Path, python: Path) -> None:
    """Compile all of it once, so that no unit's first dispatch compiles what it imports."""
    # What does not compile is for a dispatch to say.
    argv = [python, "-m", "compileall", "-q", str(folder)]
    subprocess.run(argv, capture_output=True, check=False)
