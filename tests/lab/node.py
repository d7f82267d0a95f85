"""The node level: what it takes to run pods, and whether this machine can.

The supervisor has made the namespaces; here they are furnished, with addresses and the one cable to
the harness, and containerd, kubelet and CoreDNS are configured and started in them. Files that the
components write are on the namespace's own /run, /var/lib and /var/log, and vanish with it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightkube
from lightkube.resources.core_v1 import Node

from lab import images, meshed
from lab.control_plane import DOMAIN, KUBERNETES, Credentials, Endpoints, write_kubeconfig
from lab.processes import Tree, until
from tools import cache, debian, errors
from tools.errors import ToolError

if TYPE_CHECKING:
    from lab.clusters import Cluster

# Inside every node's own namespace, so the same in all of them.
NODE = "10.250.0.1"
DNS = "10.250.0.10"
PODS = "10.244.0.0/24"
# Benchmark networks (RFC 2544): nobody routes them. Each node's cable has a /30 of its own.
CABLES = ipaddress.ip_network("198.18.0.0/16")
INSIDE = "uplink"


class NetworkError(ToolError):
    """An `ip` command failed; the message holds what it said."""


@dataclass(frozen=True)
class Cable:
    """The two ends of the virtual cable between harness and node."""

    name: str
    outside: str
    inside: str


def plug(name: str, pid: int) -> Cable:
    """Lay a cable to the network namespace of `pid`, gone with that. Raises NetworkError."""
    # Between the choice of a subnet and its use no other harness may choose.
    with cache.lock(cache.root() / "network.lock"):
        used = {
            ipaddress.ip_network(f"{address['local']}/30", strict=False)
            for link in json.loads(_ip("-json", "-4", "address", "show"))
            for address in link.get("addr_info", [])
        }
        subnets = list(CABLES.subnets(new_prefix=30))
        subnet = random.choice([subnet for subnet in subnets if subnet not in used])
        outside, inside = (str(host) for host in subnet.hosts())
        _ip("link", "add", name, "type", "veth", "peer", "name", INSIDE, "netns", str(pid))
        _ip("address", "add", f"{outside}/30", "dev", name)
        _ip("link", "set", name, "up")
    return Cable(name, outside, inside)


def inner_commands(cable: Cable) -> list[str]:
    """The shell commands that complete the network inside the node's namespaces."""
    return [
        "ip link set lo up",
        *[f"ip address add {address}/32 dev lo" for address in (NODE, DNS, KUBERNETES)],
        f"ip address add {cable.inside}/30 dev {INSIDE}",
        f"ip link set {INSIDE} up",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ]


def cni_settings() -> str:
    """The CNI configuration: a cable of its own for every pod, host ports as asked for."""
    pool = {"type": "host-local", "dataDir": "/run/lab/ipam", "ranges": [[{"subnet": PODS}]]}
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": {**pool, "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": plugins}, indent=2)


def _ip(*arguments: str) -> str:
    return errors.run(["ip", *arguments], NetworkError)


CONTAINERD = "/run/containerd/containerd.sock"
CNI_CONFIGURATION = "/run/lab/cni"
# Links to the machine's programs; Istio's CNI agent adds its own.
CNI_FOLDER = "/run/lab/cni-programs"
# Debian, and where upstream's archives are unpacked.
CNI_PROGRAMS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

CONTAINERD_SETTINGS = """\
version = 2
root = "/run/lab/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "/run/lab/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Without CAP_SYS_RESOURCE runc fails on a lower score: "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  disable_apparmor = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_programs}"
    conf_dir = "{cni_configuration}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def cni_programs() -> Path | None:
    return next((path for path in CNI_PROGRAMS if (path / "ptp").exists()), None)


def containerd_settings(pause: str) -> str:
    """containerd's configuration (version 2, read by 1.6 and later)."""
    return CONTAINERD_SETTINGS.format(
        socket=CONTAINERD,
        pause=pause,
        cni_programs=CNI_FOLDER,
        cni_configuration=CNI_CONFIGURATION,
    )


NODE_NAME = "node"
NEVER = "0%"


def kubelet_settings(name: str, logs: Path, files: Credentials) -> str:
    """The kubelet's configuration file; `name` is the cgroup it stays below."""
    serving = files.authority.issue("kubelet", NODE_NAME, hosts=[NODE, NODE_NAME])
    thresholds = ("memory.available", "nodefs.available", "nodefs.inodesFree")
    images = ("imagefs.available", "imagefs.inodesFree")
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(files.authority.pair.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "clusterDNS": [DNS],
        "clusterDomain": DOMAIN,
        "resolvConf": "/etc/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
        "podLogsDir": str(logs / "pods"),
        "volumePluginDir": "/run/lab/volume-plugins",
        # The machine is not the lab's own: any amount of resources is enough, and cgroups v1 too.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{name}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": dict.fromkeys((*thresholds, *images), NEVER),
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        # A changed Secret reaches its pod at the pod's next sync, after up to 90 s by default: the
        # training-operator writes its certificate into one and then waits for it.
        "syncFrequency": "5s",
        # The least that the kubelet allows; a container's second restart would wait 10 s otherwise.
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        # On by default since 1.35.
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
    }
    return json.dumps(configuration, indent=2)


