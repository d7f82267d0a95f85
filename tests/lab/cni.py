"""Istio's CNI agent on the lab's node: the real one, from its chart, with a stand-in for ztunnel.

The stand-in (`tools/istio/ztunnel`) takes the pods that the agent hands it, and carries no traffic.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace, Pod

from lab import Cluster, images, meshed, node_config, tools, until, upstream

DATAPLANE = "istio.io/dataplane-mode"
REDIRECTION = "ambient.istio.io/redirection"
HOME = "istio-system"
AGENT, ZTUNNEL = {"k8s-app": "istio-cni-node"}, {"app": "ztunnel"}
# Measured on 2 cores: both are Ready after 6 s.
READY = 100
KEPT = {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "ServiceAccount"}
NOWHERE = {"istio-aux.lab/nowhere": "true"}  # A nodeSelector that no node has.


class Cni:
    """The agent and ztunnel of a node; made by `install`."""

    def __init__(self, cluster: Cluster, *, ambient: bool) -> None:
        self.cluster = cluster
        self._ambient = ambient
        self._values: dict[str, Any] = {}

    def configure(self, **values: Any) -> None:
        """Install, or upgrade with these values of the chart; the agent may not be ready yet."""
        self._values = values
        self._apply()

    def take_away(self) -> None:
        """Let no agent run; returns when it is gone."""
        self._apply(away="istio-cni-node")
        until(lambda: not self._pods(AGENT), timeout=READY, what="the agent to be gone")

    def come_back(self) -> None:
        """Let both run."""
        self._apply()

    def await_ready(self) -> None:
        """Return when both are ready."""
        wanted = [AGENT, *([ZTUNNEL] if self._ambient else [])]
        for labels in wanted:
            what = f"{labels} to be ready"
            # `until` ends before the next turn, so that the lambda sees the labels of this one.
            until(lambda: any(map(meshed.is_ready, self._pods(labels))), timeout=READY, what=what)  # noqa: B023

    def refuse(self, why: str) -> None:
        """From now on ztunnel refuses pods with this text; empty: it takes them again."""
        place = Path(f"/proc/{self.cluster.tree.pid}/root/run/ztunnel/refuse")
        place.write_text(why) if why else place.unlink()

    def _pods(self, labels: Mapping[str, str]) -> list[Pod]:
        with self.cluster.client() as client:
            return [*client.list(Pod, namespace=HOME, labels={**labels})]

    def _apply(self, away: str = "") -> None:
        with self.cluster.client() as client:
            upstream.apply(client, self._documents(away))

    def _documents(self, away: str) -> Iterator[dict[str, Any]]:
        values = {
            "cniBinDir": node_config.CNI_FOLDER,
            "cniConfDir": node_config.CNI_CONFIGURATION,
            "image": images.INSTALL_CNI,
            "ambient": {"enabled": self._ambient, "dnsCapture": False, "ipv6": False},
            "resources": {"requests": {"cpu": "1m"}},
        }
        for name, change in self._values.items():
            known = values.get(name)
            values[name] = {**known, **change} if isinstance(known, dict) else change
        yield from _rendered("istio-cni", values, away)
        if self._ambient:
            values = {"image": images.ZTUNNEL, "resources": {"requests": {"cpu": "1m"}}}
            yield from _rendered("ztunnel", values, away)


def install(cluster: Cluster, *, ambient: bool = True, **values: Any) -> Cni:
    """Install the agent, and ztunnel if the mesh is `ambient`; returns when they are ready."""
    cluster.load(images.install_cni())
    if ambient:
        cluster.load(images.ztunnel())
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=HOME)))
        # istiod writes it, which ztunnel's pod mounts.
        about = ObjectMeta(name="istio-ca-root-cert", namespace=HOME)
        client.apply(ConfigMap(metadata=about, data={"root-cert.pem": ""}), force=True)
    found = Cni(cluster, ambient=ambient)
    found.configure(**values)
    found.await_ready()
    return found


def _rendered(chart: str, values: Mapping[str, Any], away: str) -> Iterator[dict[str, Any]]:
    rendered = subprocess.run(
        [tools.path("istio-charts"), HOME, chart],
        input=json.dumps(values), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for document in yaml.load_all(rendered, yaml.CSafeLoader):
        if not document or document["kind"] not in KEPT:
            continue
        if document["kind"] == "DaemonSet" and document["metadata"]["name"] == away:
            document["spec"]["template"]["spec"]["nodeSelector"] |= NOWHERE
        yield document
