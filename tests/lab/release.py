"""The chart in a cluster of the lab: installed, upgraded and uninstalled by `helm` itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import lab
from lab import rock, tools

CHART: Final = Path(__file__).parents[2] / "chart"

# Measured on 2 cores: two pods are ready 10 s after the install.
READY = "300s"
# What the kubelet refuses, `restricted` refuses first.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class HelmError(Exception):
    """Helm failed; the message is what it said."""


def run(*arguments: str, home: Path, kubeconfig: Path | None = None) -> str:
    """Run `helm` with folders of its own, and return what it says.

    Raises:
        HelmError: it fails.
    """
    folders = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    # Without a cluster it must find none.
    folders["KUBECONFIG"] = str(kubeconfig or home / "none")
    argv = [str(tools.path("helm")), *arguments]
    done = subprocess.run(
        argv, env={**os.environ, **folders}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def given(values: Mapping[str, Any]) -> list[str]:
    """Values as arguments of `helm`."""
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


class Release:
    """A release of the chart, in a namespace in which only restricted pods may run."""

    def __init__(self, cluster: lab.Cluster, home: Path, name: str, namespace: str) -> None:
        self.name, self.namespace = name, namespace
        self._cluster, self._home = cluster, home

    def install(self, values: Mapping[str, Any]) -> str:
        """Install it and return when its pods are ready; returns what Helm says."""
        with self._cluster.client() as client:
            metadata = ObjectMeta(name=self.namespace, labels=RESTRICTED)
            client.apply(Namespace(metadata=metadata))
        return self._helm("install", values)

    def upgrade(self, values: Mapping[str, Any]) -> str:
        """Give it these values and return when all its pods have them."""
        return self._helm("upgrade", values)

    def uninstall(self) -> None:
        """Uninstall it and return when its objects are gone."""
        self._run("uninstall", self.name, "--wait", f"--timeout={READY}")

    def status(self) -> str:
        """What Helm says of it."""
        return self._run("list")

    def _helm(self, verb: str, values: Mapping[str, Any]) -> str:
        image = {"image.repository": rock.NAME, **values}
        waits = ("--wait", f"--timeout={READY}")
        return self._run(verb, self.name, str(CHART), *waits, *given(image))

    def _run(self, *arguments: str) -> str:
        kubeconfig = self._cluster.kubeconfig
        return run(
            *arguments, f"--namespace={self.namespace}", home=self._home, kubeconfig=kubeconfig
        )
