"""The configuration files of kubelet, CoreDNS and containerd; nothing runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab import control_plane, network

SOCKET = "/run/containerd/containerd.sock"
CNI_CONFIGURATION = "/run/lab/cni"
# Links to the machine's programs; Istio's CNI agent adds its own.
CNI_FOLDER = "/run/lab/cni-programs"
# Debian, and where upstream's archives are unpacked.
CNI_PROGRAMS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

CONFIGURATION = """\
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


def configuration(pause: str) -> str:
    """containerd's configuration (version 2, read by 1.6 and later)."""
    return CONFIGURATION.format(
        socket=SOCKET,
        pause=pause,
        cni_programs=CNI_FOLDER,
        cni_configuration=CNI_CONFIGURATION,
    )


NODE_NAME = "node"
NEVER = "0%"


def kubelet(name: str, logs: Path, files: control_plane.Credentials) -> str:
    """The kubelet's configuration file; `name` is the cgroup it stays below."""
    serving = files.authority.issue("kubelet", NODE_NAME, hosts=[network.NODE, NODE_NAME])
    thresholds = ("memory.available", "nodefs.available", "nodefs.inodesFree")
    images = ("imagefs.available", "imagefs.inodesFree")
    configuration: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.NODE,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(files.authority.pair.certificate)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "clusterDNS": [network.DNS],
        "clusterDomain": control_plane.DOMAIN,
        "resolvConf": "/etc/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
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


def coredns(kubeconfig: Path) -> str:
    """CoreDNS's configuration: the cluster's own names, and nothing beyond."""
    return f"""\
.:53 {{
    bind {network.DNS}
    errors
    kubernetes {control_plane.DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig} lab
        pods verified
        ttl 1
    }}
}}
"""
