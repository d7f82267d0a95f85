"""The image of the workload, made from `workload/rockcraft.yaml` without rockcraft.

`python -m tools.rock` writes it to `dist/`, with the wheel and the bills of materials. All is as
the recipe says but the base: Ubuntu's image is in no package registry, so it is unpacked from
packages of the machine's Debian or Ubuntu, whose scripts do not run. The rules are those of
rockcraft (pebble.py, oci.py, usernames.py, plugins/uv_plugin.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tools import cache, debian, golang, oci, packages, sbom
from tools.errors import ToolError
from tools.oci import Entry, Slice

RECIPE = "rockcraft.yaml"
NAME = "istio-aux.lab/istio-aux"
# Packages of the base, beside those that the recipe stages: Ubuntu's image has them.
BASE = (
    *("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "mount"),
    *("netbase", "tzdata", "util-linux"),
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PEBBLE = "var/lib/pebble/default"
# The only user that rockcraft knows.
UIDS = {"_daemon_": 584792}
# The keys of a recipe that are implemented here; any other is an error.
KEYS = {
    *("name", "title", "summary", "description", "version", "license", "base", "platforms"),
    *("run-user", "services", "checks", "parts"),
}
PART_KEYS = {
    *("plugin", "source", "build-snaps", "stage-packages", "override-build", "permissions"),
}
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_MERGED = ("bin", "sbin", "lib", "lib32", "lib64")
# Nobody reads these in a container. Copyright files stay.
_LEFT_OUT = ("usr/share/man/", "usr/share/locale/", "usr/share/info/", "usr/share/lintian/")

Tree = dict[str, Entry]


class RecipeError(ToolError):
    """A recipe has something that is not implemented here; the message names it."""


@dataclass(frozen=True)
class Recipe:
    """What a rockcraft.yaml says."""

    facts: Mapping[str, Any]
    folder: Path

    @classmethod
    def read(cls, workload: Path) -> Recipe:
        """Read the recipe of the workload. Raises RecipeError: something in it is unknown."""
        facts = yaml.safe_load((workload / RECIPE).read_text())
        _expect("key", facts, KEYS)
        _expect("run-user", [facts["run-user"]], UIDS)
        for part in facts["parts"].values():
            _expect("key of a part", part, PART_KEYS)
            _expect("plugin", [part["plugin"]], {"uv", "nil"})
        return cls(facts, workload)

    @property
    def version(self) -> str:
        return str(self.facts["version"])

    @property
    def parts(self) -> list[dict[str, Any]]:
        return list(self.facts["parts"].values())

    def pebble_layer(self) -> str:
        """The Pebble layer that rockcraft writes: summary, description, services and checks."""
        keys = ("summary", "description", "services", "checks")
        return yaml.safe_dump({key: self.facts[key] for key in keys if key in self.facts})

    @property
    def pebble_file(self) -> str:
        return f"/{PEBBLE}/layers/001-rockcraft-{self.facts['name']}.yaml"


def _expect(what: str, found: Any, known: Any) -> None:
    if unknown := [str(each) for each in found if each not in known]:
        raise RecipeError(f"{RECIPE}: {what} {unknown[0]}: expected one of {', '.join(known)}")


def image(workload: Path = packages.WORKLOAD) -> Path:
    """The image's archive, made when its inputs are new."""
    recipe = Recipe.read(workload)
    debs = base_packages(recipe)
    name = f"istio-aux-{recipe.version}.oci.tar"
    saying = "making the image of the workload (about 20 s)"
    folder = cache.once(
        "image", _digest(recipe, debs), lambda into: make(recipe, debs, into / name), saying=saying
    )
    return folder / name


