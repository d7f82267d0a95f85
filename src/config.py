"""The charm's options. `config.yaml` has their names, types, defaults and meanings.

The workload checks its own settings; these checks come first, so that the status names a bad
option and the workload keeps its last good settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

# Istio's name for the container (istio inject.go ProxyContainerName).
PROXY: Final = "istio-proxy"

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "admission": ("auto", "webhook", "policy"),
    "dead-proxy": ("report", "delete"),
    "failure-policy": ("Ignore", "Fail"),
    "log-level": ("debug", "info", "warning", "error"),
    "peers": ("off", "direct"),
    "quit": ("on", "dry-run", "off"),
    "quit-via": ("auto", "exec", "port-forward"),
    "race-policy": ("report", "restart", "off"),
    "start-mode": ("auto", "native", "hold", "off"),
}
"""The options that have a few values, and these values."""

LEAST: Final[Mapping[str, int]] = {}
"""The least value of options that are seconds, where it is not 0."""

EXPECTED_APPLICATIONS: Final = (
    "applications separated by commas, each as app, model/app, * for all of this model or model/*"
    " for all of another"
)
EXPECTED_SELECTOR: Final = (
    "comma-separated requirements such as key, !key, key=value, key!=value,"
    " key in (a,b), key notin (a,b)"
)

EVERY: Final = "*"
# Stands for every pod of a namespace in the workload's applications file.
_ALL_PODS: Final = "**"

# Istio ignores these namespaces whatever their labels are (istio inject.go IgnoredNamespaces).
NEVER_INJECTED: Final = ("kube-node-lease", "kube-public", "kube-system", "local-path-storage")
# No selector matches kube-system: a cluster must be able to start without istio-aux. The API server
# gives every namespace this label and lets nobody change it.
NAME_LABEL: Final = "kubernetes.io/metadata.name"
NEVER_SELECTED: Final = ("kube-system",)

# apimachinery pkg/util/validation IsDNS1123Label: names of namespaces and containers. Juju's names
# of models and applications are stricter, but for their length.
DNS_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"

# apimachinery pkg/util/validation IsQualifiedName and IsValidLabelValue.
_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_PART: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# IsDNS1123Subdomain without its length, 253: names of pods. Its parts may be longer than a label.
DNS_SUBDOMAIN: Final = rf"{_PART}(?:\.{_PART})*"
_KEY: Final = rf"(?:(?=[^/]{{1,253}}/){DNS_SUBDOMAIN}/)?{_NAME}"
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
# A sidecar that the workload knows how to tell to exit (its `model/sidecars.py`), or how.
SIDECARS: Final = ("cloud-sql-proxy", "vault-agent", "linkerd-proxy", "daprd", "kuma-sidecar")
_RULE: Final = re.compile(
    rf"{'|'.join(SIDECARS)}|(?P<name>{DNS_LABEL})=(?:(?P<port>[1-9][0-9]{{0,4}})/[!-+\--~]{{0,200}}"
    r"|(?P<command>[A-Za-z/][!-+\--~]{0,199}(?: [!-+\--~]{1,200}){0,9}))"
)
_LAST_PORT: Final = 65535
_COMMA_OUTSIDE_PARENTHESES: Final = re.compile(r",(?![^(]*\))")


class InvalidOptionError(ValueError):
    """One or more options have an invalid value. The message names each of them."""


class Requirement(TypedDict, total=False):
    """One entry of `matchExpressions` (Kubernetes LabelSelectorRequirement)."""

    key: str
    operator: str
    values: list[str]


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

    namespace_selector: str
    pod_selector: str
    inject_selector: str
    start_mode: str
    peers: str
    native_sidecars: tuple[str, ...]
    admission: str
    quit: str
    quit_via: str
    ignore_containers: tuple[str, ...]
    quit_sidecars: tuple[str, ...]
    dead_proxy: str
    race_policy: str
    restart_jobs: bool
    inject_applications: tuple[Applications, ...]
    inject_namespaces: tuple[str, ...]
    failure_policy: str
    log_level: str
    seconds: Mapping[str, int]


def load(options: Mapping[str, object], model: str) -> Config:
    """Return the options, defaults included, as a `Config`; `model` is the charm's.

    Raises:
        InvalidOptionError: one clause for each bad option: name, value, what is allowed.
    """
    parsers: dict[str, Callable[[Any], object]] = {
        "namespace-selector": _selector_text,
        "pod-selector": _selector_text,
        "inject-selector": _selector_text,
        "inject-applications": lambda text: parse_applications(text, model),
        "inject-namespaces": parse_namespaces,
        "ignore-containers": _parse_containers,
        "quit-sidecars": _parse_sidecars,
        "native-sidecars": _parse_other_sidecars,
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
        if value < (least := LEAST.get(name, 0)):
            problems.append(f"{name}: {value}: expected seconds, {least} or more")
    for name, allowed in CHOICES.items():
        if options[name] not in allowed:
            problems.append(f"{name}: {json.dumps(options[name])}: expected {' or '.join(allowed)}")
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
    found: list[Applications] = []
    wrong: list[str] = []
    for entry in _entries(text):
        where, slash, name = entry.rpartition("/")
        where = where if slash else model
        if _is_label(where) and (name == EVERY or _is_label(name)):
            found.append(Applications(where, None if name == EVERY else (name,)))
        else:
            wrong.append(entry)
    if wrong:
        raise ValueError(f"{_quoted(wrong)}: expected {EXPECTED_APPLICATIONS}")
    if never := [asked.model for asked in found if asked.model in NEVER_INJECTED]:
        raise ValueError(f"{_quoted(never)}: expected models that Istio does not ignore")
    return union(found)


def union(applications: Iterable[Applications]) -> tuple[Applications, ...]:
    """Return the same applications with one entry for each model, sorted."""
    models: dict[str, tuple[str, ...] | None] = {}
    for asked in applications:
        before = models.get(asked.model, ())
        if asked.names is None or before is None:
            models[asked.model] = None
        else:
            models[asked.model] = tuple(sorted({*before, *asked.names}))
    return tuple(Applications(model, names) for model, names in sorted(models.items()))


def as_file(applications: Iterable[Applications], namespaces: Iterable[str] = ()) -> str:
    """Return the workload's applications file, which is never empty.

    Pods of `applications` ask for a sidecar; the label of `namespaces` injects one into every pod.
    """
    lines = [
        f"{asked.model}/{name}"
        for asked in applications
        for name in (asked.names if asked.names is not None else (EVERY,))
    ]
    lines += [f"{namespace}/{_ALL_PODS}" for namespace in namespaces]
    return "\n".join(["# Applications whose pods get a sidecar: model/application.", *lines, ""])


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the namespaces that `text` names, separated by commas, sorted.

    Raises:
        ValueError: the message is one line that names the bad entries.
    """
    entries = _entries(text)
    if wrong := [entry for entry in entries if not _is_label(entry)]:
        raise ValueError(f"{_quoted(wrong)}: expected names of namespaces separated by commas")
    if never := [entry for entry in entries if entry in NEVER_INJECTED]:
        raise ValueError(f"{_quoted(never)}: expected namespaces that Istio does not ignore")
    return tuple(sorted(set(entries)))


