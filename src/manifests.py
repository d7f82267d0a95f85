"""The Kubernetes objects that the application owns, rendered from `templates/*.j2`.

Pure: values in, objects out. Nothing here knows Juju, Pebble or a cluster, so that tests of the
workload can use the very role and webhook configuration that the charm creates.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import jinja2
import yaml
from lightkube import codecs
from lightkube.codecs import AnyResource

import kinds  # noqa: F401  # pyright: ignore[reportUnusedImport]  tells `codecs` of Istio's kind
import namespaces
import startrules

WEBHOOK_PORT: Final = 8443

# All commands by which the workload quits a proxy (its `core/ladder.py`): over the status ports
# that pilot-agent's request accepts (istio pilot-agent request.go), and over Envoy's admin port.
_QUIT: Final = ("POST", "quitquitquit")
QUIT_COMMANDS: Final = (
    *(
        ("pilot-agent", "request", f"--debug-port={port}", *_QUIT)
        for port in (15000, 15004, 15020, 15021)
    ),
    ("pilot-agent", "request", *_QUIT),
)

_TEMPLATES: Final = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Values:
    """What the objects depend on.

    Attributes:
        app: name of the Juju application; also its Service and the base of the objects' names.
        model: name of the Juju model; also its namespace.
        namespace_selector: Kubernetes LabelSelector (`matchLabels`, `matchExpressions`) of the
            namespaces whose pods are shown to the webhook.
        failure_policy: what the API server does with a pod when the webhook does not answer.
        ca_bundle: PEM certificates, any of which may have signed what the webhook serves.
        acts: the workload may quit proxies.
        deletes: it may also delete pods that lost theirs; without `acts` it may not.
        start_mode: how pods get their start order, as the workload's setting of that name has it.
        admission: who changes pods: the webhook, or a policy inside the API server, which leaves
            to the webhook what it cannot change safely.
    """

    app: str
    model: str
    namespace_selector: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    ca_bundle: str = ""
    acts: bool = True
    deletes: bool = False
    start_mode: Literal["auto", "native", "hold", "off"] = "auto"
    admission: Literal["webhook", "policy"] = "webhook"


def service_account(app: str) -> str:
    """Name of the workload's own ServiceAccount, in the model's namespace."""
    return f"{app}-workload"


def webhook_configuration(app: str, model: str) -> str:
    """Name of the MutatingWebhookConfiguration, which sorts before every one of Istio's.

    The MutatingAdmissionPolicy has it as well.
    """
    return f"istio-aux-{model}-{app}"


def lease(app: str) -> str:
    """Name of the Lease by which one unit is chosen to act, in the model's namespace."""
    return app


def labels(app: str, model: str) -> dict[str, str]:
    """The labels by which the application finds again what it owns, in any namespace."""
    return {
        "app.kubernetes.io/managed-by": "istio-aux-charm",
        "istio-aux.io/application": app,
        "istio-aux.io/model": model,
    }


def render_access(values: Values) -> list[AnyResource]:
    """Return the workload's ServiceAccount, what narrows it, and its roles, in this order.

    So it never has a right, in any namespace, that the policy does not narrow yet.
    """
    account = service_account(values.app)
    policy = _render(
        "policy.yaml.j2",
        values.app,
        values.model,
        user=f"system:serviceaccount:{values.model}:{account}",
        selected=namespaces.expression(
            _except_never_selected(values.namespace_selector), labels="variables.labels"
        ),
        proxy=startrules.PROXY,
        commands=QUIT_COMMANDS,
    )
    roles = _render(
        "access.yaml.j2",
        values.app,
        values.model,
        acts=values.acts,
        deletes=values.acts and values.deletes,
    )
    return _render("account.yaml.j2", values.app, values.model) + policy + roles


def render_start_policy(values: Values) -> list[AnyResource]:
    """Return the MutatingAdmissionPolicy and its binding; nothing where the webhook does it all.

    They need no workload: what they change, the API server changes by itself.
    """
    if values.admission != "policy":
        return []
    return _render(
        "start.yaml.j2",
        values.app,
        values.model,
        conditions=startrules.policy_conditions(values.start_mode),
        variables=startrules.variables(values.start_mode),
        **_admission(values),
    )


def render_webhook(values: Values) -> list[AnyResource]:
    """Return the MutatingWebhookConfiguration."""
    mode = values.start_mode if values.admission == "policy" else None
    return _render(
        "webhook.yaml.j2",
        values.app,
        values.model,
        ca_bundle=base64.b64encode(values.ca_bundle.encode()).decode(),
        conditions=startrules.webhook_conditions(mode),
        **_admission(values),
    )


def render_mesh(values: Values) -> list[AnyResource]:
    """Return what lets the API server through to a workload that is in the mesh itself."""
    return _render("mesh.yaml.j2", values.app, values.model)


def render(values: Values) -> list[AnyResource]:
    """Return every object that the application owns, in the order in which they are applied."""
    return (
        render_access(values)
        + render_start_policy(values)
        + render_mesh(values)
        + render_webhook(values)
    )


def _admission(values: Values) -> dict[str, Any]:
    """What both forms of admission are rendered from."""
    return {
        "failure_policy": values.failure_policy,
        "matches": startrules.matches(
            values.app, _except_never_selected(values.namespace_selector)
        ),
        "rule": {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["pods"],
            "scope": "Namespaced",
        },
    }


def _except_never_selected(selector: Mapping[str, Any]) -> dict[str, Any]:
    """Return `selector` AND not kube-system."""
    never = {
        "key": namespaces.NAME_LABEL,
        "operator": "NotIn",
        "values": list(namespaces.NEVER_SELECTED),
    }
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), never]}


def _render(template: str, app: str, model: str, **more: Any) -> list[AnyResource]:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # noqa: S701  this is YAML, not HTML: see `finalize`
        # JSON is YAML: every value arrives as what it is, a name that looks like a number too.
        finalize=json.dumps,
    )
    text = environment.get_template(template).render(
        app=app,
        model=model,
        labels=labels(app, model),
        lease=lease(app),
        policy=f"istio-aux-{model}-{app}",
        role=f"{model}-{app}-workload",
        service_account=service_account(app),
        webhook_configuration=webhook_configuration(app, model),
        webhook_port=WEBHOOK_PORT,
        **more,
    )
    return [codecs.from_dict(document) for document in yaml.safe_load_all(text)]
