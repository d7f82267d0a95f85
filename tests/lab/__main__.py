"""The lab by hand: python -m lab up | down | status | build | sweep."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lab
from lab import debian, network, node, sweep, toolchain, tools
from lab.waiting import until

# Errors that are no bug of the lab: shown in one line, without a traceback.
EXPECTED = (
    debian.PackageError,
    network.NetworkError,
    node.UnavailableError,
    toolchain.ToolchainError,
    tools.BuildError,
    ChildProcessError,
    TimeoutError,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=lab.__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="leave a cluster running and print its kubeconfig")
    up.add_argument("--level", choices=["api", "node"], help="node where possible, else api")
    down = commands.add_parser("down", help="end what `up` left running")
    down.add_argument("name", nargs="*", help="the clusters to end; without names all of them")
    commands.add_parser("status", help="the clusters that run, and what this machine can do")
    build = commands.add_parser("build", help="build programs that are missing")
    build.add_argument("program", nargs="*", metavar="PROGRAM")
    commands.add_parser("sweep", help="remove what killed harnesses left")
    # What `up` starts: a harness that holds its cluster until it is told to end.
    hold = commands.add_parser("hold")
    hold.add_argument("level", choices=["api", "node"])
    options = parser.parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except EXPECTED as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _up(options: argparse.Namespace) -> int:
    level = options.level
    if level is None:
        reason = node.unavailable()
        level = "api" if reason else "node"
        if reason:
            print(f"lab: {reason}; starting level api", file=sys.stderr)
    kubectl = tools.path("kubectl")
    holder = subprocess.Popen(
        [sys.executable, "-m", "lab", "hold", level],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert holder.stdout
    with holder.stdout as announcement:
        line = announcement.readline()
    if not line:
        return holder.wait() or 1
    name = json.loads(line)
    record = sweep.running()[name]
    print(f"{name} (level {level}) runs at {record['server']}\n")
    print(f"    export KUBECONFIG={record['kubeconfig']}")
    print(f"    {kubectl} get namespaces\n")
    print(f"logs: {record['logs']}\nend it: make lab-down, or python -m lab down {name}")
    # The holder keeps running on purpose.
    holder.returncode = 0
    return 0


def _hold(options: argparse.Namespace) -> int:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with lab.cluster(options.level, held=True) as cluster:
        print(json.dumps(cluster.name), flush=True)
        # From here on nobody reads the output, and a closed terminal must not end this process.
        silence = os.open(os.devnull, os.O_RDWR)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        ended.wait()
    return 0


def _down(options: argparse.Namespace) -> int:
    held = {name: record for name, record in sweep.running().items() if record.get("held")}
    if unknown := set(options.name) - held.keys():
        there = ", ".join(held) or "none"
        print(f"lab: {min(unknown)}: not left running by `up`; there is {there}", file=sys.stderr)
        return 2
    for name in options.name or held:
        os.kill(held[name]["harness"], signal.SIGTERM)
        _await_end(name)
        print(f"{name}: ended")
    return 0


def _await_end(name: str) -> None:
    until(lambda: name not in sweep.running(), timeout=60, what=f"{name} to end")


def _status(_: argparse.Namespace) -> int:
    clusters = sweep.running()
    for name, record in clusters.items():
        print(f"{name}: {_described(record)}")
    if not clusters:
        print("no cluster runs")
    print(f"node level: {node.unavailable() or 'possible'}")
    print(f"programs to build: {', '.join(tools.missing()) or 'none'}")
    return 0


def _described(record: dict[str, Any]) -> str:
    if not record:
        return "starting"
    owner = "left by `up`" if record["held"] else f"of process {record['harness']}"
    return f"level {record['level']}, {owner}, KUBECONFIG={record['kubeconfig']}"


def _build(options: argparse.Namespace) -> int:
    for name, path in tools.ensure(options.program or tools.usual()).items():
        print(f"{name}: {path}")
    return 0


def _sweep(_: argparse.Namespace) -> int:
    swept = sweep.sweep()
    print("\n".join(f"{name}: removed" for name in swept) or "nothing to remove")
    return 0


COMMANDS = {
    "build": _build,
    "down": _down,
    "hold": _hold,
    "status": _status,
    "sweep": _sweep,
    "up": _up,
}

if __name__ == "__main__":
    sys.exit(main())
