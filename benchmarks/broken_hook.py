"""The charm's webhook configuration in front of webhooks that are each broken in one way.

The label `lab.test/broken: <way>` of a namespace chooses the webhook that reviews its pods.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence

from lab.clusters import Cluster
from lab.hooks import Answer, Hooks, http_response, patching
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

import manifests

LABEL = "lab.test/broken"
MODEL = "broken"

ANSWERS: dict[str, Answer] = {
    "error-500": lambda _: http_response(b"out of order", status=500),
    "not-json": lambda _: http_response(b"<html>"),
    "mute": lambda _: None,
}
"""Each fails in its own way, the last one by never answering."""

BLACKHOLED = "blackholed"
"""Packets that nobody answers."""

INAPPLICABLE = "inapplicable"
"""A well-formed JSON Patch that cannot apply: the only one that refuses pods despite `Ignore`."""


@contextlib.contextmanager
def broken_hooks(cluster: Cluster, ways: Sequence[str]) -> Iterator[Hooks]:
    """Webhooks broken in these ways, in force; they are withdrawn at the end.

    The caller makes the namespaces, and waits until the API server knows the configurations, which
    it learns in the order of `ways`.
    """
    answers = {**ANSWERS, INAPPLICABLE: patching(_remove_what_is_not_there)}
    answering = {f"broken-{way}": answers[way] for way in ways if way != BLACKHOLED}
    with (
        Hooks(cluster, MODEL, answering) as hooks,
        _full() as blackholed,
        cluster.client() as client,
    ):
        cluster.publish(MODEL, f"broken-{BLACKHOLED}", manifests.WEBHOOK_PORT, blackholed)
        for way in ways:
            for resource in manifests.render_webhook(_values(way, cluster.ca.read_text())):
                client.apply(resource, force=True)
        yield hooks
        for way in ways:
            name = manifests.webhook_configuration(f"broken-{way}", MODEL)
            client.delete(MutatingWebhookConfiguration, name)


def _values(way: str, ca: str) -> manifests.Values:
    selector = {"matchLabels": {LABEL: way}}
    return manifests.Values(f"broken-{way}", MODEL, namespace_selectors=[selector], ca_bundle=ca)


def _remove_what_is_not_there(_pod: object) -> list[dict[str, str]]:
    return [{"op": "remove", "path": "/metadata/annotations/nothing-of-that-name"}]


@contextlib.contextmanager
def _full() -> Iterator[int]:
    """A port of 127.0.0.1 that drops every SYN, because nobody takes what is in its queue."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # Linux queues one more than was asked for (net/sock.h sk_acceptq_is_full).
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
