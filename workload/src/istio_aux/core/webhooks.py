"""MutatingWebhookConfigurations as they come over the wire, reduced to the fields we read.

Only structs and plain accessors may live here; no decision does. What a webhook of Istio's injector
looks like: istio manifests/charts/istio-control/istio-discovery/templates/mutatingwebhook.yaml and
revision-tags-mwc.yaml.
"""

from __future__ import annotations

from typing import NamedTuple

from istio_aux.core.pod import Metadata, Struct
from istio_aux.core.selectors import LabelSelector

_INJECTOR = "sidecar-injector.istio.io"
"""How the names of Istio's injection webhooks end, whatever vendors call the configuration: istiod
writes its CA into webhooks of no other name (istio webhookpatch.go)."""

_DEACTIVATED = ("istio.io/deactivated", "never-match")
"""The label that istioctl makes a webhook select that is not to be called any more; no object has
it (istioctl pkg/util/common.go)."""

REVISION = "istio.io/rev"
"""Label of a configuration: the revision of the istiod that it belongs to, a tag's as well."""

_DEFAULT = "default"


class ControlPlane(NamedTuple):
    """One istiod: its namespace, empty when it is reached by URL, and its revision."""

    namespace: str
    revision: str

    @property
    def config_map(self) -> str:
        """Name of the ConfigMap with its injection policy (istio pkg/kube/inject/watcher.go)."""
        suffix = "" if self.revision == _DEFAULT else f"-{self.revision}"
        return f"istio-sidecar-injector{suffix}"


class ServiceReference(Struct, frozen=True):
    """``clientConfig.service``; an absent port is 443."""

    namespace: str = ""
    name: str = ""
    path: str | None = None
    port: int | None = None


class ClientConfig(Struct, frozen=True):
    """Whom the API server calls, by Service or by URL, and whom it trusts there.

    It is hashable: facts about an endpoint are kept by it, and a new caBundle makes it another one.
    ``ca_bundle`` is the base64 text of the wire, so that a broken one breaks nothing else.
    """

    service: ServiceReference | None = None
    url: str | None = None
    ca_bundle: str | None = None


class Rule(Struct, frozen=True):
    """Which requests a webhook is called for."""

    operations: tuple[str, ...] | None = None
    api_groups: tuple[str, ...] | None = None
    api_versions: tuple[str, ...] | None = None
    resources: tuple[str, ...] | None = None
    scope: str | None = None

    @property
    def creates_pods(self) -> bool:
        """Whether it covers the creation of a pod (apiserver webhook/predicates/rules.go)."""
        return (
            _any("CREATE", self.operations)
            and _any("", self.api_groups)
            and _any("v1", self.api_versions)
            and not {"*", "pods", "*/*", "pods/*"}.isdisjoint(self.resources or ())
            and self.scope in {None, "*", "Namespaced"}
        )


class MatchCondition(Struct, frozen=True):
    """A CEL expression that must be true for the webhook to be called; we cannot evaluate it."""

    name: str = ""


class Webhook(Struct, frozen=True):
    """One webhook of a configuration; an absent selector selects everything."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    rules: tuple[Rule, ...] | None = None
    match_conditions: tuple[MatchCondition, ...] | None = None

    @property
    def is_istios(self) -> bool:
        """Whether it is one of Istio's that make sidecars, deactivated or not."""
        return self.name.endswith(_INJECTOR)

    @property
    def injects(self) -> bool:
        """Whether it is one of Istio's that make sidecars, and is not deactivated."""
        return self.is_istios and not any(
            _DEACTIVATED in (selector.match_labels or {}).items()
            for selector in (self.namespace_selector, self.object_selector)
            if selector
        )

    @property
    def creates_pods(self) -> bool:
        """Whether its rules cover the creation of a pod."""
        return any(rule.creates_pods for rule in self.rules or ())


class Configuration(Struct, frozen=True):
    """A MutatingWebhookConfiguration (admissionregistration/v1)."""

    metadata: Metadata = Metadata()
    webhooks: tuple[Webhook, ...] | None = None

    @property
    def revision(self) -> str:
        """Which Istio it belongs to; ``default`` where it does not say."""
        return (self.metadata.labels or {}).get(REVISION) or _DEFAULT

    def control_plane(self, webhook: Webhook) -> ControlPlane:
        """Which istiod answers a webhook of this configuration."""
        service = webhook.client_config.service
        return ControlPlane(service.namespace if service else "", self.revision)


def _any(wanted: str, found: tuple[str, ...] | None) -> bool:
    return not {wanted, "*"}.isdisjoint(found or ())
