"""What every unit test finds, whichever ran before it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """The root logger's level; ops sets it to debug, and tests of the log would hear more."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
