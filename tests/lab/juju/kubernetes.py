"""What Juju makes of a model and an application in Kubernetes, written with all rights.

Namespace, ServiceAccount, its roles untrusted and trusted, its token, the Service: `manifests`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightkube import Client, codecs
from lightkube.codecs import AnyResource

from lab import control_plane, images, meshed

MANIFESTS = Path(__file__).parent / "manifests"
PLACEHOLDER = "65535/tcp"
"""The port of a Service whose charm has opened none."""


class Objects:
    """The objects of one application, in its model's namespace."""

    def __init__(self, client: Client, model: str, app: str, *, namespace: str) -> None:
        self._client, self._namespace, self._app = client, namespace, app
        self._names = {"model": model, "app": app, "namespace": namespace}
        self._lock = threading.Lock()
        self._published: dict[str, Any] = {}

    def create(self, *, trust: bool) -> None:
        """Make the ServiceAccount and its roles, and the Service with its placeholder port."""
        self.grant(trust=trust)
        self.publish({}, ports=[PLACEHOLDER])

    def grant(self, *, trust: bool) -> None:
        """Give the ServiceAccount what an application has with, or without, `juju trust`."""
        self._apply("rights", trust=trust)

    def write_credentials(self, folder: Path, ca: Path) -> None:
        """Write what the kubelet mounts into a pod: token, ca.crt and namespace."""
        (folder / "token").write_text(
            control_plane.request_token(self._client, self._namespace, self._app, seconds=86400)
        )
        (folder / "ca.crt").write_bytes(ca.read_bytes())
        (folder / "namespace").write_text(self._namespace)

    def publish(self, ready: Mapping[str, bool], *, ports: list[str]) -> None:
        """Write Service and EndpointSlice when they differ; ports are like "8443/tcp"."""
        numbers = [int(port.partition("/")[0]) for port in ports]
        wanted = {"ready": sorted(ready.items()), "ports": numbers}
        # The probe's thread and a caller who awaits its work may both be here.
        with self._lock:
            if wanted != self._published:
                self._apply("service", **wanted)
                self._published = wanted

    def delete(self) -> None:
        """Remove everything again, the rights last: a charm's remove hook may need them."""
        service = _load("service", **self._names, **self._published)
        meshed.delete(self._client, [*reversed(service), *reversed(_load("rights", **self._names))])

    def _apply(self, manifest: str, **more: Any) -> None:
        for each in _load(manifest, **self._names, **more):
            self._client.apply(each, force=True)


def create_model(client: Client, model: str, identifier: str, *, namespace: str) -> None:
    for each in _load("model", model=model, identifier=identifier, namespace=namespace):
        client.apply(each, force=True)


def run_application(client: Client, model: str, name: str) -> None:
    """Make the StatefulSet of an application with one unit, as Juju does; its pod is NAME-0."""
    for each in _load("workload", model=model, app=name, image=images.BUSYBOX):
        client.create(each, field_manager="juju")


def _load(manifest: str, **context: Any) -> list[AnyResource]:
    return codecs.load_all_yaml((MANIFESTS / f"{manifest}.yaml.j2").read_text(), context=context)
