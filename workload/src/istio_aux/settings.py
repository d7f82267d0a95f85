"""The options of ``serve``, in one table: the name, values, meaning and default of each.

The settings file and the command line both parse through `OPTIONS`. So a number or a list may be
text. A value that cannot be used raises a ValueError: one line with the value and what is allowed.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import yaml

from istio_aux.model import applications, selectors, sidecars
from istio_aux.model.applications import Application, Applications, PodOptions
from istio_aux.model.documents import load_yaml
from istio_aux.model.names import LOCAL_SETTINGS, SETTINGS, STATUS_PORT, WEBHOOK_PORT
from istio_aux.model.policy import (
    Capability,
    DeadProxy,
    Peers,
    QuitLimits,
    QuitMode,
    QuitPolicy,
    RacePolicy,
    RepairPolicy,
    StartMode,
    StartPolicy,
)
from istio_aux.model.text import UNDECODABLE, alternatives, one_line, problem
from istio_aux.model.webhooks import Address

Choice = TypeVar("Choice", bound=StrEnum)
T = TypeVar("T")


class SettingsError(ValueError):
    """The settings file cannot be used; ``str()`` is one line."""


UnknownKeys = StrEnum("UnknownKeys", ["REFUSE", "SKIP"])
LogLevel = StrEnum("LogLevel", ["DEBUG", "INFO", "WARNING", "ERROR"])  # The lowest that is logged.


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The values of all options, with their defaults; `OPTIONS` says what they mean."""

    tls_certificate: Path
    tls_key: Path
    webhook_address: Address = Address("0.0.0.0", WEBHOOK_PORT)  # noqa: S104  (it serves the cluster)
    status_address: Address = Address("0.0.0.0", STATUS_PORT)  # noqa: S104  (kubelet probes it)
    kubeconfig: Path | None = None
    namespace_selectors: selectors.NamespaceSelectors = selectors.parse_namespaces(
        # Kubeflow's profile controller labels the namespaces of users (namespace-labels.yaml).
        "io.datastrophic/istio-aux=enabled;"
        "app.kubernetes.io/part-of=kubeflow-profile,!io.datastrophic/istio-aux"
    )
    pod_selector: selectors.Selector = selectors.Selector()
    inject_selector: selectors.Selector | None = None
    start_policy: StartPolicy = StartPolicy()
    webhook_configuration: str | None = None
    quit: QuitMode = QuitMode.ENABLED
    quit_policy: QuitPolicy = QuitPolicy()
    quit_limits: QuitLimits = QuitLimits()
    lease: tuple[str, str] | None = None
    repair_policy: RepairPolicy = RepairPolicy()
    root_namespace: str | None = None
    applications: Path | None = None
    pebble_socket: Path | None = None
    log_level: LogLevel = LogLevel.INFO
    unknown_keys: UnknownKeys = UnknownKeys.REFUSE
    skipped: tuple[str, ...] = ()  # The unknown keys that were left out.

    def start(self, capability: Capability) -> StartPolicy:
        """The options for the start of pods, with the ``capability`` of the cluster.

        ``pod_selector`` is left out: the selectors of the webhook configuration apply it, except
        to pods of `applications`.
        """
        return msgspec.structs.replace(
            self.start_policy,
            inject=self.inject_selector,
            sidecars=self.quit_policy.sidecars,
            capability=capability,
            quits=self.quit is QuitMode.ENABLED,
        )

    @property
    def pod_options(self) -> PodOptions:
        """The options that choose pods."""
        return PodOptions(
            namespaces=self.namespace_selectors, pods=self.pod_selector, inject=self.inject_selector
        )


# For commands that serve nothing and have no settings file.
DEFAULTS = Settings(tls_certificate=Path(), tls_key=Path())
_REQUIRED = ("tls-certificate", "tls-key")


def seconds(value: object, least: float = 0) -> float:
    """A time of ``least`` seconds or more, as a number or as text."""
    # For Python a boolean is an int, and YAML has infinity and NaN: none of them is a time.
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            if least <= (number := float(value)) <= sys.float_info.max:
                return number
    raise _unusable(value, f"seconds, as a number of {least:g} or more")


def _chosen(text: str) -> selectors.Selector | None:
    """Parse a label selector; an empty text gives None, which selects nothing."""
    return selectors.parse(text) if text.strip() else None


def matching(
    pattern: str, expected: str, made: Callable[[re.Match[str]], T]
) -> Callable[[object], T]:
    """Return a reader of texts with this ``pattern``; its error says what is ``expected``."""
    compiled = re.compile(pattern, re.DOTALL)

    def read(value: object) -> T:
        match = compiled.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise _unusable(value, expected)
        return made(match)

    return read


def _parsed(
    parse: Callable[[str], T], expected: str = "a label selector as text"
) -> Callable[[object], T]:
    return matching(".*", expected, lambda match: parse(match[0]))


