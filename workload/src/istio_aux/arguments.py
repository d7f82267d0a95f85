"""Values on the command line, strictly: text in, a value or one line about what is allowed out.

Only parsing may live here. The line names the value and what is expected; argparse adds the option.
"""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from istio_aux import settings
from istio_aux.core import applications as asking
from istio_aux.core.policy import Capability

_POD = re.compile(rf"(?:({settings.LABEL})/)?({settings.SUBDOMAIN})")


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
    try:
        return settings.namespace(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def applications(text: str) -> asking.Applications:
    """The applications that a file names, each of its lines understood."""
    try:
        found, problems = asking.parse(Path(text).read_text(errors="replace"))
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror or error}") from None
    if problems:
        raise ArgumentTypeError(f"{text}: {problems[0]}")
    return found


def setting(name: str) -> Callable[[str], Any]:
    """Parses the value of an option of ``serve``."""

    def parse(text: str) -> object:
        try:
            return settings.argument(name, text)
        except ValueError as error:
            raise ArgumentTypeError(str(error)) from None

    return parse


def capability(text: str) -> Capability:
    """``native`` or ``classic``."""
    if text not in {Capability.NATIVE, Capability.CLASSIC}:
        raise ArgumentTypeError(f'"{text}": expected native or classic')
    return Capability(text)