def make(recipe: Recipe, debs: list[Path], place: Path) -> str:
    """Make the image from these packages; return its digest, which depends on nothing else."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="istio-aux-image-")))
        lower = base(debs, scratch)
        upper = _program(recipe, lower, scratch)
        files = [stack.enter_context(tempfile.TemporaryFile(dir=scratch)) for _ in range(2)]
        layers = [oci.layer(tree, file) for tree, file in zip((lower, upper), files, strict=True)]
        config = {
            # As rockcraft writes it (oci.py, set_default_user): kubelets know no names.
            "User": str(UIDS[recipe.facts["run-user"]]),
            "Entrypoint": ["/usr/bin/pebble", "enter"],
            "Env": [f"PATH={PATH}"],
            "WorkingDir": "/",
        }
        name = f"{NAME}:{recipe.version}"
        return oci.archive(place, name, layers, config, _annotations(recipe, lower))


def base_packages(recipe: Recipe) -> list[Path]:
    """The archives of the packages of base and recipe, in the cache."""
    staged = (name for part in recipe.parts for name in part.get("stage-packages", ()))
    return archives({*BASE, *staged})


def archives(wanted: Iterable[str]) -> list[Path]:
    """The archives of packages, and of what they need on an empty system, in the cache."""
    names = sorted(wanted)
    key = hashlib.sha256(" ".join(names).encode()).hexdigest()[:16]
    folder = cache.folder("debian", key)
    with cache.lock(folder.with_suffix(".lock"), waiting="another process downloads packages"):
        found = sorted((folder / "archives").glob("*.deb"))
        return found or debian.download(names, folder)


def base(debs: list[Path], scratch: Path) -> Tree:
    """The file system of an empty system with these packages."""
    tree: Tree = {}
    status: list[str] = []
    for number, deb in enumerate(debs):
        place = scratch / f"{number}.tar"
        with place.open("wb") as file:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], stdout=file, check=True)
        tree.update(_unpacked(place))
        fields = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, check=True)
        first, *rest = fields.stdout.decode().splitlines()
        status.append("\n".join([first, "Status: install ok unpacked", *rest, ""]))
    for name in _MERGED:
        tree.pop(name, None)
        if any(path.startswith(f"usr/{name}/") for path in tree):
            tree[name] = Entry(target=f"usr/{name}")
    tree["var/run"] = Entry(target="../run")
    tree["etc/nsswitch.conf"] = Entry(b"passwd: files\ngroup: files\nhosts: files dns\n")
    # Scanners read which packages there are.
    tree["var/lib/dpkg/status"] = Entry("\n".join(status).encode())
    for name in ("passwd", "group"):
        tree[f"etc/{name}"] = Entry(_read(tree[f"usr/share/base-passwd/{name}.master"]))
    authorities = sorted(path for path in tree if path.startswith("usr/share/ca-certificates/"))
    certificates = [_read(tree[path]) for path in authorities if path.endswith(".crt")]
    tree[_CERTIFICATES] = Entry(b"".join(certificates))
    # Where OpenSSL looks first, in these distributions.
    tree["usr/lib/ssl/cert.pem"] = Entry(target=f"/{_CERTIFICATES}")
    return tree


def _unpacked(place: Path) -> Iterator[tuple[str, Entry]]:
    """What a package has, by its path in a system where /bin is /usr/bin, and so on."""
    with tarfile.open(place) as tar:
        for member in tar.getmembers():
            name = str(PurePosixPath(member.name))
            if name.startswith(_LEFT_OUT) or name == ".":
                continue
            if name.startswith("usr/share/doc/") and not name.endswith("/copyright"):
                continue
            if name.partition("/")[0] in _MERGED and "/" in name:
                name = f"usr/{name}"
            mode, uid, gid = member.mode, member.uid, member.gid
            if member.isdir():
                yield name, Entry(mode=mode, uid=uid, gid=gid, folder=True)
            elif member.issym():
                yield name, Entry(target=member.linkname)
            else:
                # A hard link is a copy here.
                held = tar.getmember(member.linkname) if member.islnk() else member
                yield name, Entry(Slice(place, held.offset_data, held.size), mode, uid, gid)


def _program(recipe: Recipe, lower: Tree, scratch: Path) -> Tree:
    """Pebble and the parts of the recipe."""
    user = recipe.facts["run-user"]
    uid = UIDS[user]
    own = {
        "passwd": f"{user}:x:{uid}:{uid}::/{PEBBLE}:/usr/bin/false\n",
        "group": f"{user}:x:{uid}:\n",
    }
    tree: Tree = {
        "usr/bin/pebble": Entry(Slice.of(golang.path(golang.PEBBLE)), mode=0o755),
        PEBBLE: Entry(folder=True, mode=0o777),
        f"{PEBBLE}/layers": Entry(folder=True, mode=0o777),
        recipe.pebble_file[1:]: Entry(recipe.pebble_layer().encode()),
        **{f"etc/{name}": Entry(_read(lower[f"etc/{name}"]) + own[name].encode()) for name in own},
    }
    for number, part in enumerate(recipe.parts):
        folder = scratch / f"part-{number}"
        folder.mkdir()
        if part["plugin"] == "uv":
            tree.update(_python(recipe.folder / part["source"], lower, folder))
        else:
            script = ["sh", "-euc", part["override-build"]]
            subprocess.run(script, env={"PATH": PATH, "CRAFT_PART_INSTALL": folder}, check=True)
            tree.update(oci.tree(folder))
        for given in part.get("permissions", ()):
            path = given["path"]
            tree[path] = Entry(
                tree[path].content, int(given["mode"], 8), given["owner"], given["group"],
                folder=tree[path].folder,
            )  # fmt: skip
    return tree


def _python(project: Path, lower: Tree, folder: Path) -> Tree:
    """The wheel and what its lock pins, where pip would install them for the base's Python."""
    python = lower["usr/bin/python3"].target
    version = python.removeprefix("python")
    machine = "aarch64" if "usr/lib/aarch64-linux-gnu" in lower else "x86_64"
    place = f"usr/local/lib/{python}/dist-packages"
    site = folder / "site"
    packages.install(project, site, python=version, machine=machine)
    wheel = packages.wheel(folder, project)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    tree: Tree = dict(oci.tree(site, place, mode=0o644))
    for script in packages.scripts(wheel):
        text = f"#!/usr/bin/python3\nimport sys\nfrom {script.module} import {script.attr}\n"
        text += f"sys.exit({script.attr}())\n"
        tree[f"usr/local/bin/{script.name}"] = Entry(text.encode(), mode=0o755)
    return tree


