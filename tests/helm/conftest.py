"""Fixtures of the chart's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Helm's folders."""
    return tmp_path_factory.mktemp("helm")
