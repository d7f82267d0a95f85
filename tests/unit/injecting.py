"""An API server that calls an istiod for dry runs, which answers as `unit.istio` does, or worse."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import jsonpatch
from aiohttp import web
from istio_aux.injector.probe import Rhythm
from istio_aux.injector.watcher import Namespaces, Watcher
from istio_aux.kube import actions
from istio_aux.kube.client import Client
from istio_aux.kube.errors import Backoff
from istio_aux.kube.watch import Watch
from istio_aux.model.webhooks import Configuration, Namespace
from istio_aux.telemetry import Telemetry
from unit.apiserver import ApiServer, DryRun, fails, refusal
from unit.istio import decision, sidecar
from unit.process import background

TEMPLATE = sidecar.Template("istio-system", "docker.io/istio/proxyv2:1.28.10")
ENABLED = {"istio-injection": "enabled"}
QUICK = Rhythm(live=30.0, other=0.05)
ISTIOS = "namespace.sidecar-injector.istio.io"
_PEM = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"
BUNDLE = base64.b64encode(_PEM).decode()


def chain(
    native: sidecar.World, *later: Callable[[dict[str, Any]], web.Response | None]
) -> Callable[[dict[str, Any]], web.Response]:
    """What a dry run answers: istiod, and webhooks after it that change the pod or refuse it."""

    def create(pod: dict[str, Any]) -> web.Response:
        request = {"uid": "1", "namespace": pod["metadata"]["namespace"], "object": pod}
        template = dataclasses.replace(TEMPLATE, native=native)
        answer, _ = decision.answer({"request": request}, template, native=native == "default")
        patch = base64.b64decode(answer["response"]["patch"])
        made = jsonpatch.apply_patch(pod, json.loads(patch))
        refusals = (refused for webhook in later if (refused := webhook(made)))
        return next(refusals, None) or web.json_response(made, status=201)

    return create


def dead(_pod: dict[str, Any]) -> web.Response:
    """What a dry run answers while nothing listens at istiod's endpoint."""
    why = f'failed calling webhook "{ISTIOS}": failed to call webhook: connection refused'
    return refusal(500, "InternalError", f"Internal error occurred: {why}")


class Cluster(ApiServer):
    """An API server with versions of its own and of its kubelets, and with what istiod writes."""

    def __init__(self) -> None:
        super().__init__()
        self.kubernetes = "v1.36.3"
        self.dry_run: DryRun = chain("never")
        self.kubelets: list[str] = []

    async def _route(self, request: web.Request) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["version"]:
                return web.json_response({"gitVersion": self.kubernetes})
            case ["api", "v1", "nodes"]:
                return web.json_response({"metadata": {}, "items": self._nodes()})
        return await super()._route(request)

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {"metadata": {"name": f"node-{n}"}, "status": {"nodeInfo": {"kubeletVersion": version}}}
            for n, version in enumerate(self.kubelets)
        ]

    def configure(
        self,
        name: str = "istio-sidecar-injector",
        *,
        bundle: str | None = BUNDLE,
        revision: str = "default",
        service: str = "istiod",
        **webhook: Any,
    ) -> None:
        """Create or replace one of Istio's configurations, for namespaces that are enabled."""
        where = {"namespace": "istio-system", "name": service, "path": "/inject", "port": 443}
        rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"]}
        hook = {
            "name": ISTIOS,
            "clientConfig": {"service": where, "caBundle": bundle},
            "namespaceSelector": {"matchLabels": ENABLED},
            "rules": [{**rule, "resources": ["pods"]}],
            **webhook,
        }
        metadata = {"name": name, "labels": {"istio.io/rev": revision}}
        self.put("mutatingwebhookconfigurations", {"metadata": metadata, "webhooks": [hook]})

    def put_policy(self, text: str | None) -> None:
        """Write istiod's ConfigMap."""
        metadata = {"name": "istio-sidecar-injector", "namespace": "istio-system"}
        self.put("configmaps", {"metadata": metadata, "data": text and {"config": text}})

    def publish(self, *, ready: bool = True, service: str = "istiod") -> None:
        """Give a Service the endpoint of istiod."""
        labels = {"kubernetes.io/service-name": service}
        where = {"name": "istiod-0", "namespace": "istio-system", "labels": labels}
        endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}
        ports = [{"name": "https-webhook", "port": 15017}]
        self.put("endpointslices", {"metadata": where, "endpoints": [endpoint], "ports": ports})

    def lead(self, *, ready: bool = True, **webhook: Any) -> None:
        """Make an istiod the one that is called for pods of a namespace."""
        self.put("namespaces", {"metadata": {"name": "meshed", "labels": ENABLED}})
        self.publish(ready=ready)
        self.configure(**webhook)


@asynccontextmanager
async def watching(
    api: Cluster,
    telemetry: Telemetry | None = None,
    **options: Any,
) -> AsyncGenerator[Watcher]:
    """A watcher of this cluster, quick to ask again."""
    async with Client(api.access()) as client:
        namespaces = Namespaces(lambda _name: None)
        options = {"rhythm": QUICK, "changed": lambda _mesh: None, **options}
        watcher = Watcher(client, namespaces, telemetry or Telemetry(), **options)
        quick = Backoff(0.02, 0.1)
        configurations = Watch(
            client,
            actions.CONFIGURATIONS,
            Configuration,
            watcher.configurations,
            backoff=quick,
            failed=fails,
        )
        others = Watch(
            client, actions.NAMESPACES, Namespace, namespaces, backoff=quick, failed=fails
        )
        async with (
            background(others.run()),
            background(configurations.run()),
            background(watcher.run(configurations.synced, others.synced)),
        ):
            yield watcher
