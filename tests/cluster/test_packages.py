"""What ships: wheels, as people with a kubeconfig and nothing else use them, image and charm.

And the program that is one file, where there is nothing else: no Python, no PATH, no shell.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import HeaderParser
from functools import partial
from pathlib import Path
from typing import Any

import lab
import pytest
from istio_aux import revision
from istio_aux.model.names import REPOSITORY
from lab import tools
from lab.scene import Scene

from tools import cache, interpreters, oci, packages, program, rock
from tools.rock import UIDS, Recipe

# Measured on 2 busy cores: 5 s.
ANSWER = 100


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packages.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def image() -> Path:
    if not shutil.which("apt-get"):
        pytest.skip("an image needs Debian or Ubuntu: there is no apt-get")
    return rock.image()


@pytest.fixture(scope="module")
def pins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions that were tested: what else there is today, is not for this test to say."""
    file = tmp_path_factory.mktemp("pins") / "pins.txt"
    file.write_text(packages.exported(packages.WORKLOAD, "--no-hashes"))
    return file


@pytest.fixture
def stuck(alone: Scene) -> str:
    """A namespace with a pod that is stuck."""
    alone.kubelet.finish(alone.start("stuck"), "main")
    return alone.namespace


def ran(*argv: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """What a command says, with this environment alone."""
    given = {"PATH": os.environ["PATH"], **{k: str(v) for k, v in environment.items()}}
    command = [str(each) for each in argv]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=ANSWER, check=False
    )


def run(cluster: lab.Cluster, *argv: object, path: str = "") -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join(filter(None, [path, os.environ["PATH"]]))
    given = {**os.environ, "PATH": search, "KUBECONFIG": str(cluster.kubeconfig)}
    given.pop("VIRTUAL_ENV", None)
    return ran(*argv, **given)


def test_kubectl_finds_its_plugin_where_the_wheel_is_installed(
    cluster: lab.Cluster, stuck: str, wheel: Path, pins: Path, tmp_path: Path
):
    venv = tmp_path / "venv"
    packages.uv("venv", "--python", sys.executable, str(venv))
    packages.uv("pip", "install", "--python", str(venv), "--constraints", str(pins), str(wheel))
    kubectl = tools.path("kubectl")

    done = run(cluster, kubectl, "istio-aux", "audit", "-n", stuck, path=str(venv / "bin"))

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:4] == [stuck, "pod/stuck", "1", "stuck"]
    elsewhere = run(
        cluster, kubectl, "istio-aux", "audit", "--context", "x", path=str(venv / "bin")
    )
    assert 'context: "x": expected one of: ' in elsewhere.stderr
    listed = run(cluster, kubectl, "plugin", "list", path=str(venv / "bin")).stdout
    assert str(venv / "bin/kubectl-istio_aux") in listed


def test_uvx_runs_the_program_from_a_repository_of_git(
    cluster: lab.Cluster, stuck: str, pins: Path, tmp_path: Path
):
    """With the document's words, where the repository has an address of this machine.

    It has what git would take of the checkout as it is now. A folder in its place would also have
    what git ignores.
    """
    git = ("git", f"--git-dir={tmp_path}/.git", f"--work-tree={packages.ROOT}")
    author = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "workload"], check=True)
    subprocess.run([*git, *author, "commit", "--quiet", "--message=all"], check=True)
    page = (packages.ROOT / "docs/reference/packages.md").read_text()
    [words] = re.findall(r'^uvx --from "(git\+\S+#\S+)" istio-aux audit$', page, re.MULTILINE)
    source = words.replace(REPOSITORY, tmp_path.as_uri())

    done = run(cluster, *uvx(pins), "--no-cache", "--from", source, "istio-aux", "audit")

    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[:4] for line in done.stdout.splitlines()]
    assert [stuck, "pod/stuck", "1", "stuck"] in rows


