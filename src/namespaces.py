"""The option `namespace-selector`: from kubectl's label-selector syntax to what the cluster reads.

No kept library parses this syntax (lightkube and the official client only write it), and the
charm cannot import the workload, which has a parser of its own because it also has to match.
This one only translates. A unit test runs both over one table and demands the same answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict


class Requirement(TypedDict, total=False):
    """One entry of `matchExpressions` (Kubernetes LabelSelectorRequirement)."""

    key: str
    operator: str
    values: list[str]


EXPECTED: Final = (
    "comma-separated requirements such as key, !key, key=value, key!=value,"
    " key in (a,b), key notin (a,b)"
)

# kube-system is left alone whatever the selector says: a cluster has to come up without us. The API
# server gives every namespace this label and lets nobody change it.
NAME_LABEL: Final = "kubernetes.io/metadata.name"
NEVER_SELECTED: Final = ("kube-system",)

# Lengths and characters as in apimachinery validation IsQualifiedName and IsValidLabelValue.
_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PART: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY: Final = rf"(?:(?=[^/]{{1,253}}/){_PART}(?:\.{_PART})*/)?{_NAME}"
_VALUE: Final = rf"(?:{_NAME})?"
_REQUIREMENT: Final = re.compile(
    rf"""\s*(?:
        !\s*(?P<absent>{_KEY})
      | (?P<key>{_KEY})\s*(?:
            (?P<sign>==?|!=)\s*(?P<value>{_VALUE})
          | \s(?P<set>in|notin)\s*\((?P<values>(?!\s*\))\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\)
        )?
    )\s*""",
    re.ASCII | re.VERBOSE,
)
_COMMA_OUTSIDE_PARENTHESES: Final = re.compile(r",(?![^(]*\))")


def parse(text: str) -> dict[str, list[Requirement]]:
    """Return the Kubernetes LabelSelector that `text` stands for; the empty text selects all.

    Raises:
        ValueError: `text` is not a label selector; the message is one line that names it.
    """
    if not text.strip():
        return {}
    return {"matchExpressions": [_parse(t, text) for t in _COMMA_OUTSIDE_PARENTHESES.split(text)]}


def but_never_selected(text: str) -> str:
    """Return the selector `text` AND none of the namespaces that are never selected."""
    never = f"{NAME_LABEL} notin ({','.join(NEVER_SELECTED)})"
    return f"{text},{never}" if text.strip() else never


def expression(selector: Mapping[str, Any], labels: str) -> str:
    """Return a LabelSelector as a CEL expression over `labels`, CEL for a map of strings.

    An absent label meets `NotIn`, as it does everywhere in Kubernetes
    (apimachinery pkg/labels Requirement.Matches).
    """
    required: list[str] = [
        _in(key, [value], labels) for key, value in selector.get("matchLabels", {}).items()
    ]
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
    # A JSON string or list of strings is one of CEL too: labels are ASCII.
    key = json.dumps(key)
    return f"{key} in {labels} && {labels}[{key}] in {json.dumps(list(values))}"


def _parse(term: str, text: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(term)
    if match is None:
        raise ValueError(f"{json.dumps(text, ensure_ascii=False)}: expected {EXPECTED}")
    if match["absent"]:
        return {"key": match["absent"], "operator": "DoesNotExist"}
    if match["set"]:
        values = sorted({value.strip() for value in match["values"].split(",")})
        operator = "In" if match["set"] == "in" else "NotIn"
        return {"key": match["key"], "operator": operator, "values": values}
    if match["sign"]:
        operator = "NotIn" if match["sign"] == "!=" else "In"
        return {"key": match["key"], "operator": operator, "values": [match["value"]]}
    return {"key": match["key"], "operator": "Exists"}
