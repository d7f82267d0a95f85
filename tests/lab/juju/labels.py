"""The admission webhook with which a model's operator labels what charms make (Juju caasadmission).

Juju 3.6.11 and 3.6.12 replace the labels that an object has already (juju#21312).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration

from lab import Cluster
from lab.hooks import PORT, Hooks, patching, review

_SERVICE = "modeloperator"


class LabelWebhook:
    """Labels what the ServiceAccounts of applications make or change, from its constructor on."""

    def __init__(self, cluster: Cluster, model: str, namespace: str, apps: Collection[str]) -> None:
        """Register and serve it; `apps` are the names of the model's applications, as they change.

        The API server asks it about everything but admission configurations, which no webhook sees.
        """
        self._cluster, self._name = cluster, f"juju-model-admission-{namespace}"
        accounts = f"system:serviceaccount:{namespace}:"

        def answer(request: dict[str, Any]) -> bytes | None:
            account, _, app = request["userInfo"]["username"].rpartition(":")
            # Reviews of rights may have no labels (Juju caasadmission/filter.go).
            exempt = request["kind"]["group"] == "authorization.k8s.io"
            if exempt or f"{account}:" != accounts or app not in apps:
                return review(request["uid"])
            return patching(lambda made: _patch(made, model, app))(request)

        # Juju's is in the model's namespace, next to what the model's charms have there.
        self._served = f"{namespace}-operator"
        self._hooks = Hooks(cluster, self._served, {_SERVICE: answer})
        self._hooks.__enter__()
        with cluster.client() as client:
            client.apply(self._configuration(model), field_manager="juju")

    def stop(self) -> None:
        """Unregister it and serve no more."""
        with self._cluster.client() as client:
            client.delete(MutatingWebhookConfiguration, self._name)
        self._hooks.__exit__()

    def _configuration(self, model: str) -> MutatingWebhookConfiguration:
        """Return the configuration as Juju makes it."""
        labels = {"model.juju.is/name": model}
        everything = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "scope": "*"}
        webhook = {
            "name": "admission.juju.is",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "caBundle": self._hooks.bundle,
                "service": {"name": _SERVICE, "namespace": self._served, "port": PORT},
            },
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {"matchLabels": labels},
            "objectSelector": {
                "matchExpressions": [
                    {"key": "model.juju.is/disable-webhook", "operator": "DoesNotExist"}
                ]
            },
            "rules": [{**everything, "operations": ["CREATE", "UPDATE"]}],
            "sideEffects": "None",
        }
        metadata = {"name": self._name, "labels": labels}
        made = MutatingWebhookConfiguration.from_dict({"metadata": metadata, "webhooks": [webhook]})
        assert isinstance(made, MutatingWebhookConfiguration)
        return made


def _patch(made: dict[str, Any], model: str, app: str) -> list[dict[str, Any]]:
    forced = {
        "app.juju.is/created-by": app,
        "app.kubernetes.io/managed-by": "juju",
        "model.juju.is/name": model,
    }
    labels = made["metadata"].get("labels") or {}
    return [{"op": "add", "path": "/metadata/labels", "value": {**labels, **forced}}]
