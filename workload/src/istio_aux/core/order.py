"""Whether the API server calls Istio's sidecar injector before our webhook.

Only that question may live here. Mutating webhooks are called one after another, sorted by the
name of their configuration and that bytewise (apiserver mutating_webhook_manager.go), and what we
ask for at a pod's creation has to be there when Istio reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from istio_aux.core.webhooks import Configuration


def sorted_before(ours: str, found: Iterable[Configuration]) -> tuple[str, ...]:
    """Name those of Istio's configurations in ``found`` that are called before ``ours``, sorted.

    ``ours`` is compared by name only and need not exist (yet). Code points, by which strings are
    compared, have the order of their UTF-8 bytes.
    """
    return tuple(
        sorted(
            configuration.metadata.name
            for configuration in found
            if configuration.metadata.name < ours
            and any(webhook.injects for webhook in configuration.webhooks or ())
        )
    )
