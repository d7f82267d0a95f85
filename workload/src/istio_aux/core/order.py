"""Whether the API server calls Istio's sidecar injector before our webhook.

Only that question may live here. Mutating webhooks are called one after another, sorted by the
name of their configuration and that bytewise (apiserver mutating_webhook_manager.go), and what we
ask for at a pod's creation has to be there when Istio reads it.
"""

from __future__ import annotations

from collections.abc import Iterable

from istio_aux.core.pod import Metadata, Struct

_INJECTOR = "sidecar-injector.istio.io"
"""How the names of Istio's injection webhooks end, whatever vendors call the configuration: istiod
writes its CA into webhooks of no other name (istio webhookpatch.go)."""

_DEACTIVATED = ("istio.io/deactivated", "never-match")
"""The label that istioctl makes a webhook select that is not to be called any more; no object has
it (istioctl pkg/util/common.go)."""


class LabelSelector(Struct, frozen=True):
    """``namespaceSelector`` or ``objectSelector``, as far as it can deactivate a webhook."""

    match_labels: dict[str, str] | None = None


class Webhook(Struct, frozen=True):
    """One webhook of a configuration."""

    name: str = ""
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None

    @property
    def injects(self) -> bool:
        """Whether it is one of Istio's that make sidecars, and is not deactivated."""
        return self.name.endswith(_INJECTOR) and not any(
            _DEACTIVATED in (selector.match_labels or {}).items()
            for selector in (self.namespace_selector, self.object_selector)
            if selector
        )


class Configuration(Struct, frozen=True):
    """A MutatingWebhookConfiguration (admissionregistration/v1)."""

    metadata: Metadata = Metadata()
    webhooks: tuple[Webhook, ...] | None = None


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
