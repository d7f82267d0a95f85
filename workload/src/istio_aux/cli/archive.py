"""The file of `bug-report`: a tar of JSON, or the folder that it was unpacked to.

An archive may have been made by hand. So it is never unpacked to disk: its members are plain files,
bounded in number and size before one is decoded, and a name is only looked up, never opened.
"""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from istio_aux.kube.recorded import Answers, Object, Recorded
from istio_aux.model.text import UNDECODABLE, problem, quoted

MOST, MEMBERS = 128 << 20, 200  # Bytes of all members, unpacked, and how many.
VALUES = 8 << 20  # Of all JSON, at most: what is empty takes thirty times as much memory as text.
MANIFEST, ANSWERS = "manifest.json", "answers.json"


class BadArchiveError(ValueError):
    """A file or a folder that is no such archive, and why, in one line."""


def write(path: Path, files: Mapping[str, bytes], wall: float) -> None:
    """Write a new file that only its owner may read; OSError if it exists."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(opened, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, body in files.items():
            member = tarfile.TarInfo(f"istio-aux-bug-report/{name}")
            member.size, member.mode, member.mtime = len(body), 0o600, int(wall)
            tar.addfile(member, io.BytesIO(body))


def read(path: Path) -> Recorded:
    """What commands ask instead of a cluster; `BadArchiveError` if it is none, or too much."""
    try:
        files = dict(_folder(path) if path.is_dir() else _members(path))
        if sum(body.count(each) for body in files.values() for each in (b",", b"[", b"{")) > VALUES:
            raise ValueError(f"expected at most {VALUES >> 20} million values")
        answers = msgspec.json.decode(files[ANSWERS], type=Answers)
        return Recorded(answers, {
            name.removesuffix(".json"): msgspec.json.decode(body, type=list[Object])
            for name, body in files.items() if name.startswith(("api/", "apis/"))
        })  # fmt: skip
    except KeyError:
        why = f"it has no {ANSWERS}"
    except OSError as error:
        why = error.strerror or str(error)
    # A tar may have headers within headers.
    except (*UNDECODABLE, tarfile.TarError, zlib.error, EOFError) as error:
        why = problem(error)
    raise BadArchiveError(f"{path}: no archive of bug-report: {why}")


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a tar, each by its name below the folder that has all of them."""
    with path.open("rb") as file:
        # Not by `tarfile`: it reads a header of any size at once.
        unpacking = zlib.decompressobj(wbits=31)
        body = unpacking.decompress(file.read(MOST), MOST + 1)
    _bounded(len(body), 0)
    if not unpacking.eof:  # `tarfile` takes some beginnings of a tar for all of it.
        raise ValueError("its end is missing")
    size = 0
    with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as tar:
        for number, member in enumerate(tar):
            size += member.size
            # A negative size would lead back to an earlier member.
            _bounded(size if member.size >= 0 else MOST + 1, number)
            if not member.isdir():
                if member.type not in {tarfile.REGTYPE, tarfile.AREGTYPE} or member.issparse():
                    raise ValueError(f"{quoted(member.name)} is no plain file")
                content = tar.extractfile(member)
                yield member.name.partition("/")[2], content.read() if content else b""


def _folder(path: Path) -> Iterator[tuple[str, bytes]]:
    found = [*islice(path.rglob("*"), 2 * MEMBERS)]  # With folders: it may be somebody's home.
    _bounded(0, len(found) // 2 + 1)
    size, files = 0, [each for each in found if each.suffix == ".json" and each.is_file()]
    for number, file in enumerate(files):
        # A link is refused.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
            body = content.read(MOST + 1 - size)
        size += len(body)
        _bounded(size, number)
        yield str(file.relative_to(path)), body


def _bounded(size: int, members: int) -> None:
    if size > MOST or members > MEMBERS:
        raise ValueError(f"expected at most {MOST >> 20} MiB in {MEMBERS} files")