def _annotations(recipe: Recipe, lower: Tree) -> dict[str, str]:
    release = _read(lower["usr/lib/os-release"]).decode()
    system = next(line for line in release.splitlines() if line.startswith("PRETTY_NAME="))
    facts = recipe.facts
    return {
        "org.opencontainers.image.title": facts["title"],
        "org.opencontainers.image.description": facts["summary"],
        "org.opencontainers.image.version": recipe.version,
        "org.opencontainers.image.licenses": facts["license"],
        "io.istio-aux.base": f"packages of {system.partition('=')[2].strip(chr(34))}; "
        f"not the rock's {facts['base']}",
    }


def _read(entry: Entry) -> bytes:
    if isinstance(entry.content, bytes):
        return entry.content
    with entry.content.path.open("rb") as file:
        file.seek(entry.content.offset)
        return file.read(entry.content.size)


def _digest(recipe: Recipe, debs: list[Path]) -> str:
    digest = hashlib.sha256()
    names = ("pyproject.toml", "uv.lock", "README.md", "LICENSE", RECIPE)
    sources = [recipe.folder / name for name in names]
    code = (path for path in (recipe.folder / "src").rglob("*") if path.is_file())
    sources += sorted(path for path in code if "__pycache__" not in path.parts)
    makers = [Path(__file__), Path(oci.__file__), Path(packages.__file__)]
    for path in itertools.chain(sources, makers, [golang.path(golang.PEBBLE)]):
        digest.update(f"\n{path.name}\n".encode() + path.read_bytes())
    for deb in debs:
        digest.update(f"\n{deb.name}".encode())
    return digest.hexdigest()[:16]


def main() -> int:
    out = packages.ROOT / "dist"
    try:
        made = image()
        places = [oci.copy(made, out / made.name), packages.wheel(out)]
        debs = base_packages(Recipe.read(packages.WORKLOAD))
        for place, bill in (
            (made.with_name(made.name.replace(".oci.tar", ".cdx.json")), sbom.of_image(debs)),
            (Path(f"istio-aux-charm-{packages.version(packages.ROOT)}.cdx.json"), sbom.of_charm()),
        ):
            places.append(out / place.name)
            places[-1].write_text(bill)
    except (ToolError, ChildProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(str(place.relative_to(packages.ROOT)) for place in places))
    return 0


if __name__ == "__main__":
    sys.exit(main())
