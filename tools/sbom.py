"""Bills of materials (CycloneDX 1.6, JSON) of image, charm and program, made from the locks."""

from __future__ import annotations

import json
import platform
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from tools import golang, packages, toolchain

# The namespace of the bills' serial numbers, which are made from their content (UUIDv5).
_OURS = uuid.UUID("8d5c7a52-5a0c-5f43-9a4d-0d9a3b2f7c11")


def of_image(debs: Iterable[Path]) -> str:
    parts = [*_python(packages.WORKLOAD), *_go(golang.PEBBLE.folder), *map(_deb, debs)]
    return _bill("container", "istio-aux", packages.version(), parts)


def of_charm() -> str:
    parts = _python(packages.ROOT)
    return _bill("application", "istio-aux-charm", packages.version(packages.ROOT), parts)


def of_program(interpreter: str, openssl: str) -> str:
    """With the versions of the packed interpreter and of its OpenSSL."""
    packed = (("python", interpreter), ("openssl", openssl))
    parts = [*_python(packages.WORKLOAD), *(_part("generic", *each) for each in packed)]
    return _bill("application", "istio-aux-program", packages.version(), parts)


def _bill(kind: str, name: str, version: str, parts: Iterable[dict[str, Any]]) -> str:
    components = sorted(parts, key=lambda part: part["purl"])
    root = f"{name}@{version}"
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": kind,
                "bom-ref": root,
                "name": name,
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        # Flat: the locks say which of them needs which.
        "dependencies": [{"ref": root, "dependsOn": [part["bom-ref"] for part in components]}],
    }
    bill["serialNumber"] = uuid.uuid5(_OURS, json.dumps(bill)).urn
    return json.dumps(bill, indent=2) + "\n"


def _part(kind: str, name: str, version: str, *, group: str = "", more: str = "") -> dict[str, Any]:
    """A component and its package URL (https://github.com/package-url/purl-spec)."""
    full = f"{group}/{name}" if group else name
    purl = f"pkg:{kind}/{full.lower()}@{quote(version, safe='')}{more}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _python(project: Path) -> list[dict[str, Any]]:
    return [_part("pypi", each.name, each.version) for each in packages.locked(project)]


def _go(folder: Path) -> list[dict[str, Any]]:
    pins = re.findall(r"^\t(\S+) (v\S+)", (folder / "go.mod").read_text(), re.MULTILINE)
    library = ("stdlib", toolchain.version(folder).removeprefix("go"))
    return [_part("golang", name, version) for name, version in [*pins, library]]


def _deb(archive: Path) -> dict[str, Any]:
    name, version, architecture = unquote(archive.stem).split("_")
    system = platform.freedesktop_os_release()
    release = f"{system['ID']}-{system.get('VERSION_ID', '')}"
    more = f"?arch={architecture}&distro={release}"
    return _part("deb", name, version, group=system["ID"], more=more)
