"""Kubernetes label selectors (apimachinery pkg/labels): kubectl's text, the API's object, matching.

The text has requirements ``a=b``, ``a==b``, ``a!=b``, ``a in (x,y)``, ``a notin (x,y)``, ``a`` and
``!a``, joined by commas that mean "and".
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from istio_aux.model.names import NAMESPACE_NAME, NEVER_SELECTED
from istio_aux.model.pod import Struct
from istio_aux.model.text import quoted


class Operator(StrEnum):
    """Operators of LabelSelectorRequirement (meta/v1)."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One condition on one label, as in ``matchExpressions`` of the API (meta/v1).

    ValueError: Kubernetes refuses it, too (apimachinery labels.NewRequirement).
    """

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prefix, slash, name = self.key.rpartition("/")
        where = f"label key {quoted(self.key)}: expected"
        if slash and not (len(prefix) <= LONGEST_NAME and DNS_SUBDOMAIN.fullmatch(prefix)):
            raise ValueError(f"{where} a DNS subdomain before the '/'")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{where} {_NAME_RULE}")
        if bool(self.values) is not (self.operator in {Operator.IN, Operator.NOT_IN}):
            wanted = "no values" if self.values else "at least one value"
            raise ValueError(f"expected {wanted} with {self.operator}, for {self.key}")
        for value in filter(None, self.values):
            if not _NAME.fullmatch(value):
                raise ValueError(f"label value {quoted(value)}: expected {_NAME_RULE}")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels meets it; an absent label meets NotIn."""
        if self.values:
            return (labels.get(self.key) in self.values) is (self.operator is Operator.IN)
        return (self.key in labels) is (self.operator is Operator.EXISTS)

    def __str__(self) -> str:
        """Write it as kubectl does, with ``=`` and ``!=`` for a single value."""
        match self.operator:
            case Operator.IN | Operator.NOT_IN if len(self.values) == 1:
                sign = "=" if self.operator is Operator.IN else "!="
                return f"{self.key}{sign}{self.values[0]}"
            case Operator.IN | Operator.NOT_IN:
                return f"{self.key} {self.operator.value.lower()} ({','.join(self.values)})"
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"


class Selector(msgspec.Struct, frozen=True):
    """Requirements that must all be met; an empty selector selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    @property
    def mismatch(self) -> str:
        """Why the option `pod-selector` leaves a pod alone whose labels it does not match."""
        return f"pod-selector {self} does not match the pod's labels"

    def missing(self, labels: Mapping[str, str]) -> dict[str, str | None] | None:
        """The fewest labels to set, or to remove (None), so that an object is selected.

        None if there are none, or none were found.
        """
        found: dict[str, str | None] = {}
        # Sorted by operator, so a value of In replaces that of Exists.
        for each in self.requirements:
            if not each.matches(labels):
                wanted = each.operator in {Operator.IN, Operator.EXISTS}
                value = each.values[0] if each.values else "true"
                found[each.key] = value if wanted else found.get(each.key)
        return found if self.matches(with_labels(labels, found)) else None

    def sample(self) -> dict[str, str] | None:
        """The fewest labels that are selected; None if there are none, or none were found."""
        found = self.missing({})
        return None if found is None else with_labels({}, found)

    def __str__(self) -> str:
        """Write the canonical text, as kubectl and the API's ``labelSelector`` take it."""
        return ",".join(str(requirement) for requirement in self.requirements)


