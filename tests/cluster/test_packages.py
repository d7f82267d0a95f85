"""What ships: wheels, as people with a kubeconfig and nothing else use them, image and charm."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path

import lab
import lightkube
import pytest
from lab import cache, interpreters, oci, pack, packages, rock, tools
from lab.fixtures import make_namespace
from lab.kubelet import ScriptedKubelet
from lab.rock import Recipe
from lab.scene import Scene
from lightkube.resources.core_v1 import Namespace

# Measured on 2 busy cores: 5 s.
ANSWER = 100


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return packages.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def image() -> Path:
    """The image of this checkout."""
    if not shutil.which("apt-get"):
        pytest.skip("an image needs Debian or Ubuntu: there is no apt-get")
    return rock.image()


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions that were tested: what else there is today, is not for this test to say."""
    file = tmp_path_factory.mktemp("pins") / "pins.txt"
    file.write_text(packages.exported(packages.WORKLOAD, hashes=False))
    return file


@pytest.fixture(scope="module")
def stuck(client: lightkube.Client, kubelet: ScriptedKubelet) -> Iterator[str]:
    """A namespace with a pod that is stuck."""
    name = f"packaged-{secrets.token_hex(3)}"
    make_namespace(client, name)
    scene = Scene(client, kubelet, name, name)
    kubelet.finish(scene.start("stuck"), "main")
    yield name
    client.delete(Namespace, name)


def run(cluster: lab.Cluster, *argv: object, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with the cluster's kubeconfig."""
    search = os.pathsep.join(filter(None, [path, os.environ["PATH"]]))
    given = {**os.environ, "PATH": search, "KUBECONFIG": str(cluster.kubeconfig)}
    given.pop("VIRTUAL_ENV", None)
    command = [str(each) for each in argv]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=ANSWER, check=False
    )


