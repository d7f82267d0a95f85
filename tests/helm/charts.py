"""The chart, by `helm` itself: rendered, and installed, upgraded and uninstalled in a cluster.

It says which objects the charm would make with the same options.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from istio_aux.model.applications import ALL_PODS, EVERY
from istio_aux.model.names import SETTINGS
from istio_aux.model.selectors import NamespaceSelectors
from istio_aux.settings import read_published
from lab import Cluster, meshed, tools, until
from lab.creation import send
from lightkube import Client, codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, Secret
from msgspec.structs import replace

import manifests
from tools import errors, rock
from tools.errors import ToolError

CHART: Final = Path(__file__).parents[2] / "chart"

# Measured on 2 cores: two pods are ready 10 s after the install.
READY = "300s"
# A kubelet updates a mounted Secret at the pod's next sync, about a minute later.
RENEWED = 600
# What the kubelet refuses, `restricted` refuses first.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class HelmError(ToolError):
    """Helm failed; the message is what it said."""


def run_helm(*arguments: str, home: Path, kubeconfig: Path | None = None) -> str:
    """Run `helm` with folders of its own, and return what it says. Raises HelmError."""
    folders = {f"HELM_{kind}_HOME": str(home / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    # Without a cluster it must find none.
    folders["KUBECONFIG"] = str(kubeconfig or home / "none")
    return errors.run(
        [str(tools.path("helm")), *arguments], HelmError, env={**os.environ, **folders}
    )


def given(values: Mapping[str, Any]) -> list[str]:
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


class Release:
    """A release of the chart, in a namespace in which only restricted pods may run."""

    def __init__(self, cluster: Cluster, home: Path, name: str, namespace: str) -> None:
        self.namespace = namespace
        self._release, self.notes = name, ""
        self.name = name if "istio-aux" in name else f"{name}-istio-aux"
        self._cluster, self._home = cluster, home

    def install(self, values: Mapping[str, Any]) -> str:
        """Install it and return when its pods are ready; returns what Helm says."""
        with self._cluster.client() as client:
            client.apply(Namespace(metadata=ObjectMeta(name=self.namespace, labels=RESTRICTED)))
        self.notes = self._helm("install", values)
        return self.notes

    def upgrade(self, values: Mapping[str, Any], *more: str) -> str:
        return self._helm("upgrade", values, *more)

    def rollback(self) -> None:
        self._run("rollback", self._release, "--wait", f"--timeout={READY}")

    def uninstall(self) -> None:
        self._run("uninstall", self._release, "--wait", f"--timeout={READY}")

    def pods(self, client: Client) -> list[Pod]:
        """Its pods that are not about to end."""
        found = client.list(
            Pod, namespace=self.namespace, labels={"app.kubernetes.io/instance": self._release}
        )
        return [pod for pod in found if pod.metadata and not pod.metadata.deletionTimestamp]

    def executed(self, *command: str) -> str:
        """What a command says in one of its pods, whatever its exit status."""
        argv = [str(tools.path("kubectl")), "--kubeconfig", str(self._cluster.kubeconfig)]
        argv += ["--namespace", self.namespace, "exec", f"deployment/{self.name}", "--", *command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return done.stdout

    def checked(self) -> list[dict[str, Any]]:
        """What `istio-aux check` finds in one of its pods: the command of the chart's notes."""
        said = self.executed(
            "istio-aux", "check", "--config", "/etc/istio-aux/settings/config.yaml", "-o", "json"
        )
        return [json.loads(line) for line in said.splitlines()]

    def certificate(self, client: Client) -> str:
        """The SHA-256 of the certificate in its Secret."""
        secret = client.get(Secret, f"{self.name}-certificate", namespace=self.namespace)
        assert secret.data
        text = base64.b64decode(secret.data["tls.crt"]).decode()
        [leaf, *_] = re.findall(r"(?s)-----BEGIN.*?-----END CERTIFICATE-----", text)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(leaf)).hexdigest()

    def await_served(self, client: Client, certificate: str) -> None:
        """Return when all its pods serve this certificate, by its SHA-256."""
        until(
            lambda: self._served(client) == {certificate},
            timeout=RENEWED,
            what=f"the certificate {certificate} to be served",
        )

    def _served(self, client: Client) -> set[str]:
        """The SHA-256 of the certificates that its pods serve, as they say."""
        found: set[str] = set()
        for pod in self.pods(client):
            name = meshed.meta(pod).name
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}:8080/proxy/status"
            status, body = send(self._cluster, "GET", path, b"")
            found.add(json.loads(body)["certificate"] if status == 200 else body.decode())
        return found

    def _helm(self, verb: str, values: Mapping[str, Any], *more: str) -> str:
        image = {"image.repository": rock.NAME, **values}
        return self._run(
            verb, self._release, str(CHART), "--wait", f"--timeout={READY}", *more, *given(image)
        )

    def _run(self, *arguments: str) -> str:
        return run_helm(
            *arguments,
            f"--namespace={self.namespace}",
            home=self._home,
            kubeconfig=self._cluster.kubeconfig,
        )


APP, MODEL = "istio-aux", "mesh-jobs"
IMAGE: Final = {"image.repository": "registry.test/istio-aux"}
Document = dict[str, Any]


def render(home: Path, values: dict[str, Any] | None = None, *more: str) -> list[Document]:
    """The objects of the chart, with `more` arguments of `helm template`."""
    text = run_helm(
        "template",
        APP,
        str(CHART),
        f"--namespace={MODEL}",
        *given(IMAGE | (values or {})),
        *more,
        home=home,
    )
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def by_name(documents: Sequence[Document]) -> dict[tuple[str, str], Document]:
    """The objects by kind and name, as the charm's client would send them, without labels.

    Of the settings in an annotation it has what they mean.
    """
    found: dict[tuple[str, str], Document] = {}
    for document in documents:
        name = document["kind"], document["metadata"]["name"]
        assert name not in found, name
        sent = codecs.from_dict(document).to_dict()
        sent["metadata"].pop("labels", None)
        if SETTINGS in (notes := sent["metadata"].get("annotations", {})):
            told, asked = read_published(notes[SETTINGS])
            # Their order decides nothing.
            some = sorted(told.namespace_selectors.alternatives, key=str)
            told = replace(told, namespace_selectors=NamespaceSelectors(tuple(some)))
            # The charm leaves out what another entry includes.
            models = {each.namespace for each in asked.named if each.name == EVERY}
            wild = {EVERY, ALL_PODS}
            named = [it for it in asked.named if it.name in wild or it.namespace not in models]
            notes[SETTINGS] = told, frozenset(named)
        found[name] = sent
    return found


def trusting(values: manifests.Values, webhook: Document) -> manifests.Values:
    """The same, with the caBundle of a webhook configuration of the chart."""
    bundle = webhook["webhooks"][0]["clientConfig"]["caBundle"]
    return dataclasses.replace(values, ca_bundle=base64.b64decode(bundle).decode())
