"""Generate from the charm what the chart has in common with it: `python -m helm.generate`.

The charm's templates become the chart's; selectors become `chart/files/rules.json`, in which
names between `@` stand for what only Helm knows. What an option of the charm does is said on the
page of options, and not on that of the chart's values.

Jinja templates become Helm's Go templates, for the few things that `src/templates` uses. Every
value is written as JSON, as the charm's own renderer does. A mapping that is looped over is a list
of pairs here: Go sorts the keys of its maps.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from istio_aux import settings
from istio_aux.model.names import REGISTRY
from istio_aux.model.pod import PROXY
from istio_aux.model.selectors import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    LONGEST_SELECTOR,
    MOST_SELECTORS,
    NamespaceSelectors,
    Operator,
    Selector,
)
from istio_aux.model.sidecars import RULE, SHIPPED
from jinja2 import Environment, nodes
from lab.workload import OPTIONS

import manifests
from config import Applications
from helm.charts import CHART
from manifests import Values


class UnknownSyntaxError(ValueError):
    """The template uses syntax that has no translation yet."""


def translate(source: str) -> str:
    """A Jinja template as the text of a Go template, whose variables are fields of `$c`.

    Raises:
        UnknownSyntaxError: the template uses something else than names, attributes, texts, lists,
            `~`, `string`, `if` without `else`, and `for`.
    """
    parsed = Environment(trim_blocks=True, autoescape=False).parse(source)
    return "".join(_statements(parsed.body, frozenset()))


def _statements(body: Iterable[nodes.Node], local: frozenset[str]) -> Iterable[str]:
    for node in body:
        match node:
            case nodes.Output():
                for part in node.nodes:
                    if isinstance(part, nodes.TemplateData):
                        yield part.data
                    else:
                        yield f"{{{{ {_expression(part, local)} | toRawJson }}}}"
            case nodes.If(elif_=[], else_=[]):
                yield f"{{{{- if {_expression(node.test, local)} }}}}\n"
                yield from _statements(node.body, local)
                yield "{{- end }}\n"
            case nodes.For(target=nodes.Name() as target):
                yield f"{{{{- range ${target.name} := {_expression(node.iter, local)} }}}}\n"
                yield from _statements(node.body, local | {target.name})
                yield "{{- end }}\n"
            case nodes.For(target=nodes.Tuple() as target, iter=nodes.Call() as call):
                names = [name.name for name in target.items if isinstance(name, nodes.Name)]
                yield f"{{{{- range $pair := {_pairs(call, local)} }}}}\n"
                yield from (f"{{{{- ${n} := index $pair {i} }}}}\n" for i, n in enumerate(names))
                yield from _statements(node.body, local | {*names})
                yield "{{- end }}\n"
            case _:
                raise UnknownSyntaxError(f"line {node.lineno}: {type(node).__name__}")


def _pairs(call: nodes.Call, local: frozenset[str]) -> str:
    method = call.node
    if isinstance(method, nodes.Getattr) and method.attr == "items":
        return _expression(method.node, local)
    raise UnknownSyntaxError(f"line {call.lineno}: a call of something else than items()")


def _expression(node: nodes.Node, local: frozenset[str]) -> str:
    match node:
        case nodes.Name(name=name):
            return f"${name}" if name in local else f"$c.{name}"
        case nodes.Const(value=value):
            return json.dumps(value)
        case nodes.Getattr(node=owner, attr=attribute):
            return f"{_expression(owner, local)}.{attribute}"
        case nodes.Concat(nodes=parts):
            return f"(print {' '.join(_expression(part, local) for part in parts)})"
        case nodes.Filter(name="string", node=nodes.Node() as value):
            return f"(toString {_expression(value, local)})"
        case nodes.List(items=items):
            return f"(list {' '.join(_expression(item, local) for item in items)})"
        case _:
            raise UnknownSyntaxError(f"line {node.lineno}: {type(node).__name__}")


def page_of_values(chart: Mapping[str, Any], values: str) -> str:
    """The page, from what Chart.yaml says and from the text of values.yaml."""
    parsed = yaml.safe_load(values)
    rows = []
    for path, meaning in comments(values).items():
        section, _, option = path.partition(".")
        if section == "settings" and option in OPTIONS:
            continue
        default = json.dumps(value_at(parsed, path), separators=(",", ":"), ensure_ascii=False)
        cells = (path, f"`{default}`", meaning)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return f"""# {chart["name"]}

{chart["description"]}

Version {chart["version"]}, for Kubernetes `{chart["kubeVersion"]}`.
[How to install it](../docs/how-to/helm.md). `settings` has the workload's settings under their own
names: [the options](../docs/reference/options.md) say what each does. Selectors are the API's.

## Values