def _one_of(choices: type[Choice]) -> Callable[[object], Choice]:
    return matching("|".join(choices), alternatives(choices), lambda match: choices(match[0]))


_LABEL = selectors.DNS_LABEL.pattern
_SUBDOMAIN = rf"(?!.{{{selectors.LONGEST_NAME + 1}}}){selectors.DNS_SUBDOMAIN.pattern}"
_PORT = r"0*(?:[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"

_path = matching(r".+", "the path of a file", lambda match: Path(match[0]))
namespace = matching(_LABEL, "the name of a namespace", lambda match: match[0])
_address = matching(
    rf"\[?(.*?)\]?:({_PORT})",
    "HOST:PORT, such as 0.0.0.0:8443",
    lambda match: Address(match[1], int(match[2])),
)


def _unusable(value: object, expected: str) -> ValueError:
    return ValueError(f"{json.dumps(value, default=str)}: expected {expected}")


class Option(NamedTuple):
    """One option: how its value is read, what it means, and the field of `Settings` that has it."""

    read: Callable[[object], object]
    meaning: str
    field: str = ""  # ``struct.field`` for a field of a nested struct; empty: the option's name.


OPTIONS = {
    "tls-certificate": Option(
        _path, "PEM file with the webhook's certificate chain; read again when it changes"
    ),
    "tls-key": Option(_path, "PEM file with its private key; read again when it changes"),
    "webhook-address": Option(
        _address, "where the webhook listens: HTTPS, paths `/mutate` and `/inject`"
    ),
    "status-address": Option(
        _address, "where `/livez`, `/readyz`, `/status` and `/metrics` are served: plain HTTP"
    ),
    "kubeconfig": Option(
        _path,
        "how to reach the API server (default: the pod's own account); `--kubeconfig` wins; "
        "it and the files that it names are read again when they change",
    ),
    "namespace-selectors": Option(
        _parsed(selectors.parse_namespaces),
        "label selectors, separated by `;`: proxies quit in namespaces that match one of them. "
        "The webhooks have selectors of their own",
    ),
    "pod-selector": Option(
        _parsed(selectors.parse),
        "label selector of the pods to look after; pods of `applications` need not match. "
        "The webhook has selectors of its own",
    ),
    "inject-selector": Option(
        _parsed(_chosen),
        "label selector of the pods that get a sidecar although their annotation "
        "`sidecar.istio.io/inject` says no, if `pod-selector` matches, too (default: none)",
    ),
    "start-mode": Option(
        _one_of(StartMode),
        "how the payload starts after its proxy: `native` makes the sidecars of Job-like pods "
        "native; `hold` holds the payload until the proxy is ready; `auto` is `native` where a "
        "dry run shows that it works, else `hold`; `none` changes nothing",
        "start_policy.mode",
    ),
    "peers": Option(
        _one_of(Peers),
        "how Job-like pods reach each other: `direct` lets only the ports that a pod declares "
        "through its proxy, so that every other one is reached without mTLS; `mesh` lets all",
        "start_policy.peers",
    ),
    "sidecars": Option(
        _parsed(sidecars.parse, sidecars.EXPECTED),
        "what to do about other sidecars: `NAME=HOW` separated by commas, where HOW is `native` "
        "(it becomes native in Job-like pods where a dry run shows that native sidecars work), "
        "`ignore` (it never keeps a proxy running), or how it is told to exit before the proxy: "
        "`quit` for " + ", ".join(f"`{name}`" for name in sidecars.SHIPPED) + " or `PORT/PATH`; "
        "`none` turns off what is known of the others",
        "quit_policy.sidecars",
    ),
    "webhook-configuration": Option(
        matching(_SUBDOMAIN, "the name of a MutatingWebhookConfiguration", lambda match: match[0]),
        "name of our MutatingWebhookConfiguration: report those of Istio that the API server "
        "calls before it (default: not checked)",
    ),
    "quit": Option(
        _one_of(QuitMode),
        "whether the proxies of finished pods are told to exit: `enabled` does it; `dry-run` only "
        "decides and reports; `disabled` watches no pod",
    ),
    "quit-grace": Option(
        seconds,
        "seconds that a proxy runs on after the last payload container",
        "quit_policy.grace",
    ),
    "dead-proxy": Option(
        _one_of(DeadProxy),
        "pods whose proxy ended before their payload: `report` reports them; `delete` also deletes "
        "them where their controller makes a new one",
        "quit_policy.dead_proxy",
    ),
    "lease": Option(
        matching(
            rf"({_LABEL})/({_SUBDOMAIN})",
            "NAMESPACE/NAME, such as kubeflow/istio-aux",
            lambda match: (match[1], match[2]),
        ),
        "`NAMESPACE/NAME` of the Lease that elects the process that acts on pods (default: this "
        "process always acts)",
    ),
    "race-policy": Option(
        _one_of(RacePolicy),
        "pods that should have a sidecar and have none: `report` reports them; `restart` also "
        "evicts them where their controller makes a new one, except those of Jobs; `none` does not "
        "look for them",
        "repair_policy.race",
    ),
    "root-namespace": Option(
        namespace, "root namespace of the only Istio control plane that counts (default: all)"
    ),
    "applications": Option(
        _path,
        "file with the Juju applications whose pods get a sidecar, one a line: `namespace/app`, "
        "`namespace/*`, or `namespace/**` for a namespace that is injected as a whole; "
        "read again when it changes",
    ),
    "application": Option(
        matching(
            rf"({_LABEL})/({_LABEL})",
            "NAMESPACE/NAME, such as kubeflow/istio-aux",
            lambda match: Application(match[1], match[2]),
        ),
        "`NAMESPACE/NAME` of the application that runs this process: its pods are left alone",
        "repair_policy.ours",
    ),
    "pebble-socket": Option(
        _path, "Pebble's socket, which gets a custom notice of each change (default: no notices)"
    ),
    "log-level": Option(_one_of(LogLevel), "`debug`, `info`, `warning` or `error`"),
    "unknown-keys": Option(
        _one_of(UnknownKeys),
        "keys of the settings file that this version does not know: `refuse`, or `skip` and report",
    ),
}


