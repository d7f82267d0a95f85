"""The cores, memory and versions with which the numbers were taken."""

from __future__ import annotations

import os
import platform
import re
import ssl
import sys
from importlib.metadata import version
from pathlib import Path

import lab.tools


def describe(*more: str) -> dict[str, str]:
    """What a reader needs in order to compare numbers, in words; ``more`` names packages."""
    memory = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0])
    built = "the system's" if sys.base_prefix == "/usr" else "not the system's"
    models = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": models[0].strip() if models else platform.machine(),
        "memory": f"{memory / (1 << 20):.0f} GiB",
        "system": f"Linux {platform.release().split('-')[0]}",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "GOGC": os.environ.get("GOGC", "100"),
        "Kubernetes": pinned(lab.tools.KUBERNETES, "k8s.io/kubernetes"),
        "etcd": pinned(lab.tools.KUBERNETES, "go.etcd.io/etcd/server/v3"),
        "Python": f"{platform.python_version()} ({built})",
        "OpenSSL": ssl.OPENSSL_VERSION.split()[1],
        **{name: version(name) for name in ("istio-aux", "aiohttp", "msgspec", *more)},
    }


def pinned(folder: Path, module: str) -> str:
    """The version of a module that the go.mod in the folder asks for."""
    found = re.search(rf"\b{re.escape(module)} (v\S+)", (folder / "go.mod").read_text())
    return found[1] if found else "not known"
