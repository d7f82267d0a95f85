"""The cores, memory and versions with which the numbers were taken."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import lab.tools

from benchmarks.programs import SOURCE
from tools import toolchain


def describe(*, go: bool = False) -> dict[str, str]:
    """What a reader needs in order to compare numbers, in words; ``go``: of Go programs, too."""
    memory = int(re.findall(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[0])
    built = "the system's" if sys.base_prefix == "/usr" else "not the system's"
    models = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(
        git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    beside = {
        "Go": toolchain.version(SOURCE).removeprefix("go"),
        "controller-runtime": pinned(SOURCE, "sigs.k8s.io/controller-runtime"),
    }
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "revision": found.stdout.strip() or "not known",
        "cores": str(len(os.sched_getaffinity(0))),
        "processor": models[0].strip() if models else platform.machine(),
        "memory": f"{memory / (1 << 20):.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Kubernetes": pinned(lab.tools.KUBERNETES, "k8s.io/kubernetes"),
        "Python": f"{platform.python_version()} ({built})",
        **{name: version(name) for name in ("aiohttp", "msgspec")},
        **(beside if go else {}),
    }


def pinned(folder: Path, module: str) -> str:
    """The version of a module that the go.mod in the folder asks for."""
    found = re.search(rf"\b{re.escape(module)} (v\S+)", (folder / "go.mod").read_text())
    return found[1] if found else "not known"