def parse_selector(text: str) -> dict[str, list[Requirement]]:
    """Return the Kubernetes LabelSelector for kubectl's syntax; the empty text selects all.

    No maintained library parses this syntax, and the charm cannot import the workload's parser.
    A test compares the two.

    Raises:
        ValueError: `text` is not a label selector; the message is one line.
    """
    if not text.strip():
        return {}
    terms = _COMMA_OUTSIDE_PARENTHESES.split(text)
    return {"matchExpressions": [_parse_requirement(term, text) for term in terms]}


def but_never_selected(text: str) -> str:
    """Return the selector `text` AND not kube-system."""
    never = f"{NAME_LABEL} notin ({','.join(NEVER_SELECTED)})"
    return f"{text},{never}" if text.strip() else never


def _selector_text(text: str) -> str:
    parse_selector(text)
    return text


def _parse_requirement(term: str, text: str) -> Requirement:
    match = _REQUIREMENT.fullmatch(term)
    if match is None:
        raise ValueError(f"{json.dumps(text, ensure_ascii=False)}: expected {EXPECTED_SELECTOR}")
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


def _parse_containers(text: str) -> tuple[str, ...]:
    names = _entries(text)
    if not all(map(_is_label, names)):
        raise ValueError(
            f"{json.dumps(text)}: expected container names separated by commas,"
            " such as cloud-sql-proxy,vault-agent"
        )
    return tuple(sorted(set(names)))


def _parse_sidecars(text: str) -> tuple[str, ...]:
    rules = _entries(text)
    found = [match for rule in rules if (match := _RULE.fullmatch(rule))]
    names = {rule.partition("=")[0] for rule in rules} - {PROXY}
    if not len(found) == len(names) == len(rules) or any(
        int(match["port"] or 0) > _LAST_PORT for match in found
    ):
        raise ValueError(
            f"{json.dumps(text)}: expected names of {', '.join(SIDECARS)}, or NAME=PORT/PATH"
            " or NAME=COMMAND for another container, each once, separated by commas"
        )
    return tuple(rules)


def sidecar_commands(rules: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the command of each rule that tells its container to exit by one, by container."""
    found = (match for rule in rules if (match := _RULE.fullmatch(rule)) and match["command"])
    return {match["name"]: tuple(match["command"].split(" ")) for match in found}


def _parse_other_sidecars(text: str) -> tuple[str, ...]:
    names = _parse_containers(text)
    if PROXY in names:
        raise ValueError(
            f"{json.dumps(text)}: expected other containers than {PROXY}, which Istio decides about"
        )
    return names


def _is_label(text: str) -> bool:
    return re.fullmatch(DNS_LABEL, text) is not None


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _quoted(entries: Sequence[str]) -> str:
    return ", ".join(map(json.dumps, entries))
