"""Stand-in for istiod: answers /inject and /validate, writes its CA into webhooks and namespaces.

    python -m lab.istio.injector --kubeconfig FILE --state FOLDER ...

It reads its installation's settings from `template.json` in that folder.

It does not: configure proxies (no xDS), sign certificates, read Istio's own resources, know other
templates than `sidecar` and one that is called `custom`, nor merge a sidecar that the user wrote
into the pod.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx2
from aiohttp import web
from lightkube import AsyncClient, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node

from lab.certificates import Authority
from lab.istio import decision, sidecar, validation, webhooks

log = logging.getLogger("istiod")
ROOT_CERTIFICATE = "istio-ca-root-cert"


class Injector:
    """The server and the two loops of one istiod."""

    def __init__(self, client: AsyncClient, template: sidecar.Template, ca: str) -> None:
        self._client = client
        self._template = template
        self._ca = ca

    async def inject(self, request: web.Request) -> web.Response:
        """Answer an AdmissionReview; no client certificate is asked for, like istiod."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="invalid Content-Type, want `application/json`")
        review = json.loads(await request.read() or b"{}")
        if "object" not in review.get("request", {}):
            raise web.HTTPBadRequest(text="no AdmissionReview request found")
        native = decision.native_by_default(
            self._template.native, await self._kubelets(), self._template.minor
        )
        response, reason = decision.answer(review, self._template, native=native)
        pod = review["request"]["object"]["metadata"]
        name = pod.get("name") or pod.get("generateName")
        log.info("%s/%s: %s", review["request"].get("namespace"), name, reason)
        return web.json_response(response)

    async def _kubelets(self) -> list[str]:
        if self._template.native != "default":
            return []
        nodes = [node async for node in self._client.list(Node)]
        return [cast("Any", node.status).nodeInfo.kubeletVersion for node in nodes]

    async def write_ca(
        self, found: MutatingWebhookConfiguration | ValidatingWebhookConfiguration
    ) -> None:
        """Make a configuration of this revision trust this istiod (istio webhookpatch.go).

        One that validates needs this istiod from now on.
        """
        metadata = cast("ObjectMeta", found.metadata)
        if (metadata.labels or {}).get("istio.io/rev") != self._template.revision:
            return
        bundle = base64.b64encode(self._ca.encode()).decode()
        validates = isinstance(found, ValidatingWebhookConfiguration)
        changed = False
        for webhook in found.webhooks or ():
            if validates or webhook.name.endswith(webhooks.SUFFIX):
                policy = "Fail" if validates else webhook.failurePolicy
                changed |= (webhook.clientConfig.caBundle, webhook.failurePolicy) != (
                    bundle,
                    policy,
                )
                webhook.clientConfig.caBundle, webhook.failurePolicy = bundle, policy
        if changed:
            await self._client.replace(found)
            log.info("%s: wrote the caBundle", metadata.name)

    async def validate(self, request: web.Request) -> web.Response:
        """Answer an AdmissionReview of an object of Istio's own."""
        return web.json_response(validation.answer(json.loads(await request.read())))

    async def write_root(self, namespace: Namespace) -> None:
        """Give a namespace the ConfigMap that the sidecars of its pods mount."""
        metadata = cast("ObjectMeta", namespace.metadata)
        if metadata.deletionTimestamp or metadata.name in decision.IGNORED:
            return
        name = ObjectMeta(name=ROOT_CERTIFICATE, namespace=metadata.name)
        await self._client.apply(ConfigMap(metadata=name, data={"root-cert.pem": self._ca}))

    async def follow(self, resource: type[Any], handle: Callable[[Any], Awaitable[None]]) -> None:
        """Handle every object of a kind and each change, forever."""
        while True:
            try:
                async for operation, item in self._client.watch(resource):
                    if operation != "DELETED":
                        await self._handle(handle, item)
            except httpx2.HTTPError as error:
                log.warning("watch of %s: %s; again in 1 s", resource.__name__, error)
                await asyncio.sleep(1)

    async def _handle(self, handle: Callable[[Any], Awaitable[None]], item: Any) -> None:
        try:
            await handle(item)
        except ApiError as error:
            # A conflict brings another event; an object that is gone or going needs nothing.
            if error.status.code not in (403, 404, 409):
                raise
            log.info("%s: %s", item.metadata.name, error)


async def serve(arguments: argparse.Namespace) -> None:
    """Run until the process is ended."""
    authority = Authority(arguments.state, "root")
    template = sidecar.Template(**json.loads((arguments.state / "template.json").read_text()))
    host = f"{webhooks.service(template.revision)}.{template.namespace}.svc"
    pair = authority.issue("istiod", "istiod", hosts=[host])
    kubeconfig = KubeConfig.from_file(arguments.kubeconfig)
    client = AsyncClient(kubeconfig, trust_env=False, field_manager="istiod")
    injector = Injector(client, template, authority.pair.certificate.read_text())
    application = web.Application(client_max_size=7 << 20)
    application.router.add_post("/inject", injector.inject)
    application.router.add_post(validation.PATH, injector.validate)
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=90)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    await web.TCPSite(runner, arguments.address, arguments.port, ssl_context=context).start()
    log.info("serving on port %d", arguments.port)
    async with asyncio.TaskGroup() as loops:
        loops.create_task(injector.follow(Namespace, injector.write_root))
        if not arguments.without_ca:
            for kind in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
                loops.create_task(injector.follow(kind, injector.write_ca))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="stand-in for istiod's sidecar injector")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="folder for certificates")
    parser.add_argument("--address", required=True, help="the address to serve on")
    parser.add_argument("--port", type=int, required=True, help="the TCP port to serve on")
    parser.add_argument("--without-ca", action="store_true", help="leave the caBundles as they are")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stdout, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    asyncio.run(serve(arguments))


if __name__ == "__main__":
    main()
