"""Trials of Katib: Jobs with the pods that Katib's webhook makes of them, written down. Data only.

Katib is in no package registry. The pod is that of its webhook (katib v0.18 pkg/webhook/v1beta1):
shared processes, a shared folder, a training command that leaves a marker, a collector beside it.

The collector is a stand-in in shell: it finds the first process of each other container, awaits all
of them or the training alone, and checks the marker, as Katib's does (pkg/metricscollector/v1beta1/
common/pns.go); then it sends the lines with the metric to the database over TCP, and fails if it
cannot. It does not: speak gRPC, parse metrics, stop a training early, or follow the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from lab import images, workloads

COLLECTOR, TRAINING = "metrics-logger-and-collector", "training-container"
FOLDER = "/var/log/katib"
FILE = f"{FOLDER}/metrics.log"
PORT = 6789
# The marker tells whether the training succeeded; its name is the pid of the training's shell.
# The kubelet makes one dollar of two in a command.
MARKER = f"echo completed > {FOLDER}/$$$$.pid"
COLLECT = rf"""
all=true
while [ $# -gt 0 ]; do
    case $1 in -t) trial=$2 ;; -m) metric=$2 ;; -s-db) db=$2 ;; -w) all=$2 ;; esac
    shift
done
pids= main=
for process in /proc/[0-9]*; do
    pid=${{process#/proc/}}
    # The parent of a container's first process is outside of the pod; pause is process 1.
    parent=$(sed -n 's/^PPid:[^0-9]*//p' "$process/status" 2>/dev/null)
    if [ "$parent" != 0 ] || [ "$pid" = 1 ] || [ "$pid" = $$$$ ]; then continue; fi
    pids="$pids $pid"
    if [ -z "$main" ] || tr '\0' ' ' <"$process/cmdline" | grep -q 'echo completed > {FOLDER}'; then
        main=$pid
    fi
done
while [ -n "$pids" ]; do
    left=
    for pid in $pids; do
        if [ -d "/proc/$pid" ]; then
            left="$left $pid"
        elif [ "$pid" = "$main" ]; then
            [ "$(cat "{FOLDER}/$pid.pid")" = completed ] || exit 255
            [ "$all" = true ] || break 2
        fi
    done
    pids=$left
    sleep 1
done
sed -n "/^$metric=/s/^/$trial /p" {FILE} | nc "${{db%:*}}" "${{db#*:}}" || exit 255
"""


def database() -> dict[str, Any]:
    """A pod that stores what collectors send: in its log. A stand-in for katib-db-manager."""
    store = f"exec nc -ll -p {PORT} -e sh -c 'cat >/proc/1/fd/1'"
    return workloads.pod(workloads.container(store), restart="Always")


def trial(
    name: str,
    database: str,
    *,
    wait_all_processes: Literal["true", "false"] | None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A trial that reports ``loss=0.25``; ``wait_all_processes`` as in KatibConfig, None: unset."""
    args = ["-t", name, "-m", "loss", "-o-type", "minimize", "-s-db", f"{database}:{PORT}"]
    args += ["-path", FILE, "-format", "TEXT"]
    if wait_all_processes is not None:
        args += ["-w", wait_all_processes]
    mount = {"volumeMounts": [{"name": "metrics-volume", "mountPath": FOLDER}]}
    # It is longer than the start of the collector, which must still find it.
    training = f"{{ sleep 5; echo loss=0.25; }} 1>{FILE} 2>&1 && {MARKER}"
    template = workloads.template(
        {"name": TRAINING, "image": images.BUSYBOX, "command": ["sh", "-c"], "args": [training]}
        | mount,
        {"name": COLLECTOR, "image": images.BUSYBOX, "args": args}
        | {"command": ["sh", "-c", COLLECT, "collector"]}
        | mount,
        annotations=annotations,
        shareProcessNamespace=True,
        volumes=[{"name": "metrics-volume", "emptyDir": {}}],
    )
    return workloads.job(template)
