"""Which pods admission changes: selectors and CEL for the webhooks and the start policy. Pure.

The start rules in CEL are in `templates/cel.j2`. The workload has the same rules in
`start/plan.py`. One table of cases tests both forms (`tests/lab/start_cases.py`).

The MutatingAdmissionPolicy changes pods that have no annotation `proxy.istio.io/config` and that
Istio has not injected yet. The webhook changes all others, because CEL cannot parse YAML and cannot
move containers. It also gets every pod that may have other sidecars to make native.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from istio_aux.model import annotations
from istio_aux.model.annotations import DATAPLANE, INJECT
from istio_aux.model.applications import EVERY
from istio_aux.model.applications import LABEL as APPLICATION
from istio_aux.model.names import IGNORED, JUJU_PODS, NAMESPACE_NAME, NEVER_SELECTED, START_WEBHOOK
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Peers, StartMode
from istio_aux.model.sidecars import How

if TYPE_CHECKING:
    import jinja2

    from manifests import Values

# Label of a pod that the policy changed. The API server does not call the webhook for such a pod.
STARTED_BY: Final = "istio-aux.io/started-by"


def selected(values: Values) -> list[dict[str, Any]]:
    """Return the selectors of namespaces, each AND not kube-system."""
    never = _requirement(NAMESPACE_NAME, "NotIn", *NEVER_SELECTED)
    return [_narrowed(selector, never) for selector in values.namespace_selectors]


def except_ambient(selector: Mapping[str, Any]) -> dict[str, Any]:
    """Return `selector` of namespaces AND not of an ambient mesh, which has no sidecars."""
    return _narrowed(selector, _NOT_AMBIENT)


def policy_matches(app: str, pods: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the policy's `matchConstraints` that choose pods.

    These are those that `pods` matches, without those of `app`, and without those whose labels
    refuse a sidecar: selectors cost next to nothing; whatever is CEL makes the API server convert
    the pod first.
    """
    chosen = _narrowed(pods, *_not_ours(app), _NOT_REFUSED, _NOT_AMBIENT)
    return {"matchPolicy": "Equivalent", "objectSelector": chosen}


@functools.cache
def environment() -> jinja2.Environment:
    """Return what renders `templates/`; values are written as they are."""
    import jinja2  # noqa: PLC0415  only the leader renders, and the import takes 60 ms

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        autoescape=False,  # noqa: S701  this is YAML and CEL, not HTML
    )


@functools.lru_cache(maxsize=4)
def _cel(values: Values) -> Any:
    """Return the expressions of `templates/cel.j2` for these values, as attributes."""
    selector, labels = values.inject_selector, "object.metadata.?labels.orValue({})"
    context = {
        "inject": selector_expression(selector, labels) if selector else "",
        "json": json.dumps,
        "keys": annotations,
        "modes": [*StartMode],
        "natives": any(rule.how is How.NATIVE for rule in values.sidecars),
        "proxy": PROXY,
        "started_by": STARTED_BY,
        "values": values,
        "ways": [*Peers],
    }
    return environment().get_template("cel.j2").make_module(context)


def webhook_conditions(values: Values) -> list[dict[str, str]]:
    """Return the `matchConditions` of the webhook, which gets what a policy beside it leaves.

    They judge the pod as it is, not who changed it: an API server may not know a new policy yet.
    """
    cel = _cel(values)
    conditions = {"may-have-a-sidecar": cel.possible}
    if values.admission == "policy":
        conditions |= {"sidecar-wanted": cel.wanted_by_the_webhook, "left-by-the-policy": cel.left}
    return _as_conditions(conditions)


def start_policy(values: Values) -> tuple[list[dict[str, str]], list[str]]:
    """Return the policy's `matchConditions`, and its JSON patches: the start, ports and the label.

    Before them comes Istio's label for pods that `inject_selector` matches, unless that is empty.
    Conditions cost one more conversion of pod and request, and the API server evaluates each twice
    for a pod that changes. Without conditions the API server encodes and decodes each pod that the
    patch does not change. So there are no conditions where most pods change.
    CEL cannot find out the `capability`, so the charm renders the policy again when it changes.
    """
    cel = _cel(values)
    if values.start_mode == "none" and not values.inject_selector:
        due = {"may-have-a-sidecar": cel.possible, "sidecar-wanted": cel.wanted}
        return _as_conditions({**due, "lacks-its-start": cel.lacking}), [_line(cel.ports)]
    mutations = [cel.inject_label] if values.inject_selector else []
    return [], [_line(each) for each in (*mutations, cel.start)]


