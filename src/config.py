"""The charm's options. `config.yaml` has their names, types, defaults and meanings.

Most of them are settings of the workload, which says what is allowed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
from istio_aux import settings
from istio_aux.model import selectors
from istio_aux.model.applications import ALL_PODS, EVERY
from istio_aux.model.names import IGNORED
from istio_aux.model.policy import QuitMode
from istio_aux.model.selectors import DNS_LABEL

from cluster import UNREADABLE

EXPECTED_APPLICATIONS: Final = (
    "applications separated by commas, each as app, model/app, * for all of this model or model/*"
    " for all of another"
)

# Options without a setting of the workload; each other option is a setting of the same name.
_FOR_THE_CHARM: Final = ("inject-applications", "inject-namespaces")
# Options that select pods or namespaces: no default replaces a value that cannot be read.
_NEVER_GUESSED: Final = ("namespace-selectors", "pod-selector", "inject-selector", *_FOR_THE_CHARM)
_APPLICATION: Final = re.compile(
    rf"(?:{DNS_LABEL.pattern}/)?(?:{DNS_LABEL.pattern}|{re.escape(EVERY)})"
)


@dataclass(frozen=True)
class Applications:
    """Applications of one model, sorted; `*` alone stands for all of the model."""

    model: str
    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Valid options, as `ops.CharmBase.load_config` reads them.

    Raises:
        ValueError: one clause for each bad option: name, value, what is allowed.
    """

    model: str  # The charm's: the default model in `inject-applications`.
    namespace_selectors: str
    pod_selector: str
    inject_selector: str
    start_mode: str
    peers: str
    sidecars: str
    quit: str
    quit_grace: int
    dead_proxy: str
    race_policy: str
    inject_applications: str
    inject_namespaces: str
    log_level: str

    def __post_init__(self) -> None:
        own: dict[str, Callable[[Any], object]] = {
            "inject-applications": partial(parse_applications, model=self.model),
            "inject-namespaces": parse_namespaces,
        }
        problems: list[str] = []
        for name, value in self.options.items():
            try:
                (own.get(name) or settings.OPTIONS[name].read)(value)
            except ValueError as error:
                problems.append(f"{name}: {error}")
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def options(self) -> dict[str, Any]:
        """All options, by name."""
        return {
            field.replace("_", "-"): value
            for field, value in vars(self).items()
            if field != "model"
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The options that are settings of the workload, by name."""
        return {name: each for name, each in self.options.items() if name not in _FOR_THE_CHARM}

    @property
    def applications(self) -> tuple[Applications, ...]:
        """What `inject-applications` names."""
        return parse_applications(self.inject_applications, self.model)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """What `inject-namespaces` names."""
        return parse_namespaces(self.inject_namespaces)


def recall(text: str, defaults: Mapping[str, Any], model: str) -> Config | None:
    """Return the options in `text`, which the leader noted when all were good.

    Another revision may have noted them. An option that this one cannot read gets its default, and
    `quit` gets `disabled`, so that no proxy exits by a guess. If it cannot read a selector or a
    list of names, there is no configuration: None.
    """
    try:
        known = msgspec.json.decode(text, type=dict[str, Any])
        options = {
            name: _readable(name, known.get(name, default), default)
            for name, default in defaults.items()
        }
        return Config(model=model, **{key.replace("-", "_"): options[key] for key in options})
    except UNREADABLE:
        return None


def _readable(name: str, value: Any, default: Any) -> Any:
    """Return the noted value of an option, or what stands in for one that cannot be read."""
    if name in _NEVER_GUESSED or _is_read(name, value):
        return value
    return QuitMode.DISABLED.value if name == "quit" else default


def _is_read(name: str, value: Any) -> bool:
    try:
        settings.OPTIONS[name].read(value)
    except ValueError:
        return False
    return True


def parse_applications(text: str, model: str) -> tuple[Applications, ...]:
    """Return what `text` names (`EXPECTED_APPLICATIONS`), one entry for each model, sorted.

    Raises:
        ValueError: the message is one line that names the bad entries.
    """
    entries = _entries(text)
    _expect(entries, _APPLICATION.fullmatch, EXPECTED_APPLICATIONS)
    found = [(owner or model, name) for owner, _, name in (e.rpartition("/") for e in entries)]
    _expect([owner for owner, _ in found], _is_heeded, "models that Istio does not ignore")
    return union(Applications(owner, (name,)) for owner, name in found)


def union(applications: Iterable[Applications]) -> tuple[Applications, ...]:
    """Return the same applications with one entry for each model, sorted."""
    models = defaultdict[str, set[str]](set)
    for each in applications:
        models[each.model].update(each.names)
    return tuple(
        Applications(model, (EVERY,) if EVERY in names else tuple(sorted(names)))
        for model, names in sorted(models.items())
    )


def as_file(applications: Iterable[Applications], namespaces: Iterable[str] = ()) -> str:
    """Return the workload's applications file; all pods of `namespaces` get a sidecar."""
    lines = [f"{each.model}/{name}" for each in applications for name in each.names]
    lines += [f"{namespace}/{ALL_PODS}" for namespace in namespaces]
    return "\n".join(["# Applications whose pods get a sidecar: model/application.", *lines, ""])


def parse_namespaces(text: str) -> tuple[str, ...]:
    """Return the namespaces that `text` names, separated by commas, sorted.

    Raises:
        ValueError: the message is one line that names the bad entries.
    """
    names = _entries(text)
    _expect(names, DNS_LABEL.fullmatch, "names of namespaces separated by commas")
    _expect(names, _is_heeded, "namespaces that Istio does not ignore")
    return tuple(sorted(set(names)))


def parse_selector(text: str) -> dict[str, Any]:
    """Return the Kubernetes LabelSelector for a valid selector; the empty text selects all."""
    return _label_selector(selectors.parse(text))


def parse_namespaces_selected(text: str) -> tuple[dict[str, Any], ...]:
    """Return a LabelSelector for each valid selector in `text`, with `;` between them."""
    found = selectors.parse_namespaces(text).alternatives
    # Webhooks keep their names when only the order changes.
    return tuple(_label_selector(each) for each in sorted(found, key=str))


def _label_selector(selector: selectors.Selector) -> dict[str, Any]:
    expressions = [*map(msgspec.to_builtins, selector.requirements)]
    return {"matchExpressions": expressions} if expressions else {}


def _expect(
    entries: Iterable[str],
    is_good: Callable[[str], object],
    expected: str,
) -> None:
    if bad := [entry for entry in entries if not is_good(entry)]:
        raise ValueError(f"{', '.join(map(json.dumps, bad))}: expected {expected}")


def _entries(text: str) -> list[str]:
    if not text.strip():
        return []
    return [entry.strip() for entry in text.split(",")]


def _is_heeded(namespace: str) -> bool:
    return namespace not in IGNORED
