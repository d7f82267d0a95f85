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

import injectrules
import jobrules
import kinds  # noqa: F401  # pyright: ignore[reportUnusedImport]  tells `codecs` of Istio's kind
import namespaces
import startrules
from applications import NEVER_INJECTED, Applications

WEBHOOK_PORT: Final = 8443

# All commands by which the workload quits a proxy (its `core/quit.py`): over the status ports
# that pilot-agent's request accepts (istio pilot-agent request.go), and over Envoy's admin port.
_QUIT: Final = ("POST", "quitquitquit")
QUIT_COMMANDS: Final = (
    *(
        ("pilot-agent", "request", f"--debug-port={port}", *_QUIT)
        for port in (15000, 15004, 15020, 15021)
    ),
    ("pilot-agent", "request", *_QUIT),
)

# Annotation of the start policy: the capability that it was rendered for, by which the next leader
# knows it. What is not known yet changes nothing.
CAPABILITY: Final = "istio-aux.io/capability"

_ENVIRONMENT: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    autoescape=False,  # noqa: S701  this is YAML, not HTML: see `finalize`
    # JSON is YAML: every value arrives as what it is, a name that looks like a number too.
    finalize=json.dumps,
)
# libyaml where PyYAML was built with it: most of the time of an event went into parsing.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


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
        capability: what cluster and Istio can do, as the workload found out: `auto` goes by it.
        admission: who changes pods: the webhook, or a policy inside the API server, which leaves
            to the webhook what it cannot change safely.
        inject: applications whose pods are to ask for a sidecar, one entry for each model.
        inject_namespaces: namespaces all of whose pods have one by the namespace's label.
        revisions: Istio's, whose injection policies the workload may read, beside the default's.
        dry_runs: the workload may create pods that are never stored. Only where the API server
            knows ValidatingAdmissionPolicies: without one, it could create any pod.
        repairs: it may evict pods that missed their sidecar.
        repairs_jobs: it may suspend and resume Jobs, also to resume what it suspended when it
            still had `repairs`.
    """

    app: str
    model: str
    namespace_selector: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failure_policy: Literal["Ignore", "Fail"] = "Ignore"
    ca_bundle: str = ""
    acts: bool = True
    deletes: bool = False
    start_mode: Literal["auto", "native", "hold", "off"] = "auto"
    capability: Literal["native", "classic", "unknown"] = "unknown"
    admission: Literal["webhook", "policy"] = "webhook"
    inject: tuple[Applications, ...] = ()
    inject_namespaces: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    dry_runs: bool = True
    repairs: bool = False
    repairs_jobs: bool = False


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
    user = f"system:serviceaccount:{values.model}:{service_account(values.app)}"
    policy = _render(
        "policy.yaml.j2",
        values.app,
        values.model,
        user=user,
        never_injected=NEVER_INJECTED,
        injected=json.dumps(injectrules.injected(values.inject, values.inject_namespaces)),
        application=injectrules.APPLICATION,
        selected=namespaces.expression(
            _except_never_selected(values.namespace_selector), labels="variables.labels"
        ),
        proxy=startrules.PROXY,
        commands=QUIT_COMMANDS,
    )
    if values.repairs_jobs:
        policy += _render(
            "jobs.yaml.j2",
            values.app,
            values.model,
            user=user,
            training_jobs=jobrules.TRAINING_JOBS,
            suspended=jobrules.SUSPENDED,
            variables=jobrules.variables(),
        )
    # Istio's injector has no suffix for the default revision (istio webhook.go, injection-cm).
    suffixes = {f"-{revision}" for revision in values.revisions if revision not in {"", "default"}}
    roles = _render(
        "access.yaml.j2",
        values.app,
        values.model,
        acts=values.acts,
        deletes=values.acts and values.deletes,
        dry_runs=values.dry_runs,
        injection_policies=[
            f"istio-sidecar-injector{suffix}" for suffix in sorted({"", *suffixes})
        ],
        repairs=values.repairs,
        repairs_jobs=values.repairs_jobs,
        training_jobs=jobrules.TRAINING_JOBS,
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
        conditions=startrules.policy_conditions(values.start_mode, values.capability),
        mutation=startrules.mutation(values.start_mode, values.capability),
        annotations={CAPABILITY: values.capability},
        **_admission(values),
    )


def render_webhook(values: Values) -> list[AnyResource]:
    """Return the MutatingWebhookConfiguration."""
    admission = _admission(values)
    conditions = (
        startrules.webhook_conditions_beside_policy(values.start_mode, values.capability)
        if values.admission == "policy"
        else startrules.webhook_conditions()
    )
    start = {
        "name": "start.istio-aux.io",
        "path": "/mutate",
        "matches": admission.pop("matches"),
        "conditions": conditions,
    }
    return _render(
        "webhook.yaml.j2",
        values.app,
        values.model,
        ca_bundle=base64.b64encode(values.ca_bundle.encode()).decode(),
        webhooks=[
            start,
            *injectrules.namespaced(values.app, values.inject_namespaces, conditions),
            *injectrules.webhooks(values.app, values.model, values.inject),
        ],
        **admission,
    )


def render_mesh(values: Values) -> list[AnyResource]:
    """Return what lets the API server through to a workload that is in the mesh itself."""
    return _render("mesh.yaml.j2", values.app, values.model)


def render(values: Values) -> list[AnyResource]:
    """Return every object that the application owns, in the order in which they are applied."""
    return (
        render_access(values)
        + render_start_policy(values)
        + render_webhook(values)
        + render_mesh(values)
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
    text = _ENVIRONMENT.get_template(template).render(
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
    return [codecs.from_dict(document) for document in yaml.load_all(text, Loader=_LOADER)]
