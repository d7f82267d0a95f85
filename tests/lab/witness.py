"""Records every exec, attach and port-forward that the API server lets through.

It is a validating webhook that allows everything. `failurePolicy: Fail` makes the record complete.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import yaml
from lightkube import codecs
from lightkube.resources.admissionregistration_v1 import ValidatingWebhookConfiguration

from lab import kubeconfig
from lab.waiting import ending, until

if TYPE_CHECKING:
    from lab.clusters import Cluster

NAME = "lab-witness"
# Measured: the API server knows of a new webhook after 1 s.
LIVE = 30
CONFIGURATION = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: {name}}}
webhooks:
  - name: witness.istio-aux.lab
    admissionReviewVersions: [v1]
    sideEffects: None
    failurePolicy: Fail
    clientConfig: {{url: "{url}", caBundle: "{bundle}"}}
    rules:
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CONNECT]
        resources: [pods/exec, pods/attach, pods/portforward]
"""


@dataclass(frozen=True)
class Connection:
    """What somebody wanted of a pod; a port-forward has neither container nor command."""

    user: str
    namespace: str
    pod: str
    subresource: str
    container: str
    command: tuple[str, ...]


class Witness:
    """The connections that were asked for, in order, also those that came to nothing."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []

    def of(self, namespace: str) -> list[Connection]:
        """Those to pods of a namespace."""
        return [seen for seen in list(self.connections) if seen.namespace == namespace]

    def note(self, request: dict[str, Any]) -> None:
        """Remember a request of an AdmissionReview."""
        options = request.get("object") or {}
        self.connections.append(
            Connection(
                request["userInfo"]["username"],
                request["namespace"],
                request["name"],
                request["subResource"],
                options.get("container", ""),
                tuple(options.get("command") or ()),
            )
        )


@contextlib.contextmanager
def witness(cluster: Cluster) -> Iterator[Witness]:
    """A witness that the API server asks from here on.

    Raises:
        TimeoutError: the API server does not ask it.
    """
    seen = Witness()
    pair = cluster.issue(NAME, NAME, organizations=["system:masters"], hosts=[cluster.harness])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with ThreadingHTTPServer((cluster.harness, 0), _handler(seen)) as server:
        # Each connection shakes hands in its own thread.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        thread = threading.Thread(target=server.serve_forever, name=NAME)
        thread.start()
        try:
            with _configured(cluster, server.server_port):
                path = "/api/v1/namespaces/default/pods/nobody/exec?command=true"
                until(
                    lambda: (
                        kubeconfig.get(cluster.server, cluster.ca, pair, path) and seen.connections
                    ),
                    timeout=LIVE,
                    what="the API server to ask the witness",
                )
                yield seen
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def _configured(cluster: Cluster, port: int) -> Iterator[None]:
    bundle = base64.b64encode(cluster.ca.read_bytes()).decode()
    url = f"https://{cluster.harness}:{port}/"
    document = yaml.safe_load(CONFIGURATION.format(name=NAME, url=url, bundle=bundle))
    with cluster.client() as client:
        client.create(codecs.from_dict(document))
        yield
        with ending(NAME):
            client.delete(ValidatingWebhookConfiguration, NAME)


def _handler(seen: Witness) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.note(review["request"])
            response = {"uid": review["request"]["uid"], "allowed": True}
            answer = json.dumps({**review, "request": None, "response": response}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
            """Say nothing."""

    return Handler
