"""The charm's options: what Juju hands over, parsed once into a frozen `Config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import namespaces

FailurePolicy = Literal["Ignore", "Fail"]
LogLevel = Literal["debug", "info", "warning", "error"]


class InvalidOptionError(ValueError):
    """One or more options have a value that is not allowed; the message names each of them."""


@dataclass(frozen=True)
class Config:
    """The options, valid.

    Attributes:
        namespace_selector: the option as the user wrote it, which is also what the workload reads.
        namespace_label_selector: the same as a Kubernetes LabelSelector, for the webhook.
        failure_policy: what the API server does with a pod when the webhook does not answer.
        log_level: the least severe level that the workload logs.
    """

    namespace_selector: str
    failure_policy: FailurePolicy
    log_level: LogLevel
    namespace_label_selector: Mapping[str, object] = field(default_factory=dict[str, object])


def load(options: Mapping[str, object]) -> Config:
    """Return the options of `config.yaml` as a `Config`.

    Raises:
        InvalidOptionError: with a clause for each bad option: name, value, what is allowed.
    """
    problems: list[str] = []
    text = str(options["namespace-selector"])
    selector: Mapping[str, object] = {}
    try:
        selector = namespaces.parse(text)
    except ValueError as error:
        problems.append(f"namespace-selector: {error}")
    for name, allowed in CHOICES.items():
        if options[name] not in allowed:
            problems.append(f"{name}: {json.dumps(options[name])}: expected {' or '.join(allowed)}")
    if problems:
        raise InvalidOptionError("; ".join(problems))
    return Config(
        namespace_selector=text,
        namespace_label_selector=selector,
        failure_policy=options["failure-policy"],  # pyright: ignore[reportArgumentType]  checked above
        log_level=options["log-level"],  # pyright: ignore[reportArgumentType]  checked above
    )


CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "failure-policy": get_args(FailurePolicy),
    "log-level": get_args(LogLevel),
}
