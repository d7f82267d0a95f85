"""The charm's options. `config.yaml` has their names, types, defaults and meanings.

The workload checks its own settings; these checks come first, so that the status names a bad
option and the workload keeps its last good settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from istio_aux.model import selectors, sidecars
from istio_aux.model.applications import ALL_PODS, EVERY
from istio_aux.model.names import IGNORED
from istio_aux.model.policy import (
    DeadProxy,
    Peers,
    QuitMode,
    RacePolicy,
    StartMode,
    replaced,
)
from istio_aux.model.selectors import DNS_LABEL
from istio_aux.model.text import alternatives


def _values(choices: type[StrEnum]) -> tuple[str, ...]:
    return tuple(choice.value for choice in choices)


CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "admission": ("auto", "webhook", "policy"),
    "dead-proxy": _values(DeadProxy),
    "log-level": ("debug", "info", "warning", "error"),
    "peers": _values(Peers),
    "quit": _values(QuitMode),
    "race-policy": _values(RacePolicy),
    "start-mode": _values(StartMode),
}
"""The options that have a few values, and these values."""

EXPECTED_APPLICATIONS: Final = (
    "applications separated by commas, each as app, model/app, * for all of this model or model/*"
    " for all of another"
)


class InvalidOptionError(ValueError):
    """One or more options have an invalid value. The message names each of them."""


@dataclass(frozen=True)
class Applications:
    """Applications of one model, sorted; None for every application of the model."""

    model: str
    names: tuple[str, ...] | None


@dataclass(frozen=True)
class Config:
    """Valid options, named as in `config.yaml`; lists are sorted.

    `seconds` has all options that are numbers, by name. Only the workload uses them.
    """

    namespace_selectors: str
    pod_selector: str
    inject_selector: str
    start_mode: str
    peers: str
    sidecars: str
    admission: str
    quit: str
    dead_proxy: str
    race_policy: str
    inject_applications: tuple[Applications, ...]
    inject_namespaces: tuple[str, ...]
    log_level: str
    seconds: Mapping[str, int]


def load(options: Mapping[str, object], model: str) -> Config:
    """Return the options, defaults included, as a `Config`; `model` is the charm's.

    Raises:
        InvalidOptionError: one clause for each bad option: name, value, what is allowed.
    """
    parsers: dict[str, Callable[[Any], object]] = {
        "namespace-selectors": _checked(selectors.parse_namespaces),
        "pod-selector": _checked(selectors.parse),
        "inject-selector": _checked(selectors.parse),
        "inject-applications": lambda text: parse_applications(text, model),
        "inject-namespaces": parse_namespaces,
        "sidecars": _checked(sidecars.parse),
    }
    seconds = {name: value for name, value in options.items() if type(value) is int}
    values = {name: value for name, value in options.items() if name not in seconds}
    problems: list[str] = []
    for name, parse in parsers.items():
        try:
            values[name] = parse(options[name])
        except ValueError as error:
            problems.append(f"{name}: {error}")
    for name, value in seconds.items():
        if value < 0:
            problems.append(f"{name}: {value}: expected seconds, 0 or more")
    for name, allowed in CHOICES.items():
        if options[name] not in allowed:
            expected = f"expected {alternatives(allowed)}{replaced(f'{name}={options[name]}')}"
            problems.append(f"{name}: {json.dumps(options[name])}: {expected}")
    if problems:
        raise InvalidOptionError("; ".join(problems))
    fields: dict[str, Any] = {name.replace("-", "_"): value for name, value in values.items()}
    return Config(**fields, seconds=seconds)


def parse_applications(text: str, model: str) -> tuple[Applications, ...]:
    """Return the applications that `text` names, one entry for each model, sorted.

    The syntax is that of `EXPECTED_APPLICATIONS`. An entry without a model belongs to `model`.

    Raises:
        ValueError: the message is one line that names the bad entries.
    """
    requested: list[Applications] = []
    wrong: list[str] = []
    for entry in _entries(text):
        where, slash, name = entry.rpartition("/")
        where = where if slash else model
        if _is_label(where) and (name == EVERY or _is_label(name)):
            requested.append(Applications(where, None if name == EVERY else (name,)))
        else:
            wrong.append(entry)
    if wrong:
        raise ValueError(f"{_quoted(wrong)}: expected {EXPECTED_APPLICATIONS}")
    if never := [each.model for each in requested if each.model in IGNORED]:
        raise ValueError(f"{_quoted(never)}: expected models that Istio does not ignore")
    return union(requested)


def union(applications: Iterable[Applications]) -> tuple[Applications, ...]:
    """Return the same applications with one entry for each model, sorted."""
    models: dict[str, tuple[str, ...] | None] = {}
    for each in applications:
        before = models.get(each.model, ())
        if each.names is None or before is None:
            models[each.model] = None
        else:
            models[each.model] = tuple(sorted({*before, *each.names}))
    return tuple(Applications(model, names) for model, names in sorted(models.items()))


def as_file(applications: Iterable[Applications], namespaces: Iterable[str] = ()) -> str:
    """Return the workload's applications file, which is never empty.

    Pods of `applications` ask for a sidecar; the label of `namespaces` injects one into every pod.
    """
    lines = [
        f"{each.model}/{name}"
        for each in applications
        for name in (each.names if each.names is not None else (EVERY,))
    ]
    lines += [f"{namespace}/{ALL_PODS}" for namespace in namespaces]
    return "\n".join(["# Applications whose pods get a sidecar: model/application.", *lines, ""])


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the namespaces that `text` names, separated by commas, sorted.

    Raises:
        ValueError: the message is one line that names the bad entries.
    """
    entries = _entries(text)
    if wrong := [entry for entry in entries if not _is_label(entry)]:
        raise ValueError(f"{_quoted(wrong)}: expected names of namespaces separated by commas")
    if never := [entry for entry in entries if entry in IGNORED]:
        raise ValueError(f"{_quoted(never)}: expected namespaces that Istio does not ignore")
    return tuple(sorted(set(entries)))


def parse_selector(text: str) -> dict[str, Any]:
    """Return the Kubernetes LabelSelector for kubectl's syntax; the empty text selects all.

    Raises:
        ValueError: `text` is not a label selector; the message is one line.
    """
    return _label_selector(selectors.parse(text))


def parse_namespaces_selected(text: str) -> tuple[dict[str, Any], ...]:
    """Return a LabelSelector for each of the selectors that `text` has, with `;` between them.

    They are sorted, so that webhooks and bindings keep their names when only the order changes.

    Raises:
        ValueError: one is not a label selector, or empty, or too long; the message is one line.
    """
    found = selectors.parse_namespaces(text).alternatives
    return tuple(_label_selector(each) for each in sorted(found, key=str))


def _label_selector(selector: selectors.Selector) -> dict[str, Any]:
    expressions: list[dict[str, Any]] = [
        {"key": each.key, "operator": str(each.operator)}
        | ({"values": [*each.values]} if each.values else {})
        for each in selector.requirements
    ]
    return {"matchExpressions": expressions} if expressions else {}


def _checked(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Return a parser that leaves a text as it is, if `parse` takes it."""

    def check(text: str) -> str:
        parse(text)
        return text

    return check


def _is_label(text: str) -> bool:
    return DNS_LABEL.fullmatch(text) is not None


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _quoted(entries: Sequence[str]) -> str:
    return ", ".join(map(json.dumps, entries))
