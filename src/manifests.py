"""The Kubernetes objects that the application owns, rendered from `templates/*.j2`. Pure."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from istio_aux.model.applications import LABEL as APPLICATION
from istio_aux.model.election import ANNOTATION as CHECKPOINT
from istio_aux.model.election import HONOURED, LONGEST
from istio_aux.model.names import (
    EVENT_ACTIONS,
    EVENT_CONTROLLER,
    EVENT_REASONS,
    IGNORED,
    LOCAL_SETTINGS,
    LONGEST_SETTINGS,
    REQUEST_PORTS,
    SETTINGS,
    STATUS_PORT,
    SUSPENDED,
    WEBHOOK_PORT,
    quit_command,
)
from istio_aux.model.owners import KINDS, resources_by_group
from istio_aux.model.pod import PROXY
from lightkube import codecs
from lightkube.codecs import AnyResource

# It tells `codecs` of Istio's kinds.
import cluster  # noqa: F401  # pyright: ignore[reportUnusedImport]
import rules
from config import Applications

if TYPE_CHECKING:
    import jinja2

# All commands by which the workload quits a proxy: over the agent's status ports, and over Envoy's.
QUIT_COMMANDS: Final = tuple(quit_command(port) for port in (*REQUEST_PORTS, None))

# Names in the templates whose values depend on nothing; the chart has them, too.
CONSTANTS: Final[Mapping[str, Any]] = {
    "application": APPLICATION,
    "checkpoint": CHECKPOINT,
    "checkpoint_size": LONGEST,
    "controller": EVENT_CONTROLLER,
    "event_actions": EVENT_ACTIONS,
    "event_kinds": ("Pod", *KINDS),
    "event_reasons": EVENT_REASONS,
    "lease_life": int(HONOURED),
    "never_injected": IGNORED,
    "proxy": PROXY,
    "quit_commands": QUIT_COMMANDS,
    "longest_settings": LONGEST_SETTINGS,
    "settings_key": SETTINGS,
    "suspended": SUSPENDED,
    "suspended_kinds": resources_by_group(),
    "webhook_port": WEBHOOK_PORT,
    "webhook_timeout": 3,
}

# libyaml where PyYAML has it: parsing took most of the time of an event.
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Values:
    """What the objects depend on: options, the cluster, and what the workload may do."""

    app: str
    model: str  # Its namespace.
    namespace_selectors: Sequence[Mapping[str, Any]] = ({},)  # One must match.
    pod_selector: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ca_bundle: str = ""  # PEM; any certificate in it may have signed what the webhook serves.
    acts: bool = True  # It may quit proxies.
    deletes: bool = False  # It may delete pods without a proxy; needs `acts`.
    inject: tuple[Applications, ...] = ()  # One entry for each model.
    inject_namespaces: tuple[str, ...] = ()
    revisions: tuple[str, ...] = ()
    # It may create pods as a dry run: ValidatingAdmissionPolicies refuse all other creations.
    dry_runs: bool = True
    repairs: bool = False  # It may evict pods without a sidecar.
    repairs_jobs: bool = False  # It may suspend and resume Jobs.
    owner: str = ""  # UID of the model's Namespace.
    ambient: bool = False  # An ambient mesh is related.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # All of the workload's.

    def __hash__(self) -> int:
        """Let an event render each template once."""
        return hash(repr(self))


def service_account(app: str) -> str:
    """Name of the workload's own ServiceAccount, in the model's namespace."""
    return f"{app}-workload"


def webhook_configuration(app: str, model: str) -> str:
    """Name of the MutatingWebhookConfiguration. It sorts before every one of Istio's."""
    return f"istio-aux-{model}-{app}"


def labels(app: str, model: str) -> dict[str, str]:
    """The labels of all objects that the application owns, by which it finds them.

    No other client writes them. Juju before 3.6.13 overwrites `app.kubernetes.io/managed-by` in
    what a charm creates (juju#21312), so that label is not used.
    """
    return {"istio-aux.io/application": app, "istio-aux.io/model": model}


