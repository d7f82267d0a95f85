"""The charm's options, as `juju config` would set them, and what the charm renders with them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from certificates import Issuers, make_authority
from config import Config
from inputs import Inputs
from manifests import Values

OPTIONS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).parents[2].joinpath("config.yaml").read_text()
)["options"]


def configured(model: str, given: Mapping[str, Any] | None = None) -> Config:
    """The options of an application in a model: those that are given, and defaults."""
    values = {name: option["default"] for name, option in OPTIONS.items()} | dict(given or {})
    return Config(model=model, **{name.replace("-", "_"): value for name, value in values.items()})


def rendered_from(app: str, model: str, given: Mapping[str, Any]) -> Values:
    """What the charm's own code renders its objects from, with these options."""
    issuers = Issuers(silent=True, own=make_authority(app, model).certificate)
    options = configured(model, given)
    values = Inputs(app, model, True, datetime.now(UTC), options, "", issuers).values()
    assert values
    return values
