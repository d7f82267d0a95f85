"""The three webhooks, each a process of a lab cluster and all on one core, and what loads them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lab
import lab.tools
from lab import ports
from lab.workload import Workload

from benchmarks.admission_numbers import CONTROLLER, LEAN, OURS
from benchmarks.conversation import Conversation, started
from benchmarks.processes import Usage, usage

YARDSTICKS = {CONTROLLER: "bench-controller", LEAN: "bench-lean"}

SOURCE = lab.tools.BENCHMARKS / "webhooks"
"""Where they are built from."""

READY = 30.0


class Webhooks:
    """The running processes, and the load generator; made by `running`."""

    def __init__(
        self,
        generator: Conversation,
        certificate: Path,
        name: str,
        processes: Mapping[str, tuple[lab.Process, str]],
    ) -> None:
        self._generator, self._certificate, self._name = generator, certificate, name
        self._processes = processes

    def load(self, webhook: str, **how: Any) -> dict[str, Any]:
        """Send reviews to one of them; ``how`` and the reply are those of `bench-load`."""
        process, address = self._processes[webhook]
        return self._generator.order(
            address=address,
            name=self._name,
            certificate=str(self._certificate),
            pid=process.pid,
            **how,
        )

    def usage(self, webhook: str) -> Usage:
        """What one of them uses now."""
        return usage(self._processes[webhook][0].pid)


@contextmanager
def running(cluster: lab.Cluster, workload: Workload, folder: Path) -> Generator[Webhooks]:
    """Yardsticks beside a workload that is ready, with its certificate, on one core.

    All else of the cluster, and what loads them, is on another one, if there is one. ``folder`` is
    the one of the workload's files. In the end, the yardsticks are gone and the workload may use
    all cores again.
    """
    cores = sorted(os.sched_getaffinity(0))
    certificate, key = folder / "tls.crt", folder / "tls.key"
    processes = {OURS: (workload.process, f"{cluster.host}:{workload.webhook_port}")}
    with contextlib.ExitStack() as stack:
        for name, program in YARDSTICKS.items():
            address = f"{cluster.host}:{ports.reserve()}"
            argv = [lab.tools.path(program), address, certificate, key]
            # One core, so one thread of Go code: it asks only when it starts.
            process = cluster.spawn(program, argv, env={"GOMAXPROCS": "1"})
            stack.callback(process.kill)
            processes[name] = (process, address)
        for process, address in processes.values():
            _, _, port = address.rpartition(":")
            ports.await_listener(process, cluster.host, int(port), timeout=READY)
            pin([process.pid], cores[:1])
        generator = stack.enter_context(started("bench-load"))
        pin([generator.pid], cores[-1:])
        others = [cluster.process(name).pid for name in ("etcd", "kube-apiserver")]
        pin(others, cores[-1:])
        stack.callback(pin, [*others, workload.process.pid], cores)
        yield Webhooks(generator, certificate, f"{workload.name}.{workload.model}.svc", processes)


def pin(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Have all threads of these processes, and those they start, run on these cores."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), cores)
