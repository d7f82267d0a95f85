"""Istio's webhook configurations for tables of tests: recorded ones, and variations of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from istio_aux.injector import injection
from istio_aux.injector.injection import Expectation, Hook, InjectionPolicy, Policies, hooks_of
from istio_aux.model import pod as pods
from istio_aux.model.pod import Pod
from istio_aux.model.pod_settings import InjectionRequest
from istio_aux.model.webhooks import ClientConfig, Configuration, ControlPlane

RECORDS = Path(__file__).parents[2] / "data" / "istio"
DEFAULT = "istio-revision-tag-default"
ORIGINAL = "istio-sidecar-injector"
"""Deactivated by `istioctl install`, which made the former."""
REVISED = "istio-sidecar-injector-1-30-3"
REVISION = "1-30-3"
_FILES = {
    DEFAULT: f"mwc-istioctl-install-{DEFAULT}.yaml",
    ORIGINAL: f"mwc-istioctl-install-{ORIGINAL}.yaml",
    REVISED: "mwc-revision-1-30-3.yaml",
}
OURS = ControlPlane("istio-system", "default")
THEIRS = ControlPlane("istio-system", REVISION)
POLICIES = {OURS: InjectionPolicy(), THEIRS: InjectionPolicy()}

INJECT = "sidecar.istio.io/inject"
TRUE = {INJECT: "true"}
FALSE = {INJECT: "false"}
ENABLED = {"istio-injection": "enabled"}
"""Labels of a namespace."""

Edit = Callable[[dict[str, Any]], None]


def recorded(name: str) -> Configuration:
    """A configuration as a real cluster had it."""
    return decode(document(name))


def edited(name: str, edit: Edit) -> Configuration:
    """The same after a change by ``edit``."""
    body = document(name)
    edit(body)
    return decode(body)


def each_webhook(configuration: str, /, **fields: Any) -> Configuration:
    """The same with other fields in each of its webhooks."""

    def edit(body: dict[str, Any]) -> None:
        for webhook in body["webhooks"]:
            webhook.update(fields)

    return edited(configuration, edit)


def renamed(name: str, to: str, *, replace: tuple[str, str] = ("", "")) -> Configuration:
    """The same by another name, with the values of selectors replaced."""

    def edit(body: dict[str, Any]) -> None:
        body["metadata"]["name"] = to
        for webhook in body["webhooks"]:
            for which in ("namespaceSelector", "objectSelector"):
                for expression in webhook[which]["matchExpressions"]:
                    values = expression.get("values", [])
                    values[:] = [replace[1] if value == replace[0] else value for value in values]

    return edited(name, edit)


def document(name: str) -> dict[str, Any]:
    """A recording as it was written."""
    return yaml.load((RECORDS / _FILES[name]).read_text(), Loader=yaml.CSafeLoader)


def decode(body: object) -> Configuration:
    """As it comes over the wire; times, which nobody reads, become text."""
    return msgspec.json.decode(json.dumps(body, default=str), type=Configuration)


def target(configuration: Configuration) -> ClientConfig:
    """Where its first webhook leads to."""
    assert configuration.webhooks
    return configuration.webhooks[0].client_config


READY: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": True}}
"""An endpoint of a slice."""
GONE: dict[str, Any] = {"addresses": ["10.1.0.7"], "conditions": {"ready": False}}

HOOKS = hooks_of([recorded(REVISED), recorded(ORIGINAL), recorded(DEFAULT)])


def pod(
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "training",
    **spec: Any,
) -> Pod:
    """A pod of which no more is read than this."""
    metadata = {"name": "p", "namespace": namespace, "labels": labels, "annotations": annotations}
    return pods.convert({"metadata": metadata, "spec": spec})


def expected(
    pod: Pod, namespace: Mapping[str, str] | None, hooks: Sequence[Hook], policies: Policies
) -> Expectation:
    """Whether this pod would get a sidecar in a namespace with these labels."""
    return injection.expected(InjectionRequest.of(pod, namespace), hooks, policies)
