"""Admission webhooks whose answers a test chooses: one server, one Service for each webhook.

The API server names the Service in the Host header, so the path and all else of a configuration may
stay what the charm renders.
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
from typing import Any, Self

from lightkube import ApiError, codecs
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.core_v1 import Namespace

from lab.clusters import Cluster

PORT = 8443

Request = dict[str, Any]
Answer = Callable[[Request], bytes | None]
"""Takes the `request` of an AdmissionReview and returns all bytes of an HTTP response, after which
the connection is closed; None: there is none, and the connection stays."""


class Hooks:
    """Webhooks, while it is open; each has the name of its Service in namespace `model`.

    Attributes:
        bundle: the caBundle for their configurations.
        calls: how often each was called.
    """

    def __init__(self, cluster: Cluster, model: str, answers: Mapping[str, Answer]) -> None:
        self.bundle = base64.b64encode(cluster.ca.read_bytes()).decode()
        self.calls = collections.Counter[str]()
        self._cluster, self._model, self._answers = cluster, model, answers
        hosts = [f"{name}.{model}.svc" for name in answers]
        pair = cluster.issue(f"hooks-{model}", "hooks", hosts=hosts)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self._server = _Server((self._cluster.harness, 0), self._handler())
        self._server.context = self._context
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, name="hooks", daemon=True)
        self._thread.start()
        with self._cluster.client() as client:
            client.apply(Namespace(metadata=ObjectMeta(name=self._model)))
        for name in self._answers:
            port = self._server.server_address[1]
            self._cluster.publish(self._model, name, PORT, port, host=self._cluster.harness)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        hooks = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = self.headers["Host"].partition(".")[0]
                hooks.calls[name] += 1
                answer = hooks._answers[name](review["request"])
                if answer is None:
                    hooks._closing.wait()
                else:
                    self.wfile.write(answer)

        return Handler


@contextlib.contextmanager
def mutating(
    cluster: Cluster,
    name: str,
    answers: Mapping[str, Answer],
    selectors: Mapping[str, Mapping[str, Any]],
) -> Iterator[Hooks]:
    """Webhooks for new pods, until the end of the block; `selectors` are by webhook."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    with Hooks(cluster, name, answers) as hooks, cluster.client() as client:
        webhooks = [
            {
                "name": f"{each}.lab.test",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "service": {"name": each, "namespace": name, "port": PORT},
                    "caBundle": hooks.bundle,
                },
                "rules": [{**rule, "resources": ["pods"]}],
                "sideEffects": "None",
                "timeoutSeconds": 30,
                **selectors[each],
            }
            for each in answers
        ]
        configuration = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": webhooks,
        }
        client.create(codecs.from_dict(configuration))
        yield hooks
        with contextlib.suppress(ApiError):  # The test may have deleted it.
            client.delete(MutatingWebhookConfiguration, name)


class _Server(http.server.ThreadingHTTPServer):
    # Each connection has a thread, which may outlive the test.
    daemon_threads = True
    request_queue_size = 128
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's thread: a client that delays its handshake delays nobody else.
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: an API server that is told nonsense hangs up."""


def http_response(body: bytes, *, status: int = 200) -> bytes:
    """An HTTP response that says it is JSON."""
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def review(uid: str, **more: Any) -> bytes:
    """An HTTP response that allows the pod; `more` are further fields of the review's response."""
    answer = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": True, **more},
    }
    return http_response(json.dumps(answer).encode())


def patching(operations: Callable[[dict[str, Any]], Sequence[dict[str, Any]]]) -> Answer:
    """Answer with the JSON Patch that `operations` returns for a pod."""

    def answer(request: Request) -> bytes:
        patch = base64.b64encode(json.dumps(operations(request["object"])).encode()).decode()
        return review(request["uid"], patchType="JSONPatch", patch=patch)

    return answer
