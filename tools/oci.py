"""Container images made by hand: layers of files, described by JSON, in one archive (OCI 1.1).

No daemon, no root. The same files make the same digest: nothing tells when or where it was made,
and layers are not compressed.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

# What the specification, in the words of Go, calls this machine.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"
_OCI = "application/vnd.oci.image"
_MANIFEST = f"{_OCI}.manifest.v1+json"


@dataclass(frozen=True)
class Slice:
    """Bytes of a file on disk: all of it, or what a tar has of one of its members."""

    path: Path
    offset: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(path, 0, path.stat().st_size)


@dataclass(frozen=True)
class Entry:
    """A file, a folder (`folder`) or a symbolic link (`target`) of an image, and whose it is."""

    content: bytes | Slice = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    folder: bool = False
    target: str = ""


@dataclass(frozen=True)
class Layer:
    """A tar of entries, in a file that stands open."""

    file: IO[bytes]
    digest: str
    size: int


def layer(entries: Mapping[str, Entry], into: IO[bytes]) -> Layer:
    """Write the entries, by their paths without a leading slash, and the folders above them."""
    above = {str(parent) for name in entries for parent in PurePosixPath(name).parents} - {"."}
    with tarfile.open(fileobj=into, mode="w") as tar:
        for name in sorted(above | entries.keys()):
            entry = entries.get(name) or Entry(folder=True, mode=0o755)
            with _opened(entry.content) as content:
                tar.addfile(_info(name, entry), content)
    into.seek(0)
    digest = hashlib.file_digest(into, "sha256").hexdigest()  # type: ignore[arg-type]
    return Layer(into, digest, into.seek(0, io.SEEK_END))


def archive(
    place: Path,
    name: str,
    layers: Sequence[Layer],
    config: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Write an image that `ctr`, `skopeo` and `podman` read; return its manifest's digest."""
    machine = ARCHITECTURES.get(platform.machine(), platform.machine())
    blobs: dict[str, bytes] = {}

    def blob(kind: str, document: Mapping[str, Any]) -> dict[str, Any]:
        data = json.dumps(document, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return _descriptor(kind, digest, len(data))

    described = {
        "created": _EPOCH,
        "architecture": machine,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{each.digest}" for each in layers]},
        "history": [{"created": _EPOCH, "created_by": "istio-aux"} for _ in layers],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": blob(f"{_OCI}.config.v1+json", described),
        "layers": [_descriptor(f"{_OCI}.layer.v1.tar", each.digest, each.size) for each in layers],
        **({"annotations": dict(annotations)} if annotations else {}),
    }
    top = blob(_MANIFEST, manifest)
    naming = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    top = {**top, "platform": {"architecture": machine, "os": "linux"}, "annotations": naming}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [top]}
    with tarfile.open(place, mode="w") as tar:
        for folder in ("blobs", "blobs/sha256"):
            tar.addfile(_info(folder, Entry(folder=True, mode=0o755)))
        for digest, data in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", data)
        for digest, each in {each.digest: each for each in layers}.items():
            each.file.seek(0)
            info = tarfile.TarInfo(f"blobs/sha256/{digest}")
            info.size = each.size
            tar.addfile(info, each.file)
        _add(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(tar, "index.json", json.dumps(index).encode())
        # What `docker load` reads, which minikube runs (moby image/tarexport/load.go).
        own = {
            "Config": f"blobs/sha256/{manifest['config']['digest'].removeprefix('sha256:')}",
            "RepoTags": [name],
            "Layers": [f"blobs/sha256/{each.digest}" for each in layers],
        }
        _add(tar, "manifest.json", json.dumps([own]).encode())
    return top["digest"]


def config_of(place: Path) -> dict[str, Any]:
    """What containers of an archive's image start with."""
    with tarfile.open(place) as tar:
        documents = [
            json.load(file)
            for member in tar
            if member.size < 1_000_000 and member.isfile() and (file := tar.extractfile(member))
        ]
    [config] = [each["config"] for each in documents if "rootfs" in each]
    return config


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _info(name: str, entry: Entry) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.uid, info.gid = entry.mode, entry.uid, entry.gid
    if entry.folder:
        info.type = tarfile.DIRTYPE
    elif entry.target:
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
    else:
        content = entry.content
        info.size = content.size if isinstance(content, Slice) else len(content)
    return info


def _opened(content: bytes | Slice) -> IO[bytes]:
    if isinstance(content, bytes):
        return io.BytesIO(content)
    file = content.path.open("rb")
    file.seek(content.offset)
    return file


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_info(name, Entry(data)), io.BytesIO(data))


def tree(folder: Path, at: str = "", mode: int = 0) -> Iterator[tuple[str, Entry]]:
    """Yield what is in a folder, as root's, by its path below ``at``; mode 0 keeps the files'."""
    for path in sorted(folder.rglob("*")):
        name = str(PurePosixPath(at) / path.relative_to(folder))
        if path.is_symlink():
            yield name, Entry(target=str(path.readlink()))
        elif path.is_dir():
            yield name, Entry(folder=True, mode=0o755)
        else:
            runs = path.stat().st_mode & 0o100
            yield name, Entry(Slice.of(path), mode=mode or (0o755 if runs else 0o644))


def copy(place: Path, to: Path) -> Path:
    """Copy an archive; a reader never sees half of it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    partial = shutil.copyfile(place, to.with_suffix(".partial"))
    return partial.rename(to)
