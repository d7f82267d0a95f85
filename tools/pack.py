"""Pack the charm with charmcraft, without snap: a local structural pack, not an official build.

`python -m tools.pack` writes the .charm to `dist/`, cached by its sources. For hosts that are not
Ubuntu there is a UNIXCONFDIR, which `distro` reads, and the distribution's python-apt. Dependencies
are wheels for the Python of the charm's base, where charmcraft's uv plugin takes the host's.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from tools import cache, debian, errors, interpreters, oci, packages
from tools.errors import ToolError

HERE = Path(__file__).resolve().parent / "pack"
ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "lib/istio-sidecar"
# All that goes into the charm or steers its build.
FILES = (
    "charmcraft.yaml",
    "metadata.yaml",
    "config.yaml",
    "actions.yaml",
    "icon.svg",
    "LICENSE",
    "pyproject.toml",
    "uv.lock",
    f"{LIBRARY}/pyproject.toml",
    f"{LIBRARY}/README.md",
    f"{LIBRARY}/src",
    "workload/src/istio_aux/__init__.py",
    "workload/src/istio_aux/settings.py",
    "workload/src/istio_aux/model",
)
OS_RELEASE = 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nNAME="Ubuntu"\n'
DIST_PACKAGES = Path("/usr/lib/python3/dist-packages")


class PackError(ToolError):
    """Packing failed; the message ends with what the tool said."""


def pack(root: Path = ROOT, *, python: str = "") -> Path:
    """The packed charm of a checkout, for this or the lab's Python. Raises PackError."""
    python = python or interpreters.shipped()[1]
    sources = _sources(root)
    key = _digest(sources, python)

    def build(folder: Path) -> None:
        errors.run([interpreters.uv(), "lock", "--check", "--quiet"], PackError, cwd=root)
        with tempfile.TemporaryDirectory(prefix="istio-aux-pack-") as scratch:
            _build(root, sources, python, Path(scratch), folder)

    saying = "packing the charm (a local structural pack, seconds)"
    [charm] = cache.once("charm", key, build, saying=saying).glob("*.charm")
    return charm


def _sources(root: Path) -> dict[str, Path]:
    """The files that make the charm; one that does not depend on the library gets its modules."""
    own = _listed(root, *FILES, "src")
    if any(name.startswith("lib/") for name in own):
        return own
    modules = _listed(ROOT / LIBRARY / "src", ".")
    return {**own, **{f"lib/{name}": path for name, path in modules.items()}}


def _listed(root: Path, *names: str) -> dict[str, Path]:
    """The files that git tracks or would track: the checkout as it is, without litter."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    listed = errors.run([*command, *names], PackError, cwd=root).rstrip("\0").split("\0")
    return {name: root / name for name in sorted(listed) if (root / name).is_file()}


def _digest(sources: Mapping[str, Path], python: str) -> str:
    digest = hashlib.sha256(f"{python}\n{OS_RELEASE}".encode())
    makers = {path.name: path for path in (Path(__file__), Path(packages.__file__))}
    for name, path in {**sources, **makers, "pack.lock": HERE / "uv.lock"}.items():
        digest.update(f"\n{name}\n{path.stat().st_mode & 0o111}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(
    root: Path, sources: Mapping[str, Path], python: str, scratch: Path, target: Path
) -> None:
    """Run charmcraft on a copy of the sources and copy the charm into the folder `target`."""
    project = scratch / "project"
    for name, path in sources.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, project / name)
    _add_dependencies(root, project, python)
    for name in ("etc", "home"):
        (scratch / name).mkdir()
    (scratch / "etc/os-release").write_text(OS_RELEASE)
    bin_folder = _environment() / "bin"
    environment = {
        # charmcraft keeps logs and caches in HOME.
        **{name: value for name, value in os.environ.items() if not name.startswith("XDG_")},
        "HOME": str(scratch / "home"),
        "UNIXCONFDIR": str(scratch / "etc"),
        "PATH": os.pathsep.join([str(bin_folder), os.environ["PATH"]]),
    }
    environment.pop("PYTHONPATH", None)
    command = [str(bin_folder / "charmcraft"), "pack", "--destructive-mode"]
    said = errors.run(command, PackError, cwd=project, env=environment)
    charms = list(project.glob("*.charm"))
    if len(charms) != 1:
        raise PackError(f"charmcraft pack: expected one charm, got {charms}\n{said}")
    shutil.copy2(charms[0], target)


def _add_dependencies(root: Path, project: Path, python: str) -> None:
    """Make the folder `venv` as the uv plugin does, and let the part of the charm copy it."""
    try:
        site = project / f"venv/lib/python{python}/site-packages"
        packages.install(root, site, python=python, machine=platform.machine())
    except ChildProcessError as error:
        raise PackError(str(error)) from error
    # Without `home`: the link that `dispatch` makes to the machine's Python says where that is.
    (project / "venv/pyvenv.cfg").write_text("include-system-site-packages = false\n")
    recipe = yaml.safe_load((project / "charmcraft.yaml").read_text())
    part = recipe["parts"]["charm"]
    if part["plugin"] != "uv":
        raise PackError(f"charmcraft.yaml: parts: charm: plugin {part['plugin']}: expected uv")
    staged = ["src", "lib", "venv", *part.get("stage", ())]
    recipe["parts"]["charm"] = {"plugin": "dump", "source": ".", "stage": staged}
    # Tests run on other machines as well.
    recipe["platforms"] = {oci.ARCHITECTURES[platform.machine()]: None}
    (project / "charmcraft.yaml").write_text(yaml.safe_dump(recipe))


def _environment() -> Path:
    """The virtual environment with the pinned charmcraft, made once for each lock."""
    apt_pkg = _apt_pkg()
    # "apt_pkg.cpython-311-x86_64-linux-gnu.so" fits Python 3.11 only.
    tag = apt_pkg.name.split("-")[1]
    version = f"{tag[0]}.{tag[1:]}"
    key = hashlib.sha256((HERE / "uv.lock").read_bytes() + tag.encode()).hexdigest()[:16]
    folder = cache.root().parent / "charmcraft" / key
    if (folder / "ready").exists():
        return folder
    cache.say("setting up charmcraft (seconds)")
    system = Path(f"/usr/bin/python{version}")
    python = system if system.exists() else interpreters.find(version)
    if python is None:
        raise PackError(f"python {version}: not found, and python3-apt here is built for it")
    command = [interpreters.uv(), "sync", "--frozen", "--quiet", "--project", str(HERE)]
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
    errors.run([*command, "--python", str(python)], PackError, env=environment)
    packages = folder / "lib" / f"python{version}" / "site-packages"
    for name in ["apt", *(path.name for path in DIST_PACKAGES.glob("apt_*.so"))]:
        (packages / name).unlink(missing_ok=True)
        (packages / name).symlink_to(DIST_PACKAGES / name)
    (folder / "ready").touch()
    return folder


def _apt_pkg() -> Path:
    """The distribution's python-apt, installed when it is missing and we may."""
    try:
        debian.ensure(["python3-apt"])
    except debian.PackageError as error:
        raise PackError(f"charmcraft needs the distribution's python-apt: {error}") from error
    return next(DIST_PACKAGES.glob("apt_pkg.cpython-*.so"))


def main() -> int:
    """Write the charm for the Python that ships to `dist/`, and print its path."""
    try:
        made = pack(python=interpreters.SHIPPED)
    except PackError as error:
        print(error, file=sys.stderr)
        return 1
    place = ROOT / "dist" / made.name
    place.parent.mkdir(exist_ok=True)
    shutil.copy2(made, place)
    print(place.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
