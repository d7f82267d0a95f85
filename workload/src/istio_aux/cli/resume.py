"""`resume-jobs`: resumes the Jobs that `serve` has suspended, each when its pods are gone.

It is `repair.suspended_jobs` of `serve` until nothing is left to do. The charm runs it before the
workload loses its rights; it also serves where istio-aux was removed otherwise.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from istio_aux.cli import cluster, report
from istio_aux.cli.check import quiet
from istio_aux.kube.access import Access
from istio_aux.kube.client import Client
from istio_aux.kube.events import Events
from istio_aux.model.answers import SuspendedJob
from istio_aux.repair.recorder import RepairRecorder
from istio_aux.repair.suspended_jobs import SuspendedJobs
from istio_aux.repair.suspension import SuspensionLimits
from istio_aux.telemetry import Telemetry

NOT_DONE = 1  # Exit status when a Job is still suspended.
ATTEMPTS = 4  # Failures in a row, after which a Job is left to its owner.
_LOOK = 0.1  # Seconds between two looks at what is left to do.
_END = 2.0  # Seconds that requests in flight have to end, and then Events to be sent.


def resume_jobs(credentials: cluster.Credentials, patience: float) -> int:
    """Resume all of them within ``patience`` seconds, and say what is waited for."""

    async def work(access: Access) -> int:
        quiet()
        async with Client(access) as client:
            return await resume(client, patience)

    return cluster.run(credentials, work)


async def resume(client: Client, patience: float, limits: SuspensionLimits | None = None) -> int:
    """See `resume_jobs`."""
    events, telemetry = Events(client, socket.gethostname()), Telemetry()
    recorder = RepairRecorder(telemetry, events)
    jobs = SuspendedJobs(client, telemetry, recorder, allowed=False, limits=limits)
    sending, said = asyncio.create_task(events.run()), ""
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    jobs.lead(True)
    while not jobs.over(ATTEMPTS) and loop.time() < end:
        waits = ", ".join(map(_name, jobs.status()))
        if waits and waits != said:
            report.write(sys.stdout, f"waits for the pods of suspended Jobs: {waits}")
            sys.stdout.flush()  # Its reader waits for this line.
            said = waits
        await asyncio.sleep(_LOOK)
    await jobs.stop(_END)
    await events.sent(_END)
    sending.cancel()
    for job in jobs.status():
        report.complain(f"{_name(job)}: {job.reason}")
    return NOT_DONE if jobs.status() or not jobs.over(ATTEMPTS) else 0


def _name(job: SuspendedJob) -> str:
    return f"{job.kind} {job.namespace}/{job.name}"