def default(name: str) -> object:
    """The default of an option; None also where a value is required."""
    return None if name in _REQUIRED else reduce(getattr, _field(name), DEFAULTS)


def load(file: Path, required: Iterable[str] = _REQUIRED) -> Settings:
    """Read the settings file, strictly; the ``required`` options must be in it.

    Raises SettingsError: one line with the file, the option, the value and what is allowed.
    """
    try:
        document = load_yaml(file.read_bytes(), _StrictLoader)
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror or error}") from error
    except (yaml.YAMLError, *UNDECODABLE) as error:
        raise SettingsError(f"{file.name}: not YAML: {one_line(str(error))}") from error
    if not isinstance(document, dict):
        raise SettingsError(
            f"{file.name}: {json.dumps(document, default=str)}: expected a mapping of settings"
        )
    settings = _read(cast("dict[object, object]", document), file.name, OPTIONS)
    for name in required:
        if name not in document:
            raise SettingsError(f"{file.name}: {name}: missing: expected the path of a PEM file")
    return settings


def read_published(text: str) -> tuple[Settings, Applications]:
    """Read an annotation `SETTINGS` as strictly as `load`: settings and Juju applications."""
    where = f"annotation {SETTINGS}"
    try:
        document = msgspec.json.decode(text, type=dict[str, str | float])
    except UNDECODABLE as error:
        raise SettingsError(f"{where}: not a JSON object of settings: {problem(error)}") from error
    asked, problems = applications.parse(str(document.pop("applications", "")))
    if problems:
        raise SettingsError(f"{where}: applications: {one_line(problems[0])}")
    known = [name for name in OPTIONS if name not in {*LOCAL_SETTINGS, "applications"}]
    return _read(document, where, known), asked


def overlapping(every: Iterable[Settings], labels: Mapping[str, str]) -> list[Settings]:
    """Return the installations that look after the same pods of a namespace with these labels.

    They do not if each of those that select the namespace has a pod-selector of its own.
    """
    found = [each for each in every if each.namespace_selectors.matches(labels)]
    chosen = {each.pod_selector for each in found} - {selectors.Selector()}
    return found if len(found) > max(1, len(chosen)) else []


def _read(document: Mapping[Any, object], where: str, known: Collection[str]) -> Settings:
    """Return `DEFAULTS` with the values of a document, in which ``known`` keys are allowed."""
    settings = DEFAULTS
    skips = document.get("unknown-keys") == UnknownKeys.SKIP
    for name, value in document.items():
        if name in known:
            try:
                settings = _changed(settings, _field(name), OPTIONS[name].read(value))
            except ValueError as error:
                raise SettingsError(f"{where}: {name}: {error}") from error
        elif skips:
            skipped = (*settings.skipped, one_line(str(name)))
            settings = msgspec.structs.replace(settings, skipped=skipped)
        else:
            raise SettingsError(
                f"{where}: {one_line(str(name))}: unknown key: expected one of: {', '.join(known)}"
            )
    return settings


def _changed(struct: Any, path: list[str], value: object) -> Any:
    name, *rest = path
    new = _changed(getattr(struct, name), rest, value) if rest else value
    return msgspec.structs.replace(struct, **{name: new})


def _field(name: str) -> list[str]:
    return (OPTIONS[name].field or name.replace("-", "_")).split(".")


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [str(key.value) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice")
        return super().construct_mapping(node, deep)