| value | default | what it is |
|---|---|---|
""" + "".join(f"{row}\n" for row in rows)


def comments(values: str) -> dict[str, str]:
    """The comment above each value that has one, by the value's path."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in values.splitlines():
        if marked := re.match(r" *# (-- )?(.*)", line):
            comment = [*([] if marked[1] else comment), marked[2]]
        elif key := re.match(r"( *)([\w-]+):", line):
            indent = len(key[1])
            path = [*(each for each in path if each[0] < indent), (indent, key[2])]
            if comment:
                found[".".join(name for _, name in path)] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def leaves(values: Mapping[str, Any], documented: Mapping[str, str], *path: str) -> Iterator[str]:
    """The paths of all values: of what has a comment, or of what has no parts."""
    for name, value in values.items():
        own = ".".join((*path, name))
        if own in documented or not (isinstance(value, dict) and value):
            yield own
        else:
            yield from leaves(value, documented, *path, name)


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """The value of a path."""
    found: Any = values
    for name in path.split("."):
        found = found[name]
    return found


ROOT: Final = Path(__file__).parents[2]
# The charm's templates that the chart has, and when an object of each is made.
TEMPLATES: Final = {
    "access": "",
    "policy": "$c.validates",
    "records": "$c.validates",
    "webhook": "",
}
# Settings that the chart decides: where its files are, the names of its objects, and that unknown
# keys are refused.
DECIDED: Final = frozenset(
    {
        "application",
        "applications",
        "kubeconfig",
        "lease",
        "pebble-socket",
        "status-address",
        "tls-certificate",
        "tls-key",
        "unknown-keys",
        "webhook-address",
        "webhook-configuration",
    }
)
SETTINGS: Final = tuple(name for name in settings.OPTIONS if name not in DECIDED)
_APP: Final = "@APP@"
_MODEL: Final = "@MODEL@"
_NAMESPACES: Final = {"matchExpressions": ["@NAMESPACES@"]}
_PODS: Final = {"matchExpressions": ["@PODS@"]}


def files() -> dict[Path, str]:
    """Every file that is made, or has a part that is made, with its text."""
    made = {CHART / f"templates/{name}.yaml": _template(name) for name in TEMPLATES}
    values = _values((CHART / "values.yaml").read_text())
    charm = yaml.safe_load((ROOT / "metadata.yaml").read_text())
    about = chart((CHART / "Chart.yaml").read_text(), charm)
    return {
        **made,
        CHART / "files/rules.json": _rules(),
        CHART / "files/alerts.yaml": _alerts(),
        CHART / "files/dashboard.json": _dashboard(),
        CHART / "values.schema.json": _schema((CHART / "values.schema.json").read_text()),
        CHART / "values.yaml": values,
        CHART / "Chart.yaml": about,
        CHART / "README.md": page_of_values(yaml.safe_load(about), values),
    }


def _template(name: str) -> str:
    source = f"src/templates/{name}.yaml.j2"
    condition = TEMPLATES[name]
    text = [
        f"{{{{- /* Made from {source} by tests/helm/generate.py. */}}}}\n",
        f'{{{{- define "istio-aux.{name}" }}}}\n',
        '{{- $c := include "istio-aux.context" . | fromJson }}\n',
        f"{{{{- if {condition} }}}}\n" if condition else "",
        translate((ROOT / source).read_text()).rstrip("\n") + "\n",
        "{{- end }}\n" if condition else "",
        f'{{{{- end }}}}\n{{{{- include "istio-aux.annotated" (list "istio-aux.{name}" .) }}}}\n',
    ]
    return "".join(text)


