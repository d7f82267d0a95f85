"""A network namespace for each pod of a unit: its address and its ports are its own."""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path

from lab import Cluster

# Apart from the lab's own bridge and its pods; one small network a pod.
_NETWORKS = ipaddress.ip_network("10.251.0.0/16")


def create(cluster: Cluster, folder: Path, index: int) -> tuple[Path, str]:
    """Make the network namespace with this number, joined to the cluster's; return its file and its
    address.

    The file is a mount that only processes spawned in the cluster can follow.

    Raises:
        ChildProcessError: `ip` failed; its words are in the log that the message names.
    """
    path = folder / f"network-{index}"
    ours, theirs = (_NETWORKS[4 * index + end] for end in (1, 2))
    path.touch()
    file, link = shlex.quote(str(path)), f"unit{index}"
    inside = f"nsenter --net={file} ip"
    script = f"""
        unshare --net={file} ip link set lo up
        ip link add {link} type veth peer name eth0 netns {file}
        ip address add {ours}/30 dev {link}
        ip link set {link} up
        {inside} address add {theirs}/30 dev eth0
        {inside} link set eth0 up
        {inside} route add default via {ours}
    """
    process = cluster.spawn(f"network-{index}", ["sh", "-euxc", script])
    if status := process.wait(30):
        raise ChildProcessError(f"network {index}: exit status {status}: {process.log}")
    return path, str(theirs)
