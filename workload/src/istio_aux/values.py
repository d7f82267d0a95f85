"""What the value of a setting may be: one function for each kind of value.

Only that may live here. Each takes what YAML made of the text, and raises a ValueError that shows
the value and says what is allowed, in one line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import msgspec

from istio_aux.core import selectors
from istio_aux.core.policy import Application, DeadProxy, QuitMode, RacePolicy, StartMode

LEVELS = ("debug", "info", "warning", "error")


class Address(msgspec.Struct, frozen=True):
    """Where to listen; an empty host is every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def selector(value: object) -> selectors.Selector:
    """A label selector in kubectl's syntax."""
    if not isinstance(value, str):
        raise _unusable(value, "a label selector as text")
    return selectors.parse(value)


def quit_mode(value: object) -> QuitMode:
    """What `QuitMode` has, and a boolean."""
    # YAML 1.1, which is what PyYAML reads, takes a bare `on` or `off` for a boolean.
    if isinstance(value, bool):
        return QuitMode.ON if value else QuitMode.OFF
    return QuitMode(_choice(value, tuple(QuitMode)))


def start_mode(value: object) -> StartMode:
    """What `StartMode` has; False is a bare ``off``."""
    return StartMode.OFF if value is False else StartMode(_choice(value, tuple(StartMode)))


def race_policy(value: object) -> RacePolicy:
    """What `RacePolicy` has; False is a bare ``off``."""
    return RacePolicy.OFF if value is False else RacePolicy(_choice(value, tuple(RacePolicy)))


def dead_proxy(value: object) -> DeadProxy:
    """What `DeadProxy` has."""
    return DeadProxy(_choice(value, tuple(DeadProxy)))


def level(value: object) -> str:
    """One of `LEVELS`."""
    return _choice(value, LEVELS)


def flag(value: object) -> bool:
    """A boolean as YAML has it."""
    if not isinstance(value, bool):
        raise _unusable(value, "true or false")
    return value


_MAX = sys.float_info.max


def seconds(value: object) -> float:
    """A time in seconds."""
    # A boolean is an int for Python, and YAML has infinity and NaN; none of them is a time.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX:
        return float(value)
    raise _unusable(value, "seconds, as a number of 0 or more")


# apimachinery pkg/util/validation: IsDNS1123Label for containers, namespaces and applications of
# Juju; the names of a Lease and of a webhook configuration are subdomains (IsDNS1123Subdomain),
# whose parts may be long.
_PART = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL = rf"(?![^/]{{64}}){_PART}"
_SUBDOMAIN = rf"(?!.{{254}}){_PART}(?:\.{_PART})*"
_NAMESPACE = re.compile(_LABEL)
_CONTAINER = _NAMESPACE
_CONFIGURATION = re.compile(_SUBDOMAIN)
_LEASE = re.compile(rf"({_LABEL})/({_SUBDOMAIN})")
_APPLICATION = re.compile(rf"({_LABEL})/({_LABEL})")


def containers(value: object) -> frozenset[str]:
    """A list of names of containers."""
    names: set[str] = set()
    listed = cast("list[object]", value) if isinstance(value, list) else [None]
    for name in listed:
        if not isinstance(name, str) or not _CONTAINER.fullmatch(name):
            raise _unusable(
                cast("object", value), "a list of container names, such as [cloud-sql-proxy]"
            )
        names.add(name)
    return frozenset(names)


def lease(value: object) -> tuple[str, str]:
    """Namespace and name of a Lease."""
    return _pair(value, _LEASE, "kubeflow/istio-aux")


def application(value: object) -> Application:
    """Namespace and name of an application of Juju."""
    return Application(*_pair(value, _APPLICATION, "kubeflow/istio-aux"))


def namespace(value: object) -> str:
    """The name of a namespace."""
    return _name(value, _NAMESPACE, "the name of a namespace")


def configuration(value: object) -> str:
    """The name of a webhook configuration."""
    return _name(value, _CONFIGURATION, "the name of a MutatingWebhookConfiguration")


def address(value: object) -> Address:
    """A host, which may be empty, and a port."""
    host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise _unusable(value, "HOST:PORT, such as 0.0.0.0:8443")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def path(value: object) -> Path:
    """The path of a file, or of a socket."""
    if not isinstance(value, str) or not value:
        raise _unusable(value, "the path of a file")
    return Path(value)


def shown(value: object) -> str:
    """A value as a complaint about it shows it."""
    return json.dumps(value, default=str)


def _choice(value: object, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise _unusable(value, f"one of: {', '.join(allowed)}")
    return value


def _name(value: object, pattern: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise _unusable(value, expected)
    return value


def _pair(value: object, pattern: re.Pattern[str], example: str) -> tuple[str, str]:
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise _unusable(value, f"NAMESPACE/NAME, such as {example}")
    return match[1], match[2]


def _unusable(value: object, expected: str) -> ValueError:
    return ValueError(f"{shown(value)}: expected {expected}")