def test_kubectl_finds_its_plugin_where_the_wheel_is_installed(
    cluster: lab.Cluster, stuck: str, wheel: Path, pins: Path, tmp_path: Path
):
    venv = tmp_path / "venv"
    packages.uv("venv", "--python", sys.executable, str(venv))
    python = ("--python", str(venv))
    packages.uv("pip", "install", *python, "--constraints", str(pins), str(wheel))
    kubectl = tools.path("kubectl")

    done = run(cluster, kubectl, "istio-aux", "audit", "-n", stuck, path=str(venv / "bin"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:3] == [stuck, "stuck", "stuck"]
    elsewhere = run(
        cluster, kubectl, "istio-aux", "audit", "--context", "x", path=str(venv / "bin")
    )
    assert 'context: "x": expected one of: ' in elsewhere.stderr
    listed = run(cluster, kubectl, "plugin", "list", path=str(venv / "bin")).stdout
    assert str(venv / "bin/kubectl-istio_aux") in listed


def test_uvx_runs_the_wheel_with_a_kubeconfig_alone(
    cluster: lab.Cluster, stuck: str, wheel: Path, pins: Path
):
    uvx = Path(interpreters.uv()).with_name("uvx")
    tool = (uvx, "--quiet", "--python", sys.executable, "--constraints", pins, "--from", wheel)

    audit = run(cluster, *tool, "istio-aux", "audit", "-n", stuck, "-o", "json")
    check = run(cluster, *tool, "istio-aux", "check", "-o", "json")

    assert (audit.returncode, audit.stderr) == (0, "")
    assert [json.loads(line)["state"] for line in audit.stdout.splitlines()] == ["stuck"]
    found = {each["check"]: each for each in map(json.loads, check.stdout.splitlines())}
    assert (check.stderr, found["rights"]["result"]) == ("", "ok")


def test_the_wheel_holds_licence_readme_links_and_classifiers(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        [folder] = {n.partition("/")[0] for n in archive.namelist() if ".dist-info/" in n}
        licence = archive.read(f"{folder}/licenses/LICENSE").decode()
        metadata = HeaderParser().parsestr(archive.read(f"{folder}/METADATA").decode())

    assert licence == (packages.ROOT / "LICENSE").read_text()
    assert metadata["Version"] == packages.version()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    readme = str(metadata.get_payload())
    assert readme.lstrip().startswith("# istio-aux")
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert [link for link in links if not link.startswith(("#", "https://"))] == []
    assert metadata.get_all("Project-URL")
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_same_checkout_makes_the_same_wheel(wheel: Path, tmp_path: Path):
    assert packages.wheel(tmp_path).read_bytes() == wheel.read_bytes()


def test_the_same_inputs_make_the_same_image(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither the folder nor the umask changes it."""
    recipe = Recipe.read(packages.WORKLOAD)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = os.umask(0o077)
    try:
        rock.make(recipe, rock.base_packages(recipe), tmp_path / "again.oci.tar")
    finally:
        os.umask(before)
    assert (tmp_path / "again.oci.tar").read_bytes() == image.read_bytes()


def test_containers_start_as_the_recipe_says(image: Path):
    config = oci.config_of(image)
    assert config["User"] == Recipe.read(packages.WORKLOAD).facts["run-user"]
    assert config["Entrypoint"] == ["/usr/bin/pebble", "enter"]


def test_nothing_in_the_image_names_the_checkout_or_the_machine(image: Path):
    content = image.read_bytes()
    assert b"istio_aux/cli/commands.py" in content
    for place in (packages.ROOT, sys.prefix, cache.root(), tempfile.gettempdir() + "/istio-aux"):
        assert str(place).encode() not in content


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def charm() -> Path:
    """The packed charm of this checkout."""
    return pack.pack(ROOT)


@pytest.fixture(scope="module")
def content(charm: Path) -> dict[str, zipfile.ZipInfo]:
    """What is in it, by path."""
    with zipfile.ZipFile(charm) as archive:
        return {entry.filename: entry for entry in archive.infolist()}


def test_the_charm_has_what_it_needs_and_nothing_else(content: dict[str, zipfile.ZipInfo]) -> None:
    """Its own code, and its dependencies for the Python that runs it.

    Charmcraft's uv plugin copies neither icon nor license.
    """
    python, _ = interpreters.shipped()
    command = [python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    site_packages = f"venv/lib/{version}/site-packages"
    wanted = {f"{site_packages}/{name}/__init__.py" for name in ("ops", "lightkube", "jinja2")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py")}
    wanted |= {"metadata.yaml", "config.yaml", "manifest.yaml", "icon.svg", "LICENSE"}

    assert wanted - set(content) == set()


def test_the_charm_has_of_the_workload_its_model_and_nothing_of_tests(
    content: dict[str, zipfile.ZipInfo],
) -> None:
    folders = {name.partition("/")[0] for name in content if "/" in name}
    assert folders <= {"src", "lib", "venv"}
    others = {name for name in content if name.startswith("src/istio_aux/")}
    assert {name for name in others if not name.startswith("src/istio_aux/model/")} == {
        "src/istio_aux/__init__.py"
    }


def test_the_packed_charm_has_all_that_it_imports(charm: Path, tmp_path: Path) -> None:
    """On the path that `dispatch` sets, without this checkout."""
    with zipfile.ZipFile(charm) as archive:
        archive.extractall(tmp_path)
    python, _ = interpreters.shipped()
    (packages,) = tmp_path.glob("venv/lib/python*/site-packages")
    path = os.pathsep.join(map(str, (tmp_path / "src", tmp_path / "lib", packages)))
    modules = (file.stem for file in (tmp_path / "src").glob("*.py"))
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(
        [python, "-P", "-c", f"import {', '.join(modules)}"], env=environment, check=True
    )


def test_the_library_is_a_package_of_its_own(tmp_path: Path) -> None:
    """With the module that charms import, and nothing else; its version is the module's."""
    build = [interpreters.uv(), "build", "--quiet", "--wheel", str(ROOT / "lib")]
    subprocess.run([*build, "--out-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    module = "charms/istio_aux/v0/sidecar.py"
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if "dist-info" not in name} == {module}
        text = archive.read(module).decode()
    said = dict(re.findall(r"^(LIBAPI|LIBPATCH) = (\d+)", text, re.MULTILINE))
    assert wheel.name.split("-")[1] == f"{said['LIBAPI']}.{said['LIBPATCH']}"
