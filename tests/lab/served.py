"""Starts workloads with chosen settings, makes namespaces for them, and reads their metrics."""

from __future__ import annotations

import contextlib
import os
import secrets
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import lightkube

import lab.istio
from lab import tools
from lab.clusters import CHECKOUT
from lab.fixtures import make_namespace, vacate
from lab.kubelet import ScriptedKubelet
from lab.scene import Scene
from lab.workload import ANSWER, PROGRAM, Workload

Programs = Callable[..., Workload]
"""Has a `program` until the file ends: ``programs("strict", {"quit-grace": 2}, publish=True)``."""
Stages = Callable[..., Scene]
"""Makes a namespace that a workload serves: ``stages(workload, changed=True)``."""


@contextlib.contextmanager
def program(
    cluster: lab.Cluster,
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    start: bool = True,
    publish: bool = False,
    **more: Any,
) -> Iterator[Workload]:
    """A workload that is deployed, and ready unless ``start`` is False, as `declared` has it.

    ``publish``: with its webhook.
    """
    workload = declared(cluster, folder, name, settings, **more)
    workload.deploy()
    if start:
        workload.start()
        workload.await_ready()
    if publish:
        workload.publish()
    yield workload
    if publish:
        workload.withdraw()
    end(workload)


@contextlib.contextmanager
def late_istio(cluster: lab.Cluster, folder: Path, name: str, revision: str) -> Iterator[None]:
    """Istio comes, as this revision, and a workload restarts what missed its sidecar."""
    istio = lab.istio.install(cluster, f"istio-{revision}", revision=revision)
    with program(cluster, folder, name, {"race-policy": "restart"}, revisions=(revision,)):
        yield
    istio.remove()


def end(workload: Workload) -> None:
    """End it at once: the second or two of a polite end are for tests that are about that."""
    if workload.running:
        workload.process.end()


def declared(
    cluster: lab.Cluster,
    folder: Path,
    name: str,
    settings: Mapping[str, Any] | None = None,
    **more: Any,
) -> Workload:
    """A workload for namespaces with label ``lab.test/<name>: yes``, not deployed yet."""
    selector = f"lab.test/{name}=yes"
    arguments = {"name": name, "model": name, "selector": selector, "more": settings, **more}
    return Workload(cluster, folder, **arguments)


@contextlib.contextmanager
def stage(
    client: lightkube.Client, kubelet: ScriptedKubelet, workload: Workload, *, changed: bool = False
) -> Iterator[Scene]:
    """A new namespace that the workload serves; ``changed``: also by its webhook."""
    name = f"{workload.name}-{secrets.token_hex(3)}"
    make_namespace(client, name)
    workload.select(name)
    if changed:
        workload.await_admission(name)
    yield Scene(client, kubelet, name, name)
    vacate(client, name)


def follow(cluster: lab.Cluster, commands: str) -> subprocess.CompletedProcess[str]:
    """Run the shell commands of a page, where `kubectl` and `istio-aux` are; each must succeed."""
    programs = (str(PROGRAM.parent), str(tools.path("kubectl").parent), os.environ["PATH"])
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "HOME": str(cluster.state),
        "PATH": os.pathsep.join(programs),
    }
    done = subprocess.run(
        ["sh", "-euc", commands], env=environment, cwd=CHECKOUT, timeout=ANSWER,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def is_taken(cluster: lab.Cluster, token: str) -> bool:
    trusted = ssl.create_default_context(cafile=str(cluster.ca))
    with httpx2.Client(verify=trusted, trust_env=False) as http:
        headers = {"Authorization": f"Bearer {token}"}
        return http.get(f"{cluster.server}/version", headers=headers).status_code != 401


def metric(workload: Workload, series: str) -> float:
    """The value of a series now, as `/metrics` names it. Raises KeyError: it is not there."""
    _, kept = workload.get("/metrics")
    # The answer may have been kept for a second. The next one counts more CPU time.
    text = lab.until(
        lambda: text if (text := workload.get("/metrics")[1]) != kept else "", what="other metrics"
    )
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}[series]
