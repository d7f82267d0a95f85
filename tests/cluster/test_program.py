"""The program that is one file, where there is nothing else: no Python, no PATH, no shell."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import lab
import pytest
from istio_aux import revision
from istio_aux.model.names import REPOSITORY
from lab import tools
from lab.scene import Scene

from tools import interpreters, packages, program, rock

pytestmark = pytest.mark.nightly("test_packages.py: the wheel and the image")
# Measured on 2 busy cores: 3 s.
ANSWER = 100
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


def ran(*argv: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """What a command says, with this environment alone."""
    given = {"PATH": os.environ["PATH"], **{k: str(v) for k, v in environment.items()}}
    command = [str(each) for each in argv]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=ANSWER, check=False
    )


def inside(system: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """What a command of the bare system says; root of it, whoever runs the test."""
    namespaces = ["--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return ran("unshare", *namespaces, "sh", "-euc", ENTER, "sh", system, *argv)


def test_a_bare_system_has_no_python(system: Path) -> None:
    """So what follows shows something."""
    assert (system / "etc/debian_version").exists()
    assert [path for path in system.rglob("*") if "python" in path.name] == []
    assert not (system / "bin/sh").exists()


def test_the_program_is_the_checkouts(system: Path, made: Path) -> None:
    said = inside(system, "/istio-aux", "--version")
    assert said.stdout == f"istio-aux {packages.version()}, revision {revision()}\n", said.stderr
    assert made.stat().st_size < 15e6
    needed, own = (each.split(".") for each in (program.needs(made), platform.libc_ver()[1]))
    assert [*map(int, needed)] <= [*map(int, own)]


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


def test_a_credential_plugin_finds_its_own_libraries_and_not_the_packed_ones(
    made: Path, cluster: lab.Cluster, tmp_path: Path
) -> None:
    config: dict[str, Any] = json.loads(cluster.kubeconfig.read_text())
    script = 'echo "libraries: ${LD_LIBRARY_PATH-none}" >&2; exit 3'
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
            "command": "/bin/sh",
            "args": ["-c", script],
        }
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))

    for before, wanted in (({}, "none"), ({"LD_LIBRARY_PATH": "/opt/own"}, "/opt/own")):
        done = ran(made, "audit", "--kubeconfig", file, **before)
        assert f"libraries: {wanted}" in done.stderr


def test_a_link_of_another_name_makes_it_a_plugin_of_kubectl(
    made: Path, cluster: lab.Cluster, alone: Scene, tmp_path: Path
) -> None:
    """As krew makes one; kubectl reads `_` as the dash of a command."""
    (tmp_path / "kubectl-istio_aux").symlink_to(made)
    plugin = partial(ran, tools.path("kubectl"), "istio-aux", "audit", PATH=tmp_path)

    said = plugin("-n", alone.namespace, KUBECONFIG=cluster.kubeconfig)

    assert (said.returncode, said.stderr) == (0, "")
    assert plugin("--help").stdout.startswith("usage: kubectl istio-aux audit ")


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


def test_the_same_inputs_make_the_same_program(made: Path, tmp_path: Path) -> None:
    (tmp_path / "into").mkdir()
    python, _ = interpreters.shipped()
    program.pack(python, packages.wheel(tmp_path / "wheel"), tmp_path, tmp_path / "into")
    assert (tmp_path / "into" / made.name).read_bytes() == made.read_bytes()