def _rules() -> str:
    [every] = manifests.selected(Values(_APP, _MODEL))
    values = Values(
        _APP, _MODEL, (_NAMESPACES,), pod_selector=_PODS, inject_namespaces=("@INJECTED@",)
    )
    sections: dict[str, Any] = {
        "constants": manifests.CONSTANTS,
        "namespaces": {
            "longest": LONGEST_SELECTOR,
            "never": every["matchExpressions"],
        },
        "webhooks": [_webhook(each) for each in manifests.start_webhooks(values)],
        "inject": {
            "every": _inject(("*",), "elsewhere"),
            "every of ours": _inject(("*",), _MODEL),
            "named": _inject(("@NAMES@",), "elsewhere"),
        },
    }
    # One line for each, so that a diff shows which one changed.
    lines = [f"{_json(name)}: {_json(section)}" for name, section in sections.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _webhook(webhook: Mapping[str, Any]) -> dict[str, Any]:
    # A list of pairs, because Go sorts the keys of a map.
    return {**webhook, "matches": [[*pair] for pair in webhook["matches"].items()]}


def _inject(names: tuple[str, ...], ours: str) -> dict[str, Any]:
    [webhook] = manifests.inject_webhooks(Values(_APP, ours, inject=(Applications(_MODEL, names),)))
    return _webhook(webhook)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# Labels of series as they are without Juju: a PodMonitor's, with the application's name as job.
_LABELS: Final = {"juju_model": "namespace", "juju_application": "job", "juju_unit": "pod"}
_TOPOLOGY: Final = 'namespace="@MODEL@", job="@APP@"'
# Alerts about what only the charm has.
_JUJUS: Final = frozenset({"IstioAuxTokenExpires"})
_SAID: Final = {
    r"`juju run [^`]*/leader list-(stuck|unmeshed)`": "`istio-aux audit`",
    r"`juju status[^`]*`": "`/status` on port 8080",
    r"`juju debug-log`": "the log of cert-manager",
    r"add a unit with `juju scale-application`": "set `replicaCount` to one more",
    r"(: |)run `juju trust [^`]*`": r"\1look at its ClusterRoleBinding",
    r"The charm renews both in any event: look in .* why its events fail\.": (
        "Delete the Secret and run `helm upgrade`, or look in the log of cert-manager."
    ),
    r"to missing trust": "to missing rights",
    r"\bunits\b": "pods",
    r"\bUnits\b": "Pods",
    r"\bunit\b": "pod",
    r"\bset the option `": "set `",
    r"\bthe option `": "the setting `",
}


def _alerts() -> str:
    """The charm's alert rules, about the labels that Prometheus' operator gives."""
    text = (ROOT / "src/prometheus_alert_rules/istio-aux.rules").read_text()
    text = text.replace("%%juju_topology%%", _TOPOLOGY)
    for label, own in _LABELS.items():
        text = text.replace(label, own)
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    for group in groups:
        group["name"] = f"@MODEL@-@APP@-{group['name']}"
        group["rules"] = [rule for rule in group["rules"] if rule["alert"] not in _JUJUS]
        for rule in group["rules"]:
            rule["annotations"] = {k: _as_said(text) for k, text in rule["annotations"].items()}
    made = "# Made from src/prometheus_alert_rules by tests/helm/generate.py.\n"
    return made + yaml.safe_dump({"groups": groups}, sort_keys=False, width=200)


def _dashboard() -> str:
    """The charm's dashboard, with the labels that Prometheus' operator gives."""
    text = (ROOT / "src/grafana_dashboards/istio-aux.json").read_text()
    text = text.replace(' juju_model_uuid=~\\"$juju_model_uuid\\",', "")
    for label, own in _LABELS.items():
        text = text.replace(label, own)
    dashboard = json.loads(text)
    for panel in dashboard["panels"]:
        for key in {"title", "description"} & panel.keys():
            panel[key] = _as_said(panel[key])
    source = {"type": "prometheus", "uid": "${prometheusds}"}
    variables = [{"type": "datasource", "name": "prometheusds", "query": "prometheus"}]
    for label in ("namespace", "job"):
        query = f"label_values(istio_aux_leader, {label})"
        several = {"multi": True, "includeAll": True, "refresh": 2, "datasource": source}
        variables.append({"type": "query", "name": label, "query": query, **several})
    dashboard |= {
        "uid": "istio-aux-chart",
        "tags": ["istio-aux"],
        "templating": {"list": variables},
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _as_said(text: str) -> str:
    """The text of an alert, with the commands and words of an installation without Juju."""
    for pattern, instead in _SAID.items():
        text = re.sub(pattern, instead, text)
    return text


# JSON Schema's patterns have no named groups, and Go's allow no repetition over 1,000 times.
_SIDECAR: Final = (
    re.sub(r"\?P<\w+>", "", RULE.pattern).replace("|quit", "")  # Only some names have a rule.
    + f"|(?:{'|'.join(SHIPPED)})=quit"
)
# A label's key and value (apimachinery pkg/util/validation IsQualifiedName, IsValidLabelValue).
_NAME: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = f"^({DNS_SUBDOMAIN.pattern}/)?{_NAME}$"
_VALUE: Final = {"type": "string", "pattern": f"^({_NAME})?$"}
_SELECTOR: Final = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "matchLabels": {
            "type": "object",
            "patternProperties": {_KEY: _VALUE},
            "additionalProperties": False,
        },
        "matchExpressions": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "key": {"type": "string", "pattern": _KEY},
                    "operator": {"enum": [str(each) for each in Operator]},
                    "values": {"type": "array", "minItems": 1, "items": _VALUE},
                },
                "required": ["key", "operator"],
                "if": {"properties": {"operator": {"enum": ["In", "NotIn"]}}},
                "then": {"required": ["values"]},
                "else": {"not": {"required": ["values"]}},
            },
        },
    },
}
# What a setting may be, if more is said than its type.
_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "namespace-selectors": {
        "type": "array",
        "maxItems": MOST_SELECTORS,
        "items": {**_SELECTOR, "minProperties": 1},
    },
    "pod-selector": _SELECTOR,
    "inject-selector": _SELECTOR,
    "root-namespace": {"type": "string", "pattern": f"^({DNS_LABEL.pattern})?$"},
    "sidecars": {
        "type": "string",
        "pattern": rf"^(?:\s*(?:{_SIDECAR})?\s*(?:,|$))*$",
        "not": {"pattern": rf"(^|,)\s*{PROXY}="},
    },
}


