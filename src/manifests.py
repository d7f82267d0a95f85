"""The Kubernetes objects that the application owns, rendered from `templates/*.j2`. Pure.

Selectors, and what CEL says beside them, decide which pods the API server shows the webhooks. What
changes in such a pod is decided in one place, the workload's `start/plan.py`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import jinja2
import yaml
from istio_aux.model import election, names
from istio_aux.model.annotations import INJECT, MIRROR
from istio_aux.model.applications import EVERY, LABEL as APPLICATION
from istio_aux.model.pod import PROXY
from lightkube import codecs
from lightkube.codecs import AnyResource

# The import registers Istio's kinds with `codecs`.
import cluster
from config import Applications

# All commands by which the workload quits a proxy: over the agent's status ports, and over Envoy's.
QUIT_COMMANDS: Final = tuple(names.quit_command(port) for port in (*names.REQUEST_PORTS, None))

# Names in the templates whose values depend on nothing; the chart has them, too.
CONSTANTS: Final[Mapping[str, Any]] = {
    "application": APPLICATION,
    "checkpoint": election.ANNOTATION,
    "checkpoint_size": election.LONGEST,
    "controller": names.EVENT_CONTROLLER,
    "event_actions": get_args(names.EventAction),
    "event_reasons": get_args(names.EventReason),
    "lease_life": int(election.HONOURED),
    "never_injected": names.IGNORED,
    "proxy": PROXY,
    "quit_commands": QUIT_COMMANDS,
    "longest_settings": names.LONGEST_SETTINGS,
    "settings_key": names.SETTINGS,
    "webhook_port": names.WEBHOOK_PORT,
    "webhook_timeout": 3,
}

# Pods on the host's network and static pods get no sidecar, so there is no start to order.
CONDITIONS: Final[Sequence[Mapping[str, str]]] = (
    {
        "name": "may-have-a-sidecar",
        "expression": (
            "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"
            f" && !(has(object.metadata.annotations) && '{MIRROR}' in object.metadata.annotations)"
        ),
    },
)

# libyaml where PyYAML has it: parsing took most of the time of an event.
LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    autoescape=False,  # noqa: S701  this is YAML, not HTML
    finalize=json.dumps,  # JSON is YAML: a name that looks like a number stays a name.
)


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
    owner: str = ""  # UID of the model's Namespace.
    ambient: bool = False  # An ambient mesh is related.
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])  # All of the workload's.


def service_account(app: str) -> str:
    """Name of the workload's own ServiceAccount, in the model's namespace."""
    return f"{app}-workload"


def cluster_wide(app: str, model: str) -> str:
    """A name that no other application has: a namespace and an application have no dot."""
    return f"{model}.{app}"


def webhook_configuration(app: str, model: str) -> str:
    """Name of the MutatingWebhookConfiguration. It sorts before every one of Istio's."""
    return f"istio-aux-{cluster_wide(app, model)}"


OWNER: Final = "istio-aux.io/application"
_MODEL: Final = "istio-aux.io/model"


def labels(app: str, model: str) -> dict[str, str]:
    """The labels of all objects that the application owns, by which it finds them."""
    return {OWNER: app, _MODEL: model}


def owner(labelled: Mapping[str, str]) -> str:
    """Return which installation an object with these labels belongs to."""
    app, model = labelled.get(OWNER, ""), labelled.get(_MODEL, "")
    kind = "Helm release" if cluster.is_helms(labelled) else "application"
    return f"{kind} {app} in {model}"


def render_access(values: Values) -> list[AnyResource]:
    """Return the workload's ServiceAccount, the policies that narrow it, and its roles.

    In this order, no right exists before the policy that narrows it.
    """
    return _render(values, "account", "policy", "records", "access")


def render_webhook(values: Values) -> list[AnyResource]:
    """Return the MutatingWebhookConfiguration."""
    return _render(values, "webhook")


def render_mesh(values: Values) -> list[AnyResource]:
    """Return what lets the API server reach a workload whose own pods are in a mesh."""
    return _render(values, "mesh")


def render(values: Values) -> list[AnyResource]:
    """Return every object that the application owns, in the order in which they are applied."""
    return render_access(values) + render_webhook(values) + render_mesh(values)


def _render(values: Values, *templates: str) -> list[AnyResource]:
    context = _context(values)
    texts = (_TEMPLATES.get_template(f"{name}.yaml.j2").render(context) for name in templates)
    documents = [each for text in texts for each in yaml.load_all(text, Loader=LOADER)]
    # Owned by the Namespace: a model can go without the charm's last hook (`destroy-model`,
    # `--force`). Juju deletes the Namespace in the foreground; blocking, these go before its pods.
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
    said = {name: value for name, value in settings.items() if name not in names.LOCAL_SETTINGS}
    text = json.dumps(said, separators=(",", ":"))
    return text if len(text) <= names.LONGEST_SETTINGS else ""