def uvx(pins: Path) -> tuple[object, ...]:
    program = Path(interpreters.uv()).with_name("uvx")
    return program, "--quiet", "--python", sys.executable, "--constraints", pins


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
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_the_same_checkout_makes_the_same_wheel(wheel: Path, tmp_path: Path):
    assert packages.wheel(tmp_path).read_bytes() == wheel.read_bytes()


@pytest.mark.nightly("the wheel, of which the image is made")
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
    assert config["User"] == str(UIDS[Recipe.read(packages.WORKLOAD).facts["run-user"]])
    assert config["Entrypoint"] == ["/usr/bin/pebble", "enter"]


def test_docker_finds_in_the_archive_what_containerd_does(image: Path):
    """minikube runs `docker load`; kind and containerd read `index.json`."""

    def read(archive: tarfile.TarFile, name: str) -> Any:
        file = archive.extractfile(name)
        assert file
        return json.load(file)

    with tarfile.open(image) as archive:
        names = archive.getnames()
        [own], index = read(archive, "manifest.json"), read(archive, "index.json")
        config = read(archive, own["Config"])
    assert own["Layers"] == [
        f"blobs/{each.replace(':', '/')}" for each in config["rootfs"]["diff_ids"]
    ]
    assert {*own["Layers"], own["Config"]} <= {*names}
    [manifest] = index["manifests"]
    assert own["RepoTags"] == [manifest["annotations"]["io.containerd.image.name"]]


def test_nothing_in_the_image_names_the_checkout_or_the_machine(image: Path):
    content = image.read_bytes()
    assert b"istio_aux/cli/commands.py" in content
    for place in (packages.ROOT, sys.prefix, cache.root(), tempfile.gettempdir() + "/istio-aux"):
        assert str(place).encode() not in content