_SELECTORS: Final = {
    "namespace-selectors": "The namespaces to look after: one of these label selectors must match;"
    " without one, all.",
    "pod-selector": "The pods to look after, as a label selector; an empty one means all.",
    "inject-selector": "The pods that get a sidecar although their annotation says no, as a label"
    " selector; an empty one means none.",
}


def _schema(present: str) -> str:
    """The schema, with a property for each setting."""
    schema = json.loads(present)
    schema["properties"]["settings"]["properties"] = {
        name: {"description": _meaning(name), **_kind(name)} for name in SETTINGS
    }
    return json.dumps(schema, indent=2) + "\n"


def _meaning(name: str) -> str:
    """The description of a setting: that of the charm's option, if it is of the same kind."""
    if name in _SELECTORS:
        return _SELECTORS[name]
    if name in OPTIONS:
        return " ".join(OPTIONS[name]["description"].partition("\n\n")[0].split())
    text = settings.OPTIONS[name].meaning
    return text[0].upper() + text[1:]


def _kind(name: str) -> dict[str, Any]:
    match settings.default(name):
        case StrEnum() as choice:
            return {"enum": [str(each) for each in type(choice)]}
        case float():
            return {"type": "number", "minimum": 0}
        case _:
            return dict(_KINDS[name])


def default(name: str) -> Any:
    """A setting's default as a value of the chart."""
    match settings.default(name):
        case NamespaceSelectors() as selected:
            return [*map(selector, sorted(selected.alternatives, key=str))]
        case _ if name in _SELECTORS:
            return {}
        case None | ():
            return ""
        case float() as number:
            return int(number)
        case other:
            return str(other)


def selector(found: Selector) -> dict[str, Any]:
    """A label selector as the API has it; what a label must be in the short form."""
    labels = dict[str, str]()
    expressions = list[Any]()
    for each in found.requirements:
        if each.operator is Operator.IN and len(each.values) == 1 and each.key not in labels:
            labels[each.key] = each.values[0]
        else:
            expressions.append(msgspec.to_builtins(each))
    parts = {"matchLabels": labels, "matchExpressions": expressions}
    return {name: part for name, part in parts.items() if part}


def _values(present: str) -> str:
    """The values, with a setting for each of the workload's."""
    lines: list[str] = []
    for name in SETTINGS:
        lines += _comment(_meaning(name))
        value = default(name)
        if isinstance(value, list):
            lines += [f"  {name}:", *(f"  - {json.dumps(each)}" for each in value)]
        else:
            lines.append(f"  {name}: {json.dumps(value)}")
    return _between(present, "settings:\n", "\n\n", "\n".join(lines))


def _comment(text: str) -> Iterable[str]:
    words, line = text.split(), "  # --"
    for word in words:
        if len(line) + len(word) > 98:
            yield line
            line = "  #"
        line += f" {word}"
    yield line


def chart(present: str, charm: Mapping[str, Any]) -> str:
    """Chart.yaml, with the version of the workload and the addresses of the charm's metadata."""
    version = tomllib.loads((ROOT / "workload/pyproject.toml").read_text())["project"]["version"]
    text = re.sub(r"(?m)^(version|appVersion): .*$", rf'\1: "{version}"', present)
    text = re.sub(r"(?m)^      image: .*$", f"      image: {REGISTRY}/istio-aux:{version}", text)
    source = charm.get("source", [])  # A text or a list.
    icon = base64.b64encode((ROOT / "icon.svg").read_bytes()).decode()
    made = {
        "description": charm["summary"],
        "home": charm.get("website"),
        "sources": [source] if isinstance(source, str) else source,
        "icon": f"data:image/svg+xml;base64,{icon}",
    }
    dumped = yaml.safe_dump({key: value for key, value in made.items() if value}, width=2000)
    before, found, _ = text.partition("# Made from metadata.yaml and icon.svg.\n")
    assert found
    return before + found + dumped


def _between(text: str, start: str, end: str, new: str) -> str:
    before, found, rest = text.partition(start)
    _, ended, after = rest.partition(end)
    assert found
    assert ended
    return before + start + new + end + after


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
