"""Debian packages: installed when the lab needs them, without their services, or unpacked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import cache
from tools.errors import ToolError

POLICY = Path("/usr/sbin/policy-rc.d")
# invoke-rc.d asks this program whether a service may start; 101 says that it may not.
REFUSAL = "#!/bin/sh\nexit 101\n"


class PackageError(ToolError):
    """Packages are missing and cannot be installed; the message names them and says why."""


def missing(packages: Sequence[str]) -> list[str]:
    """The packages that are not installed; all of them where there is no dpkg."""
    if not shutil.which("dpkg-query"):
        return list(packages)
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in shown.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def installable() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def ensure(packages: Sequence[str]) -> None:
    """Install the packages that are missing, and start none of their services; PackageError."""
    if not missing(packages):
        return
    with cache.lock(cache.root() / "apt.lock", waiting="waiting for another installation"):
        wanted = missing(packages)
        names = " ".join(wanted)
        if not installable():
            raise PackageError(f"missing packages: {names}: apt-get and root are needed")
        cache.say(f"installing the Debian packages {names}")
        units = _units()
        with _no_services():
            _apt("update", "--quiet")
            _apt("install", "--quiet", "--yes", "--no-install-recommends", *wanted)
        if new := sorted(_units() - units):
            # A unit that was enabled by its package would start with the next boot.
            subprocess.run(["systemctl", "disable", "--quiet", *new], check=False)


def download(packages: Sequence[str], folder: Path) -> list[Path]:
    """Download packages and all that they need on an empty system; needs no root, installs nothing.

    Which versions there are is up to the machine's sources. Returns the archives by name.

    Raises:
        PackageError: there is no apt-get, or it failed.
    """
    if not shutil.which("apt-get"):
        raise PackageError("an image needs Debian or Ubuntu: there is no apt-get")
    for name in ("archives/partial", "lists/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    settings = {
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Cache::archives": folder / "archives",
        "Debug::NoLocking": "true",
        # apt's own user may not write to the folder.
        "APT::Sandbox::User": "",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    install = ["install", "--yes", "--no-install-recommends", "--download-only"]
    try:
        _apt(*install, *options, *packages)
    except PackageError:
        # A fresh machine has no lists of packages, an old one has old ones.
        options.append(f"-oDir::State::lists={folder / 'lists'}")
        _apt("update", *options)
        _apt(*install, *options, *packages)
    return sorted((folder / "archives").glob("*.deb"))


def _units() -> set[str]:
    if not Path("/run/systemd/system").exists():
        return set()
    listing = ["systemctl", "list-unit-files", "--type=service", "--no-legend", "--plain"]
    shown = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
    return {line.split()[0] for line in shown.splitlines() if line.strip()}


@contextlib.contextmanager
def _no_services() -> Iterator[None]:
    if POLICY.exists():
        # Somebody decided already; in containers the answer is no.
        yield
        return
    POLICY.write_text(REFUSAL)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _apt(command: str, *arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The machine's own updates may hold the lock for minutes.
    argv = ["apt-get", "-o", "DPkg::Lock::Timeout=600", command, *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise PackageError(f"apt-get {command}: exit status {done.returncode}: {last}")