def _context(values: Values) -> dict[str, Any]:
    app = values.app
    model = values.model
    # The default revision has no suffix (istio webhook.go, injection-cm).
    suffixes = {f"-{revision}" for revision in values.revisions if revision not in {"", "default"}}
    return {
        **CONSTANTS,
        **vars(values),
        "labels": labels(app, model),
        "lease": app,
        "policy": f"istio-aux-{cluster_wide(app, model)}",
        "role": f"{cluster_wide(app, model)}-workload",
        "service_account": service_account(app),
        "user": f"system:serviceaccount:{model}:{service_account(app)}",
        "webhook_configuration": webhook_configuration(app, model),
        # What the workload may do.
        "deletes": values.acts and values.deletes,
        "config_maps": [
            "istio-cni-config",
            *(f"istio-sidecar-injector{suffix}" for suffix in sorted({"", *suffixes})),
        ],
        # Applications by namespace, `*` for all pods: those that the workload may act on.
        "injected": json.dumps(
            {each.model: each.names for each in values.inject}
            | dict.fromkeys(values.inject_namespaces, (EVERY,))
        ),
        "selected": " || ".join(
            f"({selector_expression(each, labels='variables.labels')})" for each in selected(values)
        ),
        "chosen": selector_expression(values.pod_selector, labels="variables.podLabels"),
        # The webhook.
        "ca_bundle": base64.b64encode(values.ca_bundle.encode()).decode(),
        "settings": _published(values.settings),
        "status_port": names.STATUS_PORT,
        "ca_from": "",  # The chart's, where cert-manager signs.
        "webhooks": [*start_webhooks(values), *inject_webhooks(values)],
    }


def selected(values: Values) -> list[dict[str, Any]]:
    """Return the selectors of namespaces, each AND not kube-system."""
    never = _requirement(names.NAMESPACE_NAME, "NotIn", *names.NEVER_SELECTED)
    return [_narrowed(selector, never) for selector in values.namespace_selectors]


def inject_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return one webhook for each model with applications that may get a sidecar.

    The API server also sends pods that Istio injects anyway: they start after their proxy whatever
    `namespace-selectors` says. The workload's `start/plan.py` decides.
    """
    for applications in values.inject:
        own = values.app if applications.model == values.model else None
        chosen = _chosen(applications.names, own)
        if chosen is None:
            continue
        named = _requirement(names.NAMESPACE_NAME, "In", applications.model)
        # A DNS subdomain, unique, and not one of Istio's.
        name = f"{applications.model}.inject.istio-aux.io"
        pods = _narrowed({}, *chosen, _NOT_REFUSED, *_NOT_JUJUS)
        yield _webhook(name, "/inject", {"matchExpressions": [named]}, pods)


def start_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return a webhook for each selector of namespaces, and one for `inject_namespaces` if any.

    `pod_selector` narrows all but the last. A second review of a pod finds nothing to change.
    """
    # Left out: the model's operator, without which Juju cannot repair any charm, and our own pods,
    # since no unit could answer the review of the first one.
    jujus = _requirement(names.JUJU_PODS[0][0], "DoesNotExist")
    own = _requirement(APPLICATION, "NotIn", values.app)
    chosen = {
        f"{number}.{names.START_WEBHOOK}".removeprefix("1."): (selector, values.pod_selector)
        for number, selector in enumerate(selected(values), 1)
    }
    if values.inject_namespaces:
        named = _requirement(names.NAMESPACE_NAME, "In", *values.inject_namespaces)
        chosen[f"injected.{names.START_WEBHOOK}"] = {"matchExpressions": [named]}, {}
    for name, (namespaces, some) in chosen.items():
        yield _webhook(name, "/mutate", namespaces, _narrowed(some, jujus, own))


def _webhook(
    name: str,
    path: str,
    namespaces: Mapping[str, Any],
    pods: Mapping[str, Any],
) -> dict[str, Any]:
    matches = {
        "namespaceSelector": namespaces,
        "matchPolicy": "Equivalent",
        "objectSelector": pods,
    }
    return {
        "name": name,
        "path": path,
        "matches": matches,
        "conditions": CONDITIONS,
    }


def selector_expression(selector: Mapping[str, Any], labels: str) -> str:
    """Return a LabelSelector as a CEL expression over `labels`, CEL for a map of strings.

    An absent label meets `NotIn` (apimachinery pkg/labels Requirement.Matches).
    """
    required = [_in(key, [value], labels) for key, value in selector.get("matchLabels", {}).items()]
    for requirement in selector.get("matchExpressions", []):
        key = requirement["key"]
        values = requirement.get("values", [])
        match requirement["operator"]:
            case "In":
                required.append(_in(key, values, labels))
            case "NotIn":
                required.append(f"!({_in(key, values, labels)})")
            case "Exists":
                required.append(f"{json.dumps(key)} in {labels}")
            case _:  # DoesNotExist.
                required.append(f"!({json.dumps(key)} in {labels})")
    return " && ".join(required) or "true"


def _in(key: str, values: Sequence[str], labels: str) -> str:
    # Labels are ASCII, so JSON strings and lists of them are CEL.
    key = json.dumps(key)
    return f"{key} in {labels} && {labels}[{key}] in {json.dumps(list(values))}"


def _chosen(applications: tuple[str, ...], own: str | None) -> list[dict[str, Any]] | None:
    """Return label requirements that select pods by application; None if only ours is named."""
    if EVERY in applications:
        every = _requirement(APPLICATION, "Exists")
        return [every, _requirement(APPLICATION, "NotIn", own)] if own else [every]
    others = [name for name in applications if name != own]
    return [_requirement(APPLICATION, "In", *others)] if others else None


def _narrowed(selector: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), *more]}


def _requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {
        "key": key,
        "operator": operator,
        **({"values": list(values)} if values else {}),
    }


_NOT_REFUSED: Final = _requirement(INJECT, "NotIn", "false")
_NOT_JUJUS: Final = tuple(
    _requirement(key, "NotIn", value) if value else _requirement(key, "DoesNotExist")
    for key, value in names.JUJU_PODS
)
