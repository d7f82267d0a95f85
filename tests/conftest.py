"""What all tiers share: tests that run at night only."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "nightly(why): runs where the environment has NIGHTLY")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of the night by day, and say why they are not for each run."""
    for item in items:
        mark = item.get_closest_marker("nightly")
        if mark and not os.environ.get("NIGHTLY"):
            item.add_marker(pytest.mark.skip(reason=f"at night (NIGHTLY=1): {mark.args[0]}"))
