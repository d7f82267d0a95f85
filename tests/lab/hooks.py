"""Mutating webhooks whose patches a test chooses: one server, one Service for each webhook.

The API server names the Service in the Host header.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lightkube import codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace

from lab.clusters import Cluster

PORT = 8443

Make = Callable[[dict[str, Any]], Sequence[dict[str, Any]]]
"""Takes a pod and returns the operations of a JSON Patch."""


@contextlib.contextmanager
def mutating(
    cluster: Cluster,
    name: str,
    patches: Mapping[str, Make],
    selectors: Mapping[str, Mapping[str, Any]],
) -> Iterator[collections.Counter[str]]:
    """Webhooks for new pods, until the end of the block; how often each was called.

    `selectors` are by webhook, as `patches` are.
    """
    calls = collections.Counter[str]()

    def answer(webhook: str, request: dict[str, Any]) -> dict[str, Any]:
        calls[webhook] += 1
        patch = json.dumps(patches[webhook](request["object"])).encode()
        said = {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
        return {"uid": request["uid"], "allowed": True, **said}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = answer(self.headers["Host"].partition(".")[0], review.pop("request"))
            body = json.dumps({**review, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = _Server((cluster.harness, 0), Handler)
    pair = cluster.issue(f"hooks-{name}", "hooks", hosts=[f"{each}.{name}.svc" for each in patches])
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(pair.certificate, pair.key)
    threading.Thread(target=server.serve_forever, name="hooks", daemon=True).start()
    with cluster.client() as client:
        client.apply(Namespace(metadata=ObjectMeta(name=name)))
        for each in patches:
            cluster.publish(name, each, PORT, server.server_address[1], host=cluster.harness)
        client.create(codecs.from_dict(_configuration(cluster, name, selectors)))
        yield calls
        client.delete(MutatingWebhookConfiguration, name)
    server.shutdown()
    server.server_close()


def _configuration(
    cluster: Cluster, name: str, selectors: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    bundle = base64.b64encode(cluster.ca.read_bytes()).decode()
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    webhooks = [
        {
            "name": f"{each}.lab.test",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": {"name": each, "namespace": name, "port": PORT},
                "caBundle": bundle,
            },
            "rules": [{**rule, "resources": ["pods"]}],
            "sideEffects": "None",
            "timeoutSeconds": 30,
            **selector,
        }
        for each, selector in selectors.items()
    ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": webhooks,
    }


class _Server(http.server.ThreadingHTTPServer):
    # Each connection has a thread, which may outlive the test.
    daemon_threads = True
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's thread: a client that delays its handshake delays nobody else.
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: an API server that is told nonsense hangs up."""