def _as_conditions(conditions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": _line(e)} for name, e in conditions.items()]


def _line(expression: str) -> str:
    return " ".join(expression.split())


def inject_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return one webhook for each model with applications that may get a sidecar.

    It shows the workload every pod that the namespace or the pod itself has injected, too, because
    those start after their proxy whatever `namespace-selectors` says. The workload's
    `start/plan.py` decides which of them get the label. Our own pods are not chosen.
    """
    for applications in values.inject:
        own = values.app if applications.model == values.model else None
        chosen = _chosen(applications.names, own)
        if chosen is None or applications.model in IGNORED:
            continue
        named = _requirement(NAMESPACE_NAME, "In", applications.model)
        # A DNS subdomain, unique, and not one of Istio's.
        name = f"{applications.model}.inject.istio-aux.io"
        pods = _narrowed({}, *chosen, _NOT_REFUSED, _NOT_AMBIENT, *_NOT_JUJUS)
        conditions = _as_conditions({"may-have-a-sidecar": _cel(values).possible})
        yield _webhook(name, "/inject", {"matchExpressions": [named]}, pods, conditions)


def start_webhooks(values: Values) -> Iterator[dict[str, Any]]:
    """Return a webhook for each selector of namespaces, and one for `inject_namespaces` if any.

    `pod_selector` narrows all but the last. Our own pods are not chosen. A pod in a namespace of
    two selectors is reviewed twice: the second review finds nothing to change.
    """
    own, pods = _not_ours(values.app), values.pod_selector
    if values.admission == "policy":
        undone = _requirement(STARTED_BY, "DoesNotExist")
        own = (*own, _NOT_REFUSED, _NOT_AMBIENT, undone)
    chosen = {
        f"{number}.{START_WEBHOOK}" if number > 1 else START_WEBHOOK: (selector, pods)
        for number, selector in enumerate(selected(values), 1)
    }
    if values.inject_namespaces:
        named = _requirement(NAMESPACE_NAME, "In", *values.inject_namespaces)
        chosen[f"injected.{START_WEBHOOK}"] = {"matchExpressions": [named]}, {}
    conditions = webhook_conditions(values)
    for name, (namespaces, some) in chosen.items():
        yield _webhook(name, "/mutate", namespaces, _narrowed(some, *own), conditions)


def _webhook(
    name: str,
    path: str,
    namespaces: Mapping[str, Any],
    pods: Mapping[str, Any],
    conditions: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    matches = {
        "namespaceSelector": except_ambient(namespaces),
        "matchPolicy": "Equivalent",
        "objectSelector": pods,
    }
    return {"name": name, "path": path, "matches": matches, "conditions": conditions}


def injected(values: Values) -> dict[str, tuple[str, ...]]:
    """Return applications by namespace, `*` for all pods: those that the workload may act on."""
    by_model = {each.model: each.names for each in values.inject}
    by_model |= dict.fromkeys(values.inject_namespaces, (EVERY,))
    return {name: names for name, names in by_model.items() if name not in IGNORED}


def selector_expression(selector: Mapping[str, Any], labels: str) -> str:
    """Return a LabelSelector as a CEL expression over `labels`, CEL for a map of strings.

    An absent label meets `NotIn`, as everywhere in Kubernetes (apimachinery pkg/labels
    Requirement.Matches).
    """
    required = [_in(key, [value], labels) for key, value in selector.get("matchLabels", {}).items()]
    for requirement in selector.get("matchExpressions", []):
        key, values = requirement["key"], requirement.get("values", [])
        match requirement["operator"]:
            case "In":
                required.append(_in(key, values, labels))
            case "NotIn":
                required.append(f"!({_in(key, values, labels)})")
            case "Exists":
                required.append(f"{json.dumps(key)} in {labels}")
            case "DoesNotExist":
                required.append(f"!({json.dumps(key)} in {labels})")
            case operator:
                raise ValueError(f"{operator}: expected In, NotIn, Exists or DoesNotExist")
    return " && ".join(required) or "true"


def _in(key: str, values: Sequence[str], labels: str) -> str:
    # Labels are ASCII, so JSON strings and lists of them are CEL.
    key = json.dumps(key)
    return f"{key} in {labels} && {labels}[{key}] in {json.dumps(list(values))}"


def _chosen(names: tuple[str, ...], own: str | None) -> list[dict[str, Any]] | None:
    """Return what chooses pods by their application; None if only our own is left."""
    if EVERY in names:
        every = _requirement(APPLICATION, "Exists")
        return [every, _requirement(APPLICATION, "NotIn", own)] if own else [every]
    others = [name for name in names if name != own]
    return [_requirement(APPLICATION, "In", *others)] if others else None


def _not_ours(app: str) -> tuple[dict[str, Any], ...]:
    return (
        # The label of the model's operator, without which Juju cannot repair any charm.
        _requirement(JUJU_PODS[0][0], "DoesNotExist"),
        # Our own pods: nobody answers a review of the first one.
        _requirement(APPLICATION, "NotIn", app),
    )


def _narrowed(selector: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    """Return `selector` AND more requirements."""
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), *more]}


def _requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


_NOT_REFUSED: Final = _requirement(INJECT, "NotIn", "false")
_NOT_AMBIENT: Final = _requirement(DATAPLANE, "NotIn", "ambient")
_NOT_JUJUS: Final = tuple(
    _requirement(key, "NotIn", value) if value else _requirement(key, "DoesNotExist")
    for key, value in JUJU_PODS
)
