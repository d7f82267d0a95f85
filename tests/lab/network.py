"""The network of a node: addresses inside its namespace, and the one cable to the harness."""

from __future__ import annotations

import ipaddress
import json
import random
from dataclasses import dataclass

from lab.control_plane import KUBERNETES
from tools import cache, errors
from tools.errors import ToolError

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
        peer = ["peer", "name", INSIDE, "netns", str(pid)]
        _ip("link", "add", name, "type", "veth", *peer)
        _ip("address", "add", f"{outside}/30", "dev", name)
        _ip("link", "set", name, "up")
    return Cable(name, outside, inside)


def inner_commands(cable: Cable) -> list[str]:
    """The shell commands that complete the network inside the node's namespaces."""
    loopback = [f"ip address add {address}/32 dev lo" for address in (NODE, DNS, KUBERNETES)]
    return [
        "ip link set lo up",
        *loopback,
        f"ip address add {cable.inside}/30 dev {INSIDE}",
        f"ip link set {INSIDE} up",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ]


def cni() -> str:
    """The CNI configuration: a cable of its own for every pod, host ports as asked for."""
    pool = {"type": "host-local", "dataDir": "/run/lab/ipam", "ranges": [[{"subnet": PODS}]]}
    ipam = {**pool, "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "lab", "plugins": plugins}, indent=2)


def _ip(*arguments: str) -> str:
    return errors.run(["ip", *arguments], NetworkError)