@pytest.fixture(scope="module")
def charm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make pack` writes on a machine whose only Python is the one that runs the tests."""
    nothing = tmp_path_factory.mktemp("pyenv")
    foreign = ("PYENV", "UV_", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYENV_ROOT": str(nothing),
        "UV_PYTHON_INSTALL_DIR": str(nothing),
    }
    command = [sys.executable, "-m", "tools.pack"]
    done = subprocess.run(
        command, cwd=packages.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return packages.ROOT / done.stdout.strip()


@pytest.fixture(scope="module")
def content(charm: Path) -> dict[str, zipfile.ZipInfo]:
    with zipfile.ZipFile(charm) as archive:
        return {entry.filename: entry for entry in archive.infolist()}


def test_the_charm_is_written_to_dist_under_the_name_that_charmcraft_uses(charm: Path) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    assert charm == packages.ROOT / f"dist/istio-aux_{machine}.charm"


def test_the_charm_has_what_it_needs_and_nothing_else(content: dict[str, zipfile.ZipInfo]) -> None:
    """Its own code, and its dependencies for the Python that ships, whatever packed it.

    Charmcraft's uv plugin copies neither icon nor license.
    """
    site_packages = f"venv/lib/python{interpreters.SHIPPED}/site-packages"
    wanted = {f"{site_packages}/{name}/__init__.py" for name in ("ops", "lightkube", "jinja2")}
    wanted |= {
        str(path.relative_to(packages.ROOT)) for path in (packages.ROOT / "src").rglob("*.py")
    }
    wanted |= {f"{site_packages}/charmlibs/interfaces/istio_sidecar/__init__.py"}
    wanted |= {"metadata.yaml", "config.yaml", "manifest.yaml", "icon.svg", "LICENSE"}
    compiled = [name for name in content if name.endswith(".so")]

    assert wanted - set(content) == set()
    assert {name for name in content if name.startswith("venv/lib/")} == {
        name for name in content if name.startswith(site_packages)
    }
    assert compiled
    assert [n for n in compiled if not re.search(r"\.(cpython-312-[^/]*|abi3)\.so$", n)] == []


def test_the_charm_has_of_the_workload_its_model_and_settings_and_nothing_of_tests(
    content: dict[str, zipfile.ZipInfo],
) -> None:
    assert {name.partition("/")[0] for name in content if "/" in name} == {"src", "venv"}
    others = {name for name in content if name.startswith("src/istio_aux/")}
    assert {name for name in others if not name.startswith("src/istio_aux/model/")} == {
        "src/istio_aux/__init__.py",
        "src/istio_aux/settings.py",
    }


@pytest.mark.parametrize("folder", ["", "testing"])
def test_the_library_and_its_testing_library_are_packages(folder: str, tmp_path: Path) -> None:
    """With modules of their own, so that other packages share the namespace."""
    project = packages.ROOT / "lib/istio-sidecar" / folder
    build = [interpreters.uv(), "build", "--quiet", "--wheel", str(project)]
    subprocess.run([*build, "--out-dir", str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if "dist-info" not in name}
    own = {str(path.relative_to(project / "src")) for path in (project / "src").rglob("*.*")}
    assert held == {name for name in own if "__pycache__" not in name}
    assert any(name.endswith("py.typed") for name in held)


PROGRAM = pytest.mark.nightly("the wheel and the image")
# A container has these two. The program unpacks itself into /tmp.
ENTER = """
for folder in proc dev; do mount --rbind /$folder "$1/$folder"; done
root=$1; shift
exec env -i PATH= KUBECONFIG=/kubeconfig /usr/sbin/chroot "$root" "$@"
"""


@pytest.fixture(scope="module")
def made() -> Path:
    return program.program()


@pytest.fixture(scope="module")
def system(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a Debian with its C library, zlib and the program, and nothing else.

    PyInstaller's bootloader unpacks with zlib. Debian's, Ubuntu's and Red Hat's packages need both
    before anything else can be installed.
    """
    root = tmp_path_factory.mktemp("bare")
    for archive in rock.archives(["base-files", "libc6", "zlib1g"]):
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
    for folder in ("proc", "dev", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    shutil.copy(made, root / "istio-aux")
    return root


def inside(system: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """What a command of the bare system says; root of it, whoever runs the test."""
    namespaces = ["--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return ran("unshare", *namespaces, "sh", "-euc", ENTER, "sh", system, *argv)


@PROGRAM
def test_a_bare_system_has_no_python(system: Path) -> None:
    """So what follows shows something."""
    assert (system / "etc/debian_version").exists()
    assert [path for path in system.rglob("*") if "python" in path.name] == []
    assert not (system / "bin/sh").exists()


@PROGRAM
def test_the_program_is_the_checkouts(system: Path, made: Path) -> None:
    said = inside(system, "/istio-aux", "--version")
    assert said.stdout == f"istio-aux {packages.version()}, revision {revision()}\n", said.stderr
    assert made.stat().st_size < 15e6
    needed, own = (each.split(".") for each in (program.needs(made), platform.libc_ver()[1]))
    assert [*map(int, needed)] <= [*map(int, own)]


@PROGRAM
def test_on_a_bare_system_it_finds_and_frees_a_pod_that_hangs(
    system: Path, cluster: lab.Cluster, alone: Scene
) -> None:
    hung, works = alone.start("hung"), alone.start("works")
    alone.kubelet.finish(hung, "main")
    shutil.copy(cluster.kubeconfig, system / "kubeconfig")

    found = inside(system, "/istio-aux", "audit", "-n", alone.namespace)
    done = inside(system, "/istio-aux", "quit", "-n", alone.namespace, "--yes")

    assert "pod/hung" in found.stdout, found.stderr
    assert (done.returncode, done.stderr) == (0, "")
    alone.await_phase(hung, "Succeeded")
    assert alone.phase(works) == "Running"


@PROGRAM
@pytest.mark.parametrize(
    "place", ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt"]
)
def test_it_trusts_the_authorities_of_the_system_where_a_kubeconfig_names_none(
    place: str, system: Path, cluster: lab.Cluster
) -> None:
    """Of Debian, and of another distribution than that on which it was packed."""
    config: dict[str, Any] = json.loads(cluster.kubeconfig.read_text())
    authority = config["clusters"][0]["cluster"].pop("certificate-authority-data")
    (system / "kubeconfig").write_text(json.dumps(config))

    stranger = inside(system, "/istio-aux", "audit")
    file = system / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(base64.b64decode(authority))
    trusted = inside(system, "/istio-aux", "audit")
    file.unlink()

    assert "certificate verify failed" in stranger.stderr
    assert (trusted.returncode, trusted.stderr) == (0, "")


@PROGRAM
def test_a_credential_plugin_finds_its_own_libraries_and_not_the_packed_ones(
    made: Path, cluster: lab.Cluster, tmp_path: Path
) -> None:
    config: dict[str, Any] = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
            "command": "/bin/sh",
            "args": ["-c", 'echo "libraries: ${LD_LIBRARY_PATH-none}" >&2; exit 3'],
        }
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))

    for before, wanted in (({}, "none"), ({"LD_LIBRARY_PATH": "/opt/own"}, "/opt/own")):
        assert f"libraries: {wanted}" in ran(made, "audit", "--kubeconfig", file, **before).stderr


@PROGRAM
def test_a_link_of_another_name_makes_it_a_plugin_of_kubectl(
    made: Path, cluster: lab.Cluster, alone: Scene, tmp_path: Path
) -> None:
    """As krew makes one; kubectl reads `_` as the dash of a command."""
    (tmp_path / "kubectl-istio_aux").symlink_to(made)
    plugin = partial(ran, tools.path("kubectl"), "istio-aux", "audit", PATH=tmp_path)

    said = plugin("-n", alone.namespace, KUBECONFIG=cluster.kubeconfig)

    assert (said.returncode, said.stderr) == (0, "")
    assert plugin("--help").stdout.startswith("usage: kubectl istio-aux audit ")


@PROGRAM
def test_a_shell_completes_its_commands(made: Path, tmp_path: Path) -> None:
    (tmp_path / "istio-aux").symlink_to(made)
    script = """
    source <(istio-aux completion bash)
    COMP_WORDS=(istio-aux aud) COMP_CWORD=1 COMP_LINE="istio-aux aud" COMP_POINT=13 COMP_TYPE=9
    _python_argcomplete istio-aux aud istio-aux
    echo "${COMPREPLY[*]}"
    """
    done = ran("bash", "-c", script, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stdout.split() == ["audit"]


PAGES = ("README.md", "docs/how-to/free-my-job.md")


@PROGRAM
@pytest.mark.parametrize("page", PAGES)
def test_one_line_of_a_page_fetches_it_and_its_next_lines_find_it(
    page: str, made: Path, tmp_path: Path
) -> None:
    """From an empty folder, where the releases have an address of this machine."""
    text = (packages.ROOT / page).read_text()
    [line] = re.findall(rf"^curl .+{REPOSITORY}/releases/latest/download/.+$", text, re.MULTILINE)
    released = tmp_path / "releases/latest/download"
    released.mkdir(parents=True)
    (released / "istio-aux-linux-amd64").symlink_to(made)
    (tmp_path / "empty").mkdir()
    script = (
        line.replace(REPOSITORY, tmp_path.as_uri()) + "\ntype -p istio-aux; istio-aux --version"
    )

    done = ran("bash", "-euc", 'cd "$1"; ' + script, "bash", tmp_path / "empty")

    place, said = done.stdout.splitlines()
    assert place == str(tmp_path / "empty/istio-aux")
    assert said.startswith(f"istio-aux {packages.version()}, ")


@PROGRAM
def test_the_same_inputs_make_the_same_program(made: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    python, _ = interpreters.shipped()
    program.pack(python, packages.wheel(tmp_path / "wheel"), tmp_path, tmp_path / "into")
    assert (tmp_path / "into" / made.name).read_bytes() == made.read_bytes()
