"""The chart in a cluster of the lab: installed, upgraded and uninstalled by `helm` itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lab
from lab import rock
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

import cluster as charm
from helm import charts

# Measured on 2 cores: two pods are ready 10 s after the install.
READY = "300s"
# What the kubelet refuses, `restricted` refuses first.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


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

    def owned(self, client: Client) -> set[str]:
        """Kind and name of what it has of the kinds that the charm deletes at its end."""
        labels = {
            "istio-aux.io/application": self.name,
            "istio-aux.io/model": self.namespace,
        }
        found: set[str] = set()
        for kind in charm.OWNED:
            listed = charm.owned(client, kind, labels, self.namespace)
            assert not isinstance(listed, charm.Problem), listed
            names = [each.metadata.name for each in listed or () if each.metadata]
            found |= {f"{kind.__name__} {name}" for name in names}
        return found

    def _helm(self, verb: str, values: Mapping[str, Any]) -> str:
        image = {"image.repository": rock.NAME, **values}
        waits = ("--wait", f"--timeout={READY}")
        return self._run(verb, self.name, str(charts.CHART), *waits, *charts.given(image))

    def _run(self, *arguments: str) -> str:
        kubeconfig = self._cluster.kubeconfig
        return charts.run(
            *arguments, f"--namespace={self.namespace}", home=self._home, kubeconfig=kubeconfig
        )
