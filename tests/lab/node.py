"""The node level: what it takes to run pods, and whether this machine can.

The supervisor has made the namespaces; here they are furnished, and containerd, kubelet and CoreDNS
are started in them. Files that the components write are on the namespace's own /run, /var/lib and
/var/log, and vanish with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import lightkube
from lightkube.resources.core_v1 import Node

from lab import control_plane, images, kubeconfig, meshed, network, node_config
from lab.processes import Tree, until
from tools import cache, debian
from tools.errors import ToolError

if TYPE_CHECKING:
    from lab.clusters import Cluster

PROGRAMS = ("kube-scheduler", "kubelet", "coredns")
# What pods run on, by the command that shows it is there.
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
}
CNI_PACKAGE = "containernetworking-plugins"
# The kubelet sets these for the whole machine (setupKernelTunables); in its namespace it finds them
# set as it wants them, and the machine keeps its own.
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
# Each proxy has three, and all proxies have one user; Envoy aborts without (watcher_impl.cc), and
# its agent exits with 0. Machines have 128. No namespace has its own number: it stays raised.
INOTIFY, INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances"), 1024
# Measured on 2 cores: containerd serves after 1 s, the node is Ready after 7 s.
START = 100


class UnavailableError(ToolError):
    """This machine cannot run pods; the message is the reason, in one line."""


def unavailable() -> str | None:
    """Why this machine cannot run pods, in one line, or None; packages can be installed."""
    if os.geteuid() != 0:
        return f"pods need root: this is user id {os.geteuid()}"
    if (lacking := _lacking()) and not debian.installable():
        return f"pods need the packages {' '.join(lacking)}, and there is no apt-get"
    unshare = ["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"]
    tried = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"pods need namespaces: {tried.stderr.strip()}"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "pods need cgroups: /sys/fs/cgroup cannot be written"
    return None


def prepare() -> None:
    """Install what is missing. Raises UnavailableError or tools.debian.PackageError."""
    if reason := unavailable():
        raise UnavailableError(reason)
    if lacking := _lacking():
        debian.ensure(lacking)


def _lacking() -> list[str]:
    found = [package for command, package in PACKAGES.items() if not shutil.which(command)]
    return found if node_config.cni_programs() else [*found, CNI_PACKAGE]


def endpoints(cable: network.Cable) -> control_plane.Endpoints:
    """The control plane's endpoints: its namespace is its own, so the ports are the usual ones."""
    return control_plane.Endpoints(
        bind="0.0.0.0",
        advertise=network.NODE,
        public=cable.inside,
        port=443,
        etcd=2379,
        etcd_peer=2380,
        endpoints="lease",
    )


def furnish(tree: Tree) -> network.Cable:
    """Set up network, private folders and cgroup of the namespaces below `tree`."""
    cable = network.plug(tree.name, tree.pid)
    if int(INOTIFY.read_text()) < INOTIFY_INSTANCES:
        with contextlib.suppress(OSError):  # In a container: fewer pods at once, then.
            INOTIFY.write_text(str(INOTIFY_INSTANCES))
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"}:
            # The kubelet wants its root to exist; the supervisor removes it from all hierarchies.
            _make_cgroup(Path(mountpoint, tree.name))
    resolver = tree.state / "resolv.conf"
    domain = control_plane.DOMAIN
    resolver.write_text(f"nameserver {network.DNS}\nsearch svc.{domain} {domain}\n")
    lab = cache.root()
    private = [
        "mount -t tmpfs -o mode=755 lab /run",
        "mkdir -p /run/lab/cache /run/lab/cni /run/lab/lib /run/lab/log /run/lab/layer /run/netns",
        f"mkdir -p {node_config.CNI_FOLDER} /run/istio-cni /run/ztunnel",
        f"ln -s {node_config.cni_programs()}/* {node_config.CNI_FOLDER}",
        f"mount --bind '{lab}' /run/lab/cache",
    ]
    # Over these a writable layer in memory, since the components have paths there that cannot be
    # configured; then the lab's own files back on top, should they lie below.
    for name in ("lib", "log"):
        work = f"/run/lab/layer/{name}"
        layers = f"lowerdir=/var/{name},upperdir=/run/lab/{name},workdir={work}"
        private.append(f"mkdir {work} && mount -t overlay -o {layers} lab /var/{name}")
    for name, value in TUNABLES.items():
        fake = f"/run/lab/tunables/{name}"
        private.append(f"mkdir -p {fake.rpartition('/')[0]} && echo {value} > {fake}")
        private.append(f"mount --bind {fake} /proc/sys/{name}")
    private += [
        f"mkdir -p '{lab}' && mount --bind /run/lab/cache '{lab}'",
        'resolver=$(readlink -m /etc/resolv.conf); mkdir -p "${resolver%/*}"',
        '[ -e "$resolver" ] || touch "$resolver"',
        f"mount --bind '{resolver}' \"$resolver\"",
    ]
    script = "\n".join(["set -e", *private, *network.inner_commands(cable)])
    tree.run("furnish", ["sh", "-xc", script], timeout=START, cwd=Path("/"))
    return cable


