"""The objects that lead the API server to Istio's injector, reduced to the fields that we read.

MutatingWebhookConfigurations, EndpointSlices and namespaces. What a webhook of Istio's injector
looks like: istio manifests/charts/istio-control/istio-discovery/templates/mutatingwebhook.yaml and
revision-tags-mwc.yaml.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import NamedTuple

from istio_aux.model.annotations import text_label
from istio_aux.model.names import START_WEBHOOK
from istio_aux.model.pod import Present, Resource, Struct
from istio_aux.model.selectors import LabelSelector

REVISION = "istio.io/rev"  # Label of a configuration: the revision, or the tag, of its istiod.
SERVICE = "kubernetes.io/service-name"  # Label of an EndpointSlice.

revision_label = text_label(REVISION)
_service = text_label(SERVICE)
_DEFAULT = "default"
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]++-----END CERTIFICATE-----")


class Namespace(Resource, frozen=True):
    """A namespace; webhooks select it by its labels, of which `kept.labels` tells."""


class ConfigMap(Resource, frozen=True):
    """A ConfigMap, such as that with an injection policy."""

    data: dict[str, str] | None = None


class ControlPlane(NamedTuple):
    """One istiod: its namespace, empty when it is reached by URL, and its revision."""

    namespace: str
    revision: str

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap with its injection policy (istio pkg/kube/inject/watcher.go)."""
        suffix = "" if self.revision == _DEFAULT else f"-{self.revision}"
        return f"istio-sidecar-injector{suffix}"


class Service(NamedTuple):
    """The namespace and name of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Address(NamedTuple):
    """Where a process accepts connections. The host may be a name; empty: every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class ServiceReference(Struct, frozen=True):
    """``clientConfig.service``; an absent port is 443."""

    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class ClientConfig(Struct, frozen=True):
    """Whom the API server calls, by Service or by URL, and which certificates it trusts there.

    A new caBundle makes a new endpoint. ``ca_bundle`` stays the base64 text of the wire: a broken
    one must not break its configuration.
    """

    service: ServiceReference | None = None
    url: str | None = None
    ca_bundle: str | None = None

    @property
    def has_certificate(self) -> bool:
        """Whether its caBundle has one; the rest is ignored (Go crypto/x509 AppendCertsFromPEM)."""
        try:
            return _PEM.search(base64.b64decode(self.ca_bundle or "")) is not None
        except ValueError:
            return False


class Rule(Struct, frozen=True):
    """The requests for which a webhook is called."""

    operations: tuple[str, ...] | None = None
    api_groups: tuple[str, ...] | None = None
    api_versions: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    scope: str | None = None


class Webhook(Struct, frozen=True):
    """One webhook of a configuration; an absent selector selects everything."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    rules: tuple[Rule, ...] | None = None
    match_conditions: tuple[dict[str, object], ...] | None = None
    failure_policy: str | None = None

    @property
    def is_istios(self) -> bool:
        """Whether the webhook is Istio's, deactivated or not, by the suffix of its name.

        Istiod writes its CA only into webhooks with this suffix, whatever a vendor calls the
        configuration (istio webhookpatch.go).
        """
        return self.name.endswith("sidecar-injector.istio.io")

    @property
    def injects(self) -> bool:
        """Whether the webhook is Istio's and not deactivated.

        istioctl deactivates a webhook by a label that it selects and that no object has (istioctl
        pkg/util/common.go).
        """
        return self.is_istios and not any(
            ("istio.io/deactivated", "never-match") in (selector.match_labels or {}).items()
            for selector in (self.namespace_selector, self.object_selector)
            if selector
        )

    @property
    def creates_pods(self) -> bool:
        """Whether a rule matches creations of pods (apiserver webhook/predicates/rules.go)."""
        return any(
            _any("CREATE", rule.operations)
            and _any("", rule.api_groups)
            and _any("v1", rule.api_versions)
            and not {"*", "pods", "*/*", "pods/*"}.isdisjoint(rule.resources or ())
            and rule.scope in {None, "*", "Namespaced"}
            for rule in self.rules or ()
        )


class Configuration(Resource, frozen=True):
    """A MutatingWebhookConfiguration (admissionregistration/v1)."""

    webhooks: tuple[Webhook, ...] | None = None

    @property
    def revision(self) -> str:
        """The Istio revision that it belongs to; ``default`` without a label."""
        return revision_label.get(self.metadata) or _DEFAULT

    @property
    def is_ours(self) -> bool:
        """Whether an installation of istio-aux made it."""
        return any(hook.name == START_WEBHOOK for hook in self.webhooks or ())

    def control_plane(self, webhook: Webhook) -> ControlPlane:
        """Return the istiod behind a webhook of this configuration."""
        service = webhook.client_config.service
        return ControlPlane(service.namespace if service else "", self.revision)


def sorted_before(ours: str, configurations: Iterable[Configuration]) -> tuple[str, ...]:
    """Return the names of Istio's configurations that the API server calls before ours, sorted.

    It calls mutating webhooks in the bytewise order of the names of their configurations (apiserver
    mutating_webhook_manager.go), which is Python's order of code points. What our webhook adds must
    be there when Istio's reads the pod. Our configuration, ``ours``, need not exist.
    """
    return tuple(
        sorted(
            configuration.metadata.name
            for configuration in configurations
            if configuration.metadata.name < ours
            and any(webhook.injects for webhook in configuration.webhooks or ())
        )
    )


class Conditions(Struct, frozen=True):
    """``conditions`` of an endpoint."""

    ready: bool | None = None


class Endpoint(Struct, frozen=True):
    """One backend of a Service."""

    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None


class EndpointSlice(Resource, frozen=True):
    """An EndpointSlice (discovery.k8s.io/v1); a Service may have several."""

    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[Present, ...] | None = None

    @property
    def service(self) -> Service | None:
        """The Service that it belongs to, or None without a label."""
        name = _service.get(self.metadata)
        return Service(self.metadata.namespace, name) if name else None

    @property
    def ready(self) -> bool:
        """Whether an endpoint accepts connections. A slice without ports has none.

        Unknown counts as ready (discovery/v1 types.go).
        """
        return bool(self.ports) and any(
            it.addresses and not (it.conditions and it.conditions.ready is False)
            for it in self.endpoints or ()
        )


def _any(wanted: str, allowed: tuple[str, ...] | None) -> bool:
    return not {wanted, "*"}.isdisjoint(allowed or ())
