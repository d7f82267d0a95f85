"""Values on the command line, strictly: text in, a value or one line about what is allowed out.

Only parsing may live here. The line names the value and what is expected; argparse adds the option.
"""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import NamedTuple

from istio_aux.core import applications as asking
from istio_aux.core import selectors
from istio_aux.core.policy import Capability, StartMode

# apimachinery pkg/util/validation: a namespace and a container are IsDNS1123Label, a pod is
# IsDNS1123Subdomain. Whatever else a person writes must not become part of a URL's path.
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = _CONTAINER = re.compile(_LABEL)
_POD = re.compile(rf"(?:({_LABEL})/)?((?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*)")


class PodName(NamedTuple):
    """A pod as a person names it; without a namespace it is in the one that is the default."""

    namespace: str | None
    name: str


def pod(text: str) -> PodName:
    """``namespace/name``, or ``name``."""
    match = _POD.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f'"{text}": expected the name of a pod, or NAMESPACE/NAME')
    return PodName(match[1], match[2])


def namespace(text: str) -> str:
    """The name of a namespace."""
    if not _NAMESPACE.fullmatch(text):
        raise ArgumentTypeError(f'"{text}": expected the name of a namespace')
    return text


def containers(text: str) -> frozenset[str]:
    """Names of containers, separated by commas; blank text is none."""
    names = (
        frozenset(part.strip() for part in text.split(",")) if text.strip() else frozenset[str]()
    )
    if not all(map(_CONTAINER.fullmatch, names)):
        raise ArgumentTypeError(f'"{text}": expected names of containers, separated by commas')
    return names


def applications(text: str) -> asking.Applications:
    """The applications that a file names, each of its lines understood."""
    try:
        found, problems = asking.parse(Path(text).read_text(errors="replace"))
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror or error}") from None
    if problems:
        raise ArgumentTypeError(f"{text}: {problems[0]}")
    return found


def seconds(text: str) -> float:
    """A time of 0 s or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError(f'"{text}": expected seconds, as a number of 0 or more')
    return value


def selector(text: str) -> selectors.Selector:
    """A label selector as kubectl takes it."""
    try:
        return selectors.parse(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def capability(text: str) -> Capability:
    """``native`` or ``classic``."""
    if text not in {Capability.NATIVE, Capability.CLASSIC}:
        raise ArgumentTypeError(f'"{text}": expected native or classic')
    return Capability(text)


def start_mode(text: str) -> StartMode:
    """``auto``, ``native``, ``hold`` or ``off``."""
    try:
        return StartMode(text)
    except ValueError:
        raise ArgumentTypeError(f'"{text}": expected auto, native, hold or off') from None