def corefile_of(kubeconfig: Path) -> str:
    """CoreDNS's configuration: the cluster's own names, and nothing beyond."""
    return f"""\
.:53 {{
    bind {DNS}
    errors
    kubernetes {DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig} lab
        pods verified
        ttl 1
    }}
}}
"""


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
    return found if cni_programs() else [*found, CNI_PACKAGE]


def endpoints(cable: Cable) -> Endpoints:
    """The control plane's endpoints: its namespace is its own, so the ports are the usual ones."""
    return Endpoints(
        bind="0.0.0.0",
        advertise=NODE,
        public=cable.inside,
        port=443,
        etcd=2379,
        etcd_peer=2380,
        endpoints="lease",
    )


def furnish(tree: Tree) -> Cable:
    """Set up network, private folders and cgroup of the namespaces below `tree`."""
    cable = plug(tree.name, tree.pid)
    if int(INOTIFY.read_text()) < INOTIFY_INSTANCES:
        with contextlib.suppress(OSError):  # In a container: fewer pods at once, then.
            INOTIFY.write_text(str(INOTIFY_INSTANCES))
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mountpoint, kind, *_ = line.split()
        if kind in {"cgroup", "cgroup2"}:
            # The kubelet wants its root to exist; the supervisor removes it from all hierarchies.
            _make_cgroup(Path(mountpoint, tree.name))
    resolver = tree.state / "resolv.conf"
    domain = DOMAIN
    resolver.write_text(f"nameserver {DNS}\nsearch svc.{domain} {domain}\n")
    lab = cache.root()
    private = [
        "mount -t tmpfs -o mode=755 lab /run",
        "mkdir -p /run/lab/cache /run/lab/cni /run/lab/lib /run/lab/log /run/lab/layer /run/netns",
        f"mkdir -p {CNI_FOLDER} /run/istio-cni /run/ztunnel",
        f"ln -s {cni_programs()}/* {CNI_FOLDER}",
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
    script = "\n".join(["set -e", *private, *inner_commands(cable)])
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
    configuration.write_text(containerd_settings(images.PAUSE))
    (cluster.state / "cni.conflist").write_text(cni_settings())
    copy = ["cp", cluster.state / "cni.conflist", f"{CNI_CONFIGURATION}/lab.conflist"]
    tree.run("cni", copy, timeout=START)
    containerd = cluster.spawn("containerd", ["containerd", "--config", configuration])
    # The socket as seen through the namespace's root.
    socket_path = f"/proc/{tree.pid}/root{CONTAINERD}"

    def serving() -> bool:
        containerd.check()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(socket_path)
        return True

    not_yet = (ConnectionError, FileNotFoundError)
    until(serving, what=f"containerd ({containerd.log})", ignoring=not_yet)


def load(tree: Tree, image: Path) -> None:
    where = ["--address", CONTAINERD, "--namespace", "k8s.io"]
    tree.run("ctr", ["ctr", *where, "images", "import", image], timeout=START)


def start(cluster: Cluster, programs: Mapping[str, Path], files: Credentials) -> None:
    """Start what makes pods run, and return when the node is Ready."""
    authority, ca = files.authority, cluster.ca
    name = f"system:node:{NODE_NAME}"
    pair = authority.issue("node", name, organizations=["system:nodes"])
    config = cluster.state / "kubelet.kubeconfig"
    write_kubeconfig(config, cluster.server, ca, user=name, has=pair)
    settings = cluster.state / "kubelet.json"
    settings.write_text(kubelet_settings(cluster.name, cluster.logs, files))
    flags = {
        "config": settings,
        "kubeconfig": config,
        "root-dir": "/run/lab/kubelet",
        "cert-dir": "/run/lab/kubelet-certificates",
        "hostname-override": NODE_NAME,
        "node-ip": NODE,
    }
    argv = [programs["kubelet"], *(f"--{flag}={value}" for flag, value in flags.items())]
    kubelet = cluster.spawn("kubelet", argv)
    corefile = cluster.state / "Corefile"
    corefile.write_text(corefile_of(cluster.kubeconfig))
    cluster.spawn("coredns", [programs["coredns"], "-conf", corefile])

    def ready() -> bool:
        kubelet.check()
        return meshed.is_ready(client.get(Node, NODE_NAME))

    with cluster.client() as client:
        until(ready, what=f"the node ({kubelet.log})", ignoring=(lightkube.ApiError,))
