"""The lab by hand: python -m lab up | down | status | build | run."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import lab
from lab import node, processes, tools, until
from lab.clusters import CHECKOUT, Stay, in_child, instructions
from tools.errors import ToolError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=lab.__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], int], **more: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__.removeprefix("_"), **more)
        added.set_defaults(run=run)
        return added

    command(_up, help="leave a cluster running and print its kubeconfig").add_argument(
        "--level", choices=["api", "node"], default="node"
    )
    command(_down, help="end what `up` left running").add_argument(
        "name", nargs="*", help="the clusters to end; without names all of this checkout"
    )
    command(_status, help="the clusters that run, and what this machine can do")
    command(_build, help="build programs that are missing").add_argument(
        "program", nargs="*", metavar="PROGRAM"
    )
    run = command(_run, help="run a program, built first when it is missing")
    run.add_argument("program", metavar="PROGRAM")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (ToolError, ChildProcessError, TimeoutError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def _up(options: argparse.Namespace) -> int:
    def hold(stay: Stay) -> None:
        with lab.cluster(options.level, held=True) as cluster:
            print(instructions(cluster))
            stay()

    return in_child(hold)


def _down(options: argparse.Namespace) -> int:
    held = {name: record for name, record in processes.running().items() if record.get("held")}
    if unknown := set(options.name) - held.keys():
        there = ", ".join(held) or "none"
        print(f"lab: {min(unknown)}: not left running by `up`; there is {there}", file=sys.stderr)
        return 2
    # Without names those that this checkout started.
    ours = [name for name, each in held.items() if each.get("checkout") == str(CHECKOUT)]
    for name in options.name or ours:
        os.kill(held[name]["harness"], signal.SIGTERM)
        # Not `running`, which knows a cluster no more while its last folder is being removed.
        until(partial(_gone, name), what=f"{name} to end")
        print(f"{name}: ended")
    return 0


def _gone(name: str) -> bool:
    return not processes.left_by(name)


def _status(_: argparse.Namespace) -> int:
    for name, record in processes.running().items():
        owner = "left by `up`" if record.get("held") else f"of process {record.get('harness')}"
        print(f"{name}: level {record.get('level')}, {owner}, {record.get('kubeconfig')}")
    print(f"node level: {node.unavailable() or 'possible'}")
    print(f"programs to build: {', '.join(tools.missing()) or 'none'}")
    return 0


def _build(options: argparse.Namespace) -> int:
    for name, path in tools.ensure(options.program or tools.usual()).items():
        print(f"{name}: {path}")
    return 0


def _run(options: argparse.Namespace) -> int:
    return subprocess.run([tools.path(options.program), *options.arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
