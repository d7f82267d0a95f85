"""What the kubelet and CoreDNS of a node are configured with; nothing runs here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lab import control_plane, network, runtime

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
        "containerRuntimeEndpoint": f"unix://{runtime.SOCKET}",
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
