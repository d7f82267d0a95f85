"""A proxy's settings: the annotation `proxy.istio.io/config`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

ANNOTATION = "proxy.istio.io/config"
HOLD = "holdApplicationUntilProxyStarts"
# The fields whose type the stand-in checks; Istio checks all of ProxyConfig.
TYPES: Mapping[str, type] = {HOLD: bool, "statusPort": int, "proxyAdminPort": int}
NAMES = {bool: "bool", int: "int32", str: "string", list: "array", dict: "object"}


class InvalidConfigError(ValueError):
    """Istio refuses the pod; the message is the one of the admission response."""


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without timestamps: go-yaml leaves a date a string where a string is wanted."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str) -> dict[str, Any]:
    """The settings in lowerCamelCase, which wins (jsonpb 1.5.4). Raises InvalidConfigError."""
    try:
        root = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = max(error.problem_mark.line if error.problem_mark else 0, 1)
        raise _invalid(text, f"yaml: line {line}: {error.problem}") from error
    if root is None:
        return {}
    if not isinstance(root, dict):
        raise _invalid(text, f"json: cannot unmarshal {_kind(root)} into Go value of ProxyConfig")
    snake = {_camel(str(key)): value for key, value in root.items() if "_" in str(key)}
    config = {**snake, **{str(key): value for key, value in root.items() if "_" not in str(key)}}
    for field, wanted in TYPES.items():
        value = config.get(field)
        # bool is a kind of int for Python, not for Istio.
        if value is not None and type(value) is not wanted:
            found = f"cannot unmarshal {_kind(value)} into Go value of type {NAMES[wanted]}"
            raise _invalid(text, f"json: {found}")
    return config


def environment(config: Mapping[str, Any]) -> str:
    """What the variable PROXY_CONFIG of the proxy says: the settings as JSON and a line end."""
    return json.dumps(config, separators=(",", ":"), default=str) + "\n"


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def _kind(value: Any) -> str:
    return NAMES.get(type(value), "number")


def _invalid(text: str, problem: str) -> InvalidConfigError:
    return InvalidConfigError(
        "failed to run injection template: 1 error occurred:\n"
        f"\t* invalid value '{text}' for annotation '{ANNOTATION}': "
        f"failed to convert to apply proxy config: {problem}\n\n"
    )
