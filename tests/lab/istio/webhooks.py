"""The MutatingWebhookConfigurations that `istioctl install` leaves behind, as recorded.

The default revision's own configuration is deactivated and a tag's does the work; both carry the
same four webhooks. Any other revision has one configuration, with two of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[2] / "data/istio"
"""Recordings of a real Istio."""
DEACTIVATED = {"matchLabels": {"istio.io/deactivated": "never-match"}}
# istio webhookpatch.go: istiod writes its CA into the webhooks whose name ends so.
SUFFIX = "sidecar-injector.istio.io"
DEFAULT = "default"


def service(revision: str) -> str:
    """The name of the Service of a revision's istiod."""
    return "istiod" if revision == DEFAULT else f"istiod-{revision}"


def config_map(namespace: str, revision: str) -> dict[str, Any]:
    """The ConfigMap with istiod's injection policy, which is Istio's own default."""
    suffix = "" if revision == DEFAULT else f"-{revision}"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"istio-sidecar-injector{suffix}",
            "namespace": namespace,
            "labels": {"istio.io/rev": revision, "app.kubernetes.io/name": "istiod"},
        },
        # Of the real one's text only the templates are missing.
        "data": {
            "config": "defaultTemplates: [sidecar]\n"
            "policy: enabled\n"
            "alwaysInjectSelector:\n  []\n"
            "neverInjectSelector:\n  []\n"
            "injectedAnnotations:\n"
        },
    }


def configurations(
    namespace: str, revision: str = DEFAULT, name: str | None = None
) -> list[dict[str, Any]]:
    """The configurations, without a caBundle: istiod writes that. `name` is the working one's."""
    suffix = "" if namespace == "istio-system" else f"-{namespace}"

    def recorded(file: str, name: str) -> dict[str, Any]:
        text = (DATA / f"mwc-{file}.yaml").read_text()
        text = text.replace("istio-system", namespace).replace("1-30-3", revision)
        found = yaml.load(text, yaml.CSafeLoader)
        found["metadata"] = {"name": name, "labels": found["metadata"]["labels"]}
        for webhook in found["webhooks"]:
            del webhook["clientConfig"]["caBundle"]
        return found

    if revision != DEFAULT:
        return [recorded("revision-1-30-3", name or f"istio-sidecar-injector-{revision}{suffix}")]
    return [
        recorded(
            "istioctl-install-istio-revision-tag-default",
            name or f"istio-revision-tag-default{suffix}",
        ),
        recorded("istioctl-install-istio-sidecar-injector", f"istio-sidecar-injector{suffix}"),
    ]
