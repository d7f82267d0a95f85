"""What a release has beside charm, image, chart and programs: `python -m tools.publish REPOSITORY`.

It packs an archive of each program in `dist/` for krew, and writes the wheel, the bills of
materials, krew's manifest, the notes and `SHA256SUMS`. It publishes nothing.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path

import yaml
from istio_aux.model.names import REPOSITORY

from tools import packages, sbom
from tools.errors import ToolError

SUMS = "SHA256SUMS"
PLUGIN = "istio-aux.krew.yaml"
NOTES = "notes.md"


class ReleaseError(ToolError):
    """There can be no release; the message says why, and what to do."""


def publish(folder: Path, repository: str) -> list[Path]:
    """Write all of that into a folder with programs. Returns every file of the release.

    Raises:
        ReleaseError: the project has another address, or the folder has no program.
    """
    if repository != REPOSITORY:
        raise ReleaseError(
            f"{repository}: the pages say {REPOSITORY}: run `python -m tools.address {repository}`"
        )
    programs = sorted(path for path in folder.glob("istio-aux-linux-*") if not path.suffix)
    if not programs:
        raise ReleaseError(f"{folder}: no istio-aux-linux-*: run `make program`")
    version = packages.version()
    packages.wheel(folder)
    for subject, bill in (("", sbom.of_image([])), ("-charm", sbom.of_charm())):
        (folder / f"istio-aux{subject}-{version}.cdx.json").write_text(bill)
    archives = [_archive(program) for program in programs]
    (folder / PLUGIN).write_text(plugin(archives, version))
    changelog = (packages.ROOT / "CHANGELOG.md").read_text()
    (folder / NOTES).write_text(notes(changelog, version))
    files = [path for path in sorted(folder.iterdir()) if path.name not in {SUMS, NOTES}]
    (folder / SUMS).write_text("".join(f"{_digest(path)}  {path.name}\n" for path in files))
    return [*files, folder / SUMS]


def plugin(archives: list[Path], version: str) -> str:
    """The manifest by which krew installs the plugin (krew.sigs.k8s.io, developer guide)."""
    place = f"{REPOSITORY}/releases/download/v{version}"
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": _architecture(archive)}},
            "uri": f"{place}/{archive.name}",
            "sha256": _digest(archive),
            "bin": "istio-aux",
        }
        for archive in archives
    ]
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "istio-aux"},
        "spec": {
            "version": f"v{version}",
            "homepage": REPOSITORY,
            "shortDescription": "Find and free Jobs that hang beside Istio's proxy",
            "description": "Says which pods of Jobs hang beside their proxy, hold GPUs, lost their "
            "proxy or\nhave none, and why. Frees them with your own rights; needs no installation "
            "in the cluster.\n",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False, width=100)


def notes(changelog: str, version: str) -> str:
    """What the changelog says of a version, with links that work outside of the repository."""
    found = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if not found:
        raise ReleaseError(f"CHANGELOG.md: nothing about {version}: write `## {version}`")
    page = f"{REPOSITORY}/blob/v{version}/"
    linked = re.sub(r"\]\((?![a-z]+:|#)", f"]({page}", found[1].strip())
    return f"{linked}\n\n`{SUMS}` has the digests; `gh attestation verify FILE` who made a file.\n"


def _archive(program: Path) -> Path:
    """The program and the licence as krew wants them; equal files make an equal archive."""
    place = program.with_name(f"{program.name}.tar.gz")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, name, mode in (
            (packages.ROOT / "LICENSE", "LICENSE", 0o644),
            (program, "istio-aux", 0o755),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = path.stat().st_size, mode
            with path.open("rb") as file:
                tar.addfile(info, file)
    place.write_bytes(gzip.compress(made.getvalue(), mtime=0))
    return place


def _architecture(archive: Path) -> str:
    return archive.name.removesuffix(".tar.gz").rpartition("-")[2]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(repository: str = "") -> int:
    try:
        files = publish(packages.ROOT / "dist", repository)
    except (ToolError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(str(path.relative_to(packages.ROOT)) for path in files))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
