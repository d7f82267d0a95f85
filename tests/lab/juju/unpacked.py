"""A packed charm, unpacked once for each content and handed out as a tree of hard links."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

from lab import cache

from .root import User


def hand_out(charm: Path, folder: Path, *, python: Path, user: User) -> None:
    """Make `folder` the charm's content, owned by the user; its bytecode is there already."""
    source = _unpacked(charm, python, user)
    # What a unit writes are new files: nothing in a charm changes its own code in place.
    shutil.copytree(source, folder, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    for path, _, _ in os.walk(folder):
        os.chown(path, user.uid, user.gid)


def _unpacked(charm: Path, python: Path, user: User) -> Path:
    key = hashlib.sha256(charm.read_bytes() + f"{python} {user.uid}".encode()).hexdigest()[:16]
    target = cache.root().parent / "unpacked" / key
    with cache.lock(target.with_suffix(".lock"), waiting="another process unpacks the charm"):
        if not target.exists():
            partial = target.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            _extract(charm, partial)
            _compile(partial, python)
            for path in partial.rglob("*"):
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
            partial.rename(target)
        return cache.use(target)


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
    """Import the charm once, so that not every unit's first dispatch compiles what it imports."""
    site_packages = [str(path) for path in folder.glob("venv/lib/python*/site-packages")]
    search = os.pathsep.join([f"{folder}/lib", f"{folder}/src", *site_packages])
    # Whether the import works is for a dispatch to say.
    subprocess.run(
        [python, "-c", "import charm"],
        env={"PYTHONPATH": search, "PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        check=False,
    )