def with_labels(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """The labels after the changes of `Selector.missing`."""
    return {key: value for key, value in {**labels, **changes}.items() if value is not None}


# Selectors of namespaces. Each adds a webhook and a binding that the API server tries on every pod.
MOST_SELECTORS = 16
LONGEST_SELECTOR = 2_000  # Characters: some thirty of the longest names of namespaces.


# Stands for the labels of a namespace that has more than are kept (`kept.labels`).
TOO_MANY_LABELS = "too many labels"
TOO_MANY: Mapping[str, str] = {TOO_MANY_LABELS: ""}


class NamespaceSelectors(msgspec.Struct, frozen=True):
    """Selectors of namespaces, of which one must match.

    None of them selects kube-system, nor a namespace with `TOO_MANY` labels.
    """

    alternatives: tuple[Selector, ...] = (Selector(),)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a namespace with these labels is selected."""
        if labels.get(NAMESPACE_NAME) in NEVER_SELECTED or TOO_MANY_LABELS in labels:
            return False
        return any(selector.matches(labels) for selector in self.alternatives)

    def missing(self, labels: Mapping[str, str]) -> dict[str, str | None] | None:
        """As `Selector.missing`, for the alternative that needs the fewest changes.

        Of several the one with the fewest requirements: the label that is for istio-aux alone goes
        before one that means more, such as that of a profile.
        """
        if labels.get(NAMESPACE_NAME) in NEVER_SELECTED or TOO_MANY_LABELS in labels:
            return None
        found = (
            each.missing(labels)
            for each in sorted(self.alternatives, key=lambda each: len(each.requirements))
        )
        # The label with the name cannot be changed.
        return min(
            (each for each in found if each is not None and NAMESPACE_NAME not in each),
            key=len,
            default=None,
        )

    def __str__(self) -> str:
        """Write the text that `parse_namespaces` takes."""
        return "; ".join(str(selector) for selector in self.alternatives)


class _Expression(Struct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class LabelSelector(Struct, frozen=True):
    """A selector as the API has it (meta/v1); ``{}`` selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[_Expression, ...] | None = None


def convert(selector: LabelSelector) -> Selector:
    """Convert the API's object (apimachinery LabelSelectorAsSelector); see `Requirement`."""
    named = {
        Requirement(key, Operator.IN, (value,))
        for key, value in (selector.match_labels or {}).items()
    }
    return Selector(
        tuple(
            sorted(
                named.union(
                    Requirement(it.key, _operator(it), tuple(sorted({*(it.values or ())})))
                    for it in selector.match_expressions or ()
                )
            )
        )
    )


def _operator(found: _Expression) -> Operator:
    try:
        return Operator(found.operator)
    except ValueError:
        raise ValueError(
            f"{quoted(found.operator)}: expected one of: {', '.join(Operator)},"
            f" for {quoted(found.key)}"
        ) from None


_WORD = r"[^\s=!(),<>]++"
_REQUIREMENT = re.compile(
    rf"\s*+(?:!\s*+(?P<absent>{_WORD})|(?P<key>{_WORD})(?:"
    rf"\s*+(?P<sign>==?|!=)\s*+(?P<value>{_WORD})?"
    r"|\s++(?P<word>in|notin)\s*+\((?P<values>[^=!()<>]*+)\))?)\s*+(?P<comma>,|\Z)",
    re.ASCII,
)


def parse(text: str) -> Selector:
    """Parse a selector of kubectl's ``--selector``; blank text selects everything.

    ValueError: one line with the text, what was found and what is expected.
    """
    try:
        return Selector(tuple(sorted(set(_parse(text.rstrip())))))
    except ValueError as error:
        raise ValueError(f"{quoted(text)}: {error}") from None


def parse_namespaces(text: str) -> NamespaceSelectors:
    """Parse selectors with ``;`` between them; blank text selects all but kube-system.

    ValueError: one line with the text, or with the bad selector, and what is expected.
    """
    parts = [part.strip() for part in text.split(";")]
    if len(parts) > MOST_SELECTORS:
        raise ValueError(f"{quoted(text)}: expected {MOST_SELECTORS} selectors at most")
    if text.strip() and not all(parts):  # An empty part would select every namespace.
        raise ValueError(f'{quoted(text)}: expected a selector on both sides of each ";"')
    for part in parts:
        if len(part) > LONGEST_SELECTOR:
            raise ValueError(f"{quoted(part)}: expected {LONGEST_SELECTOR} characters at most")
    return NamespaceSelectors(tuple(dict.fromkeys(map(parse, parts))))


def _parse(rest: str) -> Iterator[Requirement]:
    more = bool(rest)
    while more:
        if (match := _REQUIREMENT.match(rest)) is None:
            raise ValueError(
                "expected KEY, !KEY, KEY=VALUE, KEY!=VALUE, KEY in (VALUES) or KEY notin (VALUES),"
                f" found {quoted(rest) if rest else 'the end'}"
            )
        yield _parsed(match)
        rest = rest[match.end() :]
        more = bool(match["comma"])


def _parsed(match: re.Match[str]) -> Requirement:
    """Make a requirement; as in kubectl, a missing value is the empty one."""
    if match["absent"]:
        return Requirement(match["absent"], Operator.DOES_NOT_EXIST)
    if match["sign"]:
        values = {match["value"] or ""}
    elif match["word"]:
        values = {value.strip(string.whitespace) for value in match["values"].split(",")}
        if not match["values"].strip(string.whitespace):
            raise ValueError(f'expected at least one value after "{match["word"]}"')
    else:
        return Requirement(match["key"], Operator.EXISTS)
    return Requirement(
        match["key"], _OPERATORS[match["sign"] or match["word"]], tuple(sorted(values))
    )


# Names of namespaces and containers (apimachinery pkg/util/validation IsDNS1123Label).
DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
# Names of pods, and their characters (IsDNS1123Subdomain).
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LONGEST_NAME = 253

_OPERATORS = {
    "=": Operator.IN,
    "==": Operator.IN,
    "in": Operator.IN,
    "!=": Operator.NOT_IN,
    "notin": Operator.NOT_IN,
}
# apimachinery pkg/util/validation: IsQualifiedName, IsValidLabelValue.
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME_RULE = "at most 63 letters, digits, '-', '_', '.', with a letter or digit at both ends"