def _make_cgroup(path: Path) -> None:
    path.mkdir(exist_ok=True)
    # cpuset of version 1 starts empty, and takes no process before it has cores and memory.
    for name in ("cpuset.cpus", "cpuset.mems"):
        value = path / name
        if value.exists() and not value.read_text().strip():
            value.write_text((path.parent / name).read_text())
    # Version 2 gives a group the controllers that its parent passes on.
    offered, passed = path.parent / "cgroup.controllers", path.parent / "cgroup.subtree_control"
    if offered.exists():
        for controller in offered.read_text().split():
            with contextlib.suppress(OSError):
                passed.write_text(f"+{controller}")


def start_runtime(cluster: Cluster, tree: Tree) -> None:
    """Start containerd and give it the image that every pod needs."""
    configuration = cluster.state / "containerd.toml"
    configuration.write_text(node_config.configuration(images.PAUSE))
    (cluster.state / "cni.conflist").write_text(network.cni())
    copy = ["cp", cluster.state / "cni.conflist", f"{node_config.CNI_CONFIGURATION}/lab.conflist"]
    tree.run("cni", copy, timeout=START)
    containerd = cluster.spawn("containerd", ["containerd", "--config", configuration])
    # The socket as seen through the namespace's root.
    socket_path = f"/proc/{tree.pid}/root{node_config.SOCKET}"

    def serving() -> bool:
        containerd.check()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(socket_path)
        return True

    not_yet = (ConnectionError, FileNotFoundError)
    until(serving, what=f"containerd ({containerd.log})", ignoring=not_yet)


def load(tree: Tree, image: Path) -> None:
    where = ["--address", node_config.SOCKET, "--namespace", "k8s.io"]
    tree.run("ctr", ["ctr", *where, "images", "import", image], timeout=START)


def start(cluster: Cluster, programs: Mapping[str, Path], files: control_plane.Credentials) -> None:
    """Start what makes pods run, and return when the node is Ready."""
    authority, ca = files.authority, cluster.ca
    name = f"system:node:{node_config.NODE_NAME}"
    pair = authority.issue("node", name, organizations=["system:nodes"])
    config = cluster.state / "kubelet.kubeconfig"
    kubeconfig.write(config, cluster.server, ca, user=name, has=pair)
    settings = cluster.state / "kubelet.json"
    settings.write_text(node_config.kubelet(cluster.name, cluster.logs, files))
    flags = {
        "config": settings,
        "kubeconfig": config,
        "root-dir": "/run/lab/kubelet",
        "cert-dir": "/run/lab/kubelet-certificates",
        "hostname-override": node_config.NODE_NAME,
        "node-ip": network.NODE,
    }
    argv = [programs["kubelet"], *(f"--{flag}={value}" for flag, value in flags.items())]
    kubelet = cluster.spawn("kubelet", argv)
    corefile = cluster.state / "Corefile"
    corefile.write_text(node_config.coredns(cluster.kubeconfig))
    cluster.spawn("coredns", [programs["coredns"], "-conf", corefile])

    def ready() -> bool:
        kubelet.check()
        return meshed.is_ready(client.get(Node, node_config.NODE_NAME))

    with cluster.client() as client:
        not_yet = (lightkube.ApiError,)
        until(ready, what=f"the node ({kubelet.log})", ignoring=not_yet)
