"""The charm's options, as `juju config` would set them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from config import Config

OPTIONS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).parents[2].joinpath("config.yaml").read_text()
)["options"]


def configured(model: str, given: Mapping[str, Any] | None = None) -> Config:
    """The options of an application in a model: those that are given, and defaults."""
    values = {name: option["default"] for name, option in OPTIONS.items()} | dict(given or {})
    return Config(model=model, **{name.replace("-", "_"): value for name, value in values.items()})
