"""Which pods admission changes: selectors and CEL for the webhooks and the start policy. Pure.

The workload has the same start rules in `start/plan.py`. One table of cases tests both forms
(`tests/lab/start_cases.py`).

The MutatingAdmissionPolicy changes pods that have no annotation `proxy.istio.io/config` and that
Istio has not injected yet. The webhook changes all others, because CEL cannot parse YAML and cannot
move containers. The webhook also makes other sidecars native. The policy cannot: it runs once, and
a later webhook may add such a sidecar. The API server calls a webhook again only if it called the
webhook before (apiserver webhook/mutating/dispatcher.go). So the API server calls our webhook for
every pod that may get such a sidecar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from istio_aux.model.annotations import (
    DATAPLANE,
    EXCLUDED,
    HOLD,
    INCLUDED,
    INJECT,
    INJECTED,
    MIRROR,
    NATIVE_SIDECAR,
    NO_SIGNAL,
    PEERS,
    PROXY_CONFIG,
    SIDECARS,
    SIGNALLED_WITH,
    START,
    STARTED_WITH,
    WORKFLOW_NODE,
)
from istio_aux.model.applications import EVERY
from istio_aux.model.applications import LABEL as APPLICATION
from istio_aux.model.names import (
    IGNORED,
    JUJU_PODS,
    NAMESPACE_NAME,
    NEVER_SELECTED,
    START_WEBHOOK,
)
from istio_aux.model.pod import PROXY
from istio_aux.model.policy import Capability, Peers, StartMode
from istio_aux.model.sidecars import How

if TYPE_CHECKING:
    from manifests import Values

# Label of a pod that the policy changed. The API server does not call the webhook for such a pod.
STARTED_BY: Final = "istio-aux.io/started-by"
_HOLD: Final = f"{HOLD}: true"

# The API server refuses a pod whose annotations exceed 256 KiB (apimachinery
# ValidateAnnotationsSize). CEL counts characters of up to 4 bytes, and a key has at most 317:
# 50 * 317 + 60,000 * 4 leaves room for what is added. The webhook counts bytes.
MAX_ANNOTATIONS: Final = 50
MAX_CHARACTERS: Final = 60_000
# The room is for 1,000; sorting more would take CEL long.
MAX_PORTS: Final = 100

_LABELS: Final = "object.metadata.labels"
_ANNOTATIONS: Final = "object.metadata.annotations"
_HAS_ANNOTATIONS: Final = f"has({_ANNOTATIONS})"
_UNKNOWN_START: Final = (
    f"'{START}' in {_ANNOTATIONS} && !({_ANNOTATIONS}['{START}'] in {json.dumps([*StartMode])})"
)
_UNKNOWN_PEERS: Final = (
    f"'{PEERS}' in {_ANNOTATIONS} && !({_ANNOTATIONS}['{PEERS}'] in {json.dumps([*Peers])})"
)
_TO_WARN_OF: Final = f"({_UNKNOWN_START} || {_UNKNOWN_PEERS})"
_ENDS: Final = "object.spec.restartPolicy != 'Always'"
_FIRST: Final = "object.spec.containers[0]"
_VALUE: Final = "variables.ports.distinct().sort().map(p, string(p)).join(',')"


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
    return _equivalent(_narrowed(pods, *_not_ours(app), _NOT_REFUSED, _NOT_AMBIENT))


# The API server evaluates every condition of a list, and each twice for a pod that changes: so
# there are few, and the common pod, which has no annotations, decides within a few operators.
_POSSIBLE: Final = {
    "may-have-a-sidecar": (
        "!(has(object.spec.hostNetwork) && object.spec.hostNetwork)"
        f" && !({_HAS_ANNOTATIONS} && '{MIRROR}' in {_ANNOTATIONS})"
    )
}


def webhook_conditions(values: Values) -> list[dict[str, str]]:
    """Return the `matchConditions` of the webhook, which gets what a policy beside it leaves.

    They judge the pod as it is, not who changed it: an API server may not know a new policy yet.
    """
    if values.admission == "webhook":
        return _as_conditions(_POSSIBLE)
    inject = values.inject_selector
    # Istio has injected the pod already, and its payload does not wait for the proxy.
    misplaced = (
        f"object.spec.containers.exists(c, c.name == '{PROXY}')"
        f" && !({_FIRST}.name == '{PROXY}' && has({_FIRST}.lifecycle))"
    )
    left = (
        f"!{_HAS_ANNOTATIONS} ? {_bare_pod_lacks(values)}"
        # The webhook warns the author of a value that does not exist.
        f" : {_TO_WARN_OF}"
        f" || !('{INJECTED}' in {_ANNOTATIONS}) && {_lacks_ports(values)}"
        f" || {_active(values)} && ("
        f"'{INJECTED}' in {_ANNOTATIONS} && ({_only_native()} || {misplaced})"
        f" || ({_native(values)} && !('{NATIVE_SIDECAR}' in {_ANNOTATIONS}) ? true"
        f" : {_has_native(values)} ? false"
        f" : !({_ANNOTATIONS}[?'{PROXY_CONFIG}'] == optional.of('{_HOLD}'))))"
    )
    wanted, left = _wanted(), f"{_may_have_sidecars(values)} || ({left})"
    if inject:
        unlabelled = _lacks_label(inject)
        wanted, left = f"{unlabelled} || {wanted}", f"{unlabelled} || ({left})"
    return _as_conditions({**_POSSIBLE, "sidecar-wanted": wanted, "left-by-the-policy": left})


def start_policy(values: Values) -> tuple[list[dict[str, str]], list[str]]:
    """Return the policy's `matchConditions`, and its JSON patches: the start, ports and the label.

    Before them comes Istio's label for pods that `inject_selector` matches, unless that is empty.
    Conditions cost one more conversion of pod and request. Without conditions the API server
    encodes and decodes each pod that the patch does not change. So there are no conditions where
    most pods change.
    CEL cannot find out the `capability`, so the charm renders the policy again when it changes.
    """
    mode, inject = values.start_mode, values.inject_selector
    small = (
        f"size({_ANNOTATIONS}) <= {MAX_ANNOTATIONS} && {_ANNOTATIONS}.map(key,"
        f" size({_ANNOTATIONS}[key])).sum() <= {MAX_CHARACTERS}"
    )
    lacks_start = f"{_active(values)} && !({_has_native(values)})"
    lacking = (
        f"!{_HAS_ANNOTATIONS} ? {_bare_pod_lacks(values)}"
        f" : !('{INJECTED}' in {_ANNOTATIONS}) && !('{PROXY_CONFIG}' in {_ANNOTATIONS})"
        f" && ({lacks_start} || {_lacks_ports(values)}) && {small}"
    )
    due = {**_POSSIBLE, "sidecar-wanted": _wanted(), "lacks-its-start": lacking}
    by_default = _ENDS if values.peers == "direct" else "false"
    lacks_ports = f"({_HAS_ANNOTATIONS} ? {_lacks_ports(values)} : {by_default})"
    native = {NATIVE_SIDECAR: "true", STARTED_WITH: "native"}
    hold = {PROXY_CONFIG: _HOLD, STARTED_WITH: "hold"}
    lacks_native = f"{_native(values)} && !('{NATIVE_SIDECAR}' in {_ANNOTATIONS})"
    # A pod of Argo Workflows has annotations.
    signalled = f"'{WORKFLOW_NODE}' in {_ANNOTATIONS} && !('{SIGNALLED_WITH}' in {_ANNOTATIONS})"
    quiet = _added({SIGNALLED_WITH: NO_SIGNAL})
    first = _made(hold)
    if mode == "none":
        first = _made({})
    elif _by_default(values):
        first = f"{_ENDS} ? {_made(native)} : {_made(hold)}"
    patch = (
        f"(!{_HAS_ANNOTATIONS} ? ({first}) : !({lacks_start}) ? []"
        f" : {lacks_native} ? {_added(native)} : {_added(hold)} + ({signalled} ? {quiet} : []))"
        f" + ({lacks_ports} ? [{_add(_pointer(INCLUDED), _VALUE)}] : [])"
        f" + {_labelled(values)}"
    )
    few = f"!{lacks_ports} || size(variables.ports) <= {MAX_PORTS}"
    if mode == "none" and not inject:
        return _as_conditions(due), [f"({few}) ? {patch} : []"]
    start = f"{_all(*due.values(), few)} ? {patch} : []"
    if not inject:
        return [], [start]
    label = f"{_all(*_POSSIBLE.values(), _lacks_label(inject))} ? {_label(INJECT, 'true')} : []"
    return [], [label, start]


def _as_conditions(conditions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": e} for name, e in conditions.items()]


def _wanted() -> str:
    """CEL: the author of a pod that `policy_matches` chooses does not refuse a sidecar."""
    # istio inject.go injectRequired: a label beats the annotation.
    return (
        f"!({_HAS_ANNOTATIONS} && {_ANNOTATIONS}[?'{INJECT}'] == optional.of('false')"
        f" && !(has({_LABELS}) && '{INJECT}' in {_LABELS}))"
    )


def _lacks_label(inject: Mapping[str, Any]) -> str:
    """CEL: `inject` matches the pod, which says nothing by label and is not injected yet."""
    labels = f"{_LABELS.replace('.labels', '.?labels')}.orValue({{}})"
    return (
        f"({selector_expression(inject, labels)} && !('{INJECT}' in {labels})"
        f" && !({_HAS_ANNOTATIONS} && '{INJECTED}' in {_ANNOTATIONS}))"
    )


def _all(*expressions: str) -> str:
    """CEL: all of them hold."""
    return " && ".join(f"({each})" for each in expressions)


def _active(values: Values) -> str:
    """CEL: the start mode of an annotated pod is not `none`."""
    own = f"'{START}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{START}']"
    if values.start_mode == "none":
        return f"({own} in {json.dumps([each for each in StartMode if each != 'none'])})"
    return f"!({own} == 'none')"


def _bare_pod_lacks(values: Values) -> str:
    """CEL: a pod without annotations lacks its start or its ports."""
    if values.start_mode != "none":
        return "true"
    return _ENDS if values.peers == "direct" else "false"


def _lacks_ports(values: Values) -> str:
    """CEL: an annotated pod is reached directly, and nobody says yet by which ports it is not."""
    own = f"{_ANNOTATIONS}[?'{PEERS}']"
    direct = f"{own} == optional.of('direct')"
    if values.peers == "direct":
        direct = f"({direct} || {own} == optional.none() && {_ENDS})"
    authors = (f"!('{each}' in {_ANNOTATIONS})" for each in (INCLUDED, EXCLUDED))
    return f"({' && '.join((direct, *authors))})"


def _may_have_sidecars(values: Values) -> str:
    """CEL: the pod names sidecars, or may get some that become native."""
    named = f"'{SIDECARS}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{SIDECARS}'] != ''"
    natives = any(rule.how is How.NATIVE for rule in values.sidecars)
    ends = f" || {_ENDS}" if natives and values.capability == Capability.NATIVE else ""
    return f"({_HAS_ANNOTATIONS} && {named}{ends})"


def _by_default(values: Values) -> bool:
    """Tell whether pods that end become native unless they say something else."""
    mode = values.start_mode
    return mode == "native" or (mode == "auto" and values.capability == Capability.NATIVE)


def _native(values: Values) -> str:
    """CEL: an annotated pod is to be native. It is if its author asks, whether it ends or not."""
    own = f"{_ANNOTATIONS}[?'{START}'].orValue('')"
    requested = f"{own} == 'native'"
    natives = ["native", *(["auto"] if values.capability == Capability.NATIVE else [])]
    if _by_default(values):
        others = json.dumps([each for each in StartMode if each not in natives])
        return f"({requested} || object.spec.restartPolicy != 'Always' && !({own} in {others}))"
    if values.capability == Capability.NATIVE:
        return f"({requested} || object.spec.restartPolicy != 'Always' && {own} == 'auto')"
    return f"({requested})"


def _has_native(values: Values) -> str:
    """CEL: an annotated pod requests a native sidecar from Istio, and can have it."""
    own = f"'{NATIVE_SIDECAR}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{NATIVE_SIDECAR}'] == 'true'"
    return own if values.capability == Capability.NATIVE else f"{own} && {_native(values)}"


def _only_native() -> str:
    """CEL: we made the pod hold its payload, and Istio made its sidecar native nevertheless."""
    return (
        f"('{STARTED_WITH}' in {_ANNOTATIONS} && {_ANNOTATIONS}['{STARTED_WITH}'] == 'hold'"
        " && has(object.spec.initContainers) && object.spec.initContainers.exists(c,"
        f" c.name == '{PROXY}' && has(c.restartPolicy) && c.restartPolicy == 'Always'))"
    )


def _made(annotations: Mapping[str, str]) -> str:
    """CEL: the patch for a pod without annotations."""
    return f"[{_add('/metadata/annotations', json.dumps(annotations))}]"


def _added(annotations: Mapping[str, str]) -> str:
    """CEL: the patch for a pod that has annotations."""
    operations = [_add(_pointer(key), json.dumps(value)) for key, value in annotations.items()]
    return f"[{', '.join(operations)}]"


def _pointer(key: str) -> str:
    # RFC 6901: `~1` stands for a slash.
    return f"/metadata/annotations/{key.replace('/', '~1')}"


def _labelled(values: Values) -> str:
    """CEL: the label; none if the webhook has more to do: to warn the author, or other sidecars."""
    more = f"{_may_have_sidecars(values)} || {_HAS_ANNOTATIONS} && {_TO_WARN_OF}"
    return f"({more} ? [] : {_label(STARTED_BY, 'policy')})"


def _label(key: str, value: str) -> str:
    """CEL: the patch that adds a label."""
    pointer = key.replace("/", "~1")
    return (
        f"(has({_LABELS}) ? [{_add(f'/metadata/labels/{pointer}', json.dumps(value))}]"
        f" : [{_add('/metadata/labels', json.dumps({key: value}))}])"
    )


def _add(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: '{path}', value: {value}}}"


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
        conditions = _as_conditions(_POSSIBLE)
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
    matches = {"namespaceSelector": except_ambient(namespaces), **_equivalent(pods)}
    return {"name": name, "path": path, "matches": matches, "conditions": conditions}


def injected(values: Values) -> dict[str, tuple[str, ...]]:
    """Return applications by namespace, `*` for all pods: those that the workload may act on."""
    by_model = {
        each.model: (EVERY,) if each.names is None else each.names for each in values.inject
    }
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


def _chosen(names: tuple[str, ...] | None, own: str | None) -> list[dict[str, Any]] | None:
    """Return what chooses pods by their application; None if only our own is left."""
    if names is None:
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


def _equivalent(pods: Mapping[str, Any]) -> dict[str, Any]:
    return {"matchPolicy": "Equivalent", "objectSelector": pods}


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
