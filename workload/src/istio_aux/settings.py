"""The settings of ``serve``: one YAML file, parsed strictly, once, into a frozen struct.

Only the parsing may live here. A value that cannot be used gives one line that names the file, the
key, the value and what is allowed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml

from istio_aux.core import selectors
from istio_aux.core.policy import DeadProxy, QuitMode, StartMode

LEVELS = ("debug", "info", "warning", "error")


class SettingsError(ValueError):
    """The file cannot be used; ``str()`` is one line."""


class Address(msgspec.Struct, frozen=True):
    """Where to listen; an empty host is every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What ``serve`` needs to know. Field names are the file's keys with ``_`` for ``-``.

    Attributes:
        start_mode: how Job-like pods are started.
        webhook_configuration: name of the MutatingWebhookConfiguration that has us called; None:
            whether Istio's are called before it is not checked.
        quit_mode: whether proxies are told to quit; the file's key is ``quit``.
        quit_grace: seconds between the end of the last payload container and the quit.
        ignore_containers: names of containers that never keep a pod's proxy alive.
        dead_proxy: what becomes of a pod whose proxy ended before its payload.
        lease: namespace and name of the Lease by which one of several processes is chosen to act;
            None: this process is the only one and always acts.
    """

    tls_certificate: Path
    tls_key: Path
    namespace_selector: selectors.Selector = selectors.parse("io.datastrophic/istio-aux=enabled")
    start_mode: StartMode = StartMode.AUTO
    webhook_configuration: str | None = None
    quit_mode: QuitMode = QuitMode.ON
    quit_grace: float = 0.0
    ignore_containers: frozenset[str] = frozenset()
    dead_proxy: DeadProxy = DeadProxy.REPORT
    lease: tuple[str, str] | None = None
    log_level: str = "info"
    webhook_address: Address = Address("0.0.0.0", 8443)  # noqa: S104  (a webhook serves the cluster)
    status_address: Address = Address("0.0.0.0", 8080)  # noqa: S104  (probes come from the node)
    kubeconfig: Path | None = None


def load(path: Path) -> Settings:
    """Read and check the file at ``path``.

    Raises:
        SettingsError: the file cannot be read or used, in one line.
    """
    name = path.name
    try:
        document = yaml.load(path.read_bytes(), Loader=_StrictLoader)  # noqa: S506  (a SafeLoader)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise SettingsError(f"{name}: {_shown(document)}: expected a mapping of settings")
    values: dict[str, Any] = {}
    for key, value in cast("dict[object, object]", document).items():
        parse = _PARSERS.get(key) if isinstance(key, str) else None
        if parse is None:
            raise SettingsError(
                f"{name}: {key}: unknown key: expected one of: {', '.join(_PARSERS)}"
            )
        try:
            values[_FIELDS.get(str(key), str(key).replace("-", "_"))] = parse(value)
        except ValueError as error:
            raise SettingsError(f"{name}: {key}: {error}") from error
    for key in ("tls-certificate", "tls-key"):
        if key.replace("-", "_") not in values:
            raise SettingsError(f"{name}: {key}: missing: expected the path of a PEM file")
    return Settings(**values)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is given twice: which of the two was meant, nobody can say."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [str(key.value) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice")
        return super().construct_mapping(node, deep)


def _selector(value: object) -> selectors.Selector:
    if not isinstance(value, str):
        raise _unusable(value, "a label selector as text")
    return selectors.parse(value)


def _mode(value: object) -> QuitMode:
    # YAML 1.1, which is what PyYAML reads, takes a bare `on` or `off` for a boolean.
    if isinstance(value, bool):
        return QuitMode.ON if value else QuitMode.OFF
    return QuitMode(_choice(value, tuple(QuitMode)))


def _start_mode(value: object) -> StartMode:
    return StartMode.OFF if value is False else StartMode(_choice(value, tuple(StartMode)))


def _dead_proxy(value: object) -> DeadProxy:
    return DeadProxy(_choice(value, tuple(DeadProxy)))


def _level(value: object) -> str:
    return _choice(value, LEVELS)


def _choice(value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _unusable(value, f"one of: {', '.join(allowed)}")
    return value


_MAX = sys.float_info.max


def _seconds(value: object) -> float:
    # A boolean is an int for Python, and YAML has infinity and NaN; none of them is a time.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX:
        return float(value)
    raise _unusable(value, "seconds, as a number of 0 or more")


# apimachinery pkg/util/validation: IsDNS1123Label for containers and namespaces; the names of a
# Lease and of a webhook configuration are subdomains (IsDNS1123Subdomain), whose parts may be long.
_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL = rf"(?![^/]{{64}}){_PART}"
_SUBDOMAIN = rf"(?!.{{254}}){_PART}(?:\.{_PART})*"
_CONTAINER = re.compile(_LABEL)
_CONFIGURATION = re.compile(_SUBDOMAIN)
_LEASE = re.compile(rf"({_LABEL})/({_SUBDOMAIN})")


def _containers(value: object) -> frozenset[str]:
    names: set[str] = set()
    listed = cast("list[object]", value) if isinstance(value, list) else [None]
    for name in listed:
        if not isinstance(name, str) or not _CONTAINER.fullmatch(name):
            raise _unusable(
                cast("object", value), "a list of container names, such as [cloud-sql-proxy]"
            )
        names.add(name)
    return frozenset(names)


def _lease(value: object) -> tuple[str, str]:
    match = _LEASE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _unusable(value, "NAMESPACE/NAME, such as kubeflow/istio-aux")
    return match[1], match[2]


def _configuration(value: object) -> str:
    if not isinstance(value, str) or not _CONFIGURATION.fullmatch(value):
        raise _unusable(value, "the name of a MutatingWebhookConfiguration")
    return value


def _address(value: object) -> Address:
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise _unusable(value, "HOST:PORT, such as 0.0.0.0:8443")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _path(value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise _unusable(value, "the path of a file")
    return Path(value)


# Where a field is not called as its key is.
_FIELDS = {"quit": "quit_mode"}

_PARSERS: dict[str, Callable[[object], object]] = {
    "namespace-selector": _selector,
    "start-mode": _start_mode,
    "webhook-configuration": _configuration,
    "quit": _mode,
    "quit-grace": _seconds,
    "ignore-containers": _containers,
    "dead-proxy": _dead_proxy,
    "lease": _lease,
    "log-level": _level,
    "webhook-address": _address,
    "status-address": _address,
    "tls-certificate": _path,
    "tls-key": _path,
    "kubeconfig": _path,
}


def _unusable(value: object, expected: str) -> ValueError:
    return ValueError(f"{_shown(value)}: expected {expected}")


def _shown(value: object) -> str:
    return json.dumps(value, default=str)