def render_access(values: Values) -> list[AnyResource]:
    """Return the workload's ServiceAccount, the policies that narrow it, and its roles.

    In this order, no right exists before the policy that narrows it.
    """
    jobs = ["jobs"] if values.repairs_jobs else []
    return _render(values, "account", "policy", "records", *jobs, "access")


def render_webhook(values: Values) -> list[AnyResource]:
    """Return the MutatingWebhookConfiguration."""
    return _render(values, "webhook")


def render_mesh(values: Values) -> list[AnyResource]:
    """Return what lets the API server reach a workload whose own pods are in a mesh."""
    return _render(values, "mesh")


def render(values: Values) -> list[AnyResource]:
    """Return every object that the application owns, in the order in which they are applied."""
    return render_access(values) + render_webhook(values) + render_mesh(values)


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2  # noqa: PLC0415  only the leader renders, and the import takes 60 ms

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # noqa: S701  this is YAML, not HTML
        finalize=json.dumps,  # JSON is YAML: a name that looks like a number stays a name.
    )


def _render(values: Values, *templates: str) -> list[AnyResource]:
    return [each for name in templates for each in _rendered(values, name)]


@functools.lru_cache(maxsize=32)
def _rendered(values: Values, name: str) -> list[AnyResource]:
    text = _environment().get_template(f"{name}.yaml.j2").render(_context(values))
    documents = [*yaml.load_all(text, Loader=LOADER)]
    # A model can go without the charm's last hook: `destroy-model`, `--force`, lost trust. What is
    # in its Namespace goes with it anyway.
    # Blocking: Juju deletes the Namespace in the foreground. Then the garbage collector deletes
    # these at once. Otherwise it does so when the Namespace is gone, pods and all.
    owner = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": values.model,
        "uid": values.owner,
        "blockOwnerDeletion": True,
    }
    for document in documents:
        if values.owner and "namespace" not in document["metadata"]:
            document["metadata"]["ownerReferences"] = [owner]
    return [codecs.from_dict(document) for document in documents]


def _published(settings: Mapping[str, Any]) -> str:
    """Return the annotation `SETTINGS`; it is empty if it would be too long."""
    said = {name: value for name, value in settings.items() if name not in LOCAL_SETTINGS}
    text = json.dumps(said, separators=(",", ":"))
    return text if len(text) <= LONGEST_SETTINGS else ""


@functools.lru_cache(maxsize=4)
def _context(values: Values) -> dict[str, Any]:
    """Return every name that is in a template."""
    app, model = values.app, values.model
    selected = rules.selected(values)
    # The default revision has no suffix (istio webhook.go, injection-cm).
    suffixes = {f"-{revision}" for revision in values.revisions if revision not in {"", "default"}}
    return {
        **CONSTANTS,
        "app": app,
        "model": model,
        "labels": labels(app, model),
        "lease": app,
        "policy": f"istio-aux-{model}-{app}",
        "role": f"{model}-{app}-workload",
        "service_account": service_account(app),
        "user": f"system:serviceaccount:{model}:{service_account(app)}",
        "webhook_configuration": webhook_configuration(app, model),
        # What the workload may do.
        "acts": values.acts,
        "deletes": values.acts and values.deletes,
        "dry_runs": values.dry_runs,
        "repairs": values.repairs,
        "repairs_jobs": values.repairs_jobs,
        "injection_policies": [
            f"istio-sidecar-injector{suffix}" for suffix in sorted({"", *suffixes})
        ],
        "injected": json.dumps(rules.injected(values)),
        "selected": " || ".join(
            f"({rules.selector_expression(each, labels='variables.labels')})" for each in selected
        ),
        "chosen": rules.selector_expression(values.pod_selector, labels="variables.podLabels"),
        # The webhook.
        "ca_bundle": base64.b64encode(values.ca_bundle.encode()).decode(),
        "settings": _published(values.settings),
        "ca_from": "",  # The chart's, where cert-manager signs.
        "webhooks": [*rules.start_webhooks(values), *rules.inject_webhooks(values)],
        # The mesh of the workload's own pods.
        "ambient": values.ambient,
        "status_port": STATUS_PORT,
    }
