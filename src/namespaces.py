"""The option `namespace-selector`: from kubectl's label-selector syntax to a LabelSelector.

No kept library parses this syntax (lightkube and the official client only write it), and the
charm cannot import the workload, which has a parser of its own because it also has to match.
This one only translates. A unit test runs both over one table and demands the same answers.
"""

from __future__ import annotations

import json
import re
from typing import Final, TypedDict


class Requirement(TypedDict, total=False):
    """One entry of `matchExpressions` (Kubernetes LabelSelectorRequirement)."""

    key: str
    operator: str
    values: list[str]


EXPECTED: Final = (
    "comma-separated requirements such as key, !key, key=value, key!=value,"
    " key in (a,b), key notin (a,b)"
)

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
